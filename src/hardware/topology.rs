//! How far a GPU and an HCA are apart, from their PCI paths alone; and which HCAs are nearest.
//!
//! The classes are those of `nvidia-smi topo -m`. A PCIe switch is two levels in sysfs (its
//! upstream port and a downstream port for each device), so two devices of one switch share all
//! bridges but one each.

use super::{PciAddress, PciPath};
use crate::report::Distance;

/// Where a device sits.
#[derive(Debug, Clone, Copy)]
pub struct Seat<'a> {
    /// Its way up.
    pub path: &'a PciPath,
    /// Its NUMA node, when the kernel knows it.
    pub numa: Option<u32>,
}

/// The distance of two devices.
#[must_use]
pub fn distance(a: Seat<'_>, b: Seat<'_>) -> Distance {
    if a.path.root != b.path.root || a.path.root.is_empty() {
        return match (a.numa, b.numa) {
            (Some(a), Some(b)) if a == b => Distance::Node,
            _ => Distance::Sys,
        };
    }
    let common = shared(a.path, b.path);
    if common == 0 {
        return Distance::Phb;
    }
    let private = |seat: Seat<'_>| seat.path.bridges.len() - common;
    if private(a) <= 1 && private(b) <= 1 { Distance::Pix } else { Distance::Pxb }
}

/// The bridges between two devices that meet below a host bridge, without those that lead up from
/// where they meet; none where they meet nowhere below it.
#[must_use]
pub fn private_bridges(a: &PciPath, b: &PciPath) -> Option<Vec<PciAddress>> {
    let common = if a.root == b.root && !a.root.is_empty() { shared(a, b) } else { 0 };
    (common > 0).then(|| a.bridges[common..].iter().chain(&b.bridges[common..]).copied().collect())
}

/// How many bridges lead to both.
fn shared(a: &PciPath, b: &PciPath) -> usize {
    a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The machine that `tests/vm` builds out of real bridges, as its kernel shows it.
    #[test]
    fn gives_each_class_of_a_known_machine() {
        let seat = |path: &str| PciPath::parse(Path::new(path));
        let gpu = seat("/sys/devices/pci0000:10/0000:10:00.0/0000:11:00.0/0000:12:00.0/0000:13:00.0");
        for (path, numa, expected) in [
            ("pci0000:10/0000:10:00.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", Some(0), Distance::Pix),
            (
                "pci0000:10/0000:10:00.0/0000:11:00.0/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0",
                Some(0),
                Distance::Pxb,
            ),
            ("pci0000:10/0000:10:01.0/0000:18:00.0", Some(0), Distance::Phb),
            ("pci0000:40/0000:40:00.0/0000:41:00.0", Some(0), Distance::Node),
            ("pci0000:80/0000:80:00.0/0000:81:00.0/0000:82:01.0/0000:84:00.0", Some(1), Distance::Sys),
            ("pci0000:80/0000:80:00.0/0000:84:00.0", None, Distance::Sys),
            ("virtual/infiniband/rxe0", Some(0), Distance::Node),
        ] {
            let hca = seat(&format!("/sys/devices/{path}"));
            let (a, b) = (Seat { path: &gpu, numa: Some(0) }, Seat { path: &hca, numa });
            assert_eq!(distance(a, b), expected, "{path}");
            assert_eq!(distance(b, a), expected, "{path}, the other way round");
        }
    }
}
