use super::in_flight::InFlightEntry;
use super::market::MarketShape;
use super::run_state::MadesRunState;
use super::stages::{MadesMode, MessageStage};
use super::tracker::ReceiveQueue;
use super::troubles::TroubleTimes;
use super::verdict;
use mailrun_measurement::merge::{join_events, with_queue};
use mailrun_measurement::overdue::complete_stages;
use mailrun_measurement::record::{
    Ending, ErrorRow, EventKind, EventRow, LedgerRow, Mades, MadesAcknowledgements, MadesQueue, MadesShape,
    MadesTrouble, Record, Role, SlowMessage, StallRow, Surroundings, ThresholdRow, Workload,
};
use mailrun_measurement::slowest::MessagePhases;
use mailrun_measurement::threshold::evaluate_all;
use mailrun_measurement::{Latencies, Phase, Series};
use mailrun_net::clock;
use mailrun_process::outputs;
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_schedule::run_events::RunCourse;
use std::time::Duration;

pub(super) struct MadesResults<'a> {
    pub(super) started_at: jiff::Timestamp,
    pub(super) series: &'a Series,
    pub(super) usage: &'a UsageSampler,
    pub(super) stalls: Vec<StallRow>,
    /// The threshold that ended the run early, with its value at that time, or `None` if no threshold ended the run.
    pub(super) missed_threshold: Option<&'a ThresholdRow>,
    pub(super) surroundings: Surroundings,
    pub(super) purged: u64,
    pub(super) ending: Ending,
    /// End of the time in which the bench received messages.
    pub(super) observed_until: Duration,
}

pub(super) fn record(run_state: &MadesRunState, results: MadesResults<'_>) -> Record {
    let options = &run_state.options;
    let balance = run_state.tracker.borrow().final_ledger();
    let foreign = [ReceiveQueue::Reply, ReceiveQueue::Event, ReceiveQueue::Inbox].map(|queue| run_state.foreign(queue));
    let offered_s = run_state.offered().map(|offered| offered.as_secs_f64());
    let missed_count = run_state.pacer.borrow_mut().missed(run_state.is_given_up());
    let workload = workload(run_state);
    let directory = options.out.as_deref();
    let mut record = outputs::new_record(Some(run_state.run), &options.name, results.started_at, workload, directory);
    record.command.clone_from(&options.command);
    let mut series = results.series.clone();
    let troubles = run_state.tracker.borrow().troubles.event_times().clone();
    troubles.iter().for_each(|(at, errors)| series.add_errors(at, errors));
    outputs::set_zero(&mut record, series.zero());
    record.series = with_queue(series.rows(results.observed_until));
    record.usage = results.usage.party("mades", record.origin_ns).into_iter().collect();
    record.offered_s = offered_s;
    let is_open_loop = run_state.pacer.borrow().is_open_loop();
    record.due = is_open_loop.then(|| run_state.tracker.borrow().created() + missed_count);
    let origin = Duration::from_nanos(record.origin_ns);
    let bytes_each = run_state.payloads.mean_size();
    let missing = |stage: MessageStage| balance.missing[stage as usize];
    record.stages = run_state.tracker.borrow().waterfall.stage_rows(origin, bytes_each, missing);
    record.observed_until_s = Some(results.observed_until.saturating_sub(series.zero()).as_secs_f64());
    let mades = mades(run_state, origin, missed_count, results.purged);
    record.duration_s = record.stages.iter().map(|row| row.duration_s).fold(0.0, f64::max);
    record.lag_ms = run_state.lag.borrow().summary();
    record.stalls = results.stalls;
    let times: Vec<_> = run_state.tracker.borrow().troubles.times().collect();
    record.errors = mades.troubles.iter().zip(times).map(|(trouble, times)| error(trouble, times, origin)).collect();
    record.events = events(run_state, origin, results.ending, results.missed_threshold);
    record.slowest = slowest(run_state, origin);
    record.surroundings = Some(results.surroundings);
    let mut party = outputs::own_party(Role::Source, "mades", 1, Vec::new());
    party.command.clone_from(&options.command);
    party.failed_sessions = None;
    record.parties = vec![party];
    record.ledger = LedgerRow { foreign: Some(foreign.iter().sum()), ..balance.ledger };
    record.ending = Some(results.ending);
    record.mades = Some(mades);
    complete_stages(&mut record);
    complete_shapes(&mut record);
    record.thresholds = thresholds(&record, run_state, results.missed_threshold);
    if let Some(mades) = &record.mades {
        record.verdict = verdict::conclude(&record, mades);
    }
    record
}

