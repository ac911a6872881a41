//! The fleet as a table, the worst first.

use jiff::Timestamp;

use super::Style;
use crate::{
    node::{Fleet, Member, Outlier},
    report::State,
};

/// One line for each node; `wide`: with what siblings are compared by, and the message in full.
#[must_use]
pub fn fleet(fleet: &Fleet, wide: bool, now: Timestamp, style: Style) -> String {
    let mut rows = vec![head(wide)];
    rows.extend(fleet.nodes.iter().map(|node| row(node, wide, now)));
    let states: Vec<_> = fleet.nodes.iter().map(|node| node.state).collect();
    let mut text = table(&rows, |line, column, cell| match (line.checked_sub(1).and_then(|n| states.get(n)), column) {
        (None, _) => style.strong(cell),
        (Some(state), 1) => coloured(*state, cell, style),
        _ => cell.to_owned(),
    });
    text += &summary(fleet);
    text
}

fn head(wide: bool) -> Vec<String> {
    let mut names = vec!["NODE", "STATE", "REASON", "GPUS", "RAILS", "CHECKED"];
    if wide {
        names.extend(["MODELS", "DRIVER", "MODULE", "METHODS", "TRANSPORT", "DISTANCE", "VERSION", "MESSAGE"]);
    }
    names.into_iter().map(str::to_owned).collect()
}

fn row(node: &Member, wide: bool, now: Timestamp) -> Vec<String> {
    let simulated = if node.simulated { " (simulated)" } else { "" };
    let mut cells = vec![
        node.name.clone(),
        format!("{}{simulated}", node.state),
        node.reason.clone(),
        share(node.served, node.gpus),
        share(node.rails_good, node.rails),
        node.checked_at.map_or_else(|| "-".to_owned(), |at| age(at, now)),
    ];
    if wide {
        let of = |name: &str| {
            let found = node.traits.iter().find(|(known, _)| *known == name);
            found.map_or_else(|| "-".to_owned(), |(_, value)| value.clone())
        };
        cells.push(node.models.join(", "));
        cells.extend(["driver", "module", "methods", "transport", "distance", "version"].map(of));
        cells.push(node.message.clone());
    }
    cells
}

/// As kubectl shows it: one unit, or two of small ones.
fn age(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at).as_secs().max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

pub(super) fn coloured(state: State, cell: &str, style: Style) -> String {
    match state {
        State::Ready => style.good(cell),
        State::NotReady | State::Degraded => style.bad(cell),
        State::Unknown => style.doubtful(cell),
        State::NotApplicable => style.faint(cell),
    }
}

/// `12 nodes: 1 degraded, 11 ready; 3 without the agent`.
fn summary(fleet: &Fleet) -> String {
    let states = [State::NotReady, State::Degraded, State::Unknown, State::Ready, State::NotApplicable];
    let counts = states.into_iter().filter_map(|state| {
        let n = fleet.nodes.iter().filter(|node| node.state == state).count();
        (n > 0).then(|| format!("{n} {state}"))
    });
    let counts: Vec<_> = counts.collect();
    let what = if counts.is_empty() { "no node shows a state".to_owned() } else { counts.join(", ") };
    let without = match fleet.without_agent {
        0 => String::new(),
        n => format!("; {n} without the agent"),
    };
    format!("{what}{without}\n")
}

/// What sets nodes apart, one line each.
#[must_use]
pub fn outliers(outliers: &[Outlier], style: Style) -> String {
    if outliers.is_empty() {
        return "no node differs from its siblings\n".to_owned();
    }
    let mut rows = vec![["NODE", "WHAT", "HAS", "SIBLINGS HAVE", "SHARE"].map(str::to_owned).to_vec()];
    rows.extend(outliers.iter().map(|odd| {
        let share = format!("{} of {}", odd.share.0, odd.share.1);
        vec![odd.node.clone(), odd.what.to_owned(), odd.has.clone(), odd.siblings.clone(), share]
    }));
    table(&rows, |line, _, cell| if line == 0 { style.strong(cell) } else { cell.to_owned() })
}

/// So many of all; a dash where there are none, or none are known.
fn share(good: usize, all: usize) -> String {
    if all == 0 { "-".to_owned() } else { format!("{good}/{all}") }
}

/// Columns as wide as their widest cell; the last one ends where it ends.
fn table(rows: &[Vec<String>], paint: impl Fn(usize, usize, &str) -> String) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (line, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let last = column + 1 == columns;
            text += &paint(line, column, cell);
            text += &" ".repeat(if last { 0 } else { widths[column] - cell.chars().count() + 3 });
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, state: State, reason: &str) -> Member {
        Member {
            name: name.into(),
            state,
            reason: reason.into(),
            message: "7 of 8 rails".into(),
            stale: false,
            simulated: false,
            heartbeat_at: None,
            checked_at: Timestamp::from_second(1_800_000_000).ok(),
            gpus: 8,
            served: 8,
            rails: 8,
            rails_good: 7,
            models: vec!["NVIDIA H100 x8".into()],
            traits: vec![("driver", "570".into())],
        }
    }

    fn two() -> Fleet {
        let nodes =
            vec![member("a-long-name", State::Degraded, "PortDown"), member("n2", State::Ready, "AllRailsVerified")];
        Fleet { nodes, without_agent: 3 }
    }

    #[test]
    fn columns_stand_below_each_other() {
        let now = Timestamp::from_second(1_800_000_090).unwrap();
        let text = fleet(&two(), false, now, Style::plain());
        assert_eq!(
            text,
            "NODE          STATE      REASON             GPUS   RAILS   CHECKED\n\
             a-long-name   degraded   PortDown           8/8    7/8     90s\n\
             n2            ready      AllRailsVerified   8/8    7/8     90s\n\
             1 degraded, 1 ready; 3 without the agent\n"
        );
        let wide = fleet(&two(), true, now, Style::plain());
        assert!(wide.contains("NVIDIA H100 x8") && wide.contains("570") && wide.contains("7 of 8 rails"), "{wide}");
        let coloured = fleet(&two(), false, now, Style::coloured());
        assert_eq!(
            coloured.replace("\x1b[1m", "").replace("\x1b[31;1m", "").replace("\x1b[32m", "").replace("\x1b[0m", ""),
            text
        );
    }

    #[test]
    fn an_empty_fleet_says_so() {
        let none = Fleet { nodes: Vec::new(), without_agent: 0 };
        assert!(fleet(&none, false, Timestamp::UNIX_EPOCH, Style::plain()).ends_with("no node shows a state\n"));
        assert_eq!(outliers(&[], Style::plain()), "no node differs from its siblings\n");
    }

    #[test]
    fn ages_are_short() {
        let of = |seconds| age(Timestamp::UNIX_EPOCH, Timestamp::from_second(seconds).unwrap());
        assert_eq!(
            [5, 119, 120, 7199, 7200, 172_799, 172_800, -5].map(of),
            ["5s", "119s", "2m", "119m", "2h", "47h", "2d", "0s"]
        );
    }
}
