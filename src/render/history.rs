//! The changes of a node's state, the newest last.

use super::{Style, fleet::coloured};
use crate::store::Transition;

/// One line for each.
#[must_use]
pub fn history(all: &[Transition], style: Style) -> String {
    if all.is_empty() {
        return "the state has not changed yet\n".to_owned();
    }
    let line = |change: &Transition| {
        let at = change.at.strftime("%Y-%m-%d %H:%M:%S UTC");
        let to = coloured(change.to, &format!("{:<14}", change.to.to_string()), style);
        format!("{at}   {:<14} -> {to} {}\n", change.from.to_string(), change.message)
    };
    all.iter().map(line).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::report::{Reason, State};

    #[test]
    fn each_change_is_a_line() {
        let change = Transition {
            at: Timestamp::UNIX_EPOCH,
            from: State::Ready,
            to: State::Degraded,
            reason: Reason::PortDown,
            message: "7 of 8 rails".into(),
        };
        assert_eq!(
            history(&[change], Style::plain()),
            "1970-01-01 00:00:00 UTC   ready          -> degraded       7 of 8 rails\n"
        );
        assert_eq!(history(&[], Style::plain()), "the state has not changed yet\n");
    }
}
