//! Serves the sink's status and the counts of its runs over HTTP. A separate thread does this, so that requests do not
//! delay mail sessions.
//!
//! | path | what |
//! |---|---|
//! | `/`, `/status` | counts so far |
//! | `/ledger` | every run's counts |
//! | `/ledger/RUN` | one run's counts; PUT announces a run, whose record then counts from there |
//! | `/arrivals/RUN?after=N` | messages of a run one by one, but for the first N (`arrivals`) |
//! | `/ledger/RUN/units` | recipients whose mail arrived, bounced or was rewritten, as bits (`mailrun_measurement::Ledger::read_arrivals`) |
//! | `/record/RUN` | one run's record (`mailrun-run/1`) |
//! | `/metrics` | counts so far, in the text format of Prometheus |
//! | `/rules` | the rules in force, as JSON; PUT other ones as TOML or JSON (`rulebook`) |
use super::active_rules::{self, RuleCount};
use super::report::SinkReport;
use super::rulebook::{MAX_FILE_BYTES, Rulebook};
use anyhow::{Context, Result};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use mailrun_lock::lock;
use mailrun_measurement::{Ledger, RunId, RunTally};
use mailrun_process::clock_exchange::{ChronyAnswer, ClockAnswer};
use mailrun_process::http_server::{self, HostNames};
use mailrun_process::{live_metrics, text_file};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::task::spawn_blocking;

type ReportState = State<Arc<Mutex<SinkReport>>>;

pub(super) struct StatusServer {
    address: SocketAddr,
}

