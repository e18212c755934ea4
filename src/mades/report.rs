//! The run record of the bench.
use super::account::Queue;
use super::books::Books;
use super::stages::{Mode, Stage};
use super::verdict;
use crate::party;
use journey::record::{
    Ending, ErrorRow, LedgerRow, Mades, MadesQueue, MadesTrouble, Record, Role, StageRow, StallRow, Surroundings,
    ThresholdRow, Workload,
};
use journey::{Phase, Series};
use net::clock;

/// The results besides the shared state.
pub(super) struct Finds<'a> {
    pub(super) started_at: jiff::Timestamp,
    pub(super) series: &'a Series,
    pub(super) stalls: Vec<StallRow>,
    /// The threshold that ended the run, with its value at that time.
    pub(super) missed: Option<&'a ThresholdRow>,
    pub(super) around: Surroundings,
    pub(super) purged: u64,
    pub(super) ending: Ending,
}

/// The record of the run.
pub(super) fn record(books: &Books, finds: Finds<'_>) -> Record {
    let options = &books.options;
    let balance = books.account.borrow().balance();
    let foreign = [Queue::Reply, Queue::Event, Queue::Inbox].map(|queue| books.foreign(queue));
    let offered_s = books.offered().map(|offered| offered.as_secs_f64());
    let mades = mades(books, &balance.missing, offered_s, finds.purged);
    let mut record = party::blank_record(Some(books.run), &options.name, finds.started_at, workload(books));
    record.command.clone_from(&options.command);
    record.origin_ns = finds.series.origin_ns();
    record.series = finds.series.rows();
    record.offered_s = offered_s;
    record.stalls = finds.stalls;
    record.stages = stages(books, &balance.ledger, offered_s);
    record.duration_s = mades.stages.iter().map(|row| row.duration_s).fold(0.0, f64::max);
    record.lag_ms = books.lag.borrow().summary();
    record.errors = mades.troubles.iter().map(error).collect();
    record.surroundings = Some(finds.around);
    let mut party = party::own_party(Role::Source, "mades", 1, Vec::new());
    party.command.clone_from(&options.command);
    party.failed_sessions = None;
    record.parties = vec![party];
    record.ledger = LedgerRow { foreign: Some(foreign.iter().sum()), ..balance.ledger };
    record.ending = Some(finds.ending);
    record.mades = Some(mades.clone());
    record.thresholds = thresholds(&record, books, finds.missed);
    record.verdict = verdict::conclude(&record, &mades);
    record
}

/// Results of the thresholds; for the one that ended the run, its value at that time.
fn thresholds(record: &Record, books: &Books, missed: Option<&ThresholdRow>) -> Vec<ThresholdRow> {
    let options = &books.options;
    let evaluated = options.thresholds.iter().chain(&options.abort_on).map(|threshold| threshold.evaluate(record));
    let at_its_end =
        |row: ThresholdRow| missed.filter(|missed| missed.expression == row.expression).cloned().unwrap_or(row);
    evaluated.map(at_its_end).collect()
}

fn workload(books: &Books) -> Workload {
    let options = &books.options;
    let is_tls = options.outbox.url.is_tls() || options.inbox.url.is_tls();
    Workload {
        messages: options.messages,
        duration_limit_s: options.limit().map(|limit| limit.as_secs_f64()),
        recipients: 1,
        sessions: u32::try_from(options.max_in_transit).unwrap_or(u32::MAX),
        message_bytes: books.payloads.mean_size().round() as u64,
        tls: if is_tls { "implicit" } else { "none" }.to_owned(),
        arrival: options.arrival,
        rate_per_s: options.rate_per_s(),
        protocol: "mades".to_owned(),
        target: options.outbox.url.to_string(),
        seed: options.seed,
        sizes_varied: books.payloads.varied(),
        rcpt: options.receiver.clone(),
        stages: options.offer.as_ref().map(crate::load::stages::Offer::stages).unwrap_or_default(),
        ..Workload::default()
    }
}

