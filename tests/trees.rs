//! What holds of every PCI tree, however odd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fmt::Write, fs, os::unix::fs::symlink, path::Path};

use gdr_agent::{
    config::Config,
    hardware::{
        Inventory, PciAddress, PciPath, Roots, Surroundings,
        topology::{Seat, distance},
    },
    probe::Rows,
    report::Distance,
    simulate::SimulatedMachine,
    store::Memory,
    verdict::{Assessment, Input, assess},
};
use jiff::Timestamp;
use proptest::{collection::vec, prelude::*, sample::subsequence};

/// A seat in a made-up tree: host bridge, and the turn taken at each bridge.
#[derive(Debug, Clone)]
struct Place {
    root: u32,
    turns: Vec<u8>,
    numa: Option<u32>,
}

impl Place {
    /// The function's folder in sysfs; a bridge's address follows from the turns that lead to it.
    /// `twist` gives the same tree other addresses.
    fn folder(&self, twist: u8) -> String {
        let mut folder = format!("/sys/devices/pci{:04x}:00", self.root);
        let mut number = 0_u32;
        for turn in self.turns.iter().chain([&0]) {
            number = number * 3 + u32::from(*turn) + 1;
            let _ = write!(folder, "/{:04x}:{twist:02x}:00.0", number ^ u32::from(twist));
        }
        folder
    }

    fn path(&self) -> PciPath {
        PciPath::parse(Path::new(&self.folder(0)))
    }

    fn shared(&self, other: &Self) -> usize {
        self.turns.iter().zip(&other.turns).take_while(|(a, b)| a == b).count()
    }
}

fn between(a: &Place, b: &Place) -> Distance {
    distance(Seat { path: &a.path(), numa: a.numa }, Seat { path: &b.path(), numa: b.numa })
}

fn place() -> impl Strategy<Value = Place> {
    (0_u32..3, vec(0_u8..3, 0..6), proptest::option::of(0_u32..3)).prop_map(|(root, turns, numa)| Place {
        root,
        turns,
        numa,
    })
}

/// Two that often have much in common.
fn two() -> impl Strategy<Value = (Place, Place)> {
    (place(), place(), 0_usize..6, any::<bool>()).prop_map(|(a, mut b, shared, same_root)| {
        let mut turns: Vec<u8> = a.turns.iter().take(shared).copied().collect();
        turns.append(&mut b.turns);
        b.turns = turns;
        b.root = if same_root { a.root } else { b.root };
        (a, b)
    })
}

proptest! {
    #[test]
    fn the_way_back_is_as_long((a, b) in two()) {
        prop_assert_eq!(between(&a, &b), between(&b, &a));
    }

    /// The rule in other words: bridges below the last common one decide, then NUMA.
    #[test]
    fn a_distance_is_what_the_rule_says((a, b) in two()) {
        let below = |p: &Place| p.turns.len() - a.shared(&b);
        let expected = match (a.root == b.root, a.shared(&b)) {
            (true, 0) => Distance::Phb,
            (true, _) if below(&a).max(below(&b)) < 2 => Distance::Pix,
            (true, _) => Distance::Pxb,
            (false, _) if a.numa.is_some() && a.numa == b.numa => Distance::Node,
            (false, _) => Distance::Sys,
        };
        prop_assert_eq!(between(&a, &b), expected);
    }

    #[test]
    fn a_deeper_seat_is_never_nearer((a, b) in two(), more in vec(0_u8..3, 1..4)) {
        let mut deeper = b.clone();
        deeper.turns.extend(more);
        // Below bridges of its own.
        prop_assume!(a.shared(&deeper) == a.shared(&b));
        prop_assert!(between(&a, &deeper) >= between(&a, &b));
    }

    #[test]
    fn of_two_equally_deep_the_one_that_shares_more_is_nearer((a, b) in two(), turn in 0_u8..3) {
        prop_assume!(!b.turns.is_empty() && a.root == b.root);
        for parting in 0..b.turns.len() {
            let mut other = b.clone();
            other.turns[parting] = turn;
            if a.shared(&other) < a.shared(&b) {
                prop_assert!(between(&a, &other) >= between(&a, &b));
            }
        }
    }

    #[test]
    fn addresses_and_the_place_of_sysfs_decide_nothing((a, b) in two(), twist: u8) {
        let moved = |p: &Place| PciPath::parse(Path::new(&format!("/srv/0000:00:00.0/copy{}", p.folder(twist))));
        let (pa, pb) = (moved(&a), moved(&b));
        prop_assert_eq!(distance(Seat { path: &pa, numa: a.numa }, Seat { path: &pb, numa: b.numa }), between(&a, &b));
    }

    #[test]
    fn the_order_of_listing_decides_nothing(
        gpus in subsequence((0..8).collect::<Vec<usize>>(), 1..8).prop_shuffle(),
        hcas in subsequence((0..8).collect::<Vec<usize>>(), 1..8).prop_shuffle(),
    ) {
        let whole = SimulatedMachine::new("hgx-h100", String::new()).unwrap().inventory();
        let pick = |gpus: &[usize], hcas: &[usize]| Inventory {
            gpus: gpus.iter().map(|g| whole.gpus[*g].clone()).collect(),
            hcas: hcas.iter().map(|h| whole.hcas[*h].clone()).collect(),
            ..whole.clone()
        };
        let sorted = |of: &[usize]| of.iter().copied().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
        let (listed, ordered) = (pick(&gpus, &hcas), pick(&sorted(&gpus), &sorted(&hcas)));
        prop_assert_eq!(facts(&conclude(&listed)), facts(&conclude(&ordered)));
    }

    /// Whatever lies in sysfs: files for folders, folders for files, links to nowhere, no text.
    #[test]
    fn no_tree_makes_it_panic(entries in vec(entry(), 0..60)) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for (path, what) in &entries {
            let path = dir.path().join(path);
            let _ = fs::create_dir_all(path.parent().unwrap()); // may be a file already
            match what {
                What::Text(bytes) => drop(fs::write(&path, bytes)),
                What::Folder => drop(fs::create_dir_all(&path)),
                What::Link(to) => drop(symlink(dir.path().join(to), &path)),
            }
        }
        let at = |name: &str| dir.path().join(name);
        let inventory = Inventory::read(&Roots { sysfs: at("sys"), procfs: at("proc"), dev: at("dev") });
        let assessment = conclude(&inventory);
        prop_assert_eq!(assessment.pairs.len(), inventory.gpus.len() * inventory.hcas.len());
        prop_assert_ne!(assessment.verdict.state.to_string(), "ready");
    }
}

