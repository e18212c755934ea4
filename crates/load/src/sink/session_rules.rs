//! Decides what the rules do to each command of a session, and to the reading of its messages. The caller passes the
//! time, so no clock is read here. Sessions affect each other only through rules with a memory, such as greylists.
//!
//! A random choice depends on the seed, on the rule's position, on the session's number, and on how often the session
//! has sent the command before. Whether a message is dropped or counted twice depends on the message's number instead
//! of the session. With the same seed, rules therefore hit the same sessions and messages, however the commands of
//! different sessions are interleaved.
use super::active_rules::{PolicyState, RuleState, Ruleset};
use super::policies::{DomainKey, ReadThrottle, Triplet, tarpit};
use super::rules::{LimitKey, RuleAction, RuleCommand, directed_reply};
use mailrun_lock::lock;
use mailrun_measurement::seeded::splitmix64;
use mailrun_net::Answer;
use mailrun_smtp::{Domain, Path, Reply};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct SessionRules {
    number: u64,
    /// Number of times that the session has sent each command. Random choices of the rules depend on these numbers.
    command_counts: [u32; RuleCommand::ALL.len()],
    commands: u32,
    sender: Vec<u8>,
    /// True if the transaction's sender is <>, so most rules do not apply.
    is_notice: bool,
    recipients: RecipientList,
    domain_slots: DomainSlots,
    body_rules: Option<Box<BodyRules>>,
}

#[derive(Debug)]
pub(super) struct CommandContext<'a> {
    pub(super) command: RuleCommand,
    pub(super) client: IpAddr,
    /// Address that rules check: at MAIL the sender, at RCPT the recipient, and at the end of a message the recipient
    /// for whom the rules are evaluated.
    pub(super) address: Option<Path<'a>>,
    /// Number of the message in its run, if the message has a trace.
    pub(super) sequence: Option<u64>,
    pub(super) now: Duration,
    /// Time since the sink's first connection. The times in `stall` rules count from this connection.
    pub(super) since_start: Duration,
}

#[derive(Debug)]
pub(super) struct RuleDecision {
    /// Sum of all delays that the rules ask for. The sink waits this long before it answers.
    pub(super) delay: Duration,
    pub(super) effect: RuleEffect,
    /// The rule that caused `effect`, or `None` if `effect` is `Accept`.
    pub(super) decided_by: Option<Arc<RuleState>>,
}

/// Code of the reply with which a server may end a session after any command (RFC 5321 §3.8).
pub(super) const SERVICE_CLOSING: u16 = 421;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RuleEffect {
    /// No rule interferes, so the sink answers as usual.
    Accept,
    Reject(Reply),
    HangUp(Option<Reply>),
    Reset,
    /// The sink counts the message as accepted, but cuts the connection instead of sending the reply.
    LoseReply,
    /// The sink answers the message with 250, but does not count it as delivered.
    Drop,
    Duplicate,
}

impl RuleEffect {
    /// Returns how many times the sink counts the message: 0 if a rule drops it, and 2 if a rule duplicates it. Returns
    /// `None` if the message is not accepted.
    pub(super) fn copies(&self) -> Option<u8> {
        match self {
            Self::Reject(_) | Self::HangUp(_) | Self::Reset => None,
            Self::Drop => Some(0),
            Self::Accept | Self::LoseReply => Some(1),
            Self::Duplicate => Some(2),
        }
    }

    pub(super) fn into_answer(self) -> Answer {
        match self {
            Self::Accept | Self::Drop | Self::Duplicate => Answer::Yes,
            Self::Reject(reply) => Answer::Reply(reply),
            Self::HangUp(last_word) => Answer::HangUp(last_word),
            Self::LoseReply => Answer::HangUp(None),
            Self::Reset => Answer::Reset,
        }
    }

    /// Returns the reply code of the error that the client sees, or 0 if the connection is cut without a reply. Returns
    /// `None` if the client sees no error.
    pub(super) fn error_code(&self) -> Option<u16> {
        match self {
            Self::Reject(reply) | Self::HangUp(Some(reply)) => Some(reply.code()),
            _ => self.cuts_connection().then_some(0),
        }
    }

    pub(super) fn cuts_connection(&self) -> bool {
        matches!(self, Self::HangUp(_) | Self::Reset | Self::LoseReply)
    }
}

#[derive(Debug, Default)]
struct BodyRules {
    throttle: Option<ReadThrottle>,
    /// Maximum number of bytes of the message that are taken in one read.
    piece: Option<usize>,
    /// Number of bytes of the message after which a rule resets the connection (RST).
    reset: Option<(u64, Arc<RuleState>)>,
    /// Time at which an `abort` rule ends the session, and the rule's reply. Until then, the sink reads nothing.
    abort: Option<(Duration, Reply, Arc<RuleState>)>,
    octets: u64,
}

