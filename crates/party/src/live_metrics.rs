//! Serves a source's progress over HTTP in the text format of Prometheus (0.0.4).
use crate::http_server::{self, HostNames};
use crate::live::LiveProgress;
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mailrun_text::metrics_text::{Exposition, MetricsText};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The latest progress of a source, which is served as `GET /metrics`.
pub struct LiveMetrics {
    latest: Arc<Mutex<LiveProgress>>,
}

impl LiveMetrics {
    /// Starts to serve on `address` until the process ends, and prints the address.
    pub fn serve(address: SocketAddr) -> Result<Self> {
        let latest: Arc<Mutex<LiveProgress>> = Arc::default();
        let routes = Router::new().route("/", get(source_metrics)).route("/metrics", get(source_metrics));
        let routes = routes.with_state(Arc::clone(&latest));
        let result = http_server::serve(address, HostNames::new([]), &Arc::default(), routes);
        let address = result.with_context(|| format!("cannot listen on {address} (--http)"))?;
        crate::tell!("mailrun source: metrics on http://{address}/metrics");
        Ok(Self { latest })
    }

    /// Replaces the progress that is served.
    pub fn set(&self, progress: &LiveProgress) {
        *lock(&self.latest) = *progress;
    }
}

/// Locks the progress. Ignores poisoning: the value is copied as a whole, so a request that
/// panicked cannot have left half of it.
fn lock(latest: &Mutex<LiveProgress>) -> MutexGuard<'_, LiveProgress> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn source_metrics(State(latest): State<Arc<Mutex<LiveProgress>>>) -> Response {
    let progress = *lock(&latest);
    response(source_text(&progress))
}

/// Turns the text of metrics into an HTTP response.
pub fn response(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// Formats counters. Each has a name without the prefix, its meaning and its value.
pub fn counters_text(prefix: &'static str, counters: &[(&str, &str, u64)]) -> String {
    let mut text = MetricsText::new(prefix, Exposition::Prometheus);
    counters.iter().for_each(|(name, meaning, value)| text.counter(name, meaning, *value));
    text.finish()
}

fn source_text(progress: &LiveProgress) -> String {
    let mut text = MetricsText::new("mailrun_source_", Exposition::Prometheus);
    text.counter("created", "messages created", progress.created);
    text.counter("sent", "messages handed over", progress.sent);
    text.counter("accepted", "messages accepted", progress.accepted);
    text.counter("recipients", "recipients of accepted messages", progress.recipients);
    text.counter("bytes", "bytes of accepted messages", progress.bytes);
    text.counter("errors", "replies of 4xx and 5xx, cut connections, time-outs", progress.errors);
    text.gauge("elapsed_seconds", "time since the load began", progress.elapsed_s);
    text.gauge("sessions", "sessions that may be open", progress.sessions);
    text.gauge("open_messages", "messages under way", progress.open);
    text.gauge("goal_messages", "messages to create in all; 0: no limit", progress.goal_messages);
    text.gauge("goal_seconds", "time for which messages are created; 0: no limit", progress.goal_s);
    text.family("latency_seconds", "summary", "recent latency from created to accepted");
    for (quantile, ms) in [("0.5", progress.now.p50_ms), ("0.99", progress.now.p99_ms)] {
        text.sample("latency_seconds", &[("quantile", quantile)], ms / 1e3);
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::LiveTimes;

    #[test]
    fn progress_is_served_in_base_units() {
        let now = LiveTimes { p99_ms: 3.5, ..LiveTimes::default() };
        let text = source_text(&LiveProgress { accepted: 70, now, elapsed_s: 1.25, ..LiveProgress::default() });
        for line in [
            "# TYPE mailrun_source_accepted_total counter",
            "mailrun_source_accepted_total 70",
            "mailrun_source_elapsed_seconds 1.25",
            "mailrun_source_latency_seconds{quantile=\"0.99\"} 0.0035",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }
}
