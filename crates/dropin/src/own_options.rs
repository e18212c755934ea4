//! The options that every personality has besides those of its original program. They come first, so that the rest is
//! read exactly as the original reads it.

/// The extra options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnOptions {
    /// `--trace`: messages carry a trace, or are searched for one.
    pub(super) traces: bool,
    /// `--report`: prints a line with the rates at the end.
    pub(super) reports: bool,
}

impl OwnOptions {
    /// Reads the extra options at the beginning of a command line; returns the rest.
    pub(super) fn parse_front<'w>(&mut self, words: &'w [String]) -> &'w [String] {
        let count = words.iter().take_while(|word| self.parse_word(word)).count();
        &words[count..]
    }

    /// Reports whether the time at which a message was taken up is needed.
    pub(super) fn needs_times(self) -> bool {
        self.traces || self.reports
    }

    fn parse_word(&mut self, word: &str) -> bool {
        match word {
            "--trace" => self.traces = true,
            "--report" => self.reports = true,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_first() {
        let words = ["--report", "--trace", "-d", "--trace"].map(str::to_owned);
        let mut extras = OwnOptions::default();
        assert_eq!(extras.parse_front(&words), ["-d", "--trace"]);
        assert_eq!(extras, OwnOptions { traces: true, reports: true });
        let mut none = OwnOptions::default();
        let other = ["--trace=on", "--report"].map(str::to_owned);
        assert_eq!((none.parse_front(&other).len(), none), (2, OwnOptions::default()));
    }
}