/// Makes the percentiles of each message shape (`--shape`) count messages that never arrived as infinitely late.
fn complete_shapes(record: &mut Record) {
    let of_run = |record: &Record, shape: &MadesShape| {
        let mut run = shape.as_run(record);
        complete_stages(&mut run);
        run.stages
    };
    let market = record.mades.as_ref().and_then(|mades| mades.market.as_ref());
    let stages: Vec<_> = market.iter().flat_map(|market| &market.shapes).map(|shape| of_run(record, shape)).collect();
    let market = record.mades.as_mut().and_then(|mades| mades.market.as_mut());
    let shapes = market.into_iter().flat_map(|market| &mut market.shapes);
    shapes.zip(stages).for_each(|(shape, stages)| shape.stages = stages);
}

fn events(
    run_state: &MadesRunState,
    origin: Duration,
    ending: Ending,
    missed_threshold: Option<&ThresholdRow>,
) -> Vec<EventRow> {
    let began = run_state.began;
    let ended = run_state.tracker.borrow().waterfall.last(MessageStage::Created).unwrap_or(began);
    let stopped_at = run_state.pacer.borrow().stopped_at();
    let course = RunCourse { origin, began, ended, stalls: &[], ending, stopped_at, missed_threshold };
    let outages = run_state.outages.borrow();
    let outages = outages.iter().flat_map(|outage| {
        let at_s = began.saturating_sub(origin).as_secs_f64() + outage.began_s;
        let lost = EventRow {
            at_s,
            kind: EventKind::ServerLost,
            text: format!("no connection for the {}: {}", outage.side, outage.why),
        };
        let back = EventRow {
            at_s: at_s + outage.lasted_s,
            kind: EventKind::ServerBack,
            text: format!("connected again for the {}", outage.side),
        };
        std::iter::once(lost).chain((!outage.to_the_end).then_some(back))
    });
    join_events(course.events(None, run_state.options.offer.as_ref()), outages.collect())
}

/// Evaluates the thresholds of the run and of each `--shape`. The threshold that ended the run keeps the value that it
/// had then.
fn thresholds(record: &Record, run_state: &MadesRunState, missed_row: Option<&ThresholdRow>) -> Vec<ThresholdRow> {
    let options = &run_state.options;
    let of_run = evaluate_all(record, options.thresholds.iter().chain(&options.abort_on), missed_row);
    let shapes = options.market.iter().flat_map(|market| &market.shapes);
    let rows = record.mades.iter().filter_map(|mades| mades.market.as_ref()).flat_map(|market| &market.shapes);
    let of_shape = |(shape, row): (&MarketShape, &MadesShape)| {
        let of_shape = |result: ThresholdRow| ThresholdRow {
            expression: format!("{}: {}", row.name, result.expression),
            ..result
        };
        let run = row.as_run(record);
        evaluate_all(&run, shape.thresholds(), None).into_iter().map(of_shape).collect::<Vec<_>>()
    };
    of_run.into_iter().chain(shapes.zip(rows).flat_map(of_shape)).collect()
}

pub(super) fn workload(run_state: &MadesRunState) -> Workload {
    let options = &run_state.options;
    let is_tls = options.outbox.url.is_tls() || options.inbox.url.is_tls();
    Workload {
        messages: options.messages,
        duration_limit_s: options.limit().map(|limit| limit.as_secs_f64()),
        recipients: 1,
        sessions: u32::try_from(options.max_in_transit).unwrap_or(u32::MAX),
        message_bytes: run_state.payloads.mean_size().round() as u64,
        tls: if is_tls { "implicit" } else { "none" }.to_owned(),
        arrival: options.arrival,
        rate_per_s: options.rate_per_s(),
        protocol: "mades".to_owned(),
        target: options.outbox.url.to_string(),
        seed: options.seed,
        sizes_varied: run_state.payloads.varied(),
        rcpt: options.receiver.clone(),
        stages: options.offer.as_ref().map(mailrun_schedule::offered_rate::OfferedRate::stages).unwrap_or_default(),
        ..Workload::default()
    }
}

