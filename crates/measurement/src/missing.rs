//! Lists the messages that did not arrive, with the server's replies, whose queue ids help to find the messages in the
//! server's log. The list is limited, so that a server that loses everything cannot use up the bench's memory.
use crate::ledger::Ledger;
use crate::record::{MissingFate, MissingMessage};
use crate::trace::message_number;
use std::collections::HashSet;
use std::time::Duration;

pub const MAX_MISSING: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTransaction {
    pub message: u64,
    pub since: Duration,
    pub fate: MissingFate,
    pub recipients: u32,
    pub reply: Option<String>,
}

/// The first [`MAX_MISSING`] messages that did not arrive, of one worker or of the whole run.
#[derive(Clone, Debug, Default)]
pub struct MissingTransactions {
    messages: Vec<MissingTransaction>,
    /// Number of messages that [`Self::clear`] has removed. They still count towards the limit of the list.
    cleared: usize,
}

impl MissingTransactions {
    pub fn has_room(&self) -> bool {
        self.messages.len() + self.cleared < MAX_MISSING
    }

    pub fn push(&mut self, message: MissingTransaction) {
        if self.has_room() {
            self.messages.push(message);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        other.messages.iter().for_each(|message| self.push(message.clone()));
    }

    /// Empties the list of a worker after the list was merged into the list of the run. The removed messages still
    /// count towards [`MAX_MISSING`], because a worker reports only that many messages in a whole run.
    pub fn clear(&mut self) {
        self.cleared += self.messages.len();
        self.messages.clear();
    }

    /// Lists the messages. Messages of the same worker are in the order in which their sending ended.
    pub fn iter(&self) -> impl Iterator<Item = &MissingTransaction> {
        self.messages.iter()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownReply {
    pub at: Duration,
    pub recipients: Vec<String>,
    pub text: String,
}

/// Lists the first messages that were accepted but did not reach all of their recipients. A message counts as bounced
/// if a notification reported a bounce for one of the recipients that it did not reach. `known` returns the server's
/// reply to the message with a sequence number, or `None` if it is unknown. Times in the list count from `origin`.
pub fn not_seen(
    accepted: &Ledger,
    arrived: &Ledger,
    bounced: &Ledger,
    origin: Duration,
    mut known: impl FnMut(u64) -> Option<KnownReply>,
) -> Vec<MissingMessage> {
    let units = accepted.messages_without(arrived, MAX_MISSING);
    let has_bounced: HashSet<u64> =
        bounced.messages_without(arrived, MAX_MISSING).into_iter().map(|(sequence, _)| sequence).collect();
    let row = |(sequence, recipient_count): (u64, u32)| {
        let known = known(sequence);
        MissingMessage {
            message: message_number(sequence),
            created_s: None,
            fate: if has_bounced.contains(&sequence) { MissingFate::Bounced } else { MissingFate::NotSeen },
            answered_s: known.as_ref().map(|known| known.at.saturating_sub(origin).as_secs_f64()),
            reply: known.as_ref().map(|known| known.text.clone()),
            recipients: known.map(|known| known.recipients).unwrap_or_default(),
            recipient_count,
        }
    };
    units.into_iter().map(row).collect()
}

/// Removes messages that reached all of their recipients. Such messages were listed only because the source received no
/// 250 for them.
pub fn remove_arrived(messages: &mut Vec<MissingMessage>, arrived: &Ledger) {
    messages.retain(|message| arrived.units_of(message.message) < message.recipient_count.max(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::WARM_UP_SEQUENCE;

    #[test]
    fn no_more_than_a_thousand_are_kept_however_often_they_are_handed_over() {
        let one = MissingTransaction {
            message: 1,
            since: Duration::ZERO,
            fate: MissingFate::Failed,
            recipients: 1,
            reply: None,
        };
        let mut worker = MissingTransactions::default();
        let mut all = MissingTransactions::default();
        for _ in 0..30 {
            (0..40).for_each(|_| worker.push(one.clone()));
            all.merge(&worker);
            worker.clear();
        }
        assert!(!worker.has_room() && !all.has_room());
        assert_eq!(all.iter().count(), MAX_MISSING);
    }

    #[test]
    fn messages_that_the_sink_has_not_seen_are_listed_with_their_replies() {
        let mut accepted = Ledger::default();
        let mut arrived = Ledger::default();
        for sequence in [3, 5, 40_000, WARM_UP_SEQUENCE + 1] {
            [0, 900].into_iter().for_each(|recipient| _ = accepted.mark(sequence, recipient));
        }
        [(3, 0), (3, 900), (5, 900)]
            .into_iter()
            .for_each(|(sequence, recipient)| _ = arrived.mark(sequence, recipient));
        let reply = KnownReply {
            at: Duration::from_millis(3500),
            recipients: vec!["a@b".to_owned()],
            text: "250 queued as 7".to_owned(),
        };
        let known = |sequence| (sequence == 5).then(|| reply.clone());
        let origin = Duration::from_secs(2);
        let mut bounced = Ledger::default();
        [(3, 0), (WARM_UP_SEQUENCE + 1, 0)].into_iter().for_each(|(sequence, unit)| _ = bounced.mark(sequence, unit));
        let missing = not_seen(&accepted, &arrived, &bounced, origin, known);
        let fates: Vec<_> = missing.iter().map(|row| row.fate.name()).collect();
        assert_eq!(fates, ["not seen", "not seen", "bounced"]);
        let numbers: Vec<_> = missing.iter().map(|row| (row.message, row.recipient_count)).collect();
        assert_eq!(numbers, [(5, 1), (40_000, 2), (1, 2)]);
        assert_eq!((missing[0].reply.as_deref(), missing[0].recipients.len()), (Some("250 queued as 7"), 1));
        assert_eq!((missing[0].answered_s, missing[1].answered_s), (Some(1.5), None));
        let row = |message, recipient_count| MissingMessage { message, recipient_count, ..MissingMessage::default() };
        let mut listed = vec![row(3, 2), row(5, 2), row(1, 2), row(1, 3), row(40_000, 0)];
        [0, 900].into_iter().for_each(|unit| _ = arrived.mark(1 | WARM_UP_SEQUENCE, unit));
        remove_arrived(&mut listed, &arrived);
        let left: Vec<_> = listed.iter().map(|row| (row.message, row.recipient_count)).collect();
        assert_eq!(left, [(5, 2), (1, 3), (40_000, 0)]);
        (100_000..150_000).for_each(|sequence| _ = accepted.mark(sequence, 0));
        assert_eq!(not_seen(&accepted, &arrived, &bounced, origin, known).len(), MAX_MISSING);
    }
}
