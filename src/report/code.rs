//! A code that a library call answered: an errno, a `CUresult` or an `nvmlReturn_t`, or how a child died.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A name with its number, written `EFAULT (14)` or `CUDA_ERROR_NO_DEVICE (100)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Code {
    name: String,
    number: i64,
}

impl Code {
    /// An errno of Linux; one that has no name here is `errno (524)`.
    #[must_use]
    pub fn errno(number: i32) -> Self {
        let name = ERRNO_NAMES.iter().find(|(n, _)| *n == number).map_or("errno", |(_, name)| name);
        Self { name: name.to_owned(), number: i64::from(number) }
    }

    /// A `CUresult` with the name that the driver gives it.
    #[must_use]
    pub fn cuda(number: u32, name: Option<String>) -> Self {
        let name = name.unwrap_or_else(|| "CUDA_ERROR".to_owned());
        Self { name, number: i64::from(number) }
    }

    /// An `nvmlReturn_t`; one that has no name here is `NVML_ERROR (9999)`.
    #[must_use]
    pub fn nvml(number: u32) -> Self {
        let name = NVML_NAMES.iter().find(|(n, _)| *n == number).map_or("NVML_ERROR", |(_, name)| name);
        Self { name: name.to_owned(), number: i64::from(number) }
    }

    /// The status of a work completion (`enum ibv_wc_status`).
    #[must_use]
    pub fn completion(status: u32) -> Self {
        let name = COMPLETION_NAMES.iter().find(|(n, _)| *n == status).map_or("IBV_WC_ERR", |(_, name)| name);
        Self { name: name.to_owned(), number: i64::from(status) }
    }

    /// The status of a work completion, unless it is something else.
    #[must_use]
    pub fn as_completion(&self) -> Option<i64> {
        self.name.starts_with("IBV_WC_").then_some(self.number)
    }

    /// Bytes that arrived wrong, the first of them at this offset.
    #[must_use]
    pub fn differs_at(offset: u64) -> Self {
        Self { name: "BYTES_DIFFER_AT".to_owned(), number: i64::try_from(offset).unwrap_or(i64::MAX) }
    }

    /// Whether it is bytes that arrived wrong.
    #[must_use]
    pub fn is_difference(&self) -> bool {
        self.name == "BYTES_DIFFER_AT"
    }

    /// The signal that ended a child.
    #[must_use]
    pub fn signal(number: i32) -> Self {
        let name = match number {
            6 => "SIGABRT",
            7 => "SIGBUS",
            9 => "SIGKILL",
            11 => "SIGSEGV",
            15 => "SIGTERM",
            _ => "signal",
        };
        Self { name: name.to_owned(), number: i64::from(number) }
    }

    /// A child that ended by itself without finishing.
    #[must_use]
    pub fn exit(status: i32) -> Self {
        Self { name: "exit status".to_owned(), number: i64::from(status) }
    }

    /// The errno, unless it is something else.
    #[must_use]
    pub fn as_errno(&self) -> Option<i64> {
        (self.name.starts_with('E') || self.name == "errno").then_some(self.number)
    }

    /// The `CUresult`, unless it is something else.
    #[must_use]
    pub fn as_cuda(&self) -> Option<i64> {
        self.name.starts_with("CUDA_").then_some(self.number)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.number)
    }
}

impl From<Code> for String {
    fn from(code: Code) -> Self {
        code.to_string()
    }
}

impl TryFrom<String> for Code {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.strip_suffix(')')
            .and_then(|t| t.rsplit_once(" ("))
            .and_then(|(name, number)| Some(Self { name: name.to_owned(), number: number.parse().ok()? }))
            .ok_or_else(|| format!("`{text}` is not a code like `EFAULT (14)`"))
    }
}