fn conclude(inventory: &Inventory) -> Assessment {
    let (config, memory, rows) = (Config::default(), Memory::default(), Rows::new());
    let now = Timestamp::UNIX_EPOCH;
    assess(&Input {
        inventory,
        surroundings: &Surroundings::default(),
        rows: &rows,
        memory: &memory,
        config: &config,
        node: None,
        checked: true,
        now,
    })
}

type Facts = (BTreeSet<(PciAddress, String, Distance, bool)>, BTreeSet<String>);

/// Pairs with their distances, nearest HCAs and rails, in an order of their own.
fn facts(assessment: &Assessment) -> Facts {
    let pairs = assessment.pairs.iter().map(|p| (p.gpu, p.hca.clone(), p.distance, p.counted)).collect();
    (pairs, assessment.hcas.iter().filter(|h| h.rail).map(|h| h.name.clone()).collect())
}

#[derive(Debug, Clone)]
enum What {
    Text(Vec<u8>),
    Folder,
    Link(String),
}

/// An entry of sysfs or procfs where the agent looks, or beside it.
fn entry() -> impl Strategy<Value = (String, What)> {
    let one_of = |texts: &[&'static str]| proptest::sample::select(texts.to_vec());
    let function = one_of(&["0000:01:00.0", "0000:02:00.0", "ffffffff:ff:1f.7", "0000:01:00"]);
    let device = one_of(&["mlx5_0", "rdmap16s27", "\u{fffd}"]);
    let attribute = one_of(&[
        "vendor",
        "device",
        "class",
        "numa_node",
        "config",
        "driver",
        "physfn",
        "vpd",
        "iommu_group/type",
        "current_link_width",
        "max_link_speed",
        "",
    ]);
    let of_port = one_of(&["state", "rate", "link_layer", "gids/0", ""]);
    let number = one_of(&["1", "2", "x", "4294967296"]);
    let elsewhere = one_of(&[
        "sys/class/infiniband_verbs/uverbs0/ibdev",
        "sys/devices/system/node/node0/cpulist",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id",
        "proc/driver/nvidia/version",
        "proc/stat",
        "proc/cpuinfo",
        "proc/driver/nvidia/gpus/0000:01:00.0/information",
    ]);
    let path = prop_oneof![
        (function.clone(), attribute.clone()).prop_map(|(f, a)| format!("sys/bus/pci/devices/{f}/{a}")),
        (function, attribute).prop_map(|(f, a)| format!("sys/devices/pci0000:00/0000:00:01.0/{f}/{a}")),
        (device.clone(), number, of_port).prop_map(|(d, n, p)| format!("sys/class/infiniband/{d}/ports/{n}/{p}")),
        device.clone().prop_map(|d| format!("sys/class/infiniband/{d}/device")),
        device.prop_map(|d| format!("sys/class/infiniband/{d}")),
        elsewhere.prop_map(str::to_owned),
    ];
    let text = one_of(&[
        "0x10de\n",
        "0x030200\n",
        "0x15b3\n",
        "-1\n",
        "4: ACTIVE\n",
        "InfiniBand\n",
        "99999999999999999999\n",
        "btime 99999999999999999\n",
        "inf nan\n",
        "0-\n",
        ",\n",
        "\0",
        "",
        "flags : \n",
        ":::\n",
    ]);
    let target = one_of(&[
        "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
        "sys/bus/pci/devices/0000:02:00.0",
        "sys",
        "nowhere",
        "sys/class/infiniband/mlx5_0",
    ]);
    let what = prop_oneof![
        6 => text.prop_map(|t| What::Text(t.into())),
        1 => vec(any::<u8>(), 0..600).prop_map(What::Text),
        2 => Just(What::Folder),
        3 => target.prop_map(|t| What::Link(t.to_owned())),
    ];
    (path, what)
}
