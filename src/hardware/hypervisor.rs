//! Whether a hypervisor shows the machine.

use std::{fs, io::Read, path::Path};

use super::{GpuFacts, HcaFacts, PciPath, Roots, pci_functions, read_hex, read_trimmed, resolve};
use crate::report::TopologyKind;

/// A machine is virtual when it says so itself: by its firmware's name, by a hypervisor's bus on the
/// way to a device, by its processor, or, where that says nothing, by paravirtual PCI functions.
pub(super) fn topology_kind(roots: &Roots, gpus: &[GpuFacts], hcas: &[HcaFacts]) -> TopologyKind {
    let dmi = |name: &str| read_trimmed(&roots.sysfs.join("class/dmi/id").join(name)).unwrap_or_default();
    let named = ["sys_vendor", "product_name"].map(dmi).iter().any(|text| {
        ["QEMU", "KVM", "Virtual Machine", "VMware", "Xen", "Bochs", "HVM domU", "OpenStack"]
            .iter()
            .any(|v| text.contains(v))
    });
    let foreign = gpus.iter().any(|g| g.path.foreign) || hcas.iter().any(|h| h.path.foreign);
    if named || foreign || below_a_hypervisor(roots).unwrap_or_else(|| has_paravirtual_functions(roots)) {
        TopologyKind::Virtual
    } else {
        TopologyKind::Physical
    }
}

/// What an x86 processor says of itself; others say nothing.
fn below_a_hypervisor(roots: &Roots) -> Option<bool> {
    /// The first processor's lines are enough, and a large machine's file is slow to read.
    const FIRST_PROCESSOR: u64 = 8 << 10;
    let mut text = String::new();
    let file = fs::File::open(roots.procfs.join("cpuinfo")).ok()?;
    file.take(FIRST_PROCESSOR).read_to_string(&mut text).ok()?;
    let flags = text.lines().find(|l| l.starts_with("flags"))?;
    Some(flags.split_whitespace().any(|f| f == "hypervisor"))
}

/// QEMU's bridges, or virtio on a root bus. Behind real bridges virtio is a card of the cloud's, as
/// bare metal has it too.
fn has_paravirtual_functions(roots: &Roots) -> bool {
    let on_root_bus = |dir: &Path| resolve(dir).is_ok_and(|d| PciPath::parse(&d).bridges.is_empty());
    pci_functions(roots).iter().any(|(dir, _)| match read_hex(&dir.join("vendor")) {
        Some(0x1b36) => true,
        Some(0x1af4) => on_root_bus(dir),
        _ => false,
    })
}