impl StatusServer {
    /// Serves on `address` until the process ends. Rejects requests whose Host header names neither this address nor
    /// one of `names`, so that a web page cannot read the status through its visitor's browser.
    pub(super) fn serve(address: SocketAddr, names: HostNames, view: Arc<Mutex<SinkReport>>) -> Result<Self> {
        let routes = Router::new()
            .route("/", get(status))
            .route("/status", get(status))
            .route("/clock", get(clock))
            .route("/clock/chrony", get(clock_error))
            .route("/ledger", get(ledgers))
            .route("/ledger/{run}", get(ledger).put(announce))
            .route("/ledger/{run}/units", get(units))
            .route("/arrivals/{run}", get(arrivals))
            .route("/record/{run}", get(record))
            .route("/metrics", get(metrics))
            .route("/rules", get(rules).put(put_rules))
            .fallback(not_found)
            // Limit requests to the size of a rules file, which is the longest legitimate request.
            .layer(DefaultBodyLimit::max(MAX_FILE_BYTES))
            .with_state(view);
        let served = http_server::serve(address, names, &Arc::default(), routes);
        Ok(Self { address: served.with_context(|| format!("cannot listen on {address} (--http)"))? })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn status(State(view): ReportState) -> Json<Value> {
    let view = lock(&view);
    let total = &view.total;
    let effects = view.active_rules.rule_counts();
    Json(json!({
        "mailrun": env!("CARGO_PKG_VERSION"),
        "listening": view.place,
        "uptime_s": (mailrun_net::clock::now() - view.began).as_secs_f64(),
        "connections": total.connections,
        "messages": total.messages,
        "recipients": total.recipients,
        "bytes": total.bytes,
        "untraced": total.untraced,
        "errors": total.errors.total(),
        "faults": active_rules::describe_counts(&effects),
        "rules": effects.iter().map(rule).collect::<Vec<_>>(),
        "rules_version": view.active_rules.version(),
        "runs": total.runs.iter().map(|(run, _)| run.to_string()).collect::<Vec<_>>(),
    }))
}

/// Returns the time of this host, so that another host can compare its clock with it.
async fn clock() -> Json<ClockAnswer> {
    Json(ClockAnswer::now())
}

/// Estimates the error of this host's clock with `chronyc`. This request is separate from `clock`, because starting a
/// process takes time and the client measures the round trip of `clock`.
async fn clock_error() -> Json<ChronyAnswer> {
    // If the estimation of the clock's error panics, answer without an estimate.
    Json(spawn_blocking(ChronyAnswer::now).await.unwrap_or_default())
}

async fn metrics(State(view): ReportState) -> Response {
    let view = lock(&view);
    let total = &view.total;
    let mut stages = vec![("delivered", &view.delivered)];
    if view.watched.is_some() {
        stages.insert(0, ("announced", &view.announced));
    }
    live_metrics::response(live_metrics::counters_text(
        "mailrun_sink_",
        &[
            ("connections", "connections accepted", total.connections),
            ("messages", "messages accepted", total.messages),
            ("recipients", "recipients of accepted messages", total.recipients),
            ("bytes", "bytes of accepted messages", total.bytes),
            ("untraced", "messages without a readable trace", total.untraced),
            ("errors", "rejected commands, and sessions that ended with an error", total.errors.total()),
        ],
        &stages,
    ))
}

async fn ledgers(State(view): ReportState) -> Json<Value> {
    let view = lock(&view);
    Json(view.total.runs.iter().map(|(run, tally)| run_counts(&view, run, tally)).collect())
}

async fn ledger(State(view): ReportState, Path(run): Path<String>) -> Response {
    let view = lock(&view);
    match find_run(&view, &run) {
        Ok((run, tally)) => Json(run_counts(&view, run, tally)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn announce(State(view): ReportState, Path(run): Path<String>) -> Response {
    let mut view = lock(&view);
    if let Ok(run) = run.parse::<RunId>() {
        view.announce(run);
    }
    match find_run(&view, &run) {
        Ok((run, tally)) => Json(run_counts(&view, run, tally)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn units(State(view): ReportState, Path(run): Path<String>) -> Response {
    let view = lock(&view);
    let (_, tally) = match find_run(&view, &run) {
        Ok(known) => known,
        Err(refusal) => return refusal.into_response(),
    };
    let mut bytes = Vec::new();
    let ledgers = [&tally.units, &tally.bounces.units, &tally.rewrites.units];
    Ledger::write_arrivals(ledgers, &mut bytes).expect("a Vec takes everything");
    bytes.into_response()
}

fn json_response(text: serde_json::Result<String>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn record(State(view): ReportState, Path(run): Path<String>) -> Response {
    let mut view = lock(&view);
    match find_run(&view, &run) {
        Ok((run, _)) => json_response(view.record_since_first(run).to_json()),
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Deserialize)]
struct ArrivalQuery {
    #[serde(default)]
    after: u64,
}

async fn arrivals(State(view): ReportState, Path(run): Path<String>, Query(query): Query<ArrivalQuery>) -> Response {
    match run.parse::<RunId>() {
        Ok(run) => Json(lock(&view).arrivals(run, query.after)).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, Json(json!({ "error": error.to_string() }))).into_response(),
    }
}

async fn not_found() -> ErrorResponse {
    let known =
        "there are /status, /ledger, /ledger/RUN, /ledger/RUN/units, /arrivals/RUN, /record/RUN, /metrics and /rules";
    (StatusCode::NOT_FOUND, Json(json!({ "error": format!("no such path; {known}") })))
}

fn rule(effects: &RuleCount) -> Value {
    json!({ "rule": effects.rule, "acted": effects.count, "in_force": effects.is_active })
}

async fn rules(State(view): ReportState) -> Json<Value> {
    Json(lock(&view).active_rules.rulebook().to_json())
}

/// Replaces the rules of the running sink. If the new rules contain a mistake, answers 400 and keeps the old ones.
async fn put_rules(State(view): ReportState, body: Bytes) -> Response {
    let text = text_file::decode(body.into()).map_err(|reason| format!("the text {reason}"));
    let rulebook = match text.and_then(|text| Rulebook::read(&text)) {
        Ok(rulebook) => rulebook,
        Err(error) => return (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response(),
    };
    let control = Arc::clone(&lock(&view).active_rules);
    control.replace_now(rulebook);
    Json(control.rulebook().to_json()).into_response()
}

type ErrorResponse = (StatusCode, Json<Value>);

fn find_run<'v>(view: &'v SinkReport, run: &str) -> Result<(RunId, &'v RunTally), ErrorResponse> {
    let refuse = |status: StatusCode, error: &str| Err((status, Json(json!({ "error": error }))));
    let Ok(run) = run.parse::<RunId>() else {
        return refuse(StatusCode::BAD_REQUEST, "a run id is 32 hexadecimal digits");
    };
    match view.total.runs.find(run) {
        Some(tally) => Ok((run, tally)),
        None if view.total.runs.evicted > 0 => refuse(
            StatusCode::NOT_FOUND,
            "this run is not kept: nothing of it has arrived, or newer runs have replaced it",
        ),
        None => refuse(StatusCode::NOT_FOUND, "nothing of this run has arrived"),
    }
}

fn run_counts(view: &SinkReport, run: RunId, tally: &RunTally) -> Value {
    json!({
        "run_id": run.to_string(),
        "messages": tally.messages,
        "recipients": tally.recipients,
        "bytes": tally.bytes,
        "delivered": tally.units.count(),
        "bounced": tally.bounces.units.count_without(&tally.units),
        "delay_notices": tally.bounces.delayed,
        "repeated_notices": tally.bounces.repeated,
        "duplicates": tally.duplicates,
        "rewritten": tally.rewrites.units.count(),
        "copied": tally.rewrites.copied(),
        "corrupt": tally.corrupt,
        "converted": tally.converted,
        "foreign": view.foreign_count(tally),
        "untimed": tally.untimed,
        "negative": tally.negative,
        "overflow": tally.overflow,
        "closed_mailboxes": view.closed_mailboxes(),
    })
}
