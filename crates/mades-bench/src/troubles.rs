//! Counts the errors of a run by kind and by the peer's error code, and keeps the first text of each combination. The
//! number of rows is limited, so that a peer that keeps sending new codes cannot use up memory.
use mailrun_measurement::record::MadesTrouble;
use mailrun_measurement::seconds::EventTimes;
use mailrun_net::clock;
use mailrun_text::printable::clipped;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of rows, one for each combination of error kind and code. Further combinations share one row, unless
/// their kind is in `OWN_CODES`.
const MAX_KINDS: usize = 64;
const MAX_TEXT_CHARS: usize = 200;

/// Kind of an error. The report lists the errors of a run in the order of these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TroubleKind {
    /// A connection or a link ended, or could not be opened.
    Connection,
    /// Messages of other applications use up the receiver's credit, so the bench gets no messages of its own.
    Blocked,
    Returned,
    ErrorReply,
    Failed,
    TimedOut,
    Corrupt,
    Declined,
    /// An acknowledgement document was refused, given up, changed or unreadable, or it names no message of the run.
    Acknowledgement,
    /// The API does not define the event, or the mode of the run has no such event.
    UnknownEvent,
    Odd,
}

impl TroubleKind {
    /// Kinds of errors whose codes the bench itself chooses, such as `GIVEN_UP`. The codes of all other kinds come from
    /// a peer, and may be any text, even `GIVEN_UP`.
    pub(super) const OWN_CODES: [Self; 2] = [Self::Connection, Self::Blocked];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Blocked => "queue in use",
            Self::Returned => "returned by the broker",
            Self::ErrorReply => "error reply",
            Self::Failed => "FAILED",
            Self::TimedOut => "time-out",
            Self::Corrupt => "corrupt",
            Self::Declined => "rejecting acknowledgement",
            Self::Acknowledgement => "acknowledgement",
            Self::UnknownEvent => "unknown event",
            Self::Odd => "invalid message",
        }
    }
}

#[derive(Clone, Debug)]
struct TroubleCount {
    text: String,
    count: u64,
    times: TroubleTimes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TroubleTimes {
    pub(super) first: Duration,
    pub(super) last: Duration,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Troubles {
    counts: BTreeMap<(TroubleKind, String), TroubleCount>,
    others: u64,
    event_times: EventTimes,
}

impl Troubles {
    pub(super) fn add(&mut self, trouble: TroubleKind, code: &str, text: &str) {
        let now = clock::now();
        self.event_times.add(now);
        let code = clipped(code, MAX_TEXT_CHARS);
        if let Some(kind) = self.counts.get_mut(&(trouble, code.clone())) {
            kind.count += 1;
            kind.times.last = now;
        } else if self.counts.len() < MAX_KINDS || TroubleKind::OWN_CODES.contains(&trouble) {
            // Errors of the bench itself always get a row, because the row with the code `GIVEN_UP` tells the verdict
            // why the run ended. The bench chooses the codes of its own errors, so such rows are few.
            let times = TroubleTimes { first: now, last: now };
            self.counts.insert((trouble, code), TroubleCount { text: clipped(text, MAX_TEXT_CHARS), count: 1, times });
        } else {
            self.others += 1;
        }
    }

    pub(super) fn event_times(&self) -> &EventTimes {
        &self.event_times
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.values().map(|kind| kind.count).sum::<u64>() + self.others
    }

    /// Describes the latest error by its kind, its code and a text, for example as `error reply ECP-1034: no such
    /// receiver`. The text comes from the first error of this kind and code.
    pub(super) fn latest(&self) -> Option<String> {
        let ((trouble, code), kind) = self.counts.iter().max_by_key(|(_, kind)| kind.times.last)?;
        let name = trouble.name();
        Some(match code.as_str() {
            "" => format!("{name}: {}", kind.text),
            code => format!("{name} {code}: {}", kind.text),
        })
    }

    /// Returns the first text recorded for this kind and code, or `None` if there was no such error.
    pub(super) fn text(&self, trouble: TroubleKind, code: &str) -> Option<&str> {
        self.counts.get(&(trouble, code.to_owned())).map(|kind| kind.text.as_str())
    }

    #[cfg(test)]
    pub(super) fn count(&self, trouble: TroubleKind) -> u64 {
        self.counts.iter().filter(|((kind, _), _)| *kind == trouble).map(|(_, kind)| kind.count).sum()
    }

    /// Returns the times of the first and the last error for each row that `rows` returns, in the same order. The last
    /// item is `None`, because it stands for the shared row of further errors, for which no times are kept.
    pub(super) fn times(&self) -> impl Iterator<Item = Option<TroubleTimes>> + '_ {
        self.counts.values().map(|kind| Some(kind.times)).chain(std::iter::once(None))
    }

    pub(super) fn rows(&self) -> Vec<MadesTrouble> {
        let row = |(trouble, code): &(TroubleKind, String), kind: &TroubleCount| MadesTrouble {
            kind: trouble.name().to_owned(),
            code: code.clone(),
            text: kind.text.clone(),
            count: kind.count,
        };
        let mut rows: Vec<MadesTrouble> = self.counts.iter().map(|(key, kind)| row(key, kind)).collect();
        if self.others > 0 {
            let text = "other errors".to_owned();
            rows.push(MadesTrouble { kind: "other".to_owned(), code: String::new(), text, count: self.others });
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::run_state::GIVEN_UP;
    use super::*;

    #[test]
    fn each_kind_and_code_has_its_count_and_its_first_text() {
        let mut troubles = Troubles::default();
        troubles.add(TroubleKind::ErrorReply, "ECP-7", "no such receiver");
        troubles.add(TroubleKind::ErrorReply, "ECP-7", "nor this one");
        troubles.add(TroubleKind::ErrorReply, "ECP-8", "too large\x1b[2J\n");
        troubles.add(TroubleKind::Connection, "", "reset");
        let rows: Vec<_> = troubles.rows().into_iter().map(|row| (row.kind, row.code, row.text, row.count)).collect();
        let row =
            |kind: &str, code: &str, text: &str, count| (kind.to_owned(), code.to_owned(), text.to_owned(), count);
        let expected = [
            row("connection", "", "reset", 1),
            row("error reply", "ECP-7", "no such receiver", 2),
            row("error reply", "ECP-8", "too large [2J", 1),
        ];
        assert_eq!(rows, expected);
        assert_eq!((troubles.total(), troubles.count(TroubleKind::ErrorReply)), (4, 3));
        let times: Vec<_> = troubles.times().collect();
        assert!(times[..3].iter().all(|times| times.is_some_and(|times| times.first <= times.last)), "{times:?}");
        assert_eq!(times[3], None, "there are no others");
    }

    #[test]
    fn ever_new_codes_are_counted_and_not_kept() {
        let mut troubles = Troubles::default();
        (0..1_000).for_each(|code| troubles.add(TroubleKind::ErrorReply, &format!("{code}{}", "é".repeat(999)), ""));
        assert_eq!((troubles.total(), troubles.rows().len()), (1_000, MAX_KINDS + 1));
        assert!(troubles.rows().iter().all(|row| row.code.len() <= 2 * MAX_TEXT_CHARS));
        for kind in TroubleKind::OWN_CODES {
            troubles.add(kind, GIVEN_UP, "the run cannot go on");
            assert!(troubles.rows().iter().any(|row| row.kind == kind.name() && row.code == GIVEN_UP), "{kind:?}");
        }
    }
}
