//! Makes the record of a run: merges the files of its processes, accounts for every message, fills in the resources
//! that each process used, and decides the verdict.
use super::directory::RunDirectory;
use super::parties::PartyObservation;
use super::plan::BenchOptions;
use super::relay::Relay;
use super::supervisor::Completeness;
use super::usage::DiskUsage;
use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use mailrun_measurement::account::{self, AccountInputs, Arrivals, Matched, RelayInputs, ServerQueue, Topology};
use mailrun_measurement::judge::{self, VerdictInputs, judge};
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::load_stages;
use mailrun_measurement::merge::{join_events, merge_records};
use mailrun_measurement::missing::{self, KnownReply, MAX_MISSING};
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{
    Cause, Death, Ending, EventKind, EventRow, FORMAT, LedgerRow, MAX_SLOW_RECIPIENTS, MissingMessage, Ordered, Party,
    Record, Role, StageRow, Surroundings, Watched,
};
use mailrun_measurement::stage::Stage;
use mailrun_measurement::threshold::{Threshold, evaluate_all};
use mailrun_measurement::trace::{RunId, message_number};
use mailrun_process::cpus::CpuList;
use mailrun_process::host;
use mailrun_process::host_sampler;
use mailrun_process::live::LiveProgress;
use mailrun_process::outputs;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Types of file systems without permanent storage, as statfs(2) reports them: tmpfs and ramfs.
const MEMORY_FILESYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

#[derive(Clone, Debug)]
pub(super) struct PartyResults {
    pub(super) record: Record,
    /// Messages that the server accepted from this source, or that this sink received. Each message counts once per
    /// recipient. `None` if the process could not write the file that lists the messages.
    pub(super) units: Option<Ledger>,
    /// Messages that bounced, according to the notifications that the sink received. Each message counts once per
    /// recipient.
    pub(super) bounced: Ledger,
}

/// What a sink recorded during a run. `record` is `None` if no message of the run ever reached the sink.
#[derive(Clone, Debug, Default)]
pub(super) struct SinkResults {
    pub(super) record: Option<Record>,
    pub(super) units: Option<Ledger>,
    pub(super) bounced: Ledger,
}

impl SinkResults {
    /// Removes the count and the list of delivered messages from the results. This is necessary if the source adds no
    /// trace line to its messages, because the sink then cannot know which deliveries belong to the run.
    pub(super) fn without_deliveries(mut self) -> Self {
        self.record.iter_mut().for_each(|record| record.stages.retain(|row| row.name != Stage::Delivered));
        Self { units: None, ..self }
    }
}

impl From<PartyResults> for SinkResults {
    fn from(results: PartyResults) -> Self {
        Self { record: Some(results.record), units: results.units, bounced: results.bounced }
    }
}

/// Results of the relay, except its CPU time and memory, because the bench measures these from outside.
#[derive(Clone, Debug)]
pub(super) struct BenchRelayResults {
    pub(super) party: Party,
    /// Messages of this run in the relay's queue, each counted once per recipient. `None` if the relay is not mailrun's
    /// own, or if its queue cannot be read.
    pub(super) queued: Option<Ledger>,
    /// Number of recipients to whom the relay gave up delivering.
    pub(super) given_up: u64,
    pub(super) notes: Vec<String>,
}

