//! State that the sessions of a worker share, such as their counts and a copy of the rules.
use super::active_rules::{ActiveRules, RuleState, Ruleset};
use super::dump::{MessageDump, MessageWriter};
use super::rules::RuleCommand;
use super::session_rules::{DomainSlots, RuleEffect, SERVICE_CLOSING};
use crate::tally_exchange::{self, TallySender};
use mailrun_measurement::domains::{DomainUnit, MAX_DOMAINS};
use mailrun_measurement::errors::ErrorEvent;
use mailrun_measurement::record::ErrorRow;
use mailrun_measurement::rewrites::{MAX_REWRITES, Rewrite, RewrittenUnit};
use mailrun_measurement::slowest::SlowDelivery;
use mailrun_measurement::trace::{HeaderSample, MessageName, RecipientId, load_stage_of, message_number};
use mailrun_measurement::{ClockId, MarkResult, Phase, RunId, RunTally, SinkTally, Trace, TraceResult};
use mailrun_mime::{Notice, NoticeReader};
use mailrun_net::{Answer, clock};
use mailrun_process::users::Users;
use mailrun_smtp::command::Recipient;
use mailrun_smtp::dsn::Notify;
use mailrun_smtp::login::Auth;
use mailrun_smtp::server::Protocol;
use mailrun_smtp::{Domain, Path, Reply};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Reply to a message that cannot be stored (RFC 5321 §4.2.3).
static INSUFFICIENT_STORAGE: Reply = Reply::fixed("452 4.3.1 Insufficient system storage\r\n");

const SECOND: Duration = Duration::from_secs(1);

pub(super) type TallyTransfer = tally_exchange::TallyTransfer<SinkTally>;

#[derive(Debug)]
pub(super) struct SinkContext {
    pub(super) active_rules: Arc<ActiveRules>,
    pub(super) dump: Option<MessageDump>,
    pub(super) users: Option<Users>,
    pub(super) first_connection: OnceLock<Duration>,
    message_limit: Option<u64>,
    /// The run for which the sink was started, if there is one. Its counts are never dropped for newer runs.
    own_run: Option<RunId>,
    /// SMTP or LMTP. At the end of a message, SMTP has a single reply, and LMTP has a reply for each recipient.
    pub(super) protocol: Protocol,
    answered: AtomicU64,
    monotonic: ClockId,
    pub(super) began: Duration,
    /// Unix time minus the monotonic clock when the sink began to count.
    unix_offset: Duration,
}

impl SinkContext {
    pub(super) fn new(
        control: ActiveRules,
        dump: Option<MessageDump>,
        users: Option<Users>,
        limit: Option<u64>,
        own_run: Option<RunId>,
        protocol: Protocol,
    ) -> Self {
        let began = clock::now();
        Self {
            active_rules: Arc::new(control),
            dump,
            users,
            first_connection: OnceLock::new(),
            message_limit: limit,
            own_run,
            protocol,
            answered: AtomicU64::new(0),
            monotonic: mailrun_process::outputs::monotonic_clock(),
            began,
            unix_offset: clock::wall().saturating_sub(began),
        }
    }

    pub(super) fn is_own_run(&self, run: RunId) -> bool {
        self.own_run == Some(run)
    }

    /// Returns a time on this host's monotonic clock at which a second of the run begins or would begin. Callers use
    /// only its fraction of a second, which is the same for all seconds of the run.
    fn zero_of(&self, trace: &Trace) -> Duration {
        let zero = trace.zero.time();
        if trace.clock.is_realtime() {
            // Add a whole second, because the subtraction panics if its result is negative. The caller uses only the
            // fraction of a second, which stays the same.
            zero + SECOND - Duration::from_nanos(self.unix_offset.subsec_nanos().into())
        } else {
            zero
        }
    }

    /// Returns true if the sink has answered the requested number of messages, so that it takes no more.
    pub(super) fn has_enough(&self) -> bool {
        self.message_limit.is_some_and(|limit| self.answered.load(Ordering::Relaxed) >= limit)
    }
}

