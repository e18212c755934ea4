//! Answers the end of a message (`.`) if the sink's rules were evaluated for each recipient, and changed the outcome or
//! caused a delay for at least one recipient.
//!
//! In LMTP, each recipient has its own reply (RFC 2033 §4.2). Rules can therefore delay or refuse the message for only
//! some of the recipients, and the sink counts the message separately for each recipient. SMTP has a single reply, and
//! the delays of all recipients add up before it. The first recipient for whom a rule refuses the message or ends the
//! session decides for all recipients. If no rule does so, the sink may still drop the message, or count it twice, for
//! only some of the recipients.
use super::dump::MessageWriter;
use super::session_rules::{DomainSlots, RuleEffect, SERVICE_CLOSING};
use super::worker_state::{RunNotice, SinkMessage, SinkRecipient, SinkWorkerState};
use mailrun_measurement::TraceResult;
use mailrun_net::Answer;
use mailrun_smtp::server::Protocol;
use std::cell::RefCell;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct RecipientDecision {
    pub(super) delay: Duration,
    pub(super) effect: RuleEffect,
}

impl RecipientDecision {
    /// Returns true if the recipient is treated as if there were no rules.
    pub(super) fn is_unchanged(&self) -> bool {
        self.effect == RuleEffect::Accept && self.delay.is_zero()
    }

    /// Returns true if the rules need not be evaluated for later recipients. In SMTP, any refusal decides for the whole
    /// message. In LMTP, each recipient has its own reply, so only the end of the session ends the evaluation.
    pub(super) fn ends_evaluation(&self, protocol: Protocol) -> bool {
        let is_refused = |code| protocol == Protocol::Smtp || code == SERVICE_CLOSING;
        self.effect.cuts_connection() || self.effect.error_code().is_some_and(is_refused)
    }

    /// Returns how many times the sink counts the message for this recipient: 0 if a rule refuses or drops the message,
    /// and 2 if a rule duplicates it.
    fn unit_count(&self) -> usize {
        self.effect.copies().unwrap_or(0).into()
    }
}

/// Combines the results of all recipients into one result for the message. If the message is accepted, recipients for
/// whom a rule drops the message are removed from `recipients` and from `draft`, the message to store. If a rule counts
/// the message twice for a recipient, this recipient is repeated in `recipients`.
pub(super) fn combine(
    decisions: &[RecipientDecision],
    recipients: &mut Vec<SinkRecipient>,
    draft: &mut Option<MessageWriter>,
) -> RecipientDecision {
    let delay = decisions.iter().map(|decision| decision.delay).sum();
    if let Some(last) = decisions
        .last()
        .filter(|decision| decision.ends_evaluation(Protocol::Smtp) && decision.effect != RuleEffect::LoseReply)
    {
        return RecipientDecision { delay, effect: last.effect.clone() };
    }
    let reply = decisions
        .last()
        .filter(|decision| decision.effect == RuleEffect::LoseReply)
        .map_or(RuleEffect::Accept, |_| RuleEffect::LoseReply);
    // After `lose reply`, the sink evaluates no rules for later recipients, so `decisions` lacks these recipients. The
    // message counts once for each of these recipients.
    let times = decisions.iter().map(RecipientDecision::unit_count).chain(std::iter::repeat(1));
    retain_counted(draft, times.clone());
    *recipients =
        recipients.iter().zip(times).flat_map(|(number, times)| std::iter::repeat_n(*number, times)).collect();
    RecipientDecision { delay, effect: if recipients.is_empty() { RuleEffect::Drop } else { reply } }
}

/// Removes, from the envelope of the message to store, all recipients for whom a rule refuses or drops the message.
/// `times` says how many times the message counts for each recipient.
fn retain_counted(draft: &mut Option<MessageWriter>, mut times: impl Iterator<Item = usize>) {
    if let Some(draft) = draft {
        draft.envelope().recipients.retain(|_| times.next().is_some_and(|times| times > 0));
    }
}

