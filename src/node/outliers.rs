//! What sets a node apart from its siblings: nodes with the same GPUs. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Member;

/// With fewer siblings nobody can say who is the odd one.
const SIBLINGS: usize = 3;

/// One trait of one node that most of its siblings do not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outlier {
    /// The node.
    pub node: String,
    /// What differs.
    pub what: &'static str,
    /// What it has.
    pub has: String,
    /// What most of its siblings have.
    pub siblings: String,
    /// How many of them, and of how many.
    pub share: (usize, usize),
}

/// Every trait in which a node differs from more than half of those with the same GPUs.
#[must_use]
pub fn outliers(nodes: &[Member]) -> Vec<Outlier> {
    let mut families: BTreeMap<&[String], Vec<&Member>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| !node.models.is_empty()) {
        families.entry(&node.models).or_default().push(node);
    }
    let mut all: Vec<_> = families
        .into_values()
        .filter(|family| family.len() >= SIBLINGS)
        .flat_map(|family| of_family(&family))
        .collect();
    all.sort_by(|a, b| (&a.node, a.what).cmp(&(&b.node, b.what)));
    all
}

fn of_family(family: &[&Member]) -> Vec<Outlier> {
    let mut names: Vec<_> = family.iter().flat_map(|node| node.traits.iter().map(|(name, _)| *name)).collect();
    names.sort_unstable();
    names.dedup();
    let of = |node: &Member, name: &str| {
        node.traits
            .iter()
            .find(|(known, _)| *known == name)
            .map_or_else(|| "none".to_owned(), |(_, value)| value.clone())
    };
    let mut out = Vec::new();
    for name in names {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in family {
            *counts.entry(of(node, name)).or_default() += 1;
        }
        let Some((usual, share)) = counts.into_iter().max_by_key(|(_, n)| *n) else { continue };
        if share * 2 <= family.len() {
            continue;
        }
        let odd = family.iter().filter(|node| of(node, name) != usual);
        out.extend(odd.map(|node| Outlier {
            node: node.name.clone(),
            what: name,
            has: of(node, name),
            siblings: usual.clone(),
            share: (share, family.len()),
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::State;

    fn node(name: &str, model: &str, driver: &str, rails: &str) -> Member {
        Member {
            name: name.into(),
            state: State::Ready,
            reason: String::new(),
            message: String::new(),
            stale: false,
            simulated: false,
            heartbeat_at: None,
            checked_at: None,
            gpus: 8,
            served: 8,
            rails: 8,
            rails_good: 8,
            models: vec![model.into()],
            traits: vec![("driver", driver.into()), ("rails", rails.into())],
        }
    }

    #[test]
    fn the_odd_one_is_named_with_what_it_has_and_what_the_others_have() {
        let mut nodes: Vec<_> = (0..9).map(|n| node(&format!("n{n}"), "H100 x8", "570", "8")).collect();
        nodes.push(node("odd", "H100 x8", "535", "8"));
        nodes.push(node("other", "A100 x8", "470", "4"));
        let found = outliers(&nodes);
        assert_eq!(found.len(), 1);
        let odd = &found[0];
        assert_eq!(
            (odd.node.as_str(), odd.what, odd.has.as_str(), odd.siblings.as_str()),
            ("odd", "driver", "535", "570")
        );
        assert_eq!(odd.share, (9, 10));
    }

    #[test]
    fn without_a_majority_nobody_is_odd() {
        let half: Vec<_> =
            (0..10).map(|n| node(&n.to_string(), "H100 x8", if n < 5 { "570" } else { "580" }, "8")).collect();
        assert_eq!(outliers(&half), []);
        assert_eq!(outliers(&half[4..6]), [], "two of a kind");
    }

    #[test]
    fn what_is_missing_is_a_difference_too() {
        let mut nodes: Vec<_> = (0..4).map(|n| node(&n.to_string(), "H100 x8", "570", "8")).collect();
        nodes[3].traits.pop();
        assert_eq!(outliers(&nodes)[0].has, "none");
    }
}