pub(super) struct SinkWorkerState {
    pub(super) context: Arc<SinkContext>,
    pub(super) tally: RefCell<Box<SinkTally>>,
    tally_sender: TallySender<SinkTally>,
    /// Copy of the rules in force, so that sessions need not lock the original for each command.
    cached_rules: RefCell<Option<Arc<Ruleset>>>,
    /// Version of the copied rules. When the rules in force have another version, the worker copies them again.
    rules_version: Cell<u64>,
    /// Domain of the worker's first recipient. Its number is 0. In most runs, all recipients have this domain, so one
    /// comparison replaces the lookup in `other_domains`.
    first_domain: OnceCell<Box<[u8]>>,
    other_domains: RefCell<DomainNumbers>,
    pairs: RefCell<PairNumbers>,
}

/// Assigns a number to each domain, in the order in which the domains first occur among the worker's recipients. The
/// first [`MAX_DOMAINS`] domains have their own numbers, and all others share the next number.
#[derive(Debug, Default)]
struct DomainNumbers {
    numbers: HashMap<Box<[u8]>, u16>,
    names: Vec<Arc<str>>,
}

impl DomainNumbers {
    /// Returns the number of a domain, and ignores the case of its letters. The first domain gets number 0.
    fn number_of(&mut self, domain: &[u8]) -> u16 {
        if let Some(number) = self.numbers.get(domain) {
            return *number;
        }
        let domain = Domain::new(domain);
        let next = self.names.len() as u16;
        match self.numbers.get(domain.as_bytes()) {
            Some(number) => *number,
            None if self.names.len() >= MAX_DOMAINS => next,
            None => {
                self.names.push((*domain).into());
                self.numbers.insert(domain.as_bytes().into(), next);
                next
            }
        }
    }
}

/// Recipient of a message, as the client named it. Its number in the ledger is derived when the message arrives,
/// because only the trace says how recipients are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SinkRecipient {
    /// Recipient that the source named, from ORCPT. If the client sends no address in ORCPT, the address in RCPT.
    pub(super) id: RecipientId,
    /// Index of the recipient's domain in this worker's list of domains.
    pub(super) domain: u16,
    pub(super) delivery: DeliveryAddress,
}

/// Tells whether a server may have changed the recipient's address or added the recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryAddress {
    Same,
    /// RCPT has NOTIFY=NEVER, and ORCPT is missing or has the same address as RCPT. Unless the source itself asked for
    /// NOTIFY=NEVER, a server has added this recipient.
    Unnotified {
        pair: u16,
        hash: u32,
    },
    Other {
        pair: u16,
        hash: u32,
    },
}

/// Numbers the pairs of an original address (ORCPT) and the address to which the client delivers (RCPT). All pairs
/// after the first [`MAX_REWRITES`] share one number, so the sink's record counts them together.
#[derive(Debug, Default)]
struct PairNumbers {
    numbers: HashMap<Box<[u8]>, u16>,
    pairs: Vec<Arc<Rewrite>>,
    /// Buffer for the key that is being looked up, to save an allocation.
    key: Vec<u8>,
}

impl PairNumbers {
    fn number_of(&mut self, original: Option<&[u8]>, address: &[u8]) -> u16 {
        // The key is both addresses with a NUL between them, which no address contains.
        self.key.clear();
        self.key.extend(original.unwrap_or_default().iter().chain(b"\0").chain(address));
        if let Some(number) = self.numbers.get(self.key.as_slice()) {
            return *number;
        }
        let next = self.pairs.len() as u16;
        if self.pairs.len() < MAX_REWRITES {
            let text = |address: &[u8]| String::from_utf8_lossy(address).into_owned();
            self.pairs.push(Arc::new(Rewrite { original: original.map(text), address: text(address) }));
            self.numbers.insert(self.key.as_slice().into(), next);
        }
        next
    }
}

impl DeliveryAddress {
    /// If a server has changed the recipient's address or added the recipient, returns the number from [`PairNumbers`],
    /// the hash of the address in RCPT, and true if the recipient was added. Otherwise, returns `None`.
    #[inline]
    fn elsewhere(self, trace: &Trace) -> Option<(u16, u32, bool)> {
        match self {
            Self::Other { pair, hash } => Some((pair, hash, false)),
            Self::Unnotified { pair, hash } if !trace.numbering.asks_never() => Some((pair, hash, true)),
            Self::Same | Self::Unnotified { .. } => None,
        }
    }
}

/// A delivery status notification that names the run and the message to which it belongs.
#[derive(Debug)]
pub(super) struct RunNotice {
    message: MessageName,
    notice: Notice,
}

