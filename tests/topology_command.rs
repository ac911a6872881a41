//! `gdr-agent topology`: the tree, the matrix, and NCCL's XML.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use gdr_agent::{
    hardware::{Inventory, TopologyFile},
    render::nccl,
};
use support::{
    Home, Ran,
    topology::{Spec, machine, machines},
};

/// What the command prints of a machine made of files.
fn shown(home: &Home, spec: &Spec, more: &[&str]) -> String {
    let built = spec.build();
    let mut command = home.agent(&["topology"]);
    command.args(more).args(built.flags());
    let ran = Ran::of(command).exits(0);
    assert_eq!(ran.err, "", "{}", spec.name);
    ran.out
}

#[test]
fn the_tree_of_a_known_machine() {
    let home = Home::new();
    let out = home.run(&["topology", "--simulate", "hgx-h100"]).exits(0).out;
    let expected = "\
topology: physical (simulated), 8 GPUs, 8 HCAs

socket 0
└─ NUMA node 0
   ├─ host bridge pci0000:15
   │  └─ switch 0000:16:00.0
   │     ├─ mlx5_0  0000:18:00.0  infiniband  ACTIVE 400 Gb/s  rail
   │     ├─ mlx5_1  0000:19:00.0  infiniband  ACTIVE 400 Gb/s  rail
   │     ├─ GPU 0000:1b:00.0  NVIDIA H100 80GB HBM3
   │     └─ GPU 0000:1c:00.0  NVIDIA H100 80GB HBM3
   └─ host bridge pci0000:4a
";
    assert!(out.starts_with(expected), "{out}");
    let rows: Vec<_> = out.lines().filter(|l| l.starts_with("  0000:")).collect();
    assert_eq!(rows.len(), 8, "{out}");
    assert_eq!(rows[0], "  0000:1b:00.0  PIX*    PIX*    NODE    NODE    SYS     SYS     SYS     SYS");
}

#[test]
fn every_machine_is_shown_whole_and_fits() {
    let home = Home::new();
    for spec in machines() {
        let out = shown(&home, &spec, &[]);
        assert!(!out.contains('\x1b'), "{}", spec.name);
        assert!(out.starts_with(&format!("topology: {}, ", spec.words("topology")[0])), "{out}");
        for line in out.lines() {
            assert!(line.chars().count() <= 80, "{}: {line}", spec.name);
        }
        let tree: Vec<_> = out.lines().filter(|l| l.contains("─ ")).collect();
        for line in spec.lines("distance") {
            let gpu = format!("─ GPU {}", line[0]);
            assert_eq!(tree.iter().filter(|l| l.contains(&gpu)).count(), 1, "{}: {gpu}\n{out}", spec.name);
        }
        for hca in &spec.hcas {
            let name = format!("─ {}  ", hca.name);
            assert_eq!(tree.iter().filter(|l| l.contains(&name)).count(), 1, "{}: {name}\n{out}", spec.name);
        }
        assert_eq!(out.contains("A hypervisor shows this tree"), spec.words("topology") == ["virtual"], "{out}");
    }
}

#[test]
fn ports_and_roles_are_in_the_tree() {
    let out = shown(&Home::new(), &machine("dual-port"), &[]);
    assert!(out.contains("mlx4_0  0000:02:00.0  infiniband  1: ACTIVE 56 Gb/s, 2: DOWN  rail"), "{out}");
    assert!(out.contains("NUMA node unknown\n├─ host bridge pci0000:00"), "{out}");
    let out = shown(&Home::new(), &machine("gh200-roce"), &[]);
    assert!(out.contains("mlx5_1  0000:01:00.1  roce  DOWN  idle"), "{out}");
    // Where a pair is PXB, the switches between are there to be seen.
    let out = shown(&Home::new(), &machine("dgx-b200"), &[]);
    let expected = "\
   ├─ host bridge pci0000:15
   │  └─ switch 0000:16:00.0
   │     ├─ switch 0000:19:00.0
   │     │  └─ GPU 0000:1b:00.0
   │     └─ mlx5_4  0000:18:00.0  infiniband  ACTIVE 400 Gb/s  rail
";
    assert!(out.contains(expected), "{out}");
    let out = shown(&Home::new(), &machine("sriov-host"), &[]);
    assert!(out.contains("ibp25s0v0  0000:19:00.1  infiniband  ACTIVE 400 Gb/s  excluded"), "{out}");
    assert!(out.contains("without a PCI function\n└─ rxe0  roce"), "{out}");
}

/// What is printed is read back, and means what NCCL makes of the machine's own sysfs.
#[test]
fn nccl_finds_its_own_distances_in_the_file() {
    let mut compared = 0;
    for spec in machines() {
        let inventory = Inventory::read(&spec.build().roots());
        let xml = nccl(&inventory);
        if inventory.gpus.is_empty() && inventory.hcas.is_empty() {
            continue;
        }
        let file = TopologyFile::parse(&xml).unwrap_or_else(|e| panic!("{}: {e:?}\n{xml}", spec.name));
        for line in spec.lines("nccl") {
            for (hca, expected) in spec.hcas.iter().zip(&line[1..]).filter(|(h, _)| h.pci.is_some()) {
                let pci = hca.pci.as_ref().unwrap().parse().unwrap();
                let seen = file.distance(line[0].parse().unwrap(), pci).unwrap().to_string();
                assert_eq!(seen, *expected, "{}: {} {}\n{xml}", spec.name, line[0], hca.name);
                compared += 1;
            }
        }
        for hca in spec.hcas.iter().filter(|h| h.pci.is_some()) {
            assert_eq!(xml.matches(&format!("<net name=\"{}\"", hca.name)).count(), 1, "{}\n{xml}", spec.name);
        }
        assert_eq!(xml.matches("<gpu/>").count(), inventory.gpus.len(), "{}\n{xml}", spec.name);
    }
    assert!(compared >= 700, "only {compared} pairs were compared");
}

#[test]
fn the_xml_has_what_nccl_asks_for() {
    let mut spec = machine("dgx-b200");
    spec.set("0000:18:00.0", "link", "16@32.0_GT/s_PCIe");
    spec.set("0000:18:00.0", "max", "16@32.0_GT/s_PCIe");
    let xml = shown(&Home::new(), &spec, &["--nccl"]);
    let expected = r#"<system version="1">
  <cpu numaid="0">
"#;
    assert!(xml.starts_with(expected) && xml.ends_with("  </cpu>\n</system>\n"), "{xml}");
    let expected = r#"    <pci busid="0000:16:00.0" class="0x060400" vendor="0x1000" device="0xc030">
      <pci busid="0000:19:00.0" class="0x060400" vendor="0x1000" device="0xc030">
        <pci busid="0000:1b:00.0" class="0x030200" vendor="0x10de" device="0x2901">
          <gpu/>
        </pci>
      </pci>
      <pci busid="0000:18:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_4" speed="400000"/>
        </nic>
      </pci>
    </pci>
"#;
    assert!(xml.contains(expected), "{xml}");
}

#[test]
fn a_node_without_anything_has_an_empty_tree() {
    let home = Home::new();
    let out = home.run(&["topology", "--simulate", "cpu-only"]).exits(0).out;
    assert_eq!(out, "topology: physical (simulated), 0 GPUs, 0 HCAs\n");
    home.run(&["topology", "--simulate", "cpu-only", "--nccl"]).exits(0);
}