impl BenchRelayResults {
    /// Stores which messages are in the relay's queue. If the queue could not be read, adds a remark instead.
    pub(super) fn record_queue(&mut self, queued: Result<Ledger>) {
        match queued {
            Ok(queued) => self.queued = Some(queued),
            Err(error) => {
                self.queued = None;
                self.notes.push(format!(
                    "The relay's queue could not be read ({error:#}). Its directory is kept (relay.spool)."
                ));
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkOwner {
    /// The bench started the sink, so the sink's fault rules come from the bench's command line.
    Own,
    /// The bench did not start the sink, or there is no sink.
    Other,
}

/// Beginning or end of a fault that the bench itself causes, for example when it stops a relay.
#[derive(Clone, Debug)]
pub(super) struct BenchFault {
    at: Duration,
    kind: EventKind,
    text: &'static str,
}

impl BenchFault {
    pub(super) fn begins(text: &'static str) -> Self {
        Self::begins_at(outputs::record_time(), text)
    }

    pub(super) fn begins_at(at: Duration, text: &'static str) -> Self {
        Self { at, kind: EventKind::FaultOn, text }
    }

    pub(super) fn ends(text: &'static str) -> Self {
        Self { at: outputs::record_time(), kind: EventKind::FaultOff, text }
    }

    /// Converts the fault to an event of the run record. A fault from before the start of the run gets the time 0 s.
    pub(super) fn event(&self, origin_ns: u64) -> EventRow {
        let at_s = self.at.saturating_sub(Duration::from_nanos(origin_ns)).as_secs_f64();
        EventRow { at_s, kind: self.kind, text: self.text.to_owned() }
    }
}

#[derive(Clone, Debug)]
pub(super) struct RunResults {
    pub(super) run: RunId,
    pub(super) source: PartyResults,
    /// What the bench knows about the server between source and sink, for example what is in its queue. `None` if there
    /// is no such server, or if nothing is known about it.
    pub(super) relay: Option<BenchRelayResults>,
    /// Bytes that all processes of the host wrote during the run to the disk that has the run
    /// directory. `None` if the run has no relay.
    pub(super) disk_bytes: Option<u64>,
    pub(super) disk_usage: DiskUsage,
    /// Deliveries as the sink recorded them. `None` if no sink observed deliveries.
    pub(super) arrivals: Option<SinkResults>,
    pub(super) between: Topology,
    /// Says whether the bench or somebody else started the sink. The bench passes the user's fault rules only to its
    /// own sink, so only faults of that sink count as requested.
    pub(super) sink: SinkOwner,
    /// Reason why the run ended early, if the source cannot know it, such as a remote sink that stopped answering.
    pub(super) ending: Option<Ending>,
    /// Pause in arrivals after which the bench no longer waits for missing messages. `None` if the run ended early.
    pub(super) quiet_timeout: Option<Duration>,
    pub(super) deaths: Vec<(Role, Death)>,
    pub(super) faults: Vec<BenchFault>,
    /// Time at which the load began, on the monotonic clock.
    pub(super) load_started_at: Duration,
    pub(super) observations: Vec<PartyObservation>,
    pub(super) surroundings: Surroundings,
    /// CPU time in seconds that the bench itself used. It must not count as usage by other processes in `surroundings`.
    pub(super) own_s: f64,
}

pub(super) fn read_party(directory: &RunDirectory, role: Role) -> Result<PartyResults> {
    let files = directory.party_files(role);
    let unreadable = |path: &std::path::Path| format!("cannot read {}, which a party should have left", path.display());
    let open = |path: &std::path::Path| File::open(path).map(BufReader::new).with_context(|| unreadable(path));
    let json = fs::read(&files.record).with_context(|| unreadable(&files.record))?;
    let record = Record::from_json(&json).with_context(|| unreadable(&files.record))?;
    let [units, bounced, _] = Ledger::read_arrivals(open(&files.ledger)?).with_context(|| unreadable(&files.ledger))?;
    Ok(PartyResults { record, units: Some(units), bounced })
}

/// Makes the results of a source that left no files, from the source's last progress report. `began` is the time at
/// which the load began, on the monotonic clock.
pub(super) fn source_from_progress(
    options: &BenchOptions,
    run: RunId,
    started_at: Timestamp,
    began: Duration,
    progress: &LiveProgress,
) -> PartyResults {
    let mut record = outputs::new_record(Some(run), &options.name, started_at, options.workload.clone(), None);
    outputs::set_zero(&mut record, began);
    record.ledger = LedgerRow { accepted: Some(progress.recipients), ..LedgerRow::default() };
    let counts =
        [(Stage::Created, progress.created), (Stage::Sent, progress.sent), (Stage::Accepted, progress.accepted)];
    fill_from_progress(&mut record, "source", &counts, progress.elapsed_s);
    PartyResults { record, units: None, bounced: Ledger::default() }
}

/// Fills in how many messages reached each stage, for example how many were accepted. The numbers come from the last
/// progress report of a source that left no record.
pub(super) fn fill_from_progress(record: &mut Record, party: &str, counts: &[(Stage, u64)], elapsed_s: f64) {
    let row = |&(name, count): &(Stage, u64)| StageRow { count, duration_s: elapsed_s, ..StageRow::new(name, party) };
    record.stages = counts.iter().map(row).collect();
    record.duration_s = elapsed_s;
    record.parties = vec![Party::new(Role::Source, party)];
}

pub(super) fn party_without_record(role: Role) -> Party {
    Party::new(role, role.name())
}

pub(super) fn relay(
    options: &BenchOptions,
    directory: &RunDirectory,
    arrived: Completeness,
) -> Option<BenchRelayResults> {
    let relay = options.relay()?;
    let own: Option<Record> =
        fs::read(directory.party_files(Role::Relay).record).ok().and_then(|json| Record::from_json(&json).ok());
    let party = relay_party(relay, options.placement.relay.as_ref(), own.as_ref())?;
    let mut remarks = Vec::new();
    if arrived == Completeness::NotAll && !relay.is_own() {
        let directory_note = if directory.spool().exists() { ", and its directory is kept (relay.spool)" } else { "" };
        remarks.push(format!("The bench stopped waiting for {relay}{directory_note}."));
    }
    if ["sync", "write"].contains(&party.durability.as_str()) && is_in_memory(&directory.spool()) {
        remarks.push(
            "The server's directory is on a file system in memory: what it syncs is on no disk, so its rate is too high. Use \
             --out with a directory on a disk."
                .to_owned(),
        );
    }
    let given_up = own.as_ref().map_or(0, |record| {
        record
            .stages
            .iter()
            .filter(|row| row.name == Stage::Delivered)
            .map(|row| row.failed)
            .fold(0, u64::saturating_add)
    });
    // Assume that the queue of mailrun's own relay is empty. If the queue may still contain mail, the caller later
    // replaces this value with the real queue (`record_queue`).
    let queued = relay.is_own().then(Ledger::default);
    Some(BenchRelayResults { party, queued, given_up, notes: remarks })
}

fn relay_party(relay: &Relay, cpus: Option<&CpuList>, own: Option<&Record>) -> Option<Party> {
    relay.role()?;
    // Only mailrun's own relay writes a run record. For other servers, figures such as the number of workers are
    // unknown.
    let known = own.and_then(|record| record.parties.iter().find(|party| party.role == Role::Relay));
    Some(Party {
        durability: relay.durability(),
        workers: known.and_then(|party| party.workers),
        failed_sessions: known.and_then(|party| party.failed_sessions),
        busy_poll: known.and_then(|party| party.busy_poll.clone()),
        cpus: cpus.map(ToString::to_string),
        ..Party::new(Role::Relay, &relay.to_string())
    })
}

/// Reads which messages of a run are in the queue of mailrun's own relay. The relay must have stopped.
///
/// # Errors
/// Returns an error if the queue cannot be read.
pub(super) fn relay_queue(program: &Path, directory: &RunDirectory, run: RunId) -> Result<Ledger> {
    let path = directory.file(Role::Relay, "ledger");
    let mut command = Command::new(program);
    command.args(["queue", "units", "--run-id", &run.to_string(), "--ledger"]).arg(&path);
    command.arg("--spool").arg(directory.spool()).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().context("cannot start mailrun queue")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", stderr.trim().trim_start_matches("mailrun: "));
    let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ledger::read_from(BufReader::new(file)).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns true if `directory` is on a file system in memory, such as tmpfs, where fsync(2) makes nothing durable.
fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|filesystem| MEMORY_FILESYSTEMS.contains(&(filesystem.f_type as u64)))
}

/// Returns the number of messages that the server accepted with 250, including messages of the warm-up.
pub(super) fn accepted_messages(source: &Record) -> u64 {
    let counted: u64 = source.stages.iter().filter(|row| row.name == Stage::Accepted).map(|row| row.count).sum();
    counted + source.warm_up.map_or(0, |warm_up| warm_up.accepted)
}

pub(super) fn record(options: &BenchOptions, directory: &Path, started_at: Timestamp, results: RunResults) -> Record {
    let RunResults {
        run,
        mut source,
        relay,
        disk_bytes,
        disk_usage: _,
        mut arrivals,
        between,
        sink,
        ending,
        quiet_timeout,
        deaths,
        faults,
        load_started_at,
        observations,
        mut surroundings,
        own_s,
    } = results;
    let queue = queue_between(between, relay.as_ref(), arrivals.as_ref());
    let ledger = close_account(&mut source.record, source.units.as_ref(), arrivals.as_mut(), queue);
    if let Some(arrived) = arrivals.as_ref().and_then(|sink| sink.units.as_ref()) {
        missing::remove_arrived(&mut source.record.missing, arrived);
    }
    let mut replies = known_replies(directory);
    let not_seen = not_seen(&mut replies, &source, arrivals.as_ref());
    let events = bench_events(&deaths, &faults, load_started_at, source.record.origin_ns);
    let merged = merge_records(source.record, arrivals.and_then(|sink| sink.record), ledger);
    let mut record = Record {
        format: FORMAT.to_owned(),
        run_id: run.to_string(),
        name: options.name.clone(),
        started_at: started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        command: options.command.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host::facts(Some(directory)),
        events: join_events(merged.events, events),
        ..merged
    };
    add_replies(&mut record, &replies);
    record.missing.extend(not_seen);
    record.missing.truncate(MAX_MISSING);
    let mut remarks = Vec::new();
    if let Some(relay) = relay {
        surroundings.disk_written_bytes = disk_bytes;
        // Put the relay between source and sink, in the order in which the mail passes them.
        record.parties.insert(record.parties.len().min(1), relay.party);
        remarks.extend(relay.notes);
    }
    for (role, death) in deaths {
        if !record.parties.iter().any(|party| party.role == role) {
            record.parties.push(party_without_record(role));
        }
        record.parties.iter_mut().filter(|party| party.role == role).for_each(|party| party.died = Some(death.clone()));
    }
    for observation in observations {
        fill_costs(&mut record, &observation);
        fill_usage(&mut record, &observation);
    }
    // Prefer the source's own figures, because they cover exactly the time in which the source runs.
    if let Some(of_source) = &record.surroundings {
        surroundings.load_processor_s = of_source.processor_s;
        surroundings.used_share = of_source.used_share;
    }
    record.surroundings = Some(others_usage(&record, between, surroundings, own_s));
    record.ending = ending.or(record.ending);
    let ordered = ordered_faults(&record).filter(|_| sink == SinkOwner::Own);
    evaluate(&mut record, &options.thresholds);
    record.verdict = judge(&record, &VerdictInputs { topology: between, ordered, quiet_timeout });
    for text in remarks {
        let pass = judge::pass_text(&record);
        judge::add_reason(&mut record.verdict, Reason::new(Cause::Remark, text), &pass);
    }
    record
}

/// Reads the server's replies to the last messages, by sequence number. The source has left the replies in a file in
/// `directory`. This function deletes the file.
pub(super) fn known_replies(directory: &Path) -> HashMap<u64, KnownReply> {
    let path = directory.join(format!("{}.replies", Role::Source.name()));
    let text = fs::read(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let text = String::from_utf8_lossy(&text);
    let line = |line: &'_ str| {
        let mut fields = line.splitn(4, '\t');
        let mut number = || fields.next()?.parse().ok();
        let (sequence, at) = (number()?, Duration::from_nanos(number()?));
        let recipients = fields.next()?.split(' ').map(str::to_owned).collect();
        Some((sequence, KnownReply { at, recipients, text: fields.next()?.to_owned() }))
    };
    text.lines().filter_map(line).collect()
}

/// Lists the accepted messages that bounced or that the sink did not receive, each with the server's reply.
pub(super) fn not_seen(
    known: &mut HashMap<u64, KnownReply>,
    source: &PartyResults,
    sink: Option<&SinkResults>,
) -> Vec<MissingMessage> {
    let (Some(accepted), Some(arrived)) = (&source.units, sink.and_then(arrivals)) else { return Vec::new() };
    let origin = Duration::from_nanos(source.record.origin_ns);
    let nothing = Ledger::default();
    let arrived = Matched::new(accepted, arrived.units, arrived.bounced, &nothing);
    missing::not_seen(accepted, &arrived.arrived, &arrived.bounced, origin, |sequence| known.remove(&sequence))
}

/// Adds the server's replies to messages that were accepted quickly but delivered slowly. A reply contains the queue ID
/// by which the server's log names the message.
fn add_replies(record: &mut Record, known: &HashMap<u64, KnownReply>) {
    let origin_s = record.origin_ns as f64 / 1e9;
    let known: HashMap<u64, &KnownReply> =
        known.iter().map(|(sequence, reply)| (message_number(*sequence), reply)).collect();
    for message in record.slowest.iter_mut().filter(|message| message.accepted_ms.is_none()) {
        let Some(reply) = known.get(&message.message) else { continue };
        let accepted_s = reply.at.as_secs_f64() - origin_s;
        message.accepted_ms = Some(((accepted_s - message.created_s) * 1e3).max(0.0));
        message.recipients.clone_from(&reply.recipients);
        message.recipients.truncate(MAX_SLOW_RECIPIENTS);
        message.recipient_count = message.recipient_count.max(reply.recipients.len() as u32);
        message.reply = Some(reply.text.clone());
    }
}

/// Checks the record against the user's thresholds. If the run sends only a part of a load, stores the thresholds
/// instead, because they apply to the merged record of all parts.
fn evaluate(record: &mut Record, thresholds: &[Threshold]) {
    match &mut record.shard {
        Some(shard) => shard.thresholds = thresholds.iter().map(|one| one.expression().to_owned()).collect(),
        None => record.thresholds.extend(evaluate_all(record, thresholds, None)),
    }
}

/// Returns how many faults of each kind the sink injected because the user's fault rules asked for them.
fn ordered_faults(record: &Record) -> Option<Ordered> {
    record.parties.iter().find(|party| party.role == Role::Sink)?.ordered
}

/// Returns what is known about the server's queue, which may hold messages that did not arrive. If the sink could not
/// read all mailboxes, the queue counts as unknown, because missing mail may be in a mailbox.
fn queue_between<'r>(
    between: Topology,
    relay: Option<&'r BenchRelayResults>,
    sink: Option<&SinkResults>,
) -> ServerQueue<'r> {
    let has_closed = sink.and_then(|sink| sink.record.as_ref()).is_some_and(|record| {
        let receptions = record.parties.iter().filter_map(|party| party.reception.as_ref());
        receptions.filter_map(|reception| reception.mailboxes.as_ref()).any(Watched::may_hide_mail)
    });
    match (between, relay) {
        (Topology::Direct, _) => ServerQueue::Absent,
        _ if has_closed => ServerQueue::Unknown,
        (Topology::Server, Some(BenchRelayResults { queued: Some(queued), given_up, .. })) => {
            ServerQueue::Known(RelayInputs { queued, given_up: *given_up })
        }
        (Topology::Server, _) => ServerQueue::Unknown,
    }
}

/// Counts what became of the source's messages, such as delivered, bounced or lost, for the whole run and for each
/// stage of the load. `units` are the messages that the server accepted, counted once per recipient.
pub(super) fn close_account(
    source: &mut Record,
    units: Option<&Ledger>,
    mut sink: Option<&mut SinkResults>,
    queue: ServerQueue,
) -> LedgerRow {
    if let Some(SinkResults { record: Some(record), units: Some(units), .. }) = sink.as_deref_mut() {
        load_stages::count_duplicates(record, units, source);
    }
    let sink = sink.as_deref();
    let ledger = &source.ledger;
    let accepted = ledger.accepted.unwrap_or_default();
    let Some(units) = units else { return account_without_units(ledger, sink) };
    let inputs = AccountInputs {
        recipients_created: ledger.created.unwrap_or_default(),
        accepted: units,
        rejected: ledger.rejected.unwrap_or_default(),
        failed: ledger.failed.unwrap_or_default(),
        in_doubt: ledger.in_doubt.unwrap_or_default(),
        has_reply_for_each: source.workload.protocol == "lmtp",
        arrivals: sink.and_then(arrivals),
        queue,
        // The source does not see deliveries, so it counts accepted messages as in flight. Subtract the accepted
        // messages, so that only messages without a reply count as open.
        open: ledger.in_flight.unwrap_or_default().saturating_sub(accepted),
        overflow: ledger.overflow.unwrap_or_default(),
    };
    load_stages::close_accounts(source, &inputs);
    account::reconcile(inputs)
}

/// Makes the account of a run whose source left no list of accepted messages, so that arrivals cannot be matched with
/// the messages that were sent. If the source left no record either, the sink's counts are filled in.
fn account_without_units(ledger: &LedgerRow, sink: Option<&SinkResults>) -> LedgerRow {
    match sink.and_then(arrivals).filter(|_| ledger.created.is_none()) {
        None => ledger.clone(),
        Some(arrivals) => LedgerRow {
            delivered: Some(arrivals.units.count()),
            duplicates: Some(arrivals.duplicates),
            corrupt: arrivals.corrupt,
            ..ledger.clone()
        },
    }
}

fn arrivals(sink: &SinkResults) -> Option<Arrivals<'_>> {
    let units = sink.units.as_ref()?;
    let ledger = sink.record.as_ref().map(|record| record.ledger.clone()).unwrap_or_default();
    Some(Arrivals {
        units,
        bounced: &sink.bounced,
        delay_notices: ledger.delay_notices.unwrap_or_default(),
        repeated_notices: ledger.repeated_notices.unwrap_or_default(),
        rewritten: ledger.rewritten.unwrap_or_default(),
        copied: ledger.copied.unwrap_or_default(),
        duplicates: ledger.duplicates.unwrap_or_default(),
        corrupt: ledger.corrupt,
        converted: ledger.converted.unwrap_or_default(),
        foreign: ledger.foreign.unwrap_or_default(),
        untimed: ledger.untimed.unwrap_or_default(),
        negative: ledger.negative.unwrap_or_default(),
        overflow: ledger.overflow.unwrap_or_default(),
    })
}

