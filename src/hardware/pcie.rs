//! What PCIe, the IOMMU and the processors' layout say beside the tree: data for advice, and for
//! NCCL. Parsing is pure; [`Platform::read`] is the rim.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileExt,
    path::Path,
};

use super::{GpuFacts, HcaFacts, Pass, PciAddress, Roots, list_dir, read_hex, read_trimmed};

/// Facts beside the tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Platform {
    /// GPUs, HCAs, and the bridges on their ways.
    pub functions: BTreeMap<PciAddress, PcieFacts>,
    /// The socket of each NUMA node, where the kernel knows it.
    pub sockets: BTreeMap<u32, u32>,
    /// Whether a hypervisor shows all this.
    pub virtual_machine: bool,
}

/// One PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcieFacts {
    /// PCI vendor and device.
    pub ids: Option<(u32, u32)>,
    /// Class, six digits: `0x060400`.
    pub class: Option<u32>,
    /// What a bridge does with peer-to-peer requests.
    pub acs: Acs,
    /// Its link, as it is and at best.
    pub link: Option<Link>,
    /// Type of its IOMMU group's domain, `identity` or `DMA-FQ`.
    pub iommu: Option<String>,
}

/// Access Control Services of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acs {
    /// The capability could not be read: no privilege, or nobody asked.
    Unknown,
    /// The bridge has none.
    Absent,
    /// Its control register.
    Control(u16),
}

/// Request redirect, completion redirect, egress control: with any of them the bridge sends
/// peer-to-peer requests up to the root complex.
const REDIRECTING: u16 = 0x04 | 0x08 | 0x20;

impl Acs {
    /// Whether peer-to-peer requests take the way over the root complex.
    #[must_use]
    pub fn redirects(self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Absent => Some(false),
            Self::Control(bits) => Some(bits & REDIRECTING != 0),
        }
    }

    /// Finds it in a configuration space, which `dword` reads at an offset. Without privilege the
    /// kernel gives the first 64 bytes only; then it is unknown, never off.
    #[must_use]
    pub fn find(dword: impl Fn(u64) -> Option<u32>) -> Self {
        const FIRST: u64 = 0x100;
        const ACS: u32 = 0x000d;
        let mut at = FIRST;
        // No list has more entries than there is room for; a longer one goes in circles.
        for _ in 0..(0x1000 - FIRST) / 4 {
            let Some(header) = dword(at) else { return Self::Unknown };
            let next = u64::from(header >> 20) & 0xffc;
            match header {
                u32::MAX => return Self::Unknown,
                0 if at == FIRST => return Self::Absent,
                _ if header & 0xffff == ACS => {
                    // Capability in the lower half, control in the upper.
                    return dword(at + 4).map_or(Self::Unknown, |d| Self::Control((d >> 16) as u16));
                }
                _ if next == 0 => return Self::Absent,
                _ if next < FIRST => return Self::Unknown,
                _ => at = next,
            }
        }
        Self::Unknown
    }
}

/// Width and speed of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    /// How many.
    pub width: u32,
    /// Tenths of a GT/s.
    pub speed: u32,
}

/// A link as it was trained, and what its end could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// As it is.
    pub current: Lanes,
    /// At best.
    pub max: Lanes,
}

impl Lanes {
    /// From sysfs' words, `16` and `32.0 GT/s PCIe`; `Unknown` and a width of 0 are none.
    #[must_use]
    pub fn parse(width: &str, speed: &str) -> Option<Self> {
        let width = width.parse().ok().filter(|w| (1..=32).contains(w))?;
        let speed = speed.split_whitespace().next()?;
        let (whole, tenths) = speed.split_once('.').unwrap_or((speed, "0"));
        let speed =
            whole.parse::<u32>().ok()?.checked_mul(10)?.checked_add(tenths.parse().ok().filter(|t| *t < 10)?)?;
        (speed > 0).then_some(Self { width, speed })
    }

    /// `32.0 GT/s PCIe`, as the kernel has it and NCCL reads it.
    #[must_use]
    pub fn speed_text(self) -> String {
        format!("{}.{} GT/s PCIe", self.speed / 10, self.speed % 10)
    }
}

impl Platform {
    /// Reads what concerns these devices.
    pub(super) fn read(
        pass: &Pass,
        roots: &Roots,
        gpus: &[GpuFacts],
        hcas: &[HcaFacts],
        virtual_machine: bool,
    ) -> Self {
        let ends = gpus.iter().map(|g| g.pci).chain(hcas.iter().filter_map(|h| h.pci));
        let paths = gpus.iter().map(|g| &g.path).chain(hcas.iter().map(|h| &h.path));
        let addresses: BTreeSet<_> = ends.chain(paths.flat_map(|p| p.bridges.iter().copied())).collect();
        let devices = roots.sysfs.join("bus/pci/devices");
        let facts = |address: PciAddress| {
            let name = address.to_string();
            Some((address, pass.device(&name, || function(&devices.join(&name)))?))
        };
        let functions = addresses.into_iter().filter_map(facts).collect();
        Self { functions, sockets: sockets(roots), virtual_machine }
    }

    /// Whether a way begins at a port of NVIDIA's own processor (Grace), where GPU and CPU meet over
    /// C2C and the IOMMU belongs.
    #[must_use]
    pub fn is_grace(&self, path: &super::PciPath) -> bool {
        const NVIDIA: u32 = 0x10de;
        path.bridges.first().and_then(|b| self.functions.get(b)?.ids).is_some_and(|(vendor, _)| vendor == NVIDIA)
    }
}