#[derive(Debug)]
pub(super) struct LmtpReplies {
    found: TraceResult,
    notice: Option<Box<RunNotice>>,
    bytes: u64,
    recipients: Vec<SinkRecipient>,
    /// Result of the rules for each recipient. A result that ends the session is the last in the list.
    decisions: Vec<RecipientDecision>,
    storage: RefCell<StorageState>,
    /// True if a rule has changed a byte of the message.
    is_changed: bool,
    /// Makes `domain cap` rules count the transaction as open until the last recipient has been answered.
    _domain_slots: DomainSlots,
}

#[derive(Debug)]
enum StorageState {
    /// No recipient has been accepted yet. The message is stored and counted when the first recipient is accepted.
    Pending(Option<MessageWriter>),
    Stored,
    /// The message could not be stored, so the reply for each further recipient refuses the message.
    Failed,
}

impl LmtpReplies {
    pub(super) fn new(message: SinkMessage, decisions: Vec<RecipientDecision>) -> Self {
        let SinkMessage {
            found, notice, recipients, bytes, message_writer: mut draft, is_changed, _domain_slots, ..
        } = message;
        retain_counted(&mut draft, decisions.iter().map(RecipientDecision::unit_count));
        Self {
            found,
            notice,
            bytes,
            recipients,
            decisions,
            storage: RefCell::new(StorageState::Pending(draft)),
            is_changed,
            _domain_slots,
        }
    }

    pub(super) fn delay(&self, place: usize) -> Duration {
        self.decisions.get(place).map_or(Duration::ZERO, |decision| decision.delay)
    }

    pub(super) fn is_last(&self, place: usize) -> bool {
        place + 1 >= self.decisions.len()
    }

    /// Returns the reply for the recipient at index `place`. Also counts the message for this recipient, unless a rule
    /// refuses or drops the message.
    pub(super) fn answer(&self, place: usize, worker: &SinkWorkerState, now: Duration) -> Answer {
        let Some((decision, number)) = self.decisions.get(place).zip(self.recipients.get(place)) else {
            return Answer::Yes;
        };
        let recipients = &vec![*number; decision.unit_count()];
        if !recipients.is_empty()
            && let Err(refusal) = self.count(recipients, worker, now)
        {
            return refusal;
        }
        worker.count_ordered(&self.found, std::iter::once(&decision.effect));
        if decision.effect == RuleEffect::LoseReply {
            worker.count_unanswered(recipients);
        }
        if self.is_last(place) && self.is_dropped() {
            // As in SMTP, a message that is dropped for all recipients counts as answered, but not as delivered.
            worker.count_arrival(&self.found, &[], self.bytes, now, 0);
        }
        decision.effect.clone().into_answer()
    }

    /// Returns true if rules dropped the message for at least one recipient and refused it for all others.
    fn is_dropped(&self) -> bool {
        matches!(*self.storage.borrow(), StorageState::Pending(_))
            && self.decisions.iter().any(|decision| decision.effect == RuleEffect::Drop)
    }