/// Computes which share of the host's CPU time was used by processes outside the run. This needs the CPU time of the
/// bench and of every process of the run. The CPU time of a server under test is known only if the bench started the
/// server as a relay.
fn others_usage(record: &Record, between: Topology, mut surroundings: Surroundings, own_s: f64) -> Surroundings {
    let has_relay = record.parties.iter().any(|party| party.role == Role::Relay);
    let used_s: Option<f64> = record.parties.iter().map(|party| Some(party.user_s? + party.sys_s?)).sum();
    if let Some(used_s) = used_s.filter(|_| between == Topology::Direct || has_relay) {
        host_sampler::set_other_busy_share(&mut surroundings, used_s + own_s);
    }
    surroundings
}

/// Returns the events that the bench knows of: processes that exited without having been asked to, and faults that the
/// bench caused. The time of a death (`Death::at_s`) counts from the beginning of the load.
fn bench_events(
    deaths: &[(Role, Death)],
    faults: &[BenchFault],
    load_started_at: Duration,
    origin_ns: u64,
) -> Vec<EventRow> {
    let began_s = load_started_at.saturating_sub(Duration::from_nanos(origin_ns)).as_secs_f64();
    let row = |(role, death): &(Role, Death)| EventRow {
        at_s: began_s + death.at_s,
        kind: EventKind::Died,
        text: death_event_text(role.name(), death),
    };
    deaths.iter().map(row).chain(faults.iter().map(|fault| fault.event(origin_ns))).collect()
}

fn death_event_text(name: &str, death: &Death) -> String {
    let message = death.said.trim_end_matches('.');
    let suffix = if message.is_empty() { String::new() } else { format!("; its last message: {message}") };
    format!("the {name} died: {}{suffix}", death.how)
}

/// Fills in the resources that a process used in each second, if the run record does not have them yet. They are
/// missing for a relay, and for a process that left no record.
fn fill_usage(record: &mut Record, observation: &PartyObservation) {
    let party = record.parties.iter().find(|party| party.role == observation.role);
    let name = party.map_or_else(|| observation.role.name().to_owned(), |party| party.name.clone());
    if !record.usage.iter().any(|usage| usage.party == name) {
        record.usage.extend(observation.usage_by_second.party(&name, record.origin_ns));
    }
}

/// Fills in the costs of a process, such as CPU time, as the bench observed them until its exit. The process's own
/// figures miss the time after it has written its record.
pub(super) fn fill_costs(record: &mut Record, observation: &PartyObservation) {
    if let Some(party) = record.parties.iter_mut().find(|party| party.role == observation.role) {
        observation.usage.fill(party);
        party.command.clone_from(&observation.command);
    }
}