/// errno(3) on Linux, those that these calls can answer (`include/uapi/asm-generic/errno*.h`).
const ERRNO_NAMES: &[(i32, &str)] = &[
    (1, "EPERM"),
    (2, "ENOENT"),
    (3, "ESRCH"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (19, "ENODEV"),
    (20, "ENOTDIR"),
    (22, "EINVAL"),
    (24, "EMFILE"),
    (28, "ENOSPC"),
    (30, "EROFS"),
    (34, "ERANGE"),
    (38, "ENOSYS"),
    (61, "ENODATA"),
    (71, "EPROTO"),
    (93, "EPROTONOSUPPORT"),
    (95, "EOPNOTSUPP"),
    (101, "ENETUNREACH"),
    (105, "ENOBUFS"),
    (110, "ETIMEDOUT"),
    (111, "ECONNREFUSED"),
    // A kernel-internal number that some drivers let through to user space.
    (524, "ENOTSUPP"),
];

/// `infiniband/verbs.h`: those that an RC transfer within one adapter can end with.
const COMPLETION_NAMES: &[(u32, &str)] = &[
    (1, "IBV_WC_LOC_LEN_ERR"),
    (2, "IBV_WC_LOC_QP_OP_ERR"),
    (4, "IBV_WC_LOC_PROT_ERR"),
    (5, "IBV_WC_WR_FLUSH_ERR"),
    (8, "IBV_WC_LOC_ACCESS_ERR"),
    (9, "IBV_WC_REM_INV_REQ_ERR"),
    (10, "IBV_WC_REM_ACCESS_ERR"),
    (11, "IBV_WC_REM_OP_ERR"),
    (12, "IBV_WC_RETRY_EXC_ERR"),
    (13, "IBV_WC_RNR_RETRY_EXC_ERR"),
    (19, "IBV_WC_FATAL_ERR"),
    (20, "IBV_WC_RESP_TIMEOUT_ERR"),
    (21, "IBV_WC_GENERAL_ERR"),
];

/// nvml.h.
const NVML_NAMES: &[(u32, &str)] = &[
    (1, "NVML_ERROR_UNINITIALIZED"),
    (2, "NVML_ERROR_INVALID_ARGUMENT"),
    (3, "NVML_ERROR_NOT_SUPPORTED"),
    (4, "NVML_ERROR_NO_PERMISSION"),
    (6, "NVML_ERROR_NOT_FOUND"),
    (7, "NVML_ERROR_INSUFFICIENT_SIZE"),
    (8, "NVML_ERROR_INSUFFICIENT_POWER"),
    (9, "NVML_ERROR_DRIVER_NOT_LOADED"),
    (10, "NVML_ERROR_TIMEOUT"),
    (11, "NVML_ERROR_IRQ_ISSUE"),
    (12, "NVML_ERROR_LIBRARY_NOT_FOUND"),
    (13, "NVML_ERROR_FUNCTION_NOT_FOUND"),
    (14, "NVML_ERROR_CORRUPTED_INFOROM"),
    (15, "NVML_ERROR_GPU_IS_LOST"),
    (16, "NVML_ERROR_RESET_REQUIRED"),
    (17, "NVML_ERROR_OPERATING_SYSTEM"),
    (18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
    (19, "NVML_ERROR_IN_USE"),
    (20, "NVML_ERROR_MEMORY"),
    (21, "NVML_ERROR_NO_DATA"),
    (23, "NVML_ERROR_INSUFFICIENT_RESOURCES"),
    (25, "NVML_ERROR_ARGUMENT_VERSION_MISMATCH"),
    (26, "NVML_ERROR_DEPRECATED"),
    (27, "NVML_ERROR_NOT_READY"),
    (28, "NVML_ERROR_GPU_NOT_FOUND"),
    (29, "NVML_ERROR_INVALID_STATE"),
    (999, "NVML_ERROR_UNKNOWN"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_round_trip() {
        for code in [
            Code::errno(14),
            Code::errno(9999),
            Code::cuda(100, Some("CUDA_ERROR_NO_DEVICE".into())),
            Code::signal(11),
            Code::nvml(15),
            Code::nvml(9999),
        ] {
            assert_eq!(Code::try_from(code.to_string()), Ok(code));
        }
        assert_eq!(Code::errno(14).to_string(), "EFAULT (14)");
        assert!(Code::try_from("EFAULT".to_owned()).is_err());
    }

    #[test]
    fn knows_which_kind_it_is() {
        assert_eq!(Code::errno(12).as_errno(), Some(12));
        assert_eq!(Code::errno(12).as_cuda(), None);
        assert_eq!(Code::cuda(100, None).as_cuda(), Some(100));
        assert_eq!(Code::exit(1).as_errno(), None);
        assert_eq!((Code::nvml(15).as_errno(), Code::nvml(15).as_cuda()), (None, None));
    }
}