#[derive(Debug)]
pub(super) enum ReadStep {
    All,
    AtMost(usize),
    NotBefore(Duration),
    /// The sink must stop reading the message and cut the connection, because of this rule.
    Stop(RuleEffect, Arc<RuleState>),
}

/// Addresses of a transaction's recipients, which are stored only if a rule must be evaluated for
/// each recipient at the end of the message.
#[derive(Debug, Default)]
struct RecipientList {
    octets: Vec<u8>,
    /// Offset in `octets` at which each recipient's address ends. Addresses that no rule needs are empty.
    ends: Vec<usize>,
}

impl RecipientList {
    fn insert(&mut self, place: usize, recipient: &Path<'_>) {
        while self.ends.len() < place {
            self.ends.push(self.octets.len());
        }
        self.octets.extend_from_slice(recipient.as_bytes());
        self.ends.push(self.octets.len());
    }

    fn recipient(&self, place: usize) -> Option<Path<'_>> {
        let from = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mailbox = self.octets.get(from..*self.ends.get(place)?)?;
        Path::mailbox(mailbox).ok().filter(|path| !path.is_null())
    }
}

/// Makes `domain cap` rules count a transaction as open, until this value is dropped.
#[derive(Debug, Default)]
pub(super) struct DomainSlots(Vec<(Arc<RuleState>, DomainKey)>);