impl RunNotice {
    /// Returns the notification, or `None` for any other mail. A notification that does not tell which run its message
    /// belongs to is treated as other mail.
    pub(super) fn read(reader: NoticeReader) -> Option<Self> {
        let notice = reader.finish()?;
        // If a server does not return the message, or removes the field with the trace, the ENVID still names the
        // message.
        let trace = notice.returned_field.as_deref().and_then(Trace::parse);
        let by_envelope_id = || MessageName::from_envelope_id(notice.envelope_id.as_bytes());
        let message = trace.map(|trace| trace.name()).or_else(by_envelope_id)?;
        Some(Self { message, notice })
    }
}

pub(super) struct SinkMessage {
    pub(super) found: TraceResult,
    pub(super) notice: Option<Box<RunNotice>>,
    pub(super) recipients: Vec<SinkRecipient>,
    pub(super) bytes: u64,
    pub(super) effect: RuleEffect,
    pub(super) message_writer: Option<MessageWriter>,
    /// True if a rule has changed a byte of the message.
    pub(super) is_changed: bool,
    /// Makes `domain cap` rules count the transaction as open until the message has been answered.
    pub(super) _domain_slots: DomainSlots,
}

impl SinkWorkerState {
    pub(super) fn new(context: Arc<SinkContext>, tally_tx: Sender<TallyTransfer>) -> Self {
        let empty = || Box::new(SinkTally::keeping(context.own_run));
        Self {
            tally: RefCell::new(empty()),
            tally_sender: TallySender::new(tally_tx, empty()),
            context,
            cached_rules: RefCell::default(),
            rules_version: Cell::new(0),
            first_domain: OnceCell::new(),
            other_domains: RefCell::default(),
            pairs: RefCell::default(),
        }
    }

    /// Returns the recipient that a client names in RCPT. If RCPT has neither ORCPT nor NOTIFY=NEVER, which is usual,
    /// this only hashes the address and looks up the number of its domain.
    #[inline]
    pub(super) fn recipient(&self, recipient: &Recipient<'_>) -> SinkRecipient {
        if recipient.original.is_some() || recipient.notify == Some(Notify::NEVER) {
            return self.recipient_with_parameters(recipient);
        }
        self.own_recipient(&recipient.path)
    }

    fn own_recipient(&self, path: &Path<'_>) -> SinkRecipient {
        SinkRecipient {
            id: RecipientId::new(path.as_bytes()),
            domain: self.domain_number(path.domain()),
            delivery: DeliveryAddress::Same,
        }
    }

    /// Returns the recipient with this address, for mail in a mailbox, where the sink does not see the envelope.
    pub(super) fn recipient_of(&self, address: &[u8]) -> SinkRecipient {
        let domain = memchr::memrchr(b'@', address).map(|at| &address[at + 1..]);
        SinkRecipient {
            id: RecipientId::new(address),
            domain: self.domain_number(domain),
            delivery: DeliveryAddress::Same,
        }
    }

    #[cold]
    fn recipient_with_parameters(&self, recipient: &Recipient<'_>) -> SinkRecipient {
        let address = recipient.path.as_bytes();
        let original = recipient.original.and_then(|original| original.mailbox());
        let original = original.as_deref().filter(|original| !original.eq_ignore_ascii_case(address));
        // ORCPT may contain anything. If it is not an address, the recipient counts under its RCPT address.
        let original = original.and_then(|original| Path::mailbox(original).ok()).filter(|path| !path.is_null());
        let number = |original| self.pairs.borrow_mut().number_of(original, address);
        let own = self.own_recipient(&recipient.path);
        let hash = own.id.hash();
        match original {
            Some(original) => SinkRecipient {
                delivery: DeliveryAddress::Other { pair: number(Some(original.as_bytes())), hash },
                ..self.own_recipient(&original)
            },
            None if recipient.notify == Some(Notify::NEVER) => {
                SinkRecipient { delivery: DeliveryAddress::Unnotified { pair: number(None), hash }, ..own }
            }
            None => own,
        }
    }

    /// Returns the number that this worker assigns to the domain. For the first domain, this costs one comparison.
    #[inline]
    pub(super) fn domain_number(&self, domain: Option<&[u8]>) -> u16 {
        let domain = domain.unwrap_or_default();
        match self.first_domain.get() {
            Some(first) if **first == *domain => 0,
            _ => self.other_domain_number(domain),
        }
    }

