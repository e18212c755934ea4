//! Writes what the probe serves at `/metrics`, in the text format of Prometheus.
use super::account::{Ns, ProbeStage, RouteAccount};
use super::pacer::{Probe, Route, Skip};
use mailrun_measurement::buckets::BOUNDS_S;
use mailrun_text::metrics_text::{Exposition, MetricsText};
use std::collections::HashMap;

/// What the probe's main loop and the thread of its HTTP server share. The main loop updates it, and the thread reads
/// it to answer requests for `/metrics`.
pub(super) struct Shared {
    pub(super) probe: Probe,
    pub(super) journal: JournalState,
    /// Maps the number of a route to the time at which its server's certificate expires, in seconds since 1970.
    pub(super) certificates: HashMap<u16, i64>,
    /// Maps the number of a route to true if its sink or mailbox can be read at present.
    pub(super) watches: HashMap<u16, bool>,
    pub(super) reloaded_ns: Ns,
    /// False if the last attempt to read the configuration failed. The previous configuration then
    /// remains in force.
    pub(super) is_reload_good: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JournalState {
    pub(super) is_writable: bool,
    pub(super) bytes: u64,
    pub(super) failures: u64,
}

type Value = fn(&RouteAccount) -> u64;

/// Counters that `/metrics` shows for each route: name, help text, and the function that reads the value.
const COUNTERS: [(&str, &str, Value); 10] = [
    ("created_total", "messages written down, to be sent", |account| account.counts.created),
    ("accepted_total", "messages that the server accepted", |account| account.counts.accepted),
    ("rejected_total", "messages that the server refused with 4xx or 5xx", |account| account.counts.rejected),
    ("failed_total", "messages that could not be handed over", |account| account.counts.failed),
    ("delivered_total", "messages that arrived", |account| account.counts.delivered),
    ("bounced_total", "messages that a notice called undeliverable", |account| account.counts.bounced),
    ("lost_total", "messages that did not arrive in time", |account| account.counts.lost),
    ("late_total", "messages among the lost ones that arrived after all", |account| account.counts.late),
    ("unwatched_total", "accepted messages for which nobody looks", |account| account.counts.unwatched),
    ("repeated_total", "arrivals of messages whose fate was known", |account| account.counts.repeated),
];

const GAUGES: [(&str, &str, Value); 3] = [
    ("missing", "messages that are lost now", |account| account.counts.missing()),
    ("in_doubt", "messages without an answer that did not arrive", |account| account.counts.in_doubt),
    ("in_flight", "messages whose fate is not known yet", |account| account.in_flight()),
];

pub(super) fn text(shared: &Shared, now_ns: Ns) -> String {
    let probe = &shared.probe;
    let routes: Vec<(&Route, &RouteAccount)> =
        probe.routes.iter().filter_map(|route| Some((route, probe.account.routes.get(&route.number)?))).collect();
    let mut text = MetricsText::new("mailrun_probe_", Exposition::Prometheus);
    let seconds = |ns: Ns| ns as f64 / 1e9;

    text.family("up", "gauge", "1 if the server accepted the last message");
    for (route, _) in &routes {
        if let Some(is_up) = route.is_up {
            text.sample("up", &[("route", &route.pace.name)], u8::from(is_up));
        }
    }
    text.family("watch_up", "gauge", "1 if the sink or mailbox of the route can be read");
    for (route, _) in &routes {
        if let Some(is_up) = shared.watches.get(&route.number) {
            text.sample("watch_up", &[("route", &route.pace.name)], u8::from(*is_up));
        }
    }
    for (name, meaning, value) in COUNTERS {
        text.family(name, "counter", meaning);
        for (route, account) in &routes {
            text.sample(name, &[("route", &route.pace.name)], value(account));
        }
    }
    text.family("skipped_total", "counter", "messages that were due and not sent");
    for (route, _) in &routes {
        for (skip, reason) in Skip::ALL {
            text.sample(
                "skipped_total",
                &[("route", &route.pace.name), ("reason", reason)],
                route.skipped[skip as usize],
            );
        }
    }
    for (name, meaning, value) in GAUGES {
        text.family(name, "gauge", meaning);
        for (route, account) in &routes {
            text.sample(name, &[("route", &route.pace.name)], value(account));
        }
    }
    text.family("oldest_in_flight_seconds", "gauge", "age of the oldest message whose fate is not known yet");
    for (route, account) in &routes {
        let age_ns = account.oldest_due_ns().map_or(0, |due_ns| now_ns.saturating_sub(due_ns));
        text.sample("oldest_in_flight_seconds", &[("route", &route.pace.name)], seconds(age_ns));
    }
    text.family("backoff_seconds", "gauge", "pause after the last refusals");
    for (route, _) in &routes {
        text.sample("backoff_seconds", &[("route", &route.pace.name)], seconds(route.backoff_ns()));
    }
    text.family("interval_seconds", "gauge", "time between two messages");
    for (route, _) in &routes {
        text.sample("interval_seconds", &[("route", &route.pace.name)], seconds(route.pace.interval_ns));
    }
    text.family("last_success_timestamp_seconds", "gauge", "when the last message reached the stage");
    for (route, account) in &routes {
        for (stage, at_ns) in [("accepted", account.last_accepted_ns), ("delivered", account.last_delivered_ns)] {
            if at_ns > 0 {
                let labels = [("route", route.pace.name.as_str()), ("stage", stage)];
                text.sample("last_success_timestamp_seconds", &labels, seconds(at_ns));
            }
        }
    }
    text.family("certificate_expiry_timestamp_seconds", "gauge", "when the certificate of the server ends");
    for (route, _) in &routes {
        if let Some(end) = shared.certificates.get(&route.number) {
            text.sample("certificate_expiry_timestamp_seconds", &[("route", &route.pace.name)], end);
        }
    }
    text.family("latency_seconds", "histogram", "time from when a message was due until it reached the stage");
    for (route, account) in &routes {
        for (stage, name) in ProbeStage::ALL {
            let buckets = &account.buckets[stage as usize];
            let labels = [("route", route.pace.name.as_str()), ("stage", name)];
            text.histogram("latency_seconds", &labels, &BOUNDS_S, buckets.counts(), buckets.sum_s());
        }
    }
    text.gauge(
        "journal_writable",
        "1 if the account can be written; without it nothing is sent",
        u8::from(shared.journal.is_writable),
    );
    text.gauge("journal_bytes", "size of the file with the account", shared.journal.bytes);
    text.counter("journal_failures", "writes of the account that failed", shared.journal.failures);
    text.counter("clock_sets", "times that the wall clock was set", probe.clock_sets);
    text.gauge(
        "config_last_reload_successful",
        "1 if the configuration could be used",
        u8::from(shared.is_reload_good),
    );
    text.gauge("config_last_reload_timestamp_seconds", "when the configuration was read", seconds(shared.reloaded_ns));
    text.finish()
}
