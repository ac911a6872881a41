//! NVIDIA GPUs: PCI functions of classes 0300 and 0302, and what `/proc/driver/nvidia` says of them.

use std::{fs, io::Read};

use super::{Pass, PciAddress, PciPath, Roots, link_name, pci_functions, read_hex, read_numa, resolve};

/// One GPU as sysfs and procfs show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// PCI address.
    pub pci: PciAddress,
    /// `GPU-…`; absent while no driver is bound, or the GPU is lost.
    pub uuid: Option<String>,
    /// Product name.
    pub model: Option<String>,
    /// The `N` of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Its way up to the host bridge.
    pub path: PciPath,
    /// PCI device id, which the kernel remembers of a GPU that is lost.
    pub device: Option<u32>,
    /// The kernel driver that is bound.
    pub bound_to: Option<String>,
    /// Its memory is a NUMA node of the host's (Grace), as the driver says of such a GPU alone.
    pub memory_is_node: bool,
    /// Its configuration space reads as all ones: it has fallen off the bus.
    pub lost: bool,
    /// Its driver does not answer: nothing is known of it but its place.
    pub silent: bool,
}

const NVIDIA: u32 = 0x10de;
const CLASSES: [u32; 2] = [0x0300, 0x0302]; // VGA and 3D controllers

/// All NVIDIA GPUs, by PCI address.
pub(super) fn discover(pass: &Pass, roots: &Roots) -> Vec<GpuFacts> {
    pci_functions(roots)
        .into_iter()
        .filter(|(dir, _)| {
            read_hex(&dir.join("vendor")) == Some(NVIDIA)
                && read_hex(&dir.join("class")).is_some_and(|class| CLASSES.contains(&(class >> 8)))
        })
        .map(|(dir, pci)| {
            let answer =
                pass.device(&pci.to_string(), || (information(roots, pci), reads_as_ones(&dir.join("config"))));
            let silent = answer.is_none();
            let (told, lost) = answer.unwrap_or_default();
            GpuFacts {
                pci,
                uuid: told.uuid,
                model: told.model,
                minor: told.minor,
                numa: read_numa(&dir),
                path: PciPath::parse(&resolve(&dir).unwrap_or_default()),
                device: read_hex(&dir.join("device")),
                bound_to: link_name(&dir.join("driver")),
                memory_is_node: folder(roots, pci).join("numa_status").exists(),
                lost,
                silent,
            }
        })
        .collect()
}

#[derive(Default)]
struct Information {
    uuid: Option<String>,
    model: Option<String>,
    minor: Option<u32>,
}

/// What the driver says of one GPU.
fn folder(roots: &Roots, pci: PciAddress) -> std::path::PathBuf {
    roots.procfs.join("driver/nvidia/gpus").join(pci.to_string())
}

/// `/proc/driver/nvidia/gpus/ADDRESS/information`: lines of `Name: value`.
fn information(roots: &Roots, pci: PciAddress) -> Information {
    let file = folder(roots, pci).join("information");
    let mut told = Information::default();
    for line in fs::read_to_string(file).unwrap_or_default().lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match name.trim() {
            // A GPU that never initialised has question marks for a UUID.
            "GPU UUID" if !value.contains('?') => told.uuid = Some(value.to_owned()),
            "Model" => told.model = Some(value.to_owned()),
            "Device Minor" => told.minor = value.parse().ok(),
            _ => {}
        }
    }
    told
}

/// A function that is gone answers every read of its configuration space with ones. A file that
/// can't be read, or is cut short, says nothing.
fn reads_as_ones(config: &std::path::Path) -> bool {
    let mut ids = [0; 4];
    fs::File::open(config).and_then(|mut f| f.read_exact(&mut ids)).is_ok_and(|()| ids == [0xff; 4])
}