    #[cold]
    fn other_domain_number(&self, domain: &[u8]) -> u16 {
        self.first_domain.get_or_init(|| domain.into());
        self.other_domains.borrow_mut().number_of(domain)
    }

    pub(super) fn count_error(&self, phase: Phase, code: u16, text: &str) {
        let error = ErrorEvent { phase, code, text, at: clock::now() };
        self.tally.borrow_mut().count_error(error, || None);
    }

    /// Returns true if the worker should keep the From and Subject of the next message without a trace as a sample. One
    /// sample for each tally is enough, because a record shows only the first such message of a run.
    pub(super) fn describes_untraced(&self) -> bool {
        self.tally.borrow().untraced_sample.is_none()
    }

    pub(super) fn describe_untraced(&self, sample: Option<HeaderSample>) {
        if let Some(sample) = sample {
            self.tally.borrow_mut().untraced_sample.get_or_insert(sample);
        }
    }

    /// Sends the worker's counts to the collector, and begins to count from zero. If the collector is behind, does
    /// nothing, so that a later call sends these counts.
    pub(super) fn send_tally(&self) {
        if let Some(empty) = self.tally_sender.take_empty() {
            self.replace_tally(empty);
        }
    }

    /// Sends the worker's last counts, however far behind the collector is.
    pub(super) fn send_last_tally(&self) {
        self.replace_tally(Box::new(SinkTally::keeping(self.context.own_run)));
    }

    fn replace_tally(&self, empty: Box<SinkTally>) {
        let mut full = self.tally.replace(empty);
        full.domain_names.clone_from(&self.other_domains.borrow().names);
        full.rewrites.clone_from(&self.pairs.borrow().pairs);
        self.tally_sender.send(full);
    }

    pub(super) fn verify_login(&self, auth: &Auth<'_>) -> bool {
        self.context.users.as_ref().is_some_and(|users| users.verify(auth))
    }

    pub(super) fn rules(&self) -> Option<Arc<Ruleset>> {
        let version = self.context.active_rules.version();
        if version == 0 { None } else { self.cached_rules(version) }
    }

    fn cached_rules(&self, version: u64) -> Option<Arc<Ruleset>> {
        if self.rules_version.replace(version) != version {
            self.cached_rules.replace(self.context.active_rules.current());
        }
        self.cached_rules.borrow().clone()
    }

    /// Counts a refusal or a cut connection that a rule caused, as an error and as a fault that the user asked for.
    pub(super) fn count_effect(
        &self,
        command: RuleCommand,
        effect: &RuleEffect,
        by: &RuleState,
        recipient: Option<&Path<'_>>,
    ) {
        let Some(code) = effect.error_code() else { return };
        let text = format!("{}{}", ErrorRow::ORDERED_PREFIX, by.rule.text());
        let tally = &mut **self.tally.borrow_mut();
        let error = ErrorEvent { phase: phase(command), code, text: &text, at: clock::now() };
        tally.count_error(error, || recipient.map(|path| String::from_utf8_lossy(path.as_bytes()).into_owned()));
        tally.ordered.cuts += u64::from(effect.cuts_connection() || code == SERVICE_CLOSING);
        tally.ordered.replies += u64::from(code > 0);
    }

