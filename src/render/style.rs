//! Colour, only where a terminal wants it.

use std::io::IsTerminal;

/// Whether to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Colour when standard output is a terminal and `NO_COLOR` is not set.
    #[must_use]
    pub fn of_stdout() -> Self {
        Self { colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) }
    }

    /// None at all.
    #[must_use]
    pub const fn plain() -> Self {
        Self { colour: false }
    }

    /// As on a terminal.
    #[cfg(test)]
    pub(super) const fn coloured() -> Self {
        Self { colour: true }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Works.
    pub(super) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Does not.
    pub(super) fn bad(self, text: &str) -> String {
        self.paint("31;1", text)
    }

    /// Not known.
    pub(super) fn doubtful(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Less important.
    pub(super) fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// A heading.
    pub(super) fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }
}