    fn count(&self, recipients: &[SinkRecipient], worker: &SinkWorkerState, now: Duration) -> Result<(), Answer> {
        let storage = &mut *self.storage.borrow_mut();
        match std::mem::replace(storage, StorageState::Failed) {
            StorageState::Pending(draft) => {
                worker.store(draft)?;
                match &self.notice {
                    // Count a notification once, when its first recipient is accepted. It reports on the recipients of
                    // another message, so the number of its own recipients does not matter.
                    Some(notice) => worker.count_notice(notice, recipients.len() as u64, self.bytes, now),
                    None => worker.count_arrival(&self.found, recipients, self.bytes, now, 1),
                }
                worker.count_corrupted(&self.found, u64::from(self.is_changed));
            }
            StorageState::Stored => worker.count_recipients(&self.found, recipients, now),
            StorageState::Failed => return Err(worker.storage_refusal()),
        }
        *storage = StorageState::Stored;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::active_rules::ActiveRules;
    use super::super::dump::DumpEnvelope;
    use super::super::rulebook::Rulebook;
    use super::super::worker_state::{DeliveryAddress, SinkContext};
    use super::*;
    use mailrun_measurement::RunId;
    use mailrun_measurement::record::Ordered;
    use mailrun_measurement::trace::{ClockId, RecipientId, RecipientNumbering, Trace, ZeroPhase};
    use mailrun_net::clock;
    use mailrun_smtp::Reply;
    use std::sync::Arc;

    const MS: Duration = Duration::from_millis(1);

    fn recipients() -> Vec<SinkRecipient> {
        let recipient =
            |domain| SinkRecipient { id: RecipientId::new(b"a@b"), domain, delivery: DeliveryAddress::Same };
        [7, 8, 9].map(recipient).to_vec()
    }

    fn message(found: TraceResult) -> SinkMessage {
        SinkMessage {
            found,
            notice: None,
            recipients: recipients(),
            bytes: 9,
            effect: RuleEffect::Accept,
            message_writer: None,
            is_changed: false,
            _domain_slots: DomainSlots::default(),
        }
    }

    fn decisions(effects: &[RuleEffect]) -> Vec<RecipientDecision> {
        effects.iter().map(|effect| RecipientDecision { delay: MS, effect: effect.clone() }).collect()
    }

    fn joined(effects: &[RuleEffect]) -> (Duration, RuleEffect, Vec<u16>) {
        let mut recipients = recipients();
        let RecipientDecision { delay, effect } = combine(&decisions(effects), &mut recipients, &mut None);
        (delay, effect, recipients.iter().map(|recipient| recipient.domain).collect())
    }

    #[test]
    fn a_stored_message_names_only_the_recipients_that_count() {
        for (effects, expected) in [
            ([RuleEffect::Accept, RuleEffect::Drop, RuleEffect::Duplicate].as_slice(), "ac"),
            // `lose reply` for the second recipient ends the evaluation of rules, so the third recipient is kept.
            (&[RuleEffect::Drop, RuleEffect::LoseReply], "bc"),
        ] {
            let mut envelope = DumpEnvelope::default();
            envelope.recipients = ["a", "b", "c"].map(str::to_owned).to_vec();
            let mut draft = Some(MessageWriter::new(envelope));
            combine(&decisions(effects), &mut recipients(), &mut draft);
            assert_eq!(draft.unwrap().envelope().recipients.concat(), expected, "{effects:?}");
        }
    }

    fn lmtp_worker() -> SinkWorkerState {
        let rules = ActiveRules::new(Rulebook::default(), 1);
        let context = SinkContext::new(rules, None, None, Some(1), None, Protocol::Lmtp);
        SinkWorkerState::new(Arc::new(context), std::sync::mpsc::channel().0)
    }

    /// Lets an LMTP sink answer each recipient of a corrupted message with the effect in `effects`. Returns the counts
    /// of faults, and true if the sink counts the message as answered.
    fn answered(effects: &[RuleEffect]) -> (Ordered, bool) {
        let trace = Trace {
            run: RunId([1; 16]),
            sequence: 5,
            zero: ZeroPhase::default(),
            numbering: RecipientNumbering::TAG,
            created: Duration::ZERO,
            clock: ClockId::realtime(""),
            checksum: 0,
        };
        let worker = lmtp_worker();
        let found = TraceResult::Corrupt(Some(trace));
        let decisions = decisions(effects);
        let replies = LmtpReplies::new(SinkMessage { is_changed: true, ..message(found) }, decisions);
        for place in 0..effects.len() {
            assert!(!worker.context.has_enough() || place > 0, "before the first reply");
            replies.answer(place, &worker, clock::now());
        }
        let ordered = worker.tally.borrow().ordered;
        (ordered, worker.context.has_enough())
    }

    #[test]
    fn a_notification_counts_once_however_many_recipients_are_answered() {
        let trace = Trace {
            run: RunId([1; 16]),
            sequence: 5,
            zero: ZeroPhase::default(),
            numbering: RecipientNumbering::SINGLE,
            created: Duration::ZERO,
            clock: ClockId::realtime(""),
            checksum: 0,
        };
        let mut header = [0; Trace::HEADER_BYTES];
        trace.write(&mut header);
        let text = format!(
            "Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n\
             Reporting-MTA: dns; x\r\n\r\nFinal-Recipient: rfc822; to@b\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n\
             --b\r\nContent-Type: message/rfc822\r\n\r\n{}\r\nx\r\n--b--\r\n",
            String::from_utf8_lossy(&header)
        );
        let mut reader = mailrun_mime::NoticeReader::new(mailrun_measurement::trace::NAME);
        reader.receive(text.as_bytes());
        let notice = Some(Box::new(RunNotice::read(reader).unwrap()));
        let worker = lmtp_worker();
        let decisions = decisions(&[RuleEffect::Accept, RuleEffect::Drop, RuleEffect::Accept]);
        let replies = LmtpReplies::new(SinkMessage { notice, ..message(TraceResult::Absent) }, decisions);
        (0..3).for_each(|place| _ = replies.answer(place, &worker, clock::now()));
        let tally = worker.tally.borrow();
        let run = tally.runs.find(trace.run).unwrap();
        assert_eq!((run.bounces.notices, run.bounces.units.count(), run.messages), (1, 1, 0));
        assert_eq!((tally.messages, tally.recipients, tally.untraced), (1, 2, 0));
    }

    #[test]
    fn faults_count_as_ordered_when_their_recipient_is_answered() {
        let refusal = || RuleEffect::Reject(Reply::new(550, "5.0.0 no"));
        let none = Ordered::default();
        let corrupt = Ordered { corrupt: 1, ..none };
        for (effects, expected, is_answered) in [
            ([RuleEffect::Accept, RuleEffect::Accept].as_slice(), corrupt, true),
            (&[RuleEffect::Accept, RuleEffect::LoseReply], Ordered { unanswered: 1, ..corrupt }, true),
            (&[RuleEffect::Duplicate, RuleEffect::Drop], Ordered { duplicates: 1, lost: 1, ..corrupt }, true),
            (&[RuleEffect::Drop, RuleEffect::Drop], Ordered { lost: 2, ..none }, true),
            (&[RuleEffect::Drop, refusal()], Ordered { lost: 1, ..none }, true),
            (&[refusal(), refusal()], none, false),
        ] {
            assert_eq!(answered(effects), (expected, is_answered), "{effects:?}");
        }
    }

    #[test]
    fn one_reply_stands_for_all_recipients() {
        let refusal = || RuleEffect::Reject(Reply::new(550, "5.0.0 no"));
        assert_eq!(joined(&[RuleEffect::Accept, refusal()]).1, refusal());
        assert_eq!(joined(&[RuleEffect::Drop, RuleEffect::HangUp(None)]).1, RuleEffect::HangUp(None));
        assert_eq!(
            joined(&[RuleEffect::Accept, RuleEffect::Drop, RuleEffect::Accept]),
            (MS * 3, RuleEffect::Accept, vec![7, 9])
        );
        assert_eq!(
            joined(&[RuleEffect::Duplicate, RuleEffect::Drop, RuleEffect::Accept]),
            (MS * 3, RuleEffect::Accept, vec![7, 7, 9])
        );
        assert_eq!(joined(&[RuleEffect::Drop, RuleEffect::LoseReply]), (MS * 2, RuleEffect::LoseReply, vec![8, 9]));
        assert_eq!(joined(&[RuleEffect::Drop, RuleEffect::Drop, RuleEffect::Drop]), (MS * 3, RuleEffect::Drop, vec![]));
    }

    #[test]
    fn who_is_asked_last_depends_on_the_protocol() {
        let ends = |effect: RuleEffect| {
            [Protocol::Smtp, Protocol::Lmtp]
                .map(|protocol| RecipientDecision { delay: MS, effect: effect.clone() }.ends_evaluation(protocol))
        };
        assert_eq!(ends(RuleEffect::Reject(Reply::new(550, "5.0.0 no"))), [true, false]);
        assert_eq!(ends(RuleEffect::Reject(Reply::new(421, "4.0.0 no"))), [true; 2]);
        assert_eq!(ends(RuleEffect::HangUp(None)), [true; 2]);
        assert_eq!(ends(RuleEffect::Duplicate), [false; 2]);
    }
}