    /// Counts recipients for whom a rule dropped the message or counted it twice. The user asked for these faults.
    pub(super) fn count_ordered<'a>(&self, result: &TraceResult, effects: impl Iterator<Item = &'a RuleEffect>) {
        if sequence(result).is_some() {
            let ordered = &mut self.tally.borrow_mut().ordered;
            for copies in effects.filter_map(RuleEffect::copies) {
                ordered.lost += u64::from(copies == 0);
                ordered.duplicates += u64::from(copies.saturating_sub(1));
            }
        }
    }

    /// Stores and counts a message, unless the rules refuse or drop it. Returns the reply to the end of the message.
    pub(super) fn accept_message(&self, arrival: SinkMessage, now: Duration) -> Answer {
        let SinkMessage {
            found,
            notice,
            recipients,
            bytes,
            effect,
            message_writer: draft,
            is_changed,
            _domain_slots: _slots,
        } = arrival;
        let Some(times) = effect.copies() else { return effect.into_answer() };
        // `times` is the number of copies to count. If a rule drops the message, `times` is 0, and the sink answers 250
        // without storing the message.
        if let Err(refusal) = self.store(draft.filter(|_| times > 0)) {
            return refusal;
        }
        // A notification reports on a message of the run, so it does not count as a message of the run itself.
        if let Some(notice) = notice.filter(|_| times > 0) {
            self.count_notice(&notice, recipients.len() as u64, bytes, now);
            return effect.into_answer();
        }
        self.count_arrival(&found, &recipients, bytes, now, times.into());
        self.count_ordered(&found, std::iter::repeat_n(&effect, recipients.len()));
        self.count_corrupted(&found, if is_changed { u64::from(times) } else { 0 });
        if effect == RuleEffect::LoseReply {
            self.count_unanswered(&recipients);
        }
        effect.into_answer()
    }

    /// Counts the recipients of a message that got no reply, because a `lose reply` rule cut the connection.
    pub(super) fn count_unanswered(&self, recipients: &[SinkRecipient]) {
        self.tally.borrow_mut().ordered.unanswered += recipients.len() as u64;
    }

    /// Counts a message that a `corrupt` rule has changed, as a fault that the user asked for. `times` is 2 if a
    /// `duplicate` rule makes the sink count the same message twice.
    pub(super) fn count_corrupted(&self, result: &TraceResult, times: u64) {
        if sequence(result).is_some() {
            self.tally.borrow_mut().ordered.corrupt += times;
        }
    }

    /// Stores the message in the dump, if there is one. On failure, the error is the reply that refuses the message.
    pub(super) fn store(&self, draft: Option<MessageWriter>) -> Result<(), Answer> {
        let Some((draft, dump)) = draft.zip(self.context.dump.as_ref()) else { return Ok(()) };
        draft.store(dump).map_err(|error| {
            let text = format!("the message could not be stored: {error}");
            self.count_error(Phase::Reply, INSUFFICIENT_STORAGE.code(), &text);
            self.storage_refusal()
        })
    }

    pub(super) fn storage_refusal(&self) -> Answer {
        Answer::Reply(INSUFFICIENT_STORAGE.clone())
    }

    /// Counts later recipients of an LMTP message. The message itself was counted with its first accepted recipient.
    pub(super) fn count_recipients(&self, result: &TraceResult, recipients: &[SinkRecipient], now: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        tally.recipients += recipients.len() as u64;
        tally.last_arrival = Some(now);
        if let TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace)) = result {
            let run = tally.runs.open(trace.run);
            run.recipients += recipients.len() as u64;
            run.last_delivered = Some(now);
            mark_units(run, trace, recipients);
        }
    }

    pub(super) fn count_arrival(
        &self,
        result: &TraceResult,
        recipients: &[SinkRecipient],
        bytes: u64,
        now: Duration,
        times: u32,
    ) {
        self.context.answered.fetch_add(1, Ordering::Relaxed);
        for _ in 0..times {
            self.count_message(result, recipients, bytes, now);
        }
    }

    /// Records the time at which the server of a mailbox announced a message. Messages of the warm-up are left out.
    pub(super) fn count_announced(&self, trace: &Trace, at: Duration) {
        if trace.is_warm_up() {
            return;
        }
        let created = self.creation_time(trace, clock::now());
        let tally = &mut **self.tally.borrow_mut();
        let run = tally.runs.open(trace.run);
        run.told_messages += 1;
        match created {
            CreationTime::Known(created) if created <= at => {
                run.told.record(at - created);
                run.told_times.record(at, created);
            }
            _ => run.told_times.record(at, Duration::ZERO),
        }
    }

    pub(super) fn count_notice(
        &self,
        RunNotice { message, notice }: &RunNotice,
        recipients: u64,
        bytes: u64,
        now: Duration,
    ) {
        self.context.answered.fetch_add(1, Ordering::Relaxed);
        let tally = &mut **self.tally.borrow_mut();
        tally.count_notice(message, notice);
        tally.recipients += recipients;
        tally.bytes += bytes;
        tally.first_arrival.get_or_insert(now);
        tally.last_arrival = Some(now);
    }

    /// Records how long the transfer of a message took, to show whether delayed TCP acknowledgements slowed it.
    pub(super) fn time_body(&self, result: &TraceResult, began: Duration, ended: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        match result {
            TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace)) => {
                tally.runs.open(trace.run).bodies.record(began, ended);
            }
            TraceResult::Absent | TraceResult::Corrupt(None) => tally.bodies.record(began, ended),
        }
    }

    fn count_message(&self, result: &TraceResult, recipients: &[SinkRecipient], bytes: u64, now: Duration) {
        let tally = &mut **self.tally.borrow_mut();
        tally.count_message(match result {
            TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace)) => {
                Some(trace.run)
            }
            TraceResult::Absent | TraceResult::Corrupt(None) => None,
        });
        tally.recipients += recipients.len() as u64;
        tally.bytes += bytes;
        tally.first_arrival.get_or_insert(now);
        tally.last_arrival = Some(now);
        match result {
            TraceResult::Absent | TraceResult::Corrupt(None) => {
                tally.untraced += 1;
                tally.seconds.at(now, self.context.began).delivered += 1;
            }
            TraceResult::Intact(trace) => self.count_traced(tally.runs.open(trace.run), trace, recipients, bytes, now),
            TraceResult::Converted(trace) => {
                let run = tally.runs.open(trace.run);
                run.converted += 1;
                self.count_traced(run, trace, recipients, bytes, now);
            }
            TraceResult::Corrupt(Some(trace)) => {
                let run = tally.runs.open(trace.run);
                run.corrupt += 1;
                self.count_traced(run, trace, recipients, bytes, now);
            }
        }
    }

    fn count_traced(&self, run: &mut RunTally, trace: &Trace, recipients: &[SinkRecipient], bytes: u64, now: Duration) {
        run.recipients += recipients.len() as u64;
        run.bytes += bytes;
        run.last_delivered = Some(now);
        if trace.is_warm_up() {
            run.warm_up_messages += 1;
            run.warm_up_bytes += bytes;
        } else {
            run.seconds.at(now, self.context.zero_of(trace)).delivered += 1;
        }
        mark_units(run, trace, recipients);
        let created = self.creation_time(trace, now);
        if let Some(stage) = run.of_load_stage(load_stage_of(trace.sequence)) {
            count_in_stage(stage, trace, (recipients.len(), bytes), created, now);
        }
        match created {
            CreationTime::Known(_) if trace.is_warm_up() => {}
            CreationTime::Known(created) => {
                let latency = now - created;
                run.delivered.record(latency);
                run.delivered_times.record(now, created);
                let second = run.seconds.at(now, self.context.zero_of(trace));
                second.latencies.record(latency);
                second.arrive(now, created);
                if run.slowest.admits(latency) {
                    let recipients = recipients.len() as u32;
                    run.slowest.insert(
                        latency,
                        SlowDelivery { message: message_number(trace.sequence), created, bytes, recipients },
                    );
                }
                run.first_created = Some(run.first_created.map_or(created, |first| first.min(created)));
                run.realtime |= trace.clock.is_realtime();
            }
            unknown => {
                match unknown {
                    CreationTime::InFuture => run.negative += 1,
                    _ => run.untimed += 1,
                }
                if !trace.is_warm_up() {
                    run.delivered_times.record(now, Duration::ZERO);
                }
            }
        }
    }

    fn creation_time(&self, trace: &Trace, now: Duration) -> CreationTime {
        let age = match () {
            () if trace.clock == self.context.monotonic => now.checked_sub(trace.created),
            () if trace.clock.is_realtime() => clock::wall().checked_sub(trace.created),
            () => return CreationTime::Unknown,
        };
        match age.map(|age| now.checked_sub(age)) {
            Some(Some(created)) => CreationTime::Known(created),
            Some(None) => CreationTime::Unknown,
            None => CreationTime::InFuture,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreationTime {
    Known(Duration),
    /// The creation time is later than the arrival, because the clocks of the two hosts differ.
    InFuture,
    /// The creation time has no equivalent on this host's monotonic clock: it comes from another host's monotonic
    /// clock, or is earlier than the start of this host.
    Unknown,
}

pub(super) fn sequence(result: &TraceResult) -> Option<u64> {
    match result {
        TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace)) => {
            Some(trace.sequence)
        }
        TraceResult::Absent | TraceResult::Corrupt(None) => None,
    }
}

