//! Serves metrics, health and readiness over HTTP. A separate thread does this, so that no session
//! has to wait.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | numbers, for Prometheus (`metrics`) |
//! | `/health` | 200, with a line about damage to the spool; or 503 after the spool has failed, when only a restart helps |
//! | `/ready` | 200 after the relay listens and has queued the mail of a former run, else 503 |
use crate::control::metrics::{self, RelayMetrics, UntrustedClients};
use crate::control::queue_stats::collect_queue_stats;
use crate::worker_calls::{RunningRelay, WorkerUnavailable};
use anyhow::{Result, anyhow};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mailrun_net::{ClientLimit, clock};
use mailrun_process::http_server::{self, HostNames, HttpCounters};
use mailrun_process::reason::reason;
use mailrun_spool::SpoolStats;
use mailrun_text::words::counted;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Serves HTTP on `address` until the process ends. Returns the address with the actual port,
/// because the port may have been 0.
///
/// # Errors
/// Fails if the relay cannot listen on the address.
pub(crate) fn serve(address: SocketAddr, relay: &Arc<RunningRelay>) -> Result<SocketAddr> {
    let start = clock::now();
    let counters = Arc::<HttpCounters>::default();
    let config = relay.context.config();
    let names = HostNames::new([config.hostname.as_str()].into_iter().chain(config.http_name.as_deref()));
    let counted = Arc::clone(&counters);
    let routes = Router::new()
        .route("/", get(async || "mailrun relay: /metrics, /health, /ready\n"))
        .route("/metrics", get(move |relay| get_metrics(relay, counted, start)))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .with_state(Arc::clone(relay));
    http_server::serve(address, names, &counters, routes).map_err(|error| match error.downcast::<io::Error>() {
        Ok(error) => anyhow!("cannot listen on {address} (http): {}", reason(&error)),
        Err(error) => error,
    })
}

async fn get_metrics(State(relay): State<Arc<RunningRelay>>, http: Arc<HttpCounters>, start: Duration) -> Response {
    let reply = tokio::task::spawn_blocking(move || {
        let stats = collect_queue_stats(&relay)?;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let displaced =
            ("http_displaced", "HTTP connections closed to make room for newer ones", count(&http.displaced));
        let misdirected = ("http_misdirected", "HTTP requests for unknown host names", count(&http.misdirected));
        Ok::<_, WorkerUnavailable>(metrics::render(&RelayMetrics {
            queues: &stats,
            counters: &relay.context.counters.rows(),
            process: &[
                (
                    "unlogged",
                    "deliveries that were not logged because the log is too slow",
                    relay.context.delivery_log_writer.dropped_lines(),
                ),
                ("log_dropped", "other log lines that were dropped", relay.context.log.dropped()),
                (
                    "panicked_tasks",
                    "sessions, deliveries and notifications that failed because of a bug in mailrun",
                    mailrun_net::worker::failed_sessions(),
                ),
                displaced,
                misdirected,
            ],
            spool: &relay.context.spool.stats(),
            incoming_limit: relay.context.memory_budget.limit_bytes(),
            untrusted: untrusted_clients(&relay),
            has_failed: relay.context.has_failed(),
            hostname: &relay.context.config().hostname,
            uptime_s: clock::now().saturating_sub(start).as_secs_f64(),
        }))
    });
    match reply.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Ok(Err(silent)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silent}\n")).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn untrusted_clients(relay: &RunningRelay) -> UntrustedClients {
    let refusals = ClientLimit::ALL.map(|limit| (limit.name(), relay.context.clients.refused(limit)));
    UntrustedClients {
        connections: relay.context.clients.connected(),
        incoming_bytes: relay.context.memory_budget.untrusted_bytes(),
        incoming_limit: relay.context.memory_budget.untrusted_limit_bytes(),
        refused: refusals.into(),
    }
}

async fn health(State(relay): State<Arc<RunningRelay>>) -> (StatusCode, String) {
    if relay.context.has_failed() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the spool has failed\n".to_owned());
    }
    (StatusCode::OK, health_text(&relay.context.spool.stats()))
}

/// Returns the text of `/health`. Damage to the spool is reported with status 200, because a
/// restart would not bring the lost messages back.
fn health_text(spool: &SpoolStats) -> String {
    match (spool.damaged, spool.lost_messages) {
        (0, _) => "ok\n".to_owned(),
        (damaged, lost) => {
            let places = counted(damaged, "place");
            let what = match lost {
                0 => "what was lost is unknown".to_owned(),
                1 => "1 message was lost".to_owned(),
                lost => format!("{} were lost", counted(lost, "message")),
            };
            format!("ok, but the spool was damaged at {places}, and {what}\n")
        }
    }
}

async fn ready(State(relay): State<Arc<RunningRelay>>) -> (StatusCode, &'static str) {
    if relay.context.has_failed() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the spool has failed\n");
    }
    if !relay.context.is_listening() {
        return (StatusCode::SERVICE_UNAVAILABLE, "not listening\n");
    }
    if !relay.context.is_backlog_queued() {
        return (StatusCode::SERVICE_UNAVAILABLE, "reading the spool\n");
    }
    (StatusCode::OK, "ok\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_says_what_was_lost_by_damage() {
        for (damaged, lost_messages, expected) in [
            (0, 0, "ok\n"),
            (1, 0, "ok, but the spool was damaged at 1 place, and what was lost is unknown\n"),
            (2, 14, "ok, but the spool was damaged at 2 places, and 14 messages were lost\n"),
        ] {
            assert_eq!(health_text(&SpoolStats { damaged, lost_messages, ..SpoolStats::default() }), expected);
        }
    }
}
