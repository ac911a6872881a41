//! The only unsafe code: CUDA, NVML and verbs through tables loaded at run time, and the few system
//! calls without a safe form. What leaves this module are RAII types in our own words.
//!
//! None of libcuda, libnvidia-ml and libibverbs is linked (the binary starts anywhere and says what is
//! missing); `tests/binary.rs` reads the ELF header to keep it so.
#![allow(unsafe_code)]

pub mod cuda;
pub mod nvml;
pub mod queue;
pub mod sys;
pub mod verbs;

use std::{error::Error, fmt};

/// A library, or a function of it, that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// What was looked for.
    pub what: String,
    /// What the loader says.
    pub why: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl LoadError {
    /// libloading's `Display` is only "dlopen failed"; the reason is in its source.
    fn new(what: &str, error: &libloading::Error) -> Self {
        let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Self { what: what.to_owned(), why }
    }
}

/// Declares a table of C functions, loaded by name, and its loader. A missing function is an error
/// that names it, never a panic.
macro_rules! functions {
    ($(#[$meta:meta])* $table:ident {
        $(required $name:ident = $symbol:literal : fn($($arg:ty),*) -> $ret:ty;)*
        $(optional $opt:ident = $opt_symbol:literal : fn($($opt_arg:ty),*) -> $opt_ret:ty;)*
    }) => {
        $(#[$meta])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub(super) $opt: Option<unsafe extern "C" fn($($opt_arg),*) -> $opt_ret>,)*
            // Last, so that it outlives the pointers into it.
            _library: libloading::Library,
        }

        impl $table {
            fn load(file: &std::path::Path) -> Result<Self, $crate::ffi::LoadError> {
                // SAFETY: running the library's constructors is what loading a driver means; the
                // child exists to contain what they do.
                let library = unsafe { libloading::Library::new(file) }
                    .map_err(|e| $crate::ffi::LoadError::new(&file.display().to_string(), &e))?;
                Ok(Self {
                    // SAFETY: the signature is the C header's.
                    $($name: *unsafe { library.get($symbol.as_bytes()) }
                        .map_err(|e| $crate::ffi::LoadError::new($symbol, &e))?,)*
                    // SAFETY: the signature is the C header's.
                    $($opt: unsafe { library.get($opt_symbol.as_bytes()) }.ok().map(|s| *s),)*
                    _library: library,
                })
            }
        }
    };
}
use functions;