fn mades(books: &Books, missing: &[u64; Stage::ALL.len()], offered_s: Option<f64>, purged: u64) -> Mades {
    let options = &books.options;
    let mut account = books.account.borrow_mut();
    let last = Stage::ALL.into_iter().filter_map(|stage| account.waterfall.last(stage)).max();
    let in_transit_mean = account.mean_in_transit(last.unwrap_or_else(clock::now));
    let foreign = [Queue::Reply, Queue::Event, Queue::Inbox].map(|queue| books.foreign(queue));
    Mades {
        mode: options.mode.name().to_owned(),
        outbox_url: options.outbox.url.to_string(),
        inbox_url: options.inbox.url.to_string(),
        queues: queues(books),
        receiver: options.receiver.clone(),
        message_type: options.message_type.clone(),
        durable: options.is_durable,
        payload: options.payload.typed(),
        max_in_transit: options.max_in_transit as u64,
        window: u64::from(options.window),
        timeout_s: options.timeout.as_secs_f64(),
        in_transit_mean,
        stages: account.waterfall.stage_rows(offered_s, |stage| missing[stage as usize]),
        hops: account.waterfall.hop_rows(),
        troubles: account.troubles.rows(),
        outages: books.outages.borrow().clone(),
        redelivered: account.redelivered(),
        released: foreign.iter().sum(),
        purged,
        reordered: account.reordered(),
        waited_for_room: books.waited_for_room.get(),
        truth: None,
    }
}

/// The queues that the mode uses.
fn queues(books: &Books) -> Vec<MadesQueue> {
    let mode = books.options.mode;
    let names = &books.options.queues;
    let row = |role: &str, name: &str, foreign| MadesQueue { role: role.to_owned(), name: name.to_owned(), foreign };
    let mut rows = Vec::new();
    if mode != Mode::Amqp {
        rows.push(row("outbox", &names.outbox, 0));
        rows.push(row("reply", &names.reply, books.foreign(Queue::Reply)));
    }
    let events = names.send_event.as_deref().filter(|_| matches!(mode, Mode::Endpoint | Mode::Tracing));
    rows.extend(events.map(|name| row("event", name, books.foreign(Queue::Event))));
    if mode != Mode::Tracing {
        rows.push(row("inbox", &names.inbox, books.foreign(Queue::Inbox)));
    }
    rows
}

/// The stages in the terms that all protocols share.
fn stages(books: &Books, ledger: &LedgerRow, offered_s: Option<f64>) -> Vec<StageRow> {
    let account = books.account.borrow();
    let mode = account.mode();
    let waterfall = &account.waterfall;
    let is_open_loop = books.pace.borrow().is_open_loop();
    let row = |name: journey::Stage, stage: Stage, failed: Option<u64>| {
        let count = waterfall.count(stage);
        let span_s = waterfall.span(stage).as_secs_f64();
        let bytes = (count as f64 * books.payloads.mean_size()).round() as u64;
        let rate = |amount: f64| if span_s > 0.0 { amount / span_s } else { 0.0 };
        let is_timed = stage != Stage::Created || is_open_loop;
        let latency_ms = waterfall.latency(stage).summary().filter(|_| is_timed);
        let since = if is_open_loop { journey::Stage::Scheduled } else { journey::Stage::Created };
        StageRow {
            name,
            party: "mades".to_owned(),
            count,
            failed: failed.unwrap_or_default(),
            bytes,
            rate_per_s: rate(count as f64),
            bytes_per_s: rate(bytes as f64),
            duration_s: span_s,
            offered_rate_per_s: offered_s.map(|offered_s| count as f64 / offered_s),
            since: latency_ms.map(|_| since),
            latency_ms,
            histogram: waterfall.latency(stage).encoded().filter(|_| is_timed),
        }
    };
    let mut rows = vec![
        row(journey::Stage::Created, Stage::Created, None),
        row(journey::Stage::Sent, Stage::Sent, None),
        row(journey::Stage::Accepted, Stage::Settled, ledger.rejected),
        row(journey::Stage::Delivered, mode.arrival(), ledger.lost),
    ];
    if mode.last() != mode.arrival() {
        rows.push(row(journey::Stage::Notified, mode.last(), None));
    }
    rows
}

/// A trouble in the terms that all protocols share: those have numeric codes, and phases of a dialogue.
fn error(trouble: &MadesTrouble) -> ErrorRow {
    let phase = if trouble.kind == "connection" { Phase::Connect } else { Phase::Reply };
    let parts = [&trouble.kind, &trouble.code, &trouble.text];
    let text: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    ErrorRow { phase, code: 0, text: text.join(": "), count: trouble.count }
}
