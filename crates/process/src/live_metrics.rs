//! Serves the progress of a running load test over HTTP, in the text format of Prometheus (version 0.0.4).
use crate::http_server::{self, HostNames};
use crate::live::LiveProgress;
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mailrun_lock::lock;
use mailrun_measurement::Latencies;
use mailrun_measurement::buckets::{BOUNDS_S, Buckets};
use mailrun_text::metrics_text::{Exposition, MetricsText};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug)]
pub struct MeasuredParty {
    /// Name of the process, such as `source`, for the message that announces the URL of the metrics.
    pub name: &'static str,
    /// Prefix of the metrics' names, such as `mailrun_source_`.
    pub prefix: &'static str,
    /// Event with which the measured latency of a message ends, such as `accepted`.
    pub stage: &'static str,
}

/// The latest progress of a load test, which `GET /metrics` returns.
pub struct LiveMetrics {
    latest: Arc<Mutex<LatestFigures>>,
}

struct LatestFigures {
    party: MeasuredParty,
    progress: LiveProgress,
    latencies: Buckets,
}

impl LiveMetrics {
    /// Serves the metrics over HTTP on `address` until the process ends, and prints their URL.
    pub fn serve(address: SocketAddr, party: MeasuredParty) -> Result<Self> {
        let (progress, latencies) = (LiveProgress::default(), Buckets::default());
        let latest = Arc::new(Mutex::new(LatestFigures { party, progress, latencies }));
        let routes = Router::new().route("/", get(load_metrics)).route("/metrics", get(load_metrics));
        let routes = routes.with_state(Arc::clone(&latest));
        let result = http_server::serve(address, HostNames::new([]), &Arc::default(), routes);
        let address = result.with_context(|| format!("cannot listen on {address} (--http)"))?;
        crate::tell!("mailrun {}: metrics on http://{address}/metrics", party.name);
        Ok(Self { latest })
    }

    /// Replaces the progress that `GET /metrics` shows, and adds the latencies since the last call to the histogram.
    pub fn add(&self, progress: &LiveProgress, recent: &Latencies) {
        let mut latest = lock(&self.latest);
        latest.progress = *progress;
        latest.latencies.record_all(recent);
    }
}

async fn load_metrics(State(latest): State<Arc<Mutex<LatestFigures>>>) -> Response {
    let text = load_text(&lock(&latest));
    response(text)
}

/// Makes an HTTP response with the content type of Prometheus' text format.
pub fn response(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// Formats the counters. For each stage, such as `accepted`, adds a histogram of the times that messages took to reach
/// this stage. Each element of `counters` contains a counter's name without `prefix`, its description and its value.
pub fn counters_text(
    prefix: &'static str,
    counters: &[(&str, &str, u64)],
    stages: &[(&'static str, &Buckets)],
) -> String {
    let mut text = MetricsText::new(prefix, Exposition::Prometheus);
    counters.iter().for_each(|(name, meaning, value)| text.counter(name, meaning, *value));
    add_stages(&mut text, stages);
    text.finish()
}

fn add_stages(text: &mut MetricsText, stages: &[(&'static str, &Buckets)]) {
    text.family("stage_seconds", "histogram", "time from created or due until the stage");
    for (stage, buckets) in stages {
        text.histogram("stage_seconds", &[("stage", stage)], &BOUNDS_S, buckets.counts(), buckets.sum_s());
    }
}

fn load_text(latest: &LatestFigures) -> String {
    let LatestFigures { party, progress, latencies } = latest;
    let mut text = MetricsText::new(party.prefix, Exposition::Prometheus);
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
    text.family("latency_seconds", "summary", "recent latency of messages");
    for (quantile, ms) in [("0.5", progress.now.p50_ms), ("0.99", progress.now.p99_ms)] {
        text.sample("latency_seconds", &[("quantile", quantile)], ms / 1e3);
    }
    add_stages(&mut text, &[(party.stage, latencies)]);
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::LiveTimes;

    #[test]
    fn progress_is_served_in_base_units() {
        let now = LiveTimes { p99_ms: 3.5, ..LiveTimes::default() };
        let mut latencies = Buckets::default();
        latencies.record(std::time::Duration::from_millis(7));
        let party = MeasuredParty { name: "source", prefix: "mailrun_source_", stage: "accepted" };
        let progress = LiveProgress { accepted: 70, now, elapsed_s: 1.25, ..LiveProgress::default() };
        let text = load_text(&LatestFigures { party, progress, latencies });
        for line in [
            "# TYPE mailrun_source_accepted_total counter",
            "mailrun_source_accepted_total 70",
            "mailrun_source_elapsed_seconds 1.25",
            "mailrun_source_latency_seconds{quantile=\"0.99\"} 0.0035",
            "# TYPE mailrun_source_stage_seconds histogram",
            "mailrun_source_stage_seconds_bucket{stage=\"accepted\",le=\"0.005\"} 0",
            "mailrun_source_stage_seconds_bucket{stage=\"accepted\",le=\"0.01\"} 1",
            "mailrun_source_stage_seconds_count{stage=\"accepted\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }
}
