//! What is known, told to everybody: assessed, damped, published, written.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Agent, FirstCheck, Published, pace, same, write_report};
use crate::{
    config::Interval,
    hardware::HcaFacts,
    kubelet::{Device, by_health},
    report::HcaRole,
    store::{Memory, Transition},
    usage::{also_in, is_held},
    verdict::{self, Assessment, Input, Stamp, damping, devices},
};

impl Agent {
    /// Assesses what is known, damps it, and tells everybody when something differs.
    pub(super) fn tell_all(&mut self, full_check: bool) {
        let now = Timestamp::now();
        let context = Arc::clone(&self.context);
        let config = &context.config;
        let known = self.checked_here || !self.checked_in_boot;
        let assess = |memory: &Memory| {
            verdict::assess(&Input {
                inventory: &self.inventory,
                surroundings: &self.checked.surroundings,
                rows: &self.checked.rows,
                memory,
                config,
                node: self.view.1.borrow().as_ref(),
                checked: self.checked_in_boot,
                now,
            })
        };
        let (assessment, counts) = verdict::take_in(&mut self.memory, &self.inventory, full_check, now, assess);
        self.take_devices(&assessment, full_check);
        let old = self.tell.borrow().report.verdict.clone();
        let (verdict, findings) = (&assessment.verdict, &assessment.findings);
        let seen = damping::Seen { verdict, findings, full_check: counts, now };
        // Before this process has checked, an earlier one's verdict of this boot stands.
        let verdict = if known { damping::step(&mut self.memory.damping, &config.policy, &seen) } else { old.clone() };
        if (old.state, old.reason) != (verdict.state, verdict.reason) {
            tracing::info!(from = %old.state, to = %verdict.state, reason = %verdict.reason, message = %verdict.message, "the node's state has changed");
            self.metrics.transition(old.state, verdict.state);
            let (reason, message) = (verdict.reason, verdict.message.clone());
            self.memory.note(Transition { at: now, from: old.state, to: verdict.state, reason, message });
        }
        let stale = !known && self.memory.report.is_some();
        let mut report = assessment.into_report(
            &self.inventory,
            &Stamp {
                node: &self.context.node,
                simulated: self.context.machine.simulated(),
                started_at: self.started_at,
                duration_ms: u64::try_from(self.checked.took.as_millis()).unwrap_or(u64::MAX),
            },
        );
        if stale && let Some(stored) = self.memory.report.clone() {
            report = stored;
        }
        report.verdict = verdict;
        report.valid_until = pace::valid_until(&config.check.interval, now);
        let published = Published {
            devices: self.devices(),
            listed: self.checked.surroundings.listed.clone(),
            history: self.memory.history.iter().cloned().collect(),
            checked: self.checked_in_boot,
            first_check: self.first_check(),
            report: Arc::new(report),
        };
        let differs = !same(&self.tell.borrow(), &published);
        if differs || full_check {
            let devices = by_health(&config.resources, &published);
            self.metrics.report(&published, &devices, self.context.machine.stuck());
            // Who asks gets the check that has just ended; who waits for a change is not woken by
            // none, and does not wait for a disk.
            let published = Arc::new(published);
            self.tell.send_if_modified(|told| {
                *told = Arc::clone(&published);
                differs
            });
            write_report(&self.run_dir, &published.report);
            self.memory.report = Some(published.report.as_ref().clone());
            self.save();
        }
    }

    fn first_check(&self) -> FirstCheck {
        if self.checked_here {
            if self.checked.saw_nothing() { FirstCheck::Blind } else { FirstCheck::Over }
        } else if self.context.config.check.interval == Interval::Never || self.is_resting(false) {
            FirstCheck::NotDue
        } else {
            FirstCheck::Pending
        }
    }

    pub(super) fn save(&self) {
        if let Err(error) = self.context.store.save(&self.memory) {
            tracing::warn!(%error, "can't write the store; a restart would begin without memory");
        }
    }

    /// Keeps each device's health in memory; a new one begins unhealthy until a check ends.
    fn take_devices(&mut self, assessment: &Assessment, full_check: bool) {
        for (facts, hca) in self.inventory.hcas.iter().zip(&assessment.hcas) {
            if !matches!(hca.role, HcaRole::Eligible | HcaRole::Away) {
                continue;
            }
            self.known.insert(facts.key(), (facts.clone(), hca.rail));
            let fresh = !self.memory.devices.contains_key(&facts.key());
            let memory = self.memory.devices.entry(facts.key()).or_default();
            if fresh {
                memory.port = facts.is_active();
            }
            if full_check {
                let each: Vec<_> = assessment.pairs.iter().filter(|p| p.hca == hca.name).map(|p| p.good).collect();
                let good = if each.contains(&Some(true)) {
                    Some(true)
                } else {
                    each.iter().all(|g| *g == Some(false)).then_some(false)
                };
                devices::checked(memory, good, &self.context.config.policy.damping);
                if let Some(listed) = &self.checked.surroundings.listed {
                    memory.also_in = also_in(facts, listed, &self.context.config.resources).map(str::to_owned);
                }
            }
        }
        if full_check {
            self.forget_devices();
        }
    }

    /// A device whose PCI function is gone, such as a VF that was taken away, is none any more once no pod holds it.
    fn forget_devices(&mut self) {
        let Some(held) = &self.checked.surroundings.held else { return };
        let own = &self.context.config.resources;
        let present = &self.inventory.present;
        let gone = |(hca, _): &(HcaFacts, bool)| hca.pci.is_some_and(|pci| !present.contains(&pci));
        let stays = |id: &String| !self.known.get(id).is_some_and(gone) || is_held(id, held, own);
        self.memory.devices.retain(|id, _| stays(id));
    }

    fn devices(&self) -> Vec<Device> {
        self.memory
            .devices
            .iter()
            .filter_map(|(id, memory)| {
                let (hca, rail) = self.known.get(id)?.clone();
                let here = self.inventory.hcas.iter().any(|h| h.is_same_as(&hca));
                let healthy = here && devices::healthy(memory);
                Some(Device { id: id.clone(), hca, rail, healthy, also_in: memory.also_in.clone() })
            })
            .collect()
    }
}