impl SessionRules {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            command_counts: [0; RuleCommand::ALL.len()],
            commands: 0,
            sender: Vec::new(),
            is_notice: false,
            recipients: RecipientList::default(),
            domain_slots: DomainSlots::default(),
            body_rules: None,
        }
    }

    /// Evaluates the rules for a command, in their order. Delays add up. The first rule that refuses the command, cuts
    /// the connection, or drops or duplicates the message decides, and later rules are not evaluated.
    pub(super) fn decide(&mut self, rules: &Ruleset, context: &CommandContext<'_>) -> RuleDecision {
        let nth = self.command_counts[context.command as usize];
        if context.command == RuleCommand::Mail {
            self.is_notice = context.address.is_some_and(|sender| sender.is_null());
        }
        let decision =
            self.evaluate(rules, context, &RuleSample { seed: rules.seed, session: self.number, nth, recipient: 0 });
        self.command_counts[context.command as usize] += 1;
        self.commands += 1;
        if let (RuleCommand::Mail, RuleEffect::Accept, Some(sender)) =
            (context.command, &decision.effect, context.address)
        {
            self.sender.clear();
            self.sender.extend_from_slice(sender.as_bytes());
        }
        decision
    }

    /// Evaluates, at the end of a message, the rules for the recipient at `place`, counted from 0. The caller must
    /// first call [`Self::decide`] for the end of the message.
    pub(super) fn decide_recipient(
        &mut self,
        rules: &Ruleset,
        context: &CommandContext<'_>,
        place: usize,
    ) -> RuleDecision {
        let recipients = std::mem::take(&mut self.recipients);
        // `nth` is the number of earlier messages in the session. `decide` has already counted this message, so
        // subtract one.
        let nth = self.command_counts[context.command as usize].saturating_sub(1);
        let sample = RuleSample { seed: rules.seed, session: self.number, nth, recipient: place as u64 + 1 };
        let decision =
            self.evaluate(rules, &CommandContext { address: recipients.recipient(place), ..*context }, &sample);
        self.recipients = recipients;
        decision
    }

    /// Remembers the address of a recipient for rules that are evaluated at the end of the message. `place` is the
    /// recipient's index among the accepted recipients.
    pub(super) fn add_recipient(&mut self, place: usize, recipient: &Path<'_>) {
        self.recipients.insert(place, recipient);
    }

    fn evaluate(&mut self, rules: &Ruleset, context: &CommandContext<'_>, sample: &RuleSample) -> RuleDecision {
        let mut decision = RuleDecision { delay: Duration::ZERO, effect: RuleEffect::Accept, decided_by: None };
        let slots_before = self.domain_slots.0.len();
        let is_of_transaction = matches!(
            context.command,
            RuleCommand::Mail | RuleCommand::Recipient | RuleCommand::Data | RuleCommand::Dot
        );
        let is_notice = self.is_notice && is_of_transaction;
        let is_asked = |rule_state: &&Arc<RuleState>| {
            let rule = &rule_state.rule;
            rule.commands.contain(context.command)
                && rule.is_for_each_recipient() == (sample.recipient > 0)
                && rule.matches_sender(is_notice)
        };
        for rule_state in rules.rules.iter().filter(is_asked) {
            if !rule_state.rule.matches_address(context.address.as_ref())
                || !sample.occurs(rule_state, context.sequence)
            {
                continue;
            }
            let delay = self.delay(rule_state, context, sample);
            if !delay.is_zero() {
                rule_state.count_action();
                decision.delay += delay;
            }
            if let Some(effect) = self.effect(rule_state, context) {
                rule_state.count_action();
                // This rule refuses the RCPT, so release the slots that earlier `domain cap` rules have reserved for
                // the RCPT.
                self.domain_slots.release_after(slots_before);
                decision.effect = effect;
                decision.decided_by = Some(Arc::clone(rule_state));
                break;
            }
        }
        decision
    }

    fn delay(&self, rule_state: &RuleState, context: &CommandContext<'_>, sample: &RuleSample) -> Duration {
        match rule_state.rule.action {
            RuleAction::Delay { from, to } if from == to => from,
            // Another random number, drawn for `index`, decides whether the rule acts. The length of the delay must be
            // independent of that number, so set bit 40, which no rule's index has.
            RuleAction::Delay { from, to } => from + (to - from).mul_f64(sample.fraction(rule_state.index | 1 << 40)),
            RuleAction::Tarpit { step, most } => tarpit(step, most, self.commands),
            RuleAction::Stall { at, length } if (at..at.saturating_add(length)).contains(&context.since_start) => {
                at + length - context.since_start
            }
            _ => Duration::ZERO,
        }
    }

    fn effect(&mut self, rule_state: &Arc<RuleState>, context: &CommandContext<'_>) -> Option<RuleEffect> {
        match &rule_state.rule.action {
            RuleAction::HangUp(last_word) => Some(RuleEffect::HangUp(last_word.clone())),
            RuleAction::Reject(reply) => Some(RuleEffect::Reject(reply.clone())),
            RuleAction::Reset => Some(RuleEffect::Reset),
            RuleAction::LoseReply => Some(RuleEffect::LoseReply),
            RuleAction::Drop => Some(RuleEffect::Drop),
            RuleAction::Duplicate => Some(RuleEffect::Duplicate),
            RuleAction::Directed => {
                context.address.and_then(|address| directed_reply(address.local_part())).map(RuleEffect::Reject)
            }
            RuleAction::Limit { reply, .. }
            | RuleAction::Greylist { reply, .. }
            | RuleAction::DomainCap { reply, .. } => {
                (!self.policy_accepts(rule_state, context)).then(|| RuleEffect::Reject(reply.clone()))
            }
            RuleAction::SessionCap { most, reply } => {
                let earlier = self.command_counts[RuleCommand::Mail as usize];
                (earlier >= *most).then(|| RuleEffect::HangUp(reply.clone()))
            }
            RuleAction::Read { .. }
            | RuleAction::ReadPieces { .. }
            | RuleAction::ResetAt { .. }
            | RuleAction::Abort { .. } => {
                self.set_body_rule(rule_state, context.now);
                None
            }
            RuleAction::Delay { .. } | RuleAction::Stall { .. } | RuleAction::Tarpit { .. } | RuleAction::Corrupt => {
                None
            }
        }
    }

    /// Asks the rule's policy, such as a rate limit or a greylist, whether it accepts the command. The policy remembers
    /// the command for later decisions.
    fn policy_accepts(&mut self, rule_state: &Arc<RuleState>, context: &CommandContext<'_>) -> bool {
        let recipient = context.address.as_ref();
        match &*rule_state.policy {
            PolicyState::Stateless => true,
            PolicyState::RateLimit(bucket) => lock(bucket).take(context.now),
            PolicyState::KeyedLimit(per, limits) => {
                let local_part = recipient.filter(|_| *per == LimitKey::Recipient).map(Path::local_part);
                let domain = recipient.and_then(Path::domain).unwrap_or_default();
                lock(limits).take((local_part, Domain::new(domain)), context.now)
            }
            PolicyState::Greylist(list) => {
                let recipient = recipient.map_or(&[][..], Path::as_bytes);
                lock(list).passes(Triplet { client: context.client, sender: &self.sender, recipient }, context.now)
            }
            PolicyState::DomainCap(domains) => {
                let mut domains = lock(domains);
                let domain = domains.key(recipient.and_then(Path::domain).unwrap_or_default());
                if self
                    .domain_slots
                    .0
                    .iter()
                    .any(|(holder, seat)| Arc::ptr_eq(&holder.policy, &rule_state.policy) && *seat == domain)
                {
                    return true;
                }
                // `domain cap` counts a transaction once per domain, so only its first recipient in a domain takes a
                // slot.
                let has_room = domains.acquire(domain);
                if has_room {
                    self.domain_slots.0.push((Arc::clone(rule_state), domain));
                }
                has_room
            }
        }
    }

    /// Stores a rule that slows, limits or ends the reading of the message that follows this command. If there are
    /// several rules of the same kind, only the first has an effect.
    fn set_body_rule(&mut self, rule_state: &Arc<RuleState>, now: Duration) {
        let body_rules = self.body_rules.get_or_insert_default();
        match &rule_state.rule.action {
            RuleAction::Read { octets_per_s } if body_rules.throttle.is_none() => {
                rule_state.count_action();
                body_rules.throttle = Some(ReadThrottle::new(*octets_per_s, now));
            }
            RuleAction::ReadPieces { octets } if body_rules.piece.is_none() => {
                rule_state.count_action();
                body_rules.piece = Some(usize::try_from(*octets).unwrap_or(usize::MAX));
            }
            RuleAction::ResetAt { octets } if body_rules.reset.is_none() => {
                body_rules.reset = Some((*octets, Arc::clone(rule_state)))
            }
            RuleAction::Abort { after, reply } if body_rules.abort.is_none() => {
                body_rules.abort = Some((now.saturating_add(*after), reply.clone(), Arc::clone(rule_state)));
            }
            _ => {}
        }
    }

    pub(super) fn corrupts_next(&self, rules: &Ruleset) -> bool {
        let nth = self.command_counts[RuleCommand::Data as usize];
        let sample = RuleSample { seed: rules.seed, session: self.number, nth, recipient: 0 };
        let hit = rules.rules.iter().find(|rule_state| {
            let rule = &rule_state.rule;
            rule.action == RuleAction::Corrupt && rule.matches_sender(self.is_notice) && sample.occurs(rule_state, None)
        });
        hit.inspect(|rule_state| rule_state.count_action()).is_some()
    }

    pub(super) fn record_read(&mut self, octets: usize, now: impl FnOnce() -> Duration) {
        if let Some(body_rules) = &mut self.body_rules {
            body_rules.octets += octets as u64;
            if let Some(throttle) = &mut body_rules.throttle {
                throttle.record_read(octets, now());
            }
        }
    }

    pub(super) fn next_read(&mut self, now: impl FnOnce() -> Duration) -> ReadStep {
        let Some(body_rules) = &mut self.body_rules else { return ReadStep::All };
        if let Some((effect, by)) = body_rules.reset_due() {
            return ReadStep::Stop(effect, by);
        }
        let now = now();
        if let Some((then, reply, by)) = &body_rules.abort {
            let over = || ReadStep::Stop(RuleEffect::HangUp(Some(reply.clone())), Arc::clone(by));
            return if now < *then { ReadStep::NotBefore(*then) } else { over() };
        }
        let throttled = body_rules.throttle.as_ref().map(|throttle| throttle.next_read(now)).transpose();
        match throttled.map(|limit| limit.into_iter().chain(body_rules.piece).min()) {
            Ok(None) => ReadStep::All,
            Ok(Some(limit)) => ReadStep::AtMost(limit),
            Err(then) => ReadStep::NotBefore(then),
        }
    }

    /// Removes the rules for the reading of a message, because the message is complete. If an `abort` or `reset` rule
    /// should have cut the connection before that, returns its effect, so that the caller cuts the connection now.
    pub(super) fn finish_message(&mut self) -> Option<(RuleEffect, Arc<RuleState>)> {
        let body_rules = self.body_rules.take()?;
        let abort = |(_, reply, by)| (RuleEffect::HangUp(Some(reply)), by);
        body_rules.reset_due().or_else(|| body_rules.abort.map(abort))
    }

    /// Forgets the transaction, and returns its slots in `domain cap` rules. These rules count the transaction as open
    /// until the caller drops the slots, so the caller must keep them until the message is answered.
    pub(super) fn end_transaction(&mut self) -> DomainSlots {
        self.body_rules = None;
        self.recipients = RecipientList::default();
        std::mem::take(&mut self.domain_slots)
    }
}

