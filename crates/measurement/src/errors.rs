//! Counts errors by kind, which is a pair of phase and reply code. Each kind keeps the time of its first and last
//! error, and the text and the recipient of the first error.
use crate::record::ErrorRow;
use crate::stage::Phase;
use mailrun_text::printable::clipped;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct ErrorEvent<'a> {
    pub phase: Phase,
    /// Reply code of the server, or 0 if there was no reply.
    pub code: u16,
    /// Text of the peer's reply or, if there was no reply, our description of the error.
    pub text: &'a str,
    pub at: Duration,
}

/// Errors by phase and reply code. The number of kinds is limited, so that a peer that keeps sending new codes cannot
/// use up memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    kinds: BTreeMap<(Phase, u16), ErrorKind>,
    /// Errors of kinds beyond the first `MAX_KINDS`, counted together under the phase of the first such error.
    other: Option<(Phase, ErrorCount)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ErrorKind {
    count: ErrorCount,
    text: String,
    sample: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ErrorCount {
    count: u64,
    first: Duration,
    last: Duration,
}

impl ErrorCount {
    fn one(at: Duration) -> Self {
        Self { count: 1, first: at, last: at }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

impl Errors {
    const MAX_KINDS: usize = 64;
    const MAX_TEXT_CHARACTERS: usize = 200;
    /// Maximum length of the recipient address that is kept as an example of each kind of error. Addresses have at most
    /// 254 bytes (RFC 5321 §4.5.3.1.3), so this limit never cuts a valid address.
    const MAX_SAMPLE_CHARACTERS: usize = 256;

    /// Counts an error, and keeps the text and the recipient of the first error of each kind. `sample` returns the
    /// address of that recipient, or `None` if the error concerns no recipient. This function calls `sample` only for
    /// the first error of a kind, because making the address allocates memory.
    pub fn add(&mut self, error: ErrorEvent<'_>, sample: impl FnOnce() -> Option<String>) {
        let count = ErrorCount::one(error.at);
        if let Some(kind) = self.kinds.get_mut(&(error.phase, error.code)) {
            kind.count.merge(count);
        } else if self.kinds.len() < Self::MAX_KINDS {
            let text = clipped(error.text, Self::MAX_TEXT_CHARACTERS);
            let sample = sample().map(|sample| clipped(&sample, Self::MAX_SAMPLE_CHARACTERS));
            self.kinds.insert((error.phase, error.code), ErrorKind { count, text, sample });
        } else {
            self.count_other(error.phase, count);
        }
    }

    pub fn total(&self) -> u64 {
        self.kinds.values().map(|kind| kind.count.count).sum::<u64>() + self.other.map_or(0, |(_, other)| other.count)
    }

    /// Returns the number of errors that a sink caused because the user asked for faults. Without a server between
    /// source and sink, the source counts these errors as well.
    pub fn ordered(&self) -> u64 {
        let kinds = self.kinds.values().filter(|kind| kind.text.starts_with(ErrorRow::ORDERED_PREFIX));
        kinds.map(|kind| kind.count.count).sum()
    }

    /// Describes the kind of error that occurred last, with its first text, for example
    /// `450 at rcpt: 4.2.0 Greylisted`.
    pub fn latest(&self) -> Option<String> {
        let (&(phase, code), kind) = self.kinds.iter().max_by_key(|(_, kind)| kind.count.last)?;
        let name = phase.name();
        Some(match code {
            0 => format!("{name}: {}", kind.text),
            code => format!("{code} at {name}: {}", kind.text),
        })
    }

    /// Makes the rows of the run record, ordered by phase. The times in the rows count from `origin_ns`, which must be
    /// the time from which the whole record counts.
    pub fn rows(&self, origin_ns: u64) -> Vec<ErrorRow> {
        let origin = Duration::from_nanos(origin_ns);
        let second = |at: Duration| Some(at.saturating_sub(origin).as_secs_f64());
        let row = |phase, code, count: ErrorCount, text: &str| ErrorRow {
            phase,
            code,
            text: text.to_owned(),
            count: count.count,
            first_s: second(count.first),
            last_s: second(count.last),
            sample: None,
        };
        let known = self.kinds.iter().map(|(&(phase, code), kind)| ErrorRow {
            sample: kind.sample.clone(),
            ..row(phase, code, kind.count, &kind.text)
        });
        let other = self.other.map(|(phase, count)| row(phase, 0, count, "other errors"));
        known.chain(other).collect()
    }

    pub fn merge(&mut self, other: &Self) {
        for (&(phase, code), kind) in &other.kinds {
            if let Some(known) = self.kinds.get_mut(&(phase, code)) {
                if kind.count.first < known.count.first {
                    known.text.clone_from(&kind.text);
                    known.sample.clone_from(&kind.sample);
                }
                known.count.merge(kind.count);
            } else if self.kinds.len() < Self::MAX_KINDS {
                self.kinds.insert((phase, code), kind.clone());
            } else {
                self.count_other(phase, kind.count);
            }
        }
        if let Some((phase, count)) = other.other {
            self.count_other(phase, count);
        }
    }

    fn count_other(&mut self, phase: Phase, count: ErrorCount) {
        match &mut self.other {
            Some((_, other)) => other.merge(count),
            None => self.other = Some((phase, count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(errors: &mut Errors, phase: Phase, code: u16, text: &str, second: u64) {
        let error = ErrorEvent { phase, code, text, at: Duration::from_secs(second) };
        errors.add(error, || Some(format!("user{second}@example.org")));
    }

    #[test]
    fn errors_keep_the_first_text_of_each_kind() {
        let mut errors = Errors::default();
        add(&mut errors, Phase::Rcpt, 550, "5.1.1 no such user", 11);
        add(&mut errors, Phase::Rcpt, 550, "5.1.1 nor this one", 13);
        errors.add(
            ErrorEvent { phase: Phase::Mail, code: 451, text: " 4.3.0 \x1b[2Jlater\r\n", at: Duration::from_secs(12) },
            || None,
        );
        let rows = errors.rows(10_000_000_000);
        let kinds: Vec<_> = rows.iter().map(|row| (row.phase, row.code, row.text.as_str(), row.count)).collect();
        let expected = [(Phase::Mail, 451, "4.3.0  [2Jlater", 1), (Phase::Rcpt, 550, "5.1.1 no such user", 2)];
        assert_eq!(kinds, expected);
        let times: Vec<_> = rows.iter().map(|row| (row.first_s, row.last_s, row.sample.as_deref())).collect();
        assert_eq!(times, [(Some(2.0), Some(2.0), None), (Some(1.0), Some(3.0), Some("user11@example.org"))]);
    }

    #[test]
    fn ordered_errors_are_a_part_of_all_errors() {
        let mut errors = Errors::default();
        add(&mut errors, Phase::Rcpt, 550, "on purpose: rcpt: hard reject 10%", 1);
        add(&mut errors, Phase::Rcpt, 550, "on purpose: rcpt: hard reject 10%", 2);
        add(&mut errors, Phase::Mail, 0, "connection closed", 3);
        assert_eq!((errors.total(), errors.ordered()), (3, 2));
        assert_eq!(errors.rows(0).iter().map(ErrorRow::is_ordered).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn of_two_workers_the_earlier_error_is_the_first() {
        let mut one = Errors::default();
        let mut other = Errors::default();
        add(&mut one, Phase::Rcpt, 550, "later", 9);
        add(&mut other, Phase::Rcpt, 550, "earlier", 4);
        add(&mut other, Phase::Rcpt, 550, "in between", 6);
        one.merge(&other);
        let rows = one.rows(0);
        let row = &rows[0];
        assert_eq!((row.text.as_str(), row.count, row.first_s, row.last_s), ("earlier", 3, Some(4.0), Some(9.0)));
        assert_eq!(row.sample.as_deref(), Some("user4@example.org"));
    }

    #[test]
    fn errors_of_ever_new_kinds_are_counted_and_not_kept() {
        let mut errors = Errors::default();
        let mut all = Errors::default();
        (0..1000).for_each(|code| add(&mut errors, Phase::Data, code, &"é".repeat(1000), u64::from(code)));
        all.merge(&errors);
        all.merge(&errors);
        assert_eq!((all.total(), all.rows(0).len()), (2000, 65));
        let rows = all.rows(0);
        let other = rows.last().unwrap();
        assert_eq!((other.count, other.first_s, other.last_s), (2 * (1000 - 64), Some(64.0), Some(999.0)));
        assert!(rows.iter().all(|row| row.text.len() <= 400));
    }
}
