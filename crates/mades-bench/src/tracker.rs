//! Tracks every message of a run, in whatever order the events about it come. It knows which messages are in flight and
//! what became of the others. It does no I/O: the caller passes the time.
//!
//! ```text
//! create ─→ in flight ─┬─ settled, replied, inbox, events ─→ finished ─┐
//!                      └─ time-out ────────────────────────→ given up ─┴→ its place is free, and only
//!                                                                         the facts in history stay
//! ```
use super::history::{MessageHistory, Novelty};
use super::in_flight::{InFlightEntry, InFlightTable};
use super::redelivery::RecentDeliveries;
use super::stages::{self, MadesFate, MadesMode, MessageFlags, MessagePath, MessageStage, WaitState};
use super::troubles::{TroubleKind, Troubles};
use super::waterfall::Waterfall;
use mailrun_measurement::record::LedgerRow;
use mailrun_measurement::slowest::Slowest;
use std::collections::HashMap;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveQueue {
    Reply,
    Event,
    Inbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointReply<'a> {
    /// The endpoint accepted the message. `peer_id` is the hash of the id that the endpoint gave it, or 0 without an
    /// id.
    Accepted {
        peer_id: u64,
    },
    Refused {
        code: &'a str,
        text: &'a str,
    },
    /// The endpoint accepted the message and later gave it up.
    Failed {
        code: &'a str,
        text: &'a str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadIntegrity {
    Intact,
    Corrupt,
}

#[derive(Debug)]
pub(super) struct MessageTracker {
    path: MessagePath,
    timeout: Duration,
    in_flight: InFlightTable,
    history: MessageHistory,
    pub(super) waterfall: Waterfall,
    pub(super) troubles: Troubles,
    slowest: Slowest<InFlightEntry>,
    next_sequence: u64,
    /// Number of the oldest message that may be unfinished: all messages with lower numbers are finished.
    oldest_open: u64,
    unsettled: usize,
    corrupt: u64,
    redelivered: u64,
    /// Number of messages that timed out before the broker confirmed them.
    unanswered: u64,
    ended: [u64; MadesFate::COUNT],
    /// Time of the last answer or of the last reconnection, whichever was later. A confirmation by the broker is no
    /// answer. `given_up_since_answer` counts the messages that have timed out since then.
    last_answer: Option<Duration>,
    given_up_since_answer: u64,
    /// The highest number of a message that has arrived. `reordered` counts the messages that
    /// arrived after a message with a higher number.
    highest_arrived: Option<u64>,
    reordered: u64,
    recent_deliveries: [RecentDeliveries; 3],
    /// Maps the hash of the id that the endpoint gave a message in flight to the number of the message. The map is
    /// created when an event first names its message only by such an id.
    by_peer_id: Option<HashMap<u64, u64>>,
    /// Integral of the number of messages in flight over the time in seconds. The mean number is computed from it.
    load_s: f64,
    load_since: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct FinalLedger {
    pub(super) ledger: LedgerRow,
    /// For each stage, the number of messages that should have reached the stage but did not.
    pub(super) missing: [u64; MessageStage::ALL.len()],
}

impl MessageTracker {
    pub(super) fn new(path: MessagePath, limit: usize, timeout: Duration) -> Self {
        Self {
            path,
            timeout,
            in_flight: InFlightTable::new(limit),
            history: MessageHistory::new(path.complete_flags()),
            waterfall: Waterfall::new(path),
            troubles: Troubles::default(),
            slowest: Slowest::default(),
            next_sequence: 0,
            oldest_open: 0,
            unsettled: 0,
            corrupt: 0,
            redelivered: 0,
            unanswered: 0,
            ended: [0; MadesFate::COUNT],
            last_answer: None,
            given_up_since_answer: 0,
            highest_arrived: None,
            reordered: 0,
            recent_deliveries: Default::default(),
            by_peer_id: None,
            load_s: 0.0,
            load_since: Duration::ZERO,
        }
    }

    pub(super) fn mode(&self) -> MadesMode {
        self.path.mode
    }

    pub(super) fn path(&self) -> MessagePath {
        self.path
    }

    pub(super) fn created(&self) -> u64 {
        self.next_sequence
    }

    /// Returns the number of messages that finished with this fate. A message that arrives only after the bench has
    /// given it up keeps its first fate in this count.
    pub(super) fn ended(&self, fate: MadesFate) -> u64 {
        self.ended[fate as usize]
    }

    pub(super) fn ended_without_delivery(&self) -> u64 {
        self.ended.iter().sum::<u64>() - self.ended(MadesFate::Delivered)
    }

    pub(super) fn in_transit(&self) -> usize {
        self.in_flight.count()
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled
    }

    pub(super) fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Measures the endpoint's silence from `now` on, because the endpoint has answered, or can answer again after a
    /// reconnection.
    pub(super) fn restart_silence(&mut self, now: Duration) {
        self.last_answer = Some(now);
        self.given_up_since_answer = 0;
    }

    /// Returns the time since the endpoint's last answer, or since the first message if there was no answer. `None` if
    /// fewer than two messages have timed out in that time, because a single lost message does not mean silence.
    pub(super) fn silent_for(&self, now: Duration) -> Option<Duration> {
        let since = self.last_answer.or(self.waterfall.began())?;
        (self.given_up_since_answer > 1).then(|| now.saturating_sub(since))
    }

    /// Returns true if at least one message in flight has not arrived yet. A message that has arrived can still be in
    /// flight, because it waits for a reply or an event.
    pub(super) fn awaits_arrival(&self) -> bool {
        self.in_flight.iter().any(|entry| entry.time(self.path.mode.arrival()).is_none())
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight.has_room()
    }

    pub(super) fn redelivered(&self) -> u64 {
        self.redelivered
    }

    /// Returns the messages that took longest to arrive, with the times that they took, the slowest first. Includes
    /// messages that have arrived but are still in flight.
    pub(super) fn slowest(&self) -> Vec<(Duration, InFlightEntry)> {
        let mut slowest = self.slowest.clone();
        self.in_flight.iter().for_each(|entry| add_arrived(&mut slowest, self.path.mode, entry));
        slowest.sorted()
    }

    pub(super) fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Returns the mean number of messages in flight, from the first message to `now`, or to the time at which the last
    /// message was given up if that is later.
    pub(super) fn mean_in_transit(&mut self, now: Duration) -> f64 {
        self.integrate_load(now);
        let began = self.waterfall.began().unwrap_or(now);
        let span_s = self.load_since.saturating_sub(began).as_secs_f64();
        if span_s > 0.0 { self.load_s / span_s } else { 0.0 }
    }

    /// Creates a message and returns its number. The table of messages in flight must have room for it.
    pub(super) fn create(&mut self, since: Duration, now: Duration) -> u64 {
        self.integrate_load(now);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let mut entry = InFlightEntry::new(sequence, since, now);
        entry.is_unsettled = true;
        self.unsettled += 1;
        self.waterfall.create(&entry);
        self.in_flight.insert(entry);
        sequence
    }

    pub(super) fn sent(&mut self, sequence: u64, now: Duration) {
        match self.in_flight.find_mut(sequence) {
            Some(entry) => self.waterfall.reach(entry, MessageStage::Sent, now),
            None => self.waterfall.late(sequence, MessageStage::Sent, now),
        }
    }

    pub(super) fn settled(&mut self, sequence: u64, now: Duration) {
        self.settle(sequence);
        if !self.history.flags(sequence).has(MessageStage::Settled) {
            self.reach(sequence, MessageStage::Settled, MessageFlags::default(), now);
        }
    }

    pub(super) fn returned(&mut self, sequence: u64, now: Duration, code: &str, text: &str) {
        self.settle(sequence);
        self.troubles.add(TroubleKind::Returned, code, text);
        self.add_flags(sequence, MessageFlags::RETURNED, now);
    }

    pub(super) fn is_known(&self, sequence: u64) -> bool {
        sequence < self.next_sequence
    }

    pub(super) fn is_open(&self, sequence: u64) -> bool {
        self.in_flight.find(sequence).is_some()
    }

    /// Returns the time at which the latencies of the message begin, or zero if the message is no longer in flight.
    pub(super) fn since(&self, sequence: u64) -> Duration {
        self.in_flight.find(sequence).map_or(Duration::ZERO, |entry| entry.since)
    }

    pub(super) fn given_up_at(&self, sequence: u64) -> Duration {
        self.in_flight.find(sequence).map_or(Duration::ZERO, |entry| entry.created + self.timeout)
    }

    /// Records that the sending connection was cut. The broker can no longer confirm the unsettled messages, and nobody
    /// knows whether it got them, so they stop counting as unsettled. The message `in_hand` was not sent completely, so
    /// it stays unsettled and is sent again.
    pub(super) fn forget_unsettled(&mut self, in_hand: Option<u64>) {
        for entry in self.in_flight.iter_mut().filter(|entry| entry.is_unsettled && Some(entry.sequence) != in_hand) {
            entry.is_unsettled = false;
            self.unsettled -= 1;
        }
    }

    pub(super) fn find_by_peer_id(&mut self, peer_id: u64) -> Option<u64> {
        let in_flight = &self.in_flight;
        let index = self.by_peer_id.get_or_insert_with(|| {
            in_flight.iter().filter(|entry| entry.peer_id != 0).map(|entry| (entry.peer_id, entry.sequence)).collect()
        });
        index.get(&peer_id).copied()
    }

    pub(super) fn replied(&mut self, sequence: u64, now: Duration, answer: EndpointReply<'_>) {
        if !self.is_new(sequence, MessageStage::Replied, ReceiveQueue::Reply) {
            return;
        }
        let flags = match answer {
            EndpointReply::Accepted { peer_id } => {
                self.set_peer_id(sequence, peer_id);
                MessageFlags::default()
            }
            EndpointReply::Refused { code, text } => {
                self.troubles.add(TroubleKind::ErrorReply, code, text);
                MessageFlags::REFUSED
            }
            EndpointReply::Failed { code, text } => {
                self.troubles.add(TroubleKind::Failed, code, text);
                MessageFlags::FAILED
            }
        };
        self.reach(sequence, MessageStage::Replied, flags, now);
    }

    /// Records that the message arrived, and returns true if it arrived for the first time.
    pub(super) fn arrived(&mut self, sequence: u64, now: Duration, content: PayloadIntegrity) -> bool {
        let redelivered_before = self.redelivered;
        let is_new = self.is_new(sequence, MessageStage::Inbox, ReceiveQueue::Inbox);
        // A redelivered message was already checked when it first arrived, so do not count it as corrupt again.
        if content == PayloadIntegrity::Corrupt && self.redelivered == redelivered_before {
            self.corrupt += 1;
        }
        if is_new {
            self.reordered += u64::from(self.highest_arrived > Some(sequence));
            self.highest_arrived = self.highest_arrived.max(Some(sequence));
            self.reach(sequence, MessageStage::Inbox, MessageFlags::default(), now);
        }
        is_new
    }

    pub(super) fn acknowledged(&mut self, sequence: u64, now: Duration) {
        if self.is_new(sequence, MessageStage::Acknowledged, ReceiveQueue::Inbox) {
            self.reach(sequence, MessageStage::Acknowledged, MessageFlags::default(), now);
        }
    }

    /// Records that an acknowledgement document rejects the message. Returns true if it is the first acknowledgement
    /// document about the message.
    pub(super) fn declined(&mut self, sequence: u64, now: Duration, code: &str, text: &str) -> bool {
        let is_new = self.is_new(sequence, MessageStage::Acknowledged, ReceiveQueue::Inbox);
        if is_new {
            self.troubles.add(TroubleKind::Declined, code, text);
            self.add_flags(sequence, MessageFlags::DECLINED, now);
        }
        is_new
    }

    /// Records a fact about a message's acknowledgement document, such as a refusal. Returns true if the fact is new.
    pub(super) fn add_document_fact(&mut self, sequence: u64, fact: MessageFlags) -> bool {
        self.history.add(sequence, fact).0 == Novelty::New
    }

    pub(super) fn event(&mut self, sequence: u64, now: Duration, stage: MessageStage) {
        if self.is_new(sequence, stage, ReceiveQueue::Event) {
            self.reach(sequence, stage, MessageFlags::default(), now);
        }
    }

    pub(super) fn failed(&mut self, sequence: u64, now: Duration, code: &str, text: &str) {
        // Count a failure only once, even if both a reply and an event report it.
        if self.history.flags(sequence).contains(MessageFlags::FAILED) {
            return;
        }
        self.troubles.add(TroubleKind::Failed, code, text);
        self.add_flags(sequence, MessageFlags::FAILED, now);
    }

    /// Records that no endpoint had fetched the message from the outbox by the end of the run.
    pub(super) fn waits(&mut self, sequence: u64) {
        self.history.add(sequence, MessageFlags::WAITING);
    }

    /// Returns the time of the endpoint's last answer. A confirmation by the broker does not count,
    /// because the broker is not the endpoint.
    pub(super) fn last_answer(&self) -> Option<Duration> {
        let stages = self.path.stages().iter().filter(|stage| **stage > MessageStage::Settled);
        stages.filter_map(|stage| self.waterfall.last(*stage)).max()
    }

    /// Records that the connection to these queues was cut. If the broker then delivers the last messages again, they
    /// do not count as duplicates.
    pub(super) fn connection_lost(&mut self, queues: &[ReceiveQueue]) {
        queues.iter().for_each(|queue| self.recent_deliveries[*queue as usize].connection_lost());
    }

    /// Gives up overdue messages. If no message is overdue, the call is cheap: it looks at a single message, because
    /// messages become overdue in the order of their numbers.
    pub(super) fn expire(&mut self, now: Duration) {
        while self.oldest_open < self.next_sequence {
            match self.in_flight.find(self.oldest_open) {
                Some(entry) if now < entry.created + self.timeout => break,
                Some(_) => self.give_up(self.oldest_open, now),
                None => {}
            }
            self.oldest_open += 1;
        }
        self.history.is_over_below(self.oldest_open);
    }

    pub(super) fn final_ledger(&self) -> FinalLedger {
        let mut fates = [0_u64; MadesFate::COUNT];
        let mut missing = [0_u64; MessageStage::ALL.len()];
        let mut accepted = 0;
        for sequence in 0..self.next_sequence {
            let flags = self.history.flags(sequence);
            let wait = if self.in_flight.find(sequence).is_some() { WaitState::Waiting } else { WaitState::Ended };
            fates[stages::fate(self.path.mode, flags, wait) as usize] += 1;
            accepted += u64::from(flags.has(MessageStage::Settled));
            if flags != self.path.complete_flags() {
                self.path.stages().iter().for_each(|stage| {
                    missing[*stage as usize] += u64::from(stages::is_missing(self.path.mode, flags, wait, *stage));
                });
            }
        }
        let fate = |fate: MadesFate| Some(fates[fate as usize]);
        let ledger = LedgerRow {
            created: Some(self.waterfall.count(MessageStage::Created)),
            accepted: Some(accepted),
            delivered: fate(MadesFate::Delivered),
            rejected: fate(MadesFate::Rejected),
            failed: fate(MadesFate::Failed),
            expired: fate(MadesFate::Expired),
            queued: fate(MadesFate::Waiting),
            lost: fate(MadesFate::Lost),
            in_flight: fate(MadesFate::InFlight),
            duplicates: Some(self.waterfall.duplicates(self.path.mode.arrival())),
            corrupt: Some(self.corrupt),
            converted: None,
            foreign: None,
            ..LedgerRow::zero()
        };
        FinalLedger { ledger, missing }
    }

    /// Returns true if a message reaches a stage for the first time. Otherwise counts a duplicate, or a redelivery if
    /// the connection was cut after the first time.
    fn is_new(&mut self, sequence: u64, stage: MessageStage, queue: ReceiveQueue) -> bool {
        // One queue carries several events of a message, each for a different stage. So recognise a redelivery by the
        // message and the stage.
        let mark = sequence * MessageStage::ALL.len() as u64 + stage as u64;
        let deliveries = &mut self.recent_deliveries[queue as usize];
        let flags = self.history.flags(sequence);
        let is_declined = stage == MessageStage::Acknowledged && flags.contains(MessageFlags::DECLINED);
        if !flags.has(stage) && !is_declined {
            deliveries.record(mark);
            return true;
        }
        if deliveries.is_redelivery(mark) {
            self.redelivered += 1;
        } else {
            self.waterfall.repeat(stage);
        }
        false
    }

    fn reach(&mut self, sequence: u64, stage: MessageStage, flags: MessageFlags, now: Duration) {
        match self.in_flight.find_mut(sequence) {
            Some(entry) => self.waterfall.reach(entry, stage, now),
            None => self.waterfall.late(sequence, stage, now),
        }
        self.add_flags(sequence, flags.with(stage), now);
    }

    /// Adds facts about a message. If no more facts are expected, removes the message from the table of messages in
    /// flight.
    fn add_flags(&mut self, sequence: u64, flags: MessageFlags, now: Duration) {
        // The broker's confirmation does not end the endpoint's silence, because it does not come from the endpoint.
        if flags != MessageFlags::default().with(MessageStage::Settled) {
            self.restart_silence(now);
        }
        let (_, known) = self.history.add(sequence, flags);
        if stages::is_finished(self.path, known) {
            self.finish(sequence, now);
        }
    }

    fn give_up(&mut self, sequence: u64, now: Duration) {
        let flags = self.history.flags(sequence);
        let waited_for =
            self.path.stages()[2..].iter().find(|stage| !flags.has(**stage)).map_or("", |stage| stage.name());
        self.troubles.add(TroubleKind::TimedOut, waited_for, &format!("nothing within {:?}", self.timeout));
        self.given_up_since_answer += 1;
        self.unanswered += u64::from(stages::fate(self.path.mode, flags, WaitState::Ended) == MadesFate::Failed);
        self.finish(sequence, now);
    }

    fn finish(&mut self, sequence: u64, now: Duration) {
        self.integrate_load(now);
        self.settle(sequence);
        let Some(entry) = self.in_flight.remove(sequence) else { return };
        let fate = stages::fate(self.path.mode, self.history.flags(sequence), WaitState::Ended);
        self.ended[fate as usize] += 1;
        add_arrived(&mut self.slowest, self.path.mode, &entry);
        if let Some(index) = &mut self.by_peer_id {
            index.remove(&entry.peer_id);
        }
    }

    fn settle(&mut self, sequence: u64) {
        if let Some(entry) = self.in_flight.find_mut(sequence).filter(|entry| entry.is_unsettled) {
            entry.is_unsettled = false;
            self.unsettled -= 1;
        }
    }

    fn set_peer_id(&mut self, sequence: u64, peer_id: u64) {
        if let Some(entry) = self.in_flight.find_mut(sequence) {
            entry.peer_id = peer_id;
            if let Some(index) = self.by_peer_id.as_mut().filter(|_| peer_id != 0) {
                index.insert(peer_id, sequence);
            }
        }
    }

    /// Adds the time since the last call, multiplied by the number of messages in flight, to `load_s`.
    fn integrate_load(&mut self, now: Duration) {
        self.load_s += self.in_flight.count() as f64 * now.saturating_sub(self.load_since).as_secs_f64();
        self.load_since = self.load_since.max(now);
    }
}

fn add_arrived(slowest: &mut Slowest<InFlightEntry>, mode: MadesMode, entry: &InFlightEntry) {
    let elapsed = entry.time(mode.arrival()).map(|arrived| arrived.saturating_sub(entry.since));
    if let Some(elapsed) = elapsed.filter(|elapsed| slowest.admits(*elapsed)) {
        slowest.insert(elapsed, *entry);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::AcknowledgementMode;
    use super::*;
    use mailrun_measurement::Stage;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn tracker(path: impl Into<MessagePath>) -> MessageTracker {
        MessageTracker::new(path.into(), 8, TIMEOUT)
    }

    fn get_through(tracker: &mut MessageTracker, sequence: u64, now: Duration) {
        tracker.sent(sequence, now);
        tracker.settled(sequence, now);
        tracker.replied(sequence, now, EndpointReply::Accepted { peer_id: 100 + sequence });
        tracker.arrived(sequence, now, PayloadIntegrity::Intact);
        tracker.event(sequence, now, MessageStage::Delivered);
        tracker.event(sequence, now, MessageStage::Received);
    }

    #[test]
    fn a_message_that_gets_through_frees_its_slot() {
        let mut tracker = tracker(MadesMode::Endpoint);
        let sequence = tracker.create(ms(1), ms(1));
        assert_eq!((tracker.in_transit(), tracker.unsettled()), (1, 1));
        get_through(&mut tracker, sequence, ms(2));
        assert_eq!((tracker.in_transit(), tracker.unsettled()), (0, 0));
        let balance = tracker.final_ledger();
        assert_eq!((balance.ledger.delivered, balance.ledger.lost), (Some(1), Some(0)));
        assert_eq!(balance.missing, [0; 9]);
    }

    #[test]
    fn one_lost_message_does_not_hold_its_place_for_ever() {
        // A lost message must free its slot when it times out. In go-mades-bench, a lost message keeps its slot
        // forever, and the program hangs when no slot is left.
        let mut tracker = tracker(MadesMode::Endpoint);
        for round in 0..100 {
            let now = ms(1 + round * 100);
            tracker.expire(now);
            while tracker.has_room() {
                let sequence = tracker.create(now, now);
                tracker.settled(sequence, now);
                if !sequence.is_multiple_of(10) {
                    get_through(&mut tracker, sequence, now);
                }
                assert!(tracker.created() < 10_000);
                if tracker.created().is_multiple_of(500) {
                    break;
                }
            }
        }
        tracker.expire(ms(1_000_000));
        let balance = tracker.final_ledger();
        assert_eq!(tracker.in_transit(), 0);
        assert_eq!(balance.ledger.lost, Some(tracker.created().div_ceil(10)));
        assert_eq!(balance.missing[MessageStage::Replied as usize], tracker.created().div_ceil(10));
    }

    #[test]
    fn a_message_waits_for_its_acknowledgement_and_misses_a_lost_one() {
        let path = MessagePath { mode: MadesMode::Endpoint, acknowledgement: AcknowledgementMode::On };
        let mut tracker = tracker(path);
        let answered = tracker.create(ms(1), ms(1));
        let unanswered = tracker.create(ms(1), ms(1));
        get_through(&mut tracker, answered, ms(2));
        get_through(&mut tracker, unanswered, ms(2));
        assert_eq!(tracker.in_transit(), 2);
        tracker.acknowledged(answered, ms(5));
        tracker.acknowledged(answered, ms(6));
        assert_eq!(tracker.in_transit(), 1);
        tracker.expire(ms(60));
        let balance = tracker.final_ledger();
        assert_eq!((balance.ledger.delivered, balance.ledger.lost, tracker.in_transit()), (Some(2), Some(0), 0));
        assert_eq!(balance.missing[MessageStage::Acknowledged as usize], 1);
        let row = tracker.waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0).pop().unwrap();
        assert_eq!((row.name, row.count, row.duplicates), (Stage::Acknowledged, 1, 1));
        assert_eq!(tracker.troubles.rows()[0].code, "acknowledged", "the stage that was waited for");
    }

    #[test]
    fn a_document_that_the_broker_may_not_have_taken_is_not_missing() {
        let path = MessagePath { mode: MadesMode::Endpoint, acknowledgement: AcknowledgementMode::On };
        let mut tracker = tracker(path);
        let sequence = tracker.create(ms(1), ms(1));
        get_through(&mut tracker, sequence, ms(2));
        tracker.add_document_fact(sequence, MessageFlags::DOCUMENT_IN_DOUBT);
        assert_eq!(tracker.in_transit(), 1, "it may still come");
        tracker.expire(ms(60));
        let balance = tracker.final_ledger();
        assert_eq!((balance.ledger.delivered, balance.missing, tracker.in_transit()), (Some(1), [0; 9], 0));
    }

    #[test]
    fn a_changed_copy_that_the_broker_delivers_again_counts_once() {
        let mut tracker = tracker(MadesMode::Amqp);
        let sequence = tracker.create(ms(1), ms(1));
        tracker.arrived(sequence, ms(2), PayloadIntegrity::Corrupt);
        tracker.connection_lost(&[ReceiveQueue::Inbox]);
        tracker.arrived(sequence, ms(3), PayloadIntegrity::Corrupt);
        assert_eq!((tracker.final_ledger().ledger.corrupt, tracker.redelivered()), (Some(1), 1));
        tracker.arrived(sequence, ms(4), PayloadIntegrity::Corrupt);
        assert_eq!(tracker.final_ledger().ledger.corrupt, Some(2), "a second copy");
    }

    #[test]
    fn a_rejecting_document_ends_the_wait_and_is_no_acknowledgement() {
        let path = MessagePath { mode: MadesMode::Endpoint, acknowledgement: AcknowledgementMode::On };
        let mut tracker = tracker(path);
        let sequence = tracker.create(ms(1), ms(1));
        assert!(tracker.declined(sequence, ms(2), "A02", "gate closure"), "it may overtake the events");
        assert_eq!(tracker.in_transit(), 1);
        get_through(&mut tracker, sequence, ms(3));
        assert_eq!(tracker.in_transit(), 0);
        tracker.acknowledged(sequence, ms(4));
        assert!(!tracker.declined(sequence, ms(4), "A02", ""), "the second and the third document");
        let balance = tracker.final_ledger();
        assert_eq!((balance.ledger.delivered, balance.missing), (Some(1), [0; 9]));
        let row = tracker.waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0).pop().unwrap();
        assert_eq!((row.name, row.count, row.duplicates), (Stage::Acknowledged, 0, 2));
        let troubles = tracker.troubles.rows();
        assert_eq!((troubles.len(), troubles[0].code.as_str(), troubles[0].count), (1, "A02", 1));
    }

    #[test]
    fn an_error_reply_is_an_outcome() {
        // A message with an error reply must count as rejected. go-mades-bench crashes at such a reply.
        let mut tracker = tracker(MadesMode::Endpoint);
        let sequence = tracker.create(ms(1), ms(1));
        tracker.replied(sequence, ms(2), EndpointReply::Refused { code: "ECP-1", text: "no such receiver" });
        assert_eq!(tracker.in_transit(), 1, "its transfer is not settled yet");
        tracker.settled(sequence, ms(3));
        assert_eq!((tracker.in_transit(), tracker.final_ledger().ledger.rejected), (0, Some(1)));
        assert_eq!((tracker.ended(MadesFate::Rejected), tracker.ended_without_delivery()), (1, 1));
        let row = &tracker.troubles.rows()[0];
        assert_eq!((row.kind.as_str(), row.code.as_str(), row.count), ("error reply", "ECP-1", 1));
        assert_eq!(tracker.final_ledger().missing, [0; 9], "nothing was to be expected any more");
    }

    #[test]
    fn what_comes_late_is_delivered_and_not_lost() {
        let mut tracker = tracker(MadesMode::Amqp);
        let sequence = tracker.create(ms(1), ms(1));
        tracker.settled(sequence, ms(2));
        tracker.expire(ms(60));
        assert_eq!((tracker.in_transit(), tracker.final_ledger().ledger.lost), (0, Some(1)));
        tracker.arrived(sequence, ms(70), PayloadIntegrity::Intact);
        let balance = tracker.final_ledger();
        assert_eq!((balance.ledger.lost, balance.ledger.delivered), (Some(0), Some(1)));
        assert_eq!(tracker.waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0)[3].late, 1);
    }

    #[test]
    fn a_broker_that_restarts_may_say_things_twice() {
        let mut tracker = tracker(MadesMode::Amqp);
        let sequence = tracker.create(ms(1), ms(1));
        tracker.arrived(sequence, ms(2), PayloadIntegrity::Intact);
        tracker.connection_lost(&[ReceiveQueue::Inbox]);
        tracker.forget_unsettled(None);
        assert_eq!(tracker.unsettled(), 0, "its place in the window is free again");
        tracker.arrived(sequence, ms(3), PayloadIntegrity::Intact);
        tracker.arrived(sequence, ms(4), PayloadIntegrity::Intact);
        assert_eq!((tracker.redelivered(), tracker.final_ledger().ledger.duplicates), (1, Some(1)));
    }

    #[test]
    fn events_without_our_id_find_their_message_by_the_endpoints() {
        let mut tracker = tracker(MadesMode::Endpoint);
        let first = tracker.create(ms(1), ms(1));
        tracker.replied(first, ms(2), EndpointReply::Accepted { peer_id: 77 });
        assert_eq!(tracker.find_by_peer_id(77), Some(first));
        let second = tracker.create(ms(3), ms(3));
        assert_eq!(tracker.find_by_peer_id(78), None);
        tracker.replied(second, ms(4), EndpointReply::Accepted { peer_id: 78 });
        assert_eq!(tracker.find_by_peer_id(78), Some(second));
        get_through(&mut tracker, first, ms(5));
        assert_eq!(tracker.find_by_peer_id(77), None, "the index shrinks with the messages under way");
    }

    #[test]
    fn an_endpoint_is_silent_from_its_last_answer() {
        let mut tracker = tracker(MadesMode::Endpoint);
        let answered = tracker.create(ms(1), ms(1));
        get_through(&mut tracker, answered, ms(5));
        for number in 0..2 {
            let id = tracker.create(ms(10 + number), ms(10 + number));
            // The broker confirms both messages, but this must not count as an answer of the endpoint.
            tracker.settled(id, ms(20));
        }
        tracker.expire(ms(60));
        assert_eq!(tracker.silent_for(ms(60)), None, "one message alone says nothing");
        tracker.expire(ms(70));
        assert_eq!(tracker.silent_for(ms(70)), Some(ms(65)));
        let answered = tracker.create(ms(75), ms(75));
        get_through(&mut tracker, answered, ms(80));
        assert_eq!(tracker.silent_for(ms(90)), None);
    }

    #[test]
    fn what_is_overtaken_counts_once_and_a_copy_does_not() {
        let mut tracker = tracker(MadesMode::Amqp);
        let sequences: Vec<u64> = (0..4).map(|number| tracker.create(ms(number), ms(number))).collect();
        for at in [2, 0, 0, 3, 1] {
            tracker.arrived(sequences[at], ms(10), PayloadIntegrity::Intact);
        }
        assert_eq!(tracker.reordered(), 2);
    }

    #[test]
    fn the_mean_in_transit_is_littles_law() {
        let mut tracker = tracker(MadesMode::Amqp);
        // A message is created each millisecond and arrives 4 ms later, so four are always in flight.
        for number in 0..1_000 {
            let now = ms(10 + number);
            if number >= 4 {
                tracker.settled(number - 4, now);
                tracker.arrived(number - 4, now, PayloadIntegrity::Intact);
            }
            tracker.create(now, now);
        }
        let mean = tracker.mean_in_transit(ms(1_010));
        assert!((mean - 4.0).abs() < 0.05, "{mean}");
    }

    #[derive(Clone, Copy, Debug)]
    enum MessageEvent {
        Settled,
        Returned,
        NotSettled,
        Accepted,
        Refused,
        GaveUp,
        Arrived(PayloadIntegrity),
        Event(MessageStage),
        Failed,
    }

    fn message_event() -> impl Strategy<Value = MessageEvent> {
        prop_oneof![
            3 => Just(MessageEvent::Settled),
            1 => Just(MessageEvent::Returned),
            1 => Just(MessageEvent::NotSettled),
            3 => Just(MessageEvent::Accepted),
            1 => Just(MessageEvent::Refused),
            1 => Just(MessageEvent::GaveUp),
            3 => Just(MessageEvent::Arrived(PayloadIntegrity::Intact)),
            1 => Just(MessageEvent::Arrived(PayloadIntegrity::Corrupt)),
            3 => Just(MessageEvent::Event(MessageStage::Delivered)),
            3 => Just(MessageEvent::Event(MessageStage::Received)),
            1 => Just(MessageEvent::Failed),
        ]
    }

    /// A simple model of one message: the stages that it has reached, and whether it is over.
    #[derive(Debug, Default)]
    struct ReferenceModel {
        created_ms: u64,
        stages: BTreeSet<MessageStage>,
        repeats: Vec<MessageStage>,
        late: Vec<MessageStage>,
        is_returned: bool,
        is_refused: bool,
        is_failed: bool,
        is_over: bool,
        is_settled: bool,
    }

    impl ReferenceModel {
        fn reach(&mut self, stage: MessageStage) -> bool {
            if !self.stages.insert(stage) {
                self.repeats.push(stage);
                return false;
            }
            if self.is_over {
                self.late.push(stage);
            }
            true
        }

        fn apply(&mut self, event: MessageEvent) {
            match event {
                MessageEvent::Settled => self.settle(),
                MessageEvent::Returned => (self.is_returned, self.is_settled) = (true, true),
                MessageEvent::NotSettled => {}
                MessageEvent::Accepted => drop(self.reach(MessageStage::Replied)),
                MessageEvent::Refused => self.is_refused |= self.reach(MessageStage::Replied),
                MessageEvent::GaveUp => self.is_failed |= self.reach(MessageStage::Replied),
                MessageEvent::Arrived(_) => drop(self.reach(MessageStage::Inbox)),
                MessageEvent::Event(stage) => drop(self.reach(stage)),
                MessageEvent::Failed => self.is_failed = true,
            }
            let has = |stage| self.stages.contains(&stage);
            let all = [
                MessageStage::Settled,
                MessageStage::Replied,
                MessageStage::Inbox,
                MessageStage::Delivered,
                MessageStage::Received,
            ];
            let given_up = self.is_refused || (self.is_failed && has(MessageStage::Replied));
            self.is_over |= self.is_returned || all.into_iter().all(has) || (has(MessageStage::Settled) && given_up);
        }

        fn settle(&mut self) {
            self.is_settled = true;
            // A broker settles a message only once, so the model ignores later settlements.
            if self.stages.insert(MessageStage::Settled) && self.is_over {
                self.late.push(MessageStage::Settled);
            }
        }

        fn fate(&self) -> &'static str {
            let has = |stage| self.stages.contains(&stage);
            match () {
                () if has(MessageStage::Inbox) => "delivered",
                () if self.is_returned || self.is_refused => "rejected",
                () if self.is_failed => "expired",
                () if !self.is_over => "in flight",
                () if has(MessageStage::Settled) => "lost",
                () => "failed",
            }
        }
    }

    fn apply(tracker: &mut MessageTracker, sequence: u64, event: MessageEvent, now: Duration) {
        match event {
            MessageEvent::Settled => tracker.settled(sequence, now),
            MessageEvent::Returned => tracker.returned(sequence, now, "", ""),
            MessageEvent::NotSettled => tracker.forget_unsettled(Some(sequence)),
            MessageEvent::Accepted => tracker.replied(sequence, now, EndpointReply::Accepted { peer_id: 0 }),
            MessageEvent::Refused => tracker.replied(sequence, now, EndpointReply::Refused { code: "", text: "" }),
            MessageEvent::GaveUp => tracker.replied(sequence, now, EndpointReply::Failed { code: "", text: "" }),
            MessageEvent::Arrived(content) => drop(tracker.arrived(sequence, now, content)),
            MessageEvent::Event(stage) => tracker.event(sequence, now, stage),
            MessageEvent::Failed => tracker.failed(sequence, now, "", ""),
        }
    }

    proptest! {
        /// After random events, `MessageTracker` must report the same counts and fates as `ReferenceModel`.
        #[test]
        fn the_books_are_those_of_a_naive_observer(
            steps in proptest::collection::vec((0_u64..40, message_event(), 0_u64..4), 1..400),
        ) {
            let mut tracker = tracker(MadesMode::Endpoint);
            let mut naive: Vec<ReferenceModel> = Vec::new();
            let mut now_ms = 1_u64;
            let mut corrupt = 0;
            for (number, event, passes_ms) in steps {
                now_ms += passes_ms;
                tracker.expire(ms(now_ms));
                naive.iter_mut().filter(|one| now_ms >= one.created_ms + 50).for_each(|one| {
                    (one.is_over, one.is_settled) = (true, true);
                });
                if tracker.has_room() {
                    prop_assert_eq!(tracker.create(ms(now_ms), ms(now_ms)), naive.len() as u64);
                    naive.push(ReferenceModel { created_ms: now_ms, ..ReferenceModel::default() });
                }
                let sequence = naive.len().saturating_sub(1 + number as usize);
                corrupt += u64::from(matches!(event, MessageEvent::Arrived(PayloadIntegrity::Corrupt)));
                naive[sequence].apply(event);
                if let MessageEvent::NotSettled = event {
                    let others = naive.iter_mut().enumerate().filter(|(number, _)| *number != sequence);
                    others.for_each(|(_, one)| one.is_settled = true);
                }
                apply(&mut tracker, sequence as u64, event, ms(now_ms));
                prop_assert_eq!(tracker.in_transit(), naive.iter().filter(|one| !one.is_over).count());
                let unsettled = naive.iter().filter(|one| !one.is_over && !one.is_settled).count();
                prop_assert_eq!(tracker.unsettled(), unsettled);
            }
            let balance = tracker.final_ledger();
            let fates = |fate: &str| Some(naive.iter().filter(|one| one.fate() == fate).count() as u64);
            prop_assert_eq!(balance.ledger.delivered, fates("delivered"));
            prop_assert_eq!(balance.ledger.rejected, fates("rejected"));
            prop_assert_eq!(balance.ledger.failed, fates("failed"));
            prop_assert_eq!(balance.ledger.expired, fates("expired"));
            prop_assert_eq!(balance.ledger.lost, fates("lost"));
            prop_assert_eq!(balance.ledger.in_flight, fates("in flight"));
            prop_assert!(mailrun_measurement::account::fates_sum(&balance.ledger));
            prop_assert_eq!(balance.ledger.corrupt, Some(corrupt));
            for row in tracker.waterfall.stage_rows(Duration::ZERO, 0.0, |_| 0).iter().skip(2) {
                let stage = MessageStage::ALL.into_iter().find(|stage| stage.stage() == row.name).unwrap();
                let count = |of: &dyn Fn(&ReferenceModel) -> usize| naive.iter().map(of).sum::<usize>() as u64;
                prop_assert_eq!(row.count, count(&|one| usize::from(one.stages.contains(&stage))));
                prop_assert_eq!(row.duplicates, count(&|one| one.repeats.iter().filter(|other| **other == stage).count()));
                prop_assert_eq!(row.late, count(&|one| one.late.iter().filter(|other| **other == stage).count()), "{}", row.name.name());
            }
        }
    }
}