impl BodyRules {
    fn reset_due(&self) -> Option<(RuleEffect, Arc<RuleState>)> {
        let (at, by) = self.reset.as_ref()?;
        (self.octets >= *at).then(|| (RuleEffect::Reset, Arc::clone(by)))
    }
}

impl DomainSlots {
    /// Releases all slots in `domain cap` rules except the first `kept`, so that other transactions can take them.
    fn release_after(&mut self, kept: usize) {
        for (rule_state, domain) in self.0.drain(kept..) {
            if let PolicyState::DomainCap(domains) = &*rule_state.policy {
                lock(domains).release(domain);
            }
        }
    }
}

impl Drop for DomainSlots {
    fn drop(&mut self) {
        self.release_after(0);
    }
}

struct RuleSample {
    seed: u64,
    session: u64,
    /// Number of times that the session has sent this command before.
    nth: u32,
    /// Place of the recipient for whom the rule is evaluated, counted from 1. 0 stands for the
    /// whole message.
    recipient: u64,
}

impl RuleSample {
    /// Decides at random whether a rule acts. If the rule drops a message or counts it twice, the choice depends on the
    /// message's number, so that the order of arrival does not matter. For other rules, the choice depends on the
    /// session and on how often the session has sent the command before, so that a retry may succeed.
    fn occurs(&self, rule_state: &RuleState, sequence: Option<u64>) -> bool {
        let chance = rule_state.rule.chance;
        if chance >= 1.0 {
            return true;
        }
        let by_message =
            sequence.filter(|_| matches!(rule_state.rule.action, RuleAction::Drop | RuleAction::Duplicate));
        chance > 0.0
            && by_message.map_or_else(
                || self.fraction(rule_state.index),
                |number| self.of(rule_state.index, number, self.recipient),
            ) < chance
    }