/// Returns the phase under which an error at this command is counted. Commands that the source does not time, such as
/// NOOP, count under [`Phase::Reply`].
fn phase(command: RuleCommand) -> Phase {
    match command {
        RuleCommand::Connect => Phase::Banner,
        RuleCommand::Helo | RuleCommand::Ehlo | RuleCommand::Lhlo => Phase::Ehlo,
        RuleCommand::Mail => Phase::Mail,
        RuleCommand::Recipient => Phase::Rcpt,
        RuleCommand::Data => Phase::Data,
        RuleCommand::Dot | RuleCommand::Reset | RuleCommand::Noop | RuleCommand::Verify => Phase::Reply,
        RuleCommand::Quit => Phase::Quit,
        RuleCommand::StartTls | RuleCommand::Handshake => Phase::Tls,
        RuleCommand::Auth => Phase::Auth,
    }
}

/// Counts a message in the stage of the load in which it was due, in addition to the totals of the run.
#[cold]
fn count_in_stage(
    stage: &mut RunTally,
    trace: &Trace,
    (recipients, bytes): (usize, u64),
    created: CreationTime,
    now: Duration,
) {
    stage.messages += 1;
    stage.recipients += recipients as u64;
    stage.bytes += bytes;
    match created {
        _ if trace.is_warm_up() => {
            stage.warm_up_messages += 1;
            stage.warm_up_bytes += bytes;
        }
        CreationTime::Known(created) => {
            stage.delivered.record(now - created);
            stage.delivered_times.record(now, created);
            stage.first_created = Some(stage.first_created.map_or(created, |first| first.min(created)));
        }
        CreationTime::InFuture | CreationTime::Unknown => stage.delivered_times.record(now, Duration::ZERO),
    }
}

