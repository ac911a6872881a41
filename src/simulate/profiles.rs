//! The machines that are built in.

use crate::{
    hardware::{DeviceNode, GpuFacts, HcaFacts, Inventory, MachineId, NvidiaModule, PciAddress, PciPath, Platform},
    report::{Port, TopologyKind, Transport},
};

/// Their names.
pub const NAMES: &[&str] = &["hgx-h100", "cpu-only"];

/// A machine by its name.
pub(super) fn machine(name: &str) -> Option<Inventory> {
    match name {
        "hgx-h100" => Some(hgx_h100()),
        "cpu-only" => Some(empty()),
        _ => None,
    }
}

/// A node without GPU or HCA.
pub(super) fn empty() -> Inventory {
    Inventory {
        boot_id: String::new(),
        booted_at: None,
        topology: TopologyKind::Physical,
        gpus: Vec::new(),
        hcas: Vec::new(),
        bare_functions: Vec::new(),
        netns_exclusive: false,
        functions: 0,
        present: std::collections::BTreeSet::new(),
        machine: MachineId::default(),
        nvidia: None,
        peermem: false,
        uverbs: false,
        verbs: Vec::new(),
        platform: Platform::default(),
        file: None,
    }
}

/// Two sockets with two PCIe switches each; on every switch two H100 and two `ConnectX-7`.
fn hgx_h100() -> Inventory {
    const SWITCHES: [(u8, u32); 4] = [(0x15, 0), (0x4a, 0), (0x95, 1), (0xca, 1)];
    let mut inventory = Inventory {
        nvidia: Some(NvidiaModule { version: "570.133.20".to_owned(), open: true }),
        peermem: true,
        uverbs: true,
        platform: Platform { sockets: [(0, 0), (1, 1)].into(), ..Platform::default() },
        ..empty()
    };
    for (root, numa) in SWITCHES {
        for slot in 0..2_u8 {
            let (pci, path) = endpoint(root, slot, root + 3 + slot);
            inventory.hcas.push(connect_x7(inventory.hcas.len(), pci, path, numa));
            let (pci, path) = endpoint(root, 2 + slot, root + 6 + slot);
            inventory.gpus.push(h100(inventory.gpus.len(), pci, path, numa));
        }
    }
    inventory
}

/// A device at `bus` on a downstream port of the switch below `root`.
fn endpoint(root: u8, port: u8, bus: u8) -> (PciAddress, PciPath) {
    let address = |bus: u8, device: u8| PciAddress::new(0, bus, device, 0);
    let path = PciPath {
        root: format!("pci0000:{root:02x}"),
        bridges: vec![address(root, 1), address(root + 1, 0), address(root + 2, port)],
        foreign: false,
    };
    (address(bus, 0), path)
}

fn h100(index: usize, pci: PciAddress, path: PciPath, numa: u32) -> GpuFacts {
    GpuFacts {
        pci,
        uuid: Some(format!("GPU-51000000-0000-4000-8000-{index:012}")),
        model: Some("NVIDIA H100 80GB HBM3".to_owned()),
        minor: u32::try_from(index).ok(),
        numa: Some(numa),
        path,
        device: Some(0x2330),
        bound_to: Some("nvidia".to_owned()),
        memory_is_node: false,
        lost: false,
        silent: false,
    }
}

fn connect_x7(index: usize, pci: PciAddress, path: PciPath, numa: u32) -> HcaFacts {
    HcaFacts {
        name: format!("mlx5_{index}"),
        pci: Some(pci),
        driver: Some("mlx5_core".to_owned()),
        ids: Some((0x15b3, 0x1021)),
        numa: Some(numa),
        path,
        transport: Transport::Infiniband,
        ports: vec![Port {
            number: 1,
            state: "ACTIVE".to_owned(),
            rate_gbps: Some(400.0.into()),
            subnet_prefix: Some("fe80:0000:0000:0000".to_owned()),
        }],
        firmware: Some("28.43.2566".to_owned()),
        vf_of: None,
        node: Some(DeviceNode { name: format!("uverbs{index}"), path: "/dev/null".into(), present: true }),
        mad: Vec::new(),
        nvlink_management: false,
        netdev: false,
        away: None,
        silent: false,
    }
}
