//! How slowly the published state follows what is seen: falls by counts, rises by counts and time,
//! `unknown` and `not-applicable` at once.

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp};

use crate::{
    config::Policy,
    diagnosis::entry,
    report::{Finding, Reason, State, Verdict},
    store::{Candidate, Damping},
};

/// What was just seen.
pub struct Seen<'a> {
    /// The state as it is right now.
    pub verdict: &'a Verdict,
    /// The findings behind it.
    pub findings: &'a [Finding],
    /// Whether a check finished that saw this itself. A look at ports and modules is none, and an outcome
    /// that is carried from an earlier check never counts as another one.
    pub full_check: bool,
    /// Now.
    pub now: Timestamp,
}

/// Takes in what was seen and answers what to publish.
pub fn step(memory: &mut Damping, policy: &Policy, seen: &Seen<'_>) -> Verdict {
    let Some(published) = memory.published.clone() else {
        // Nothing is published yet: what is not known may be said at once, anything else must be
        // confirmed like any other change.
        let first = Verdict { state: State::Unknown, reason: Reason::CheckPending, ..seen.verdict.clone() };
        memory.published = Some(first);
        return step(memory, policy, seen);
    };
    not_in_the_future(memory, seen.now);
    let (from, to) = (published.state, seen.verdict.state);
    let may = from == to || says_nothing(to) || confirmed(memory, policy, seen, from);
    let next = if may {
        if from != to {
            note_change(memory, from, seen);
        }
        // What says nothing ends no count.
        if !says_nothing(to) {
            memory.known = Some(to);
            memory.candidate = None;
        }
        let since = if from == to { published.since } else { seen.now };
        Verdict { since, damped: false, ..seen.verdict.clone() }
    } else {
        Verdict { damped: true, ..published }
    };
    memory.published = Some(next.clone());
    next
}

/// To these there is nothing to wait for, and what was known before them is what counts after them.
fn says_nothing(state: State) -> bool {
    matches!(state, State::Unknown | State::NotApplicable)
}

fn rank(state: State) -> u8 {
    match state {
        State::Ready => 3,
        State::Degraded => 2,
        State::NotReady => 1,
        State::Unknown | State::NotApplicable => 0,
    }
}

/// Which way a change leads: from what says nothing as seen from what was known before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Down,
    Up,
    /// To where it was before nothing was known.
    Back,
}

fn way(memory: &Damping, from: State, to: State) -> Way {
    let before = if says_nothing(from) { memory.known } else { Some(from) };
    match before.map(|before| rank(to).cmp(&rank(before))) {
        // Nothing was ever known: anything but `ready` is a fall.
        None if to != State::Ready => Way::Down,
        None | Some(Ordering::Greater) => Way::Up,
        Some(Ordering::Less) => Way::Down,
        Some(Ordering::Equal) => Way::Back,
    }
}

fn confirmed(memory: &mut Damping, policy: &Policy, seen: &Seen<'_>, from: State) -> bool {
    let to = seen.verdict.state;
    let leads = way(memory, from, to);
    let port = seen.verdict.reason == Reason::PortDown;
    // What saw less does not speak for more.
    let speaks = |c: &Candidate| leads != Way::Up || rank(to) <= rank(c.state);
    let same_side = memory.candidate.as_ref().is_some_and(|c| way(memory, from, c.state) == leads && speaks(c));
    let mut candidate = match memory.candidate.take().filter(|_| same_side) {
        // A port that goes down has all of its time, whatever was wrong before.
        Some(candidate) if candidate.port != port => Candidate { state: to, since: seen.now, port, ..candidate },
        Some(candidate) => Candidate { state: to, ..candidate },
        None => Candidate { state: to, checks: 0, since: seen.now, port },
    };
    candidate.checks += u32::from(seen.full_check);
    let confirmed = match leads {
        Way::Down => fall_confirmed(&candidate, policy, seen),
        Way::Up => rise_confirmed(&candidate, memory, policy, seen),
        Way::Back => candidate.checks >= 1,
    };
    memory.candidate = Some(candidate);
    confirmed
}

/// A clock that went back must not make a hold of days.
fn not_in_the_future(memory: &mut Damping, now: Timestamp) {
    memory.fell_at = memory.fell_at.map(|at| at.min(now));
    memory.falls.retain(|at| *at <= now);
    if let Some(candidate) = &mut memory.candidate {
        candidate.since = candidate.since.min(now);
    }
}

/// Two failed checks; one for what cannot pass by itself; time alone for a port.
fn fall_confirmed(candidate: &Candidate, policy: &Policy, seen: &Seen<'_>) -> bool {
    let only_ports = seen.verdict.reason == Reason::PortDown;
    if only_ports {
        return elapsed(candidate.since, seen.now) >= policy.port_grace.signed();
    }
    let lasting = seen.findings.first().is_some_and(|f| f.reason == seen.verdict.reason && !entry(f.reason).transient);
    candidate.checks >= if lasting { 1 } else { policy.damping.fall }
}

/// One good check from `unknown`; after a fall several, and the hold.
fn rise_confirmed(candidate: &Candidate, memory: &Damping, policy: &Policy, seen: &Seen<'_>) -> bool {
    let Some(fell_at) = memory.fell_at else { return candidate.checks >= 1 };
    let often = memory.falls.iter().filter(|at| elapsed(**at, seen.now) < SignedDuration::from_hours(1)).count() >= 3;
    let hold = policy.damping.hold.signed() * if often { 2 } else { 1 };
    candidate.checks >= policy.damping.rise && elapsed(fell_at, seen.now) >= hold
}

fn note_change(memory: &mut Damping, from: State, seen: &Seen<'_>) {
    let to = seen.verdict.state;
    if to == State::Ready {
        memory.fell_at = None;
    } else if !says_nothing(to) && way(memory, from, to) == Way::Down {
        memory.fell_at = Some(seen.now);
        memory.falls.retain(|at| elapsed(*at, seen.now) < SignedDuration::from_hours(1));
        memory.falls.push(seen.now);
    }
}

/// Time since; a clock that went back counts as none.
fn elapsed(since: Timestamp, now: Timestamp) -> SignedDuration {
    now.duration_since(since).max(SignedDuration::ZERO)
}
