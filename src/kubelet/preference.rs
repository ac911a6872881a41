//! Which ids go best together. Pure.

use std::collections::BTreeMap;

use super::{devices::Offer, v1beta1::ContainerPreferredAllocationRequest};
use crate::{
    hardware::topology::{Seat, distance},
    report::Distance,
};

/// What must be in, then distinct HCAs before a second share of one, then those below one switch, on
/// one NUMA node, with the lowest ids. Empty on any doubt: an error here would fail the pod.
pub(super) fn preferred(request: &ContainerPreferredAllocationRequest, offers: &[Offer<'_>]) -> Vec<String> {
    let known: BTreeMap<&str, &Offer<'_>> = offers.iter().map(|offer| (offer.id.as_str(), offer)).collect();
    let find = |ids: &[String]| ids.iter().map(|id| known.get(id.as_str()).copied()).collect::<Option<Vec<_>>>();
    let size = usize::try_from(request.allocation_size).ok().filter(|size| *size > 0);
    let asked = size.zip(find(&request.available_device_i_ds)).zip(find(&request.must_include_device_i_ds));
    let Some(((size, available), must)) = asked.filter(|((size, available), _)| *size <= available.len()) else {
        return Vec::new();
    };
    let mut choice = Choice { chosen: Vec::new(), rest: BTreeMap::new() };
    for offer in available {
        choice.rest.entry(&offer.device.id).or_default().push(offer);
    }
    for offers in choice.rest.values_mut() {
        offers.sort_by(|a, b| b.id.cmp(&a.id)); // the lowest is taken from the end
    }
    for offer in must {
        choice.take(offer);
    }
    let filled = if choice.chosen.is_empty() {
        let firsts: Vec<_> = choice.rest.values().filter_map(|offers| offers.last().copied()).collect();
        let from = |first| {
            let mut choice = choice.clone();
            choice.take(first);
            choice.fill(size)
        };
        firsts.into_iter().map(from).min_by_key(Choice::cost)
    } else {
        Some(choice.fill(size))
    };
    filled.map(|choice| choice.chosen.iter().map(|offer| offer.id.clone()).collect()).unwrap_or_default()
}

#[derive(Clone)]
struct Choice<'a> {
    chosen: Vec<&'a Offer<'a>>,
    /// What is left of each HCA.
    rest: BTreeMap<&'a str, Vec<&'a Offer<'a>>>,
}

impl<'a> Choice<'a> {
    fn take(&mut self, offer: &'a Offer<'a>) {
        if let Some(left) = self.rest.get_mut(offer.device.id.as_str()) {
            left.retain(|other| other.id != offer.id);
        }
        self.chosen.push(offer);
    }

    fn fill(mut self, size: usize) -> Self {
        while self.chosen.len() < size {
            let next = self.rest.values().filter_map(|offers| offers.last().copied());
            let Some(best) = next.min_by_key(|offer| self.fit(offer)) else { break };
            self.take(best);
        }
        self
    }

    /// How badly one goes with those that are chosen.
    fn fit(&self, offer: &'a Offer<'a>) -> (usize, Option<Distance>, &'a str) {
        let same = self.chosen.iter().filter(|other| other.device.id == offer.device.id).count();
        let others = self.chosen.iter().filter(|other| other.device.id != offer.device.id);
        (same, others.map(|other| apart(other, offer)).max(), &offer.id)
    }

    /// How far those that are chosen are apart, the worst first.
    fn cost(&self) -> (Vec<Distance>, Vec<&'a str>) {
        let pairs = self.chosen.iter().enumerate().flat_map(|(n, a)| self.chosen[..n].iter().map(move |b| (a, b)));
        let mut distances: Vec<_> = pairs.map(|(a, b)| apart(a, b)).collect();
        distances.sort_by(|a, b| b.cmp(a));
        (distances, self.chosen.iter().map(|offer| offer.id.as_str()).collect())
    }
}

fn apart(a: &Offer<'_>, b: &Offer<'_>) -> Distance {
    let [a, b] = [a, b].map(|offer| Seat { path: &offer.device.hca.path, numa: offer.device.hca.numa });
    distance(a, b)
}