fn mades(run_state: &MadesRunState, origin: Duration, missed: u64, purged: u64) -> Mades {
    let options = &run_state.options;
    let mut tracker = run_state.tracker.borrow_mut();
    let last = MessageStage::ALL.into_iter().filter_map(|stage| tracker.waterfall.last(stage)).max();
    let in_transit_mean = tracker.mean_in_transit(last.unwrap_or_else(clock::now));
    let foreign = [ReceiveQueue::Reply, ReceiveQueue::Event, ReceiveQueue::Inbox].map(|queue| run_state.foreign(queue));
    Mades {
        mode: options.mode.name().to_owned(),
        outbox_url: options.outbox.url.to_string(),
        inbox_url: options.inbox.url.to_string(),
        brokers: run_state.brokers.borrow().clone(),
        queues: queues(run_state),
        receiver: options.receiver.clone(),
        message_type: options.message_type.clone(),
        durable: options.is_durable,
        payload: options.market.as_ref().map_or_else(|| options.payload.typed(), |_| "market documents".to_owned()),
        max_in_transit: options.max_in_transit as u64,
        window: u64::from(options.window),
        timeout_s: options.timeout.as_secs_f64(),
        asked_timeout_s: run_state.raised_from.map(|asked| asked.as_secs_f64()),
        in_transit_mean,
        hops: tracker.waterfall.hop_rows(),
        troubles: tracker.troubles.rows(),
        outages: run_state.outages.borrow().clone(),
        redelivered: tracker.redelivered(),
        released: foreign.iter().sum(),
        purged,
        reordered: tracker.reordered(),
        waited_for_room: run_state.waited_for_room.get(),
        last_answer_s: tracker.last_answer().map(|at| at.saturating_sub(run_state.began).as_secs_f64()),
        no_credit: run_state.credit.borrow().row(run_state.began),
        truth: None,
        market: tracker
            .waterfall
            .shapes
            .as_ref()
            .map(|shapes| shapes.record(options, tracker.created(), missed, origin)),
        acknowledgements: acknowledgements(run_state, tracker.waterfall.way_back()),
    }
}

/// Returns the figures about acknowledgement documents, or `None` if the run used no such documents.
fn acknowledgements(run_state: &MadesRunState, way_back: &Latencies) -> Option<MadesAcknowledgements> {
    let acknowledgements = run_state.acknowledgements.as_ref()?;
    let record = acknowledgements.record(run_state.options.acknowledgement_outbox());
    Some(MadesAcknowledgements { way_back_ms: way_back.summary(), ..record })
}

fn queues(run_state: &MadesRunState) -> Vec<MadesQueue> {
    let mode = run_state.options.mode;
    let names = &run_state.options.queues;
    let row = |role: &str, name: &str, foreign| MadesQueue { role: role.to_owned(), name: name.to_owned(), foreign };
    let mut rows = Vec::new();
    if mode != MadesMode::Amqp {
        rows.push(row("outbox", &names.outbox, 0));
        rows.push(row("reply", &names.reply, run_state.foreign(ReceiveQueue::Reply)));
    }
    let events = names.send_event.as_deref().filter(|_| matches!(mode, MadesMode::Endpoint | MadesMode::Tracing));
    rows.extend(events.map(|name| row("event", name, run_state.foreign(ReceiveQueue::Event))));
    if mode != MadesMode::Tracing {
        rows.push(row("inbox", &names.inbox, run_state.foreign(ReceiveQueue::Inbox)));
    }
    rows
}

/// Returns the messages that took longest to arrive, in rows of the same type as in an SMTP run. The phase `Body` of a
/// row is the transfer of the message to the broker. The phase `Reply` is the wait for the broker's confirmation.
fn slowest(run_state: &MadesRunState, origin: Duration) -> Vec<SlowMessage> {
    let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
    let row = |(elapsed, entry): (Duration, InFlightEntry)| {
        let arrived = entry.since + elapsed;
        let mut phases = MessagePhases::default();
        if let Some(sent) = entry.time(MessageStage::Sent) {
            phases.add(Phase::Body, sent.saturating_sub(entry.created));
            let settled = entry.time(MessageStage::Settled).unwrap_or(sent);
            phases.add(Phase::Reply, settled.saturating_sub(sent));
        }
        SlowMessage {
            message: entry.sequence,
            created_s: entry.since.saturating_sub(origin).as_secs_f64(),
            // If the connection was cut before the broker confirmed the message, use the time of arrival as the time of
            // acceptance.
            accepted_ms: Some(ms(entry.since, entry.time(MessageStage::Settled).unwrap_or(arrived))),
            delivered_ms: Some(ms(entry.since, arrived)),
            waited_ms: ms(entry.since, entry.created),
            phases: phases.rows(),
            recipients: vec![run_state.options.receiver.clone()],
            recipient_count: 1,
            bytes: run_state.payloads.size(entry.sequence) as u64,
            reply: None,
        }
    };
    run_state.tracker.borrow().slowest().into_iter().map(row).collect()
}

/// Converts an error of the bench to a row of the record's error list, whose columns are made for SMTP. The bench's
/// error code is a text and not an SMTP reply code, so it becomes part of the row's text.
fn error(trouble: &MadesTrouble, times: Option<TroubleTimes>, origin: Duration) -> ErrorRow {
    let phase = if trouble.kind == "connection" { Phase::Connect } else { Phase::Reply };
    let parts = [&trouble.kind, &trouble.code, &trouble.text];
    let text: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let second = |at: Duration| at.saturating_sub(origin).as_secs_f64();
    ErrorRow {
        phase,
        text: text.join(": "),
        count: trouble.count,
        first_s: times.map(|times| second(times.first)),
        last_s: times.map(|times| second(times.last)),
        ..ErrorRow::default()
    }
}
