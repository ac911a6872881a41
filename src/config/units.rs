//! Durations and sizes as people write them.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration: `90s`, `15m`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

impl Span {
    /// Whole seconds.
    #[must_use]
    pub const fn seconds(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// Whole minutes.
    #[must_use]
    pub const fn minutes(n: u64) -> Self {
        Self::seconds(n * 60)
    }

    /// For arithmetic with points in time; one that is longer than these can tell is the longest.
    #[must_use]
    pub fn signed(self) -> SignedDuration {
        SignedDuration::try_from(self.0).unwrap_or(SignedDuration::MAX)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|e| format!("`{text}` is not a duration like 90s, 15m or 1h: {e}"))
    }
}

/// The time between two checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Interval {
    /// Only look.
    Never,
    /// Check this often.
    Every(Span),
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Every(span) => span.fmt(f),
        }
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" { Ok(Self::Never) } else { text.parse().map(Self::Every) }
    }
}

/// A number of bytes: `64KiB`, `2MiB`, `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl ByteSize {
    /// Mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, unit) =
            UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).unwrap_or((text, 1));
        digits
            .trim()
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(unit))
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a size like 64KiB, 2MiB or 1GiB"))
    }
}

macro_rules! as_string {
    ($($ty:ident, $pattern:literal;)+) => { $(
        impl TryFrom<String> for $ty {
            type Error = String;
            fn try_from(text: String) -> Result<Self, Self::Error> { text.parse() }
        }
        impl From<$ty> for String {
            fn from(value: $ty) -> Self { value.to_string() }
        }
        impl JsonSchema for $ty {
            fn schema_name() -> Cow<'static, str> { stringify!($ty).into() }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    )+ };
}
as_string! {
    Span, "^[0-9]";
    Interval, "^(never|[0-9].*)$";
    ByteSize, "^[0-9]+ *([KMG]iB)?$";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_people_write() {
        for text in ["15m", "90s", "1h 30m", "20ms"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert_eq!("2MiB".parse(), Ok(ByteSize(2 << 20)));
        assert_eq!(ByteSize(3 << 19).to_string(), "1536KiB");
        assert_eq!("never".parse(), Ok(Interval::Never));
        for bad in ["", "MiB", "2MB", "-1", "99999999999GiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        assert!("soon".parse::<Span>().is_err());
    }
}
