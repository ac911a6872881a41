//! PCI addresses and the way from a function up to its host bridge.

use std::{fmt, path::Path, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `domain:bus:device.function`; domains of virtual machines can have more than 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// An address from its parts; device and function are cut to their 5 and 3 bits.
    #[must_use]
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Self {
        Self { domain, bus, device: device & 0x1f, function: function & 7 }
    }

    /// The first function of the same device.
    #[must_use]
    pub const fn first_function(self) -> Self {
        Self { function: 0, ..self }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Takes sysfs' form and that of `/proc/driver/nvidia` and CUDA (capitals, 8-digit domains).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
                (digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit()))
                    .then(|| u32::from_str_radix(part, 16).ok())
                    .flatten()
            };
            Some(Self {
                domain: hex(domain, 4..=8)?,
                bus: hex(bus, 2..=2)?.try_into().ok()?,
                device: u8::try_from(hex(device, 2..=2)?).ok().filter(|d| *d < 32)?,
                function: u8::try_from(hex(function, 1..=1)?).ok().filter(|f| *f < 8)?,
            })
        };
        parse().ok_or_else(|| format!("`{text}` is not a PCI address like 0000:1b:00.0"))
    }
}

impl TryFrom<String> for PciAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

/// The bridges from the host bridge down to a function, without the function itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PciPath {
    /// The host bridge, `pci0000:16`.
    pub root: String,
    /// Bridges in order, the root port first.
    pub bridges: Vec<PciAddress>,
    /// Whether the path has parts that are no PCI functions, such as Hyper-V's VMBUS.
    pub foreign: bool,
}

impl PciPath {
    /// Reads a function's resolved path below `/sys/devices`.
    #[must_use]
    pub fn parse(resolved: &Path) -> Self {
        let mut path = Self::default();
        let mut functions = Vec::new();
        for part in resolved.components().filter_map(|c| c.as_os_str().to_str()) {
            if let Ok(address) = part.parse() {
                functions.push(address);
            } else if part.starts_with("pci") && part.contains(':') {
                part.clone_into(&mut path.root);
                functions.clear();
            } else if part.starts_with("VMBUS") || is_guid(part) {
                path.foreign = true;
            }
        }
        functions.pop();
        path.bridges = functions;
        path
    }
}

/// Devices of Hyper-V's bus are called by a GUID, whatever the bus itself is called.
fn is_guid(part: &str) -> bool {
    part.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && part.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn takes_every_spelling() {
        for (text, shown) in
            [("0000:1b:00.0", "0000:1b:00.0"), ("00000000:1B:00.0", "0000:1b:00.0"), ("10000:e1:00.1", "10000:e1:00.1")]
        {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown);
        }
        for bad in
            ["", "1b:00.0", "0000:1b:00", "0000:1b:20.0", "0000:1b:00.8", "pci0000:16", "0000:1g:00.0", "+000:1b:00.0"]
        {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn finds_the_bridges_of_a_function() {
        let path =
            PciPath::parse(Path::new("/sys/devices/pci0000:10/0000:10:00.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"));
        assert_eq!(path.root, "pci0000:10");
        assert_eq!(path.bridges.len(), 3);
        assert!(!path.foreign);
    }

    #[test]
    fn marks_a_path_through_a_hypervisor_bus() {
        let path = PciPath::parse(Path::new(
            "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0",
        ));
        assert_eq!(path.root, "pci0001:00");
        assert!(path.bridges.is_empty() && path.foreign);
    }

    proptest! {
        #[test]
        fn every_address_survives_the_round_trip(domain in 0u32.., bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn nothing_makes_the_parser_panic(text in ".*") {
            let _ = text.parse::<PciAddress>();
        }
    }
}
