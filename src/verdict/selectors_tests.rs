//! What selectors take.

use super::{fixture::Scene, matches_hca};
use crate::{
    config::{Function, Selector},
    hardware::HcaFacts,
    report::GpuRole,
};

#[test]
fn gpus_are_selected_by_what_gpus_have() {
    let roles = |selector: Selector| {
        let mut scene = Scene::new();
        scene.config.check.select.gpus = vec![selector];
        let gpus = scene.assess().gpus;
        gpus.iter().filter(|gpu| gpu.role == GpuRole::Eligible).count()
    };
    let pci = "0000:1b:00.0".parse().ok();
    assert_eq!(roles(Selector { pci, ..Selector::default() }), 1);
    assert_eq!(roles(Selector { name: Some("*H100*".into()), ..Selector::default() }), 8);
    assert_eq!(roles(Selector { name: Some("*A100*".into()), ..Selector::default() }), 0);
    assert_eq!(roles(Selector { device: Some("0x2330".into()), ..Selector::default() }), 8);
    assert_eq!(roles(Selector { driver: Some("vfio-pci".into()), ..Selector::default() }), 0);
}

/// A rail of an H100 machine: ConnectX-7, InfiniBand, 400 Gb/s, a physical function.
fn rail() -> HcaFacts {
    Scene::new().inventory.hcas[0].clone()
}

#[test]
fn hcas_are_selected_by_what_hcas_have() {
    let hca = rail();
    let text = |value: &str| Some(value.to_owned());
    let own = || Selector::default();
    let (here, elsewhere) = (hca.pci, "0000:f0:00.0".parse().ok());
    for (selector, takes) in [
        (own(), true),
        (Selector { driver: text("mlx5_core"), ..own() }, true),
        (Selector { driver: text("efa"), ..own() }, false),
        (Selector { vendor: text("0x15B3"), ..own() }, true),
        (Selector { vendor: text("0x1d0f"), ..own() }, false),
        (Selector { device: text("0x1021"), ..own() }, true),
        (Selector { device: text("0x101d"), ..own() }, false),
        (Selector { name: text("mlx5_?"), ..own() }, true),
        (Selector { name: text("mlx5"), ..own() }, false),
        (Selector { link_layer: text("infiniband"), ..own() }, true),
        (Selector { link_layer: text("RoCE"), ..own() }, false),
        (Selector { min_rate_gbps: Some(400.0), ..own() }, true),
        (Selector { min_rate_gbps: Some(400.5), ..own() }, false),
        (Selector { pci: here, ..own() }, true),
        (Selector { pci: elsewhere, ..own() }, false),
        (Selector { function: Some(Function::Pf), ..own() }, true),
        (Selector { function: Some(Function::Vf), ..own() }, false),
        // All of it, not one of it.
        (Selector { driver: text("mlx5_core"), pci: here, ..own() }, true),
        (Selector { driver: text("mlx5_core"), pci: elsewhere, ..own() }, false),
        (Selector { driver: text("efa"), pci: here, ..own() }, false),
    ] {
        assert_eq!(matches_hca(&selector, &hca, None), takes, "{selector:?}");
    }
    let vf = HcaFacts { vf_of: hca.pci, ..rail() };
    assert!(matches_hca(&Selector { function: Some(Function::Vf), ..own() }, &vf, None));
    assert!(!matches_hca(&Selector { function: Some(Function::Pf), ..own() }, &vf, None));
}

/// What a software device has not, no selector can ask for.
#[test]
fn what_an_hca_has_not_is_not_selected() {
    let mut hca = HcaFacts { driver: None, ids: None, pci: None, ..rail() };
    hca.ports[0].rate_gbps = None;
    for selector in [
        Selector { driver: Some("mlx5_core".into()), ..Selector::default() },
        Selector { vendor: Some("0x15b3".into()), ..Selector::default() },
        Selector { device: Some("0x1021".into()), ..Selector::default() },
        Selector { min_rate_gbps: Some(1.0), ..Selector::default() },
        Selector { pci: rail().pci, ..Selector::default() },
    ] {
        assert!(!matches_hca(&selector, &hca, None), "{selector:?}");
    }
}

/// The fastest of its ports counts.
#[test]
fn a_rate_is_that_of_the_fastest_port() {
    let mut hca = rail();
    let mut slow = hca.ports[0].clone();
    slow.rate_gbps = Some(100.0.into());
    hca.ports.push(slow);
    assert!(matches_hca(&Selector { min_rate_gbps: Some(400.0), ..Selector::default() }, &hca, None));
}

#[test]
fn nearest_asks_for_rails_where_rails_are_known() {
    for (nearest, rail_is, takes) in [
        (None, None, true),
        (None, Some(false), true),
        (Some(true), Some(true), true),
        (Some(true), Some(false), false),
        (Some(true), None, false),
        (Some(false), Some(false), true),
        (Some(false), Some(true), false),
        (Some(false), None, false),
    ] {
        let selector = Selector { nearest, ..Selector::default() };
        assert_eq!(matches_hca(&selector, &rail(), rail_is), takes, "{nearest:?} of {rail_is:?}");
    }
}
