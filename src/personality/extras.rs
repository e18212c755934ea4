//! The options that every personality has besides those of its original program. They come first, so that the rest is
//! read exactly as the original reads it.

/// The extra options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// `--trace`: messages carry a trace, or are searched for one.
    pub(super) traces: bool,
    /// `--report`: prints a line with the rates at the end.
    pub(super) reports: bool,
}

impl Extras {
    /// Reads the extra options at the beginning of a command line; returns the rest.
    pub(super) fn take_off<'w>(&mut self, words: &'w [String]) -> &'w [String] {
        let count = words.iter().take_while(|word| self.take(word)).count();
        &words[count..]
    }

    /// Reports whether the time at which a message was taken up is needed.
    pub(super) fn want_times(self) -> bool {
        self.traces || self.reports
    }

    fn take(&mut self, word: &str) -> bool {
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
        let mut extras = Extras::default();
        assert_eq!(extras.take_off(&words), ["-d", "--trace"]);
        assert_eq!(extras, Extras { traces: true, reports: true });
        let mut none = Extras::default();
        let other = ["--trace=on", "--report"].map(str::to_owned);
        assert_eq!((none.take_off(&other).len(), none), (2, Extras::default()));
    }
}