/// Marks in the ledger for which recipients a message has arrived. A recipient outside the worker's first domain, or
/// one that a server has changed or added, is instead put on a list, which is evaluated when the workers' counts are
/// merged.
fn mark_units(run: &mut RunTally, trace: &Trace, recipients: &[SinkRecipient]) {
    for SinkRecipient { id, domain, delivery } in recipients {
        let recipient = trace.numbering.number(*id);
        if let Some((pair, address, is_added)) = delivery.elsewhere(trace) {
            run.rewritten_units.push(RewrittenUnit {
                sequence: trace.sequence,
                recipient,
                domain: *domain,
                pair,
                address,
                is_added,
            });
            continue;
        }
        if *domain > 0 {
            run.domain_units.push(DomainUnit { sequence: trace.sequence, recipient, domain: *domain });
            continue;
        }
        match run.units.mark(trace.sequence, recipient) {
            MarkResult::First => {}
            MarkResult::Again => run.duplicates += 1,
            MarkResult::Full => run.overflow += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rulebook::Rulebook;
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_worker_counts_on_while_the_collector_is_behind() {
        let context =
            SinkContext::new(ActiveRules::new(Rulebook::default(), 1), None, None, None, None, Protocol::Smtp);
        let (tally_tx, tallies) = channel();
        let worker = SinkWorkerState::new(Arc::new(context), tally_tx);
        let count = || {
            worker.tally.borrow_mut().connections += 1;
            worker.send_tally();
        };
        (0..5).for_each(|_| count());
        let mut first = tallies.try_recv().unwrap();
        assert_eq!(first.tally.connections, 1);
        assert!(tallies.try_recv().is_err(), "the counts since then are in a single tally");
        first.tally.clear();
        first.give_back();
        count();
        assert_eq!(tallies.try_recv().unwrap().tally.connections, 5);
        worker.tally.borrow_mut().connections += 1;
        worker.send_last_tally();
        assert_eq!(tallies.try_recv().unwrap().tally.connections, 1, "the last counts are always sent");
    }

    #[test]
    fn domains_are_numbered_in_any_case_and_bounded() {
        let mut domains = DomainNumbers::default();
        let numbers = [&b"a.example"[..], b"b.example", b"A.Example", b"B.EXAMPLE", b"", b"a.example"];
        assert_eq!(numbers.map(|domain| domains.number_of(domain)), [0, 1, 0, 1, 2, 0]);
        for number in 0..1000 {
            assert!(usize::from(domains.number_of(format!("d{number}.example").as_bytes())) <= MAX_DOMAINS);
        }
        assert_eq!((domains.names.len(), domains.numbers.len()), (MAX_DOMAINS, MAX_DOMAINS));
        assert_eq!(domains.number_of(b"d999.example"), MAX_DOMAINS as u16);
    }
}
