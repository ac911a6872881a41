//! Which HCAs are nearest to each GPU, and which are rails. By topology alone, never by health: a
//! dead adapter must not promote a storage adapter.

use super::roles::Roles;
use crate::{
    hardware::Inventory,
    report::{Distance, HcaRole},
};

pub(super) struct Nearest {
    /// Distance of each pair, `[gpu][hca]`.
    pub(super) distance: Vec<Vec<Distance>>,
    /// Indices of the nearest HCAs of each GPU.
    pub(super) of_gpu: Vec<Vec<usize>>,
    /// Whether each HCA is a rail.
    pub(super) rail: Vec<bool>,
}

pub(super) fn find(inventory: &Inventory, roles: &Roles) -> Nearest {
    let hcas = &inventory.hcas;
    let distances: Vec<Vec<Distance>> =
        inventory.gpus.iter().map(|g| hcas.iter().map(|h| inventory.distance(g, h)).collect()).collect();
    let counts = |h: usize| matches!(roles.hcas[h], HcaRole::Eligible | HcaRole::Away) && !roles.shut[h];
    let candidates: Vec<usize> = (0..hcas.len())
        .filter(|h| {
            counts(*h)
                || (roles.hcas[*h] == HcaRole::Idle
                    && (0..hcas.len()).any(|e| counts(e) && hcas[e].sort() == hcas[*h].sort()))
        })
        .collect();
    let of_gpu: Vec<Vec<usize>> = distances.iter().map(|row| nearest_of(row, &candidates, inventory)).collect();
    let rail = (0..hcas.len())
        .map(|h| counts(h) && of_gpu.iter().zip(&roles.gpus).any(|(near, role)| role.counts() && near.contains(&h)))
        .collect();
    Nearest { distance: distances, of_gpu, rail }
}

/// Those at the smallest distance; of several sorts equally near, the sort that the node has most
/// of, all on a tie.
fn nearest_of(row: &[Distance], candidates: &[usize], inventory: &Inventory) -> Vec<usize> {
    let Some(best) = candidates.iter().map(|h| row[*h]).min() else { return Vec::new() };
    let near: Vec<usize> = candidates.iter().copied().filter(|h| row[*h] == best).collect();
    let sort = |h: usize| inventory.hcas[h].sort();
    let number_of = |h: usize| candidates.iter().filter(|c| sort(**c) == sort(h)).count();
    let most = near.iter().map(|h| number_of(*h)).max().unwrap_or(0);
    near.into_iter().filter(|h| number_of(*h) == most).collect()
}