fn function(dir: &Path) -> PcieFacts {
    const BRIDGE: u32 = 0x0604;
    let class = read_hex(&dir.join("class"));
    let is_bridge = class.is_some_and(|c| c >> 8 == BRIDGE);
    PcieFacts {
        ids: read_hex(&dir.join("vendor")).zip(read_hex(&dir.join("device"))),
        class,
        acs: if is_bridge { acs(&dir.join("config")) } else { Acs::Unknown },
        link: lanes(dir, "current").zip(lanes(dir, "max")).map(|(current, max)| Link { current, max }),
        iommu: read_trimmed(&dir.join("iommu_group/type")),
    }
}

fn lanes(dir: &Path, which: &str) -> Option<Lanes> {
    let text = |what: &str| read_trimmed(&dir.join(format!("{which}_link_{what}")));
    Lanes::parse(&text("width")?, &text("speed")?)
}

/// Reads no more than it needs: each word of the file is a request to the device.
fn acs(config: &Path) -> Acs {
    let Ok(file) = fs::File::open(config) else { return Acs::Unknown };
    Acs::find(|at| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, at).ok().map(|()| u32::from_le_bytes(word))
    })
}

/// By the first processor of each node.
fn sockets(roots: &Roots) -> BTreeMap<u32, u32> {
    let system = roots.sysfs.join("devices/system");
    list_dir(&system.join("node"))
        .into_iter()
        .filter_map(|name| {
            let node: u32 = name.strip_prefix("node")?.parse().ok()?;
            let cpus = read_trimmed(&system.join("node").join(&name).join("cpulist"))?;
            let first: u32 = cpus.split(['-', ',']).next()?.parse().ok()?;
            let socket = read_trimmed(&system.join(format!("cpu/cpu{first}/topology/physical_package_id")))?;
            Some((node, socket.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(config: &[u8]) -> Acs {
        Acs::find(|at| {
            let at = usize::try_from(at).unwrap();
            Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().unwrap()))
        })
    }

    /// A configuration space with extended capabilities: offset, id, next.
    fn space(capabilities: &[(usize, u32, u32)], acs_at: usize, control: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        for (at, id, next) in capabilities {
            bytes[*at..at + 4].copy_from_slice(&(id | 1 << 16 | next << 20).to_le_bytes());
        }
        bytes[acs_at + 4..acs_at + 6].copy_from_slice(&0x5f_u16.to_le_bytes());
        bytes[acs_at + 6..acs_at + 8].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    #[test]
    fn acs_is_found_behind_other_capabilities() {
        let whole = space(&[(0x100, 1, 0x148), (0x148, 0x19, 0x220), (0x220, 0x0d, 0)], 0x220, 0x1d);
        assert_eq!(parse(&whole), Acs::Control(0x1d));
        for cut in [0, 64, 0x100, 0x103, 0x148, 0x223, 0x227] {
            assert_eq!(parse(&whole[..cut]), Acs::Unknown, "cut at {cut:#x}");
        }
        assert_eq!(parse(&space(&[(0x100, 1, 0x148), (0x148, 0x19, 0)], 0x220, 0x1d)), Acs::Absent);
        assert_eq!(parse(&vec![0; 4096]), Acs::Absent, "no extended capability at all");
        assert_eq!(parse(&vec![0xff; 4096]), Acs::Unknown, "gone");
        let circle = space(&[(0x100, 1, 0x148), (0x148, 0x19, 0x100)], 0x220, 0x1d);
        assert_eq!(parse(&circle), Acs::Unknown, "a list that goes in circles");
        assert_eq!(parse(&space(&[(0x100, 1, 0x40)], 0x220, 0x1d)), Acs::Unknown, "a list that leads out");
    }

    #[test]
    fn only_redirecting_bits_redirect() {
        for (control, redirects) in [
            (0x00, false),
            (0x01, false),
            (0x04, true),
            (0x08, true),
            (0x10, false),
            (0x20, true),
            (0x43, false),
            (0x1d, true),
        ] {
            assert_eq!(Acs::Control(control).redirects(), Some(redirects), "{control:#x}");
        }
        assert_eq!((Acs::Unknown.redirects(), Acs::Absent.redirects()), (None, Some(false)));
    }

    #[test]
    fn links_are_read_as_the_kernel_writes_them() {
        let lanes = |width, speed| Some(Lanes { width, speed });
        for (width, speed, read) in [
            ("16", "32.0 GT/s PCIe", lanes(16, 320)),
            ("8", "2.5 GT/s PCIe", lanes(8, 25)),
            ("4", "8 GT/s", lanes(4, 80)),
            ("0", "Unknown", None),
            ("63", "32.0 GT/s PCIe", None),
            ("16", "Unknown speed", None),
            ("16", "", None),
            ("16", "99999999999.0 GT/s", None),
        ] {
            assert_eq!(Lanes::parse(width, speed), read, "{width} {speed}");
        }
        assert_eq!(Lanes { width: 16, speed: 25 }.speed_text(), "2.5 GT/s PCIe");
    }

    proptest! {
        #[test]
        fn no_configuration_space_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4097)) {
            let _ = parse(&bytes);
        }
    }
}