    fn fraction(&self, place: u64) -> f64 {
        // Other calls of `of` pass the number of a message. Set the highest bit of the session's number, so that
        // session 5 and message 5 do not get the same random choices.
        self.of(place, self.session | 1 << 63, u64::from(self.nth) | self.recipient << 32)
    }

    /// Returns a number, at least 0 and below 1, that depends only on the arguments and the seed.
    fn of(&self, place: u64, number: u64, nth: u64) -> f64 {
        let placed = splitmix64(self.seed ^ place.rotate_left(32));
        let mixed = splitmix64(splitmix64(placed ^ number) ^ nth);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::active_rules::ActiveRules;
    use super::super::rulebook::Rulebook;
    use super::super::rules::Rule;
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn control(seed: u64, rules: &[&str]) -> ActiveRules {
        let rules = rules.iter().map(|text| Rule::parse(text).unwrap()).collect();
        ActiveRules::new(Rulebook { seed: None, rules }, seed)
    }

    fn context(command: RuleCommand) -> CommandContext<'static> {
        let address = None;
        let sequence = None;
        let now = Duration::ZERO;
        let since = Duration::ZERO;
        CommandContext { command, client: [127, 0, 0, 1].into(), address, sequence, now, since_start: since }
    }

    fn to(address: &str) -> CommandContext<'_> {
        CommandContext { address: Some(Path::mailbox(address.as_bytes()).unwrap()), ..context(RuleCommand::Recipient) }
    }

    fn code(decision: &RuleDecision) -> u16 {
        match &decision.effect {
            RuleEffect::Reject(reply) | RuleEffect::HangUp(Some(reply)) => reply.code(),
            _ => 0,
        }
    }

    #[test]
    fn delays_add_up_and_the_first_refusal_decides() {
        let control = control(
            1,
            &[
                "*: delay 10ms",
                "rcpt: delay 5ms",
                "mail: hang up",
                "rcpt: hard reject",
                "rcpt: soft reject",
                "rcpt: delay 1s",
            ],
        );
        let rules = control.current().unwrap();
        let mut session_rules = SessionRules::new(0);
        let decision = session_rules.decide(&rules, &to("a@b"));
        assert_eq!((decision.delay, code(&decision)), (MS * 15, 554));
        assert_eq!(decision.decided_by.unwrap().rule.text(), "rcpt: hard reject");
        let decision = session_rules.decide(&rules, &context(RuleCommand::Noop));
        assert_eq!((decision.delay, decision.effect), (MS * 10, RuleEffect::Accept));
        let counts: Vec<u64> = control.rule_counts().iter().map(|effects| effects.count).collect();
        assert_eq!(counts, [2, 1, 0, 1, 0, 0]);
    }

    #[test]
    fn rules_that_refuse_spare_notifications_unless_they_say_so() {
        let plain = ["mail: delay 5ms", "mail from *: hang up", "rcpt: hard reject", "data: soft reject", ".: drop"];
        let for_notices = ["rcpt from <>: soft reject", ". from <>: reset"];
        let sender = |address| CommandContext { command: RuleCommand::Mail, ..to(address) };
        let null = || CommandContext { address: Some(Path::mailbox(b"").unwrap()), ..context(RuleCommand::Mail) };
        let answers = |rules: &[&str], mail: CommandContext<'_>| {
            let control = control(1, rules);
            let rules = control.current().unwrap();
            let mut session_rules = SessionRules::new(0);
            let delay = session_rules.decide(&rules, &mail).delay;
            let rest = [to("a@b"), context(RuleCommand::Data), context(RuleCommand::Dot)];
            (delay, rest.map(|context| session_rules.decide(&rules, &context).effect.copies()))
        };
        assert_eq!(answers(&plain, null()), (MS * 5, [Some(1); 3]));
        assert_eq!(answers(&plain, sender("x@y")), (MS * 5, [None, None, Some(0)]));
        assert_eq!(answers(&for_notices, null()), (Duration::ZERO, [None, Some(1), None]));
        assert_eq!(answers(&for_notices, sender("x@y")), (Duration::ZERO, [Some(1); 3]));
        let control = control(1, &["mail: hard reject", "noop: hard reject"]);
        let rules = control.current().unwrap();
        let mut session_rules = SessionRules::new(0);
        session_rules.decide(&rules, &null());
        assert_eq!(code(&session_rules.decide(&rules, &context(RuleCommand::Noop))), 554, "not about the mail");
        assert_eq!(code(&session_rules.decide(&rules, &sender("x@y"))), 554, "the next message");
        let error = |rule| Rule::parse(rule).unwrap_err().to_string();
        assert!(error("noop from <>: hard reject").contains("only for mail, rcpt, data and ."));
        assert!(error("rcpt from a@b: hard reject").contains("\"from\" is only for mail"));
    }

    #[test]
    fn a_tarpit_counts_the_sessions_own_commands() {
        let control = control(1, &["*: tarpit 100ms up to 250ms"]);
        let rules = control.current().unwrap();
        let mut session_rules = SessionRules::new(0);
        let delays = [RuleCommand::Connect, RuleCommand::Ehlo, RuleCommand::Mail, RuleCommand::Quit]
            .map(|command| session_rules.decide(&rules, &context(command)).delay);
        assert_eq!(delays, [Duration::ZERO, MS * 100, MS * 200, MS * 250]);
    }

    #[test]
    fn a_stall_holds_what_falls_into_it_until_its_end() {
        let control = control(1, &[".: delay 100ms", ".: stall 2s..3s"]);
        let rules = control.current().unwrap();
        let delay = |since| {
            SessionRules::new(0)
                .decide(&rules, &CommandContext { since_start: since, ..context(RuleCommand::Dot) })
                .delay
        };
        assert_eq!([1000, 2500, 3000].map(|ms| delay(MS * ms)), [MS * 100, MS * 600, MS * 100]);
    }

    #[test]
    fn a_domain_is_held_until_the_transaction_is_over() {
        let control = control(1, &["rcpt: domain cap 1", "rcpt to no@: hard reject"]);
        let rules = control.current().unwrap();
        let mut one = SessionRules::new(0);
        let mut other = SessionRules::new(1);
        assert_eq!(code(&one.decide(&rules, &to("a@x.example"))), 0);
        assert_eq!(code(&one.decide(&rules, &to("b@X.example"))), 0, "its own transaction has the domain already");
        assert_eq!(code(&other.decide(&rules, &to("a@x.example"))), 451);
        assert_eq!(code(&other.decide(&rules, &to("no@y.example"))), 554);
        assert_eq!(code(&one.decide(&rules, &to("a@y.example"))), 0, "a recipient that was refused holds nothing");
        let held_slots = one.end_transaction();
        assert_eq!(code(&other.decide(&rules, &to("a@x.example"))), 451, "held while the message is being answered");
        drop(held_slots);
        assert_eq!(code(&other.decide(&rules, &to("a@x.example"))), 0);
        drop(other);
        assert_eq!(code(&one.decide(&rules, &to("a@x.example"))), 0, "a session that is gone holds nothing");
    }

    #[test]
    fn a_session_has_so_many_transactions_and_is_closed() {
        for (rule, reply) in [("mail: session cap 2", None), ("mail: session cap 2 \"421 4.7.0 x\"", Some(421))] {
            let control = control(1, &[rule]);
            let rules = control.current().unwrap();
            let meet = |session: &mut SessionRules| session.decide(&rules, &context(RuleCommand::Mail)).effect;
            let mut session = SessionRules::new(0);
            assert_eq!([meet(&mut session), meet(&mut session)], [RuleEffect::Accept, RuleEffect::Accept]);
            let RuleEffect::HangUp(last_word) = meet(&mut session) else { panic!("{rule}: the session goes on") };
            assert_eq!(last_word.map(|reply| reply.code()), reply);
            assert_eq!(meet(&mut SessionRules::new(1)), RuleEffect::Accept, "another session begins anew");
        }
    }

    #[test]
    fn a_limit_per_recipient_or_domain_is_for_each() {
        let taken = |rule: &str| {
            let control = control(1, &[rule]);
            let rules = control.current().unwrap();
            let mut session = SessionRules::new(0);
            ["a@x.example", "b@x.example", "a@X.example", "a@y.example", "a@x.example"]
                .map(|recipient| code(&session.decide(&rules, &to(recipient))))
        };
        assert_eq!(taken("rcpt: limit 1/m burst 1 per recipient"), [0, 0, 451, 0, 451]);
        assert_eq!(taken("rcpt: limit 1/m burst 2 per domain"), [0, 0, 451, 0, 451]);
        assert_eq!(taken("rcpt: limit 1/m burst 2"), [0, 0, 451, 451, 451]);
    }

    #[test]
    fn a_read_has_a_size_a_rate_or_both() {
        for (rules, expected) in [
            (&["read at most 4k"][..], 4096),
            (&["read 64k/s"], 65_536 / 20),
            (&["read at most 1k", "read 64k/s"], 1024),
            (&["read at most 1M", "read 64k/s"], 65_536 / 20),
        ] {
            let control = control(1, rules);
            let mut session_rules = SessionRules::new(0);
            session_rules.decide(&control.current().unwrap(), &context(RuleCommand::Data));
            let step = session_rules.next_read(|| MS * 100_000);
            assert!(matches!(step, ReadStep::AtMost(limit) if limit == expected), "{rules:?}");
            assert!(control.rule_counts().iter().all(|rule| rule.count == 1), "{rules:?}");
        }
    }

    #[test]
    fn a_message_is_cut_at_its_octet_and_not_before() {
        let control = control(1, &["data: reset at 100"]);
        let rules = control.current().unwrap();
        let mut session_rules = SessionRules::new(0);
        assert_eq!(session_rules.decide(&rules, &context(RuleCommand::Data)).effect, RuleEffect::Accept);
        session_rules.record_read(99, || MS);
        assert!(matches!(session_rules.next_read(|| MS), ReadStep::All));
        assert_eq!(control.rule_counts()[0].count, 0, "it counts when it acts");
        session_rules.record_read(1, || MS);
        assert!(matches!(session_rules.next_read(|| MS), ReadStep::Stop(RuleEffect::Reset, _)));
        session_rules.end_transaction();
        session_rules.decide(&rules, &context(RuleCommand::Data));
        session_rules.record_read(99, || MS);
        assert!(session_rules.finish_message().is_none(), "a shorter message is whole");
    }

    #[test]
    fn an_abort_waits_and_speaks() {
        let control = control(1, &["data: abort after 20ms"]);
        let rules = control.current().unwrap();
        let mut session_rules = SessionRules::new(0);
        session_rules.decide(&rules, &context(RuleCommand::Data));
        assert!(matches!(session_rules.next_read(|| MS), ReadStep::NotBefore(then) if then == MS * 20));
        let ReadStep::Stop(RuleEffect::HangUp(Some(reply)), _) = session_rules.next_read(|| MS * 20) else {
            panic!("it is over")
        };
        assert_eq!(reply.wire(), b"550 This violates SMTP\r\n");
    }

    #[test]
    fn chances_are_as_told_and_repeat_with_the_seed() {
        let outcomes = |seed, rule: &str, traced: bool| -> Vec<bool> {
            let control = control(seed, &[rule]);
            let rules = control.current().unwrap();
            (0..20_000_u64)
                .map(|number| {
                    let sequence = traced.then_some(number);
                    let context = CommandContext { sequence, ..context(RuleCommand::Dot) };
                    SessionRules::new(if traced { 0 } else { number }).decide(&rules, &context).effect
                        != RuleEffect::Accept
                })
                .collect()
        };
        for (rule, traced) in [(".: drop 0.1", true), (".: soft reject 0.1", false), (".: lose reply 10%", false)] {
            let one = outcomes(1, rule, traced);
            let again = outcomes(1, rule, traced);
            let other = outcomes(2, rule, traced);
            let count = one.iter().filter(|hit| **hit).count();
            assert!((1800..2200).contains(&count), "{rule}: {count}");
            assert!(one == again && one != other, "{rule}");
        }
        assert!(outcomes(1, ".: drop 0", true).iter().all(|hit| !hit));
        assert!(outcomes(1, ".: drop 1", true).iter().all(|hit| *hit));
    }

    #[test]
    fn a_message_is_refused_by_its_place_and_dropped_by_its_number() {
        let effects = |rule: &str| -> Vec<RuleEffect> {
            let control = control(1, &[rule]);
            let rules = control.current().unwrap();
            let mut session_rules = SessionRules::new(0);
            (0..200)
                .map(|_| {
                    session_rules
                        .decide(&rules, &CommandContext { sequence: Some(5), ..context(RuleCommand::Dot) })
                        .effect
                })
                .collect()
        };
        let refused = effects(".: soft reject 0.5");
        assert!(refused.contains(&RuleEffect::Accept) && refused.len() > 1, "what is sent again may get through");
        assert!(refused.iter().any(|effect| *effect != RuleEffect::Accept));
        let dropped = effects(".: drop 0.5");
        assert!(dropped.iter().all(|effect| *effect == dropped[0]), "the same message meets the same fate");
    }

    #[test]
    fn a_recipient_is_asked_for_after_the_dot_by_its_place() {
        let control = control(1, &[". to no@: hard reject", ".: directed", ". to *: delay 5ms", ".: delay 1s"]);
        let rules = control.current().unwrap();
        let mut session_rules = SessionRules::new(0);
        let addresses = ["a@x", "no@x", "452-b@x"];
        for (place, recipient) in addresses.iter().enumerate().skip(1) {
            session_rules.add_recipient(place, &Path::mailbox(recipient.as_bytes()).unwrap());
        }
        let whole = session_rules.decide(&rules, &context(RuleCommand::Dot));
        assert_eq!((whole.delay, code(&whole)), (MS * 1000, 0), "rules for each recipient are not the message's");
        let mut of = |place| {
            let decision = session_rules.decide_recipient(&rules, &context(RuleCommand::Dot), place);
            (decision.delay, code(&decision))
        };
        assert_eq!(of(0), (Duration::ZERO, 0), "taken before there was such a rule");
        assert_eq!([of(1), of(2), of(3)], [(Duration::ZERO, 554), (Duration::ZERO, 452), (Duration::ZERO, 0)]);
        session_rules.end_transaction();
        session_rules.add_recipient(0, &Path::mailbox(b"a@x").unwrap());
        assert_eq!(session_rules.decide_recipient(&rules, &context(RuleCommand::Dot), 0).delay, MS * 5);
    }

    #[test]
    fn each_recipient_has_a_chance_of_its_own() {
        let refused = |rule: &str, seed: u64| -> Vec<bool> {
            let control = control(seed, &[rule]);
            let rules = control.current().unwrap();
            let mut session_rules = SessionRules::new(0);
            (0..1000).for_each(|place| session_rules.add_recipient(place, &Path::mailbox(b"a@x").unwrap()));
            let context = CommandContext { sequence: Some(5), ..context(RuleCommand::Dot) };
            session_rules.decide(&rules, &context);
            let mut hit = |place| session_rules.decide_recipient(&rules, &context, place).effect != RuleEffect::Accept;
            (0..1000).map(&mut hit).collect()
        };
        for rule in [". to *: soft reject 0.1", ". to *: drop 10%"] {
            let one = refused(rule, 1);
            let again = refused(rule, 1);
            let other = refused(rule, 2);
            let count = one.iter().filter(|hit| **hit).count();
            assert!((60..140).contains(&count), "{rule}: {count}");
            assert!(one == again && one != other, "{rule}");
        }
    }

    proptest! {
        /// The effects on a session must not depend on how its commands are interleaved with
        /// commands of other sessions.
        #[test]
        fn a_session_meets_the_same_whatever_others_do(
            seed in any::<u64>(), turns in proptest::collection::vec((0..4_usize, 0..11_usize), 1..100)
        ) {
            let texts = ["*: soft reject 0.2", "rcpt, data: delay 1ms..9ms 0.5", "*: hang up 10%"];
            let meet = |order: &[(usize, usize)]| {
                let control = control(seed, &texts);
                let rules = control.current().unwrap();
                let mut sessions: Vec<_> = (0..4).map(SessionRules::new).collect();
                let mut met = vec![Vec::new(); 4];
                for (session, command) in order {
                    let decision = sessions[*session].decide(&rules, &context(RuleCommand::ALL[*command].0));
                    met[*session].push((decision.delay, decision.effect));
                }
                met
            };
            let mut sorted = turns.clone();
            sorted.sort_by_key(|(session, _)| *session);
            prop_assert_eq!(meet(&turns), meet(&sorted));
        }
    }
}
