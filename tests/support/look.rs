//! What the agent makes of a machine, by the library.

use std::collections::BTreeMap;

use gdr_agent::{
    config::Config,
    hardware::{Inventory, Surroundings},
    probe::{GpuAnswer, HcaAnswer, Limits, Row, Rows},
    report::{Method, MethodResult, Outcome},
    store::Memory,
    verdict::{Assessment, Input, assess},
};
use jiff::Timestamp;

use super::topology::Spec;

/// A check in which every pair is verified.
fn verified(inventory: &Inventory) -> Rows {
    let methods: BTreeMap<_, _> =
        Method::ALL.into_iter().map(|m| (m, MethodResult::bare(Outcome::Verified, None))).collect();
    let row = Row {
        gpu: GpuAnswer { gdr: Some(true), dma_buf: Some(true), ..GpuAnswer::default() },
        limits: Some(Limits { ipc_lock: true, ..Limits::default() }),
        hcas: inventory.hcas.iter().map(|h| (h.name.clone(), HcaAnswer { methods: methods.clone() })).collect(),
        ..Row::default()
    };
    inventory.gpus.iter().map(|g| (g.pci, row.clone())).collect()
}

/// The machine as the agent sees it, and what it makes of a check that found nothing wrong.
pub(crate) fn look(spec: &Spec) -> (Inventory, Assessment) {
    let inventory = Inventory::read(&spec.build().roots());
    let assessment = conclude(&inventory, &verified(&inventory));
    (inventory, assessment)
}

pub(crate) fn conclude(inventory: &Inventory, rows: &Rows) -> Assessment {
    assess(&Input {
        inventory,
        surroundings: &Surroundings::default(),
        rows,
        memory: &Memory::default(),
        config: &Config::default(),
        node: None,
        checked: true,
        now: Timestamp::UNIX_EPOCH,
    })
}
