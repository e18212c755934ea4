//! Metrics in the text format of Prometheus (version 0.0.4).
use crate::control::protocol::HopRow;
use crate::control::queue_stats::QueueStats;
use mailrun_text::metrics_text::{Exposition, MetricsText};

pub(crate) struct RelayMetrics<'a> {
    pub(crate) queues: &'a QueueStats,
    /// Name, description and value of each counter of the relay.
    pub(crate) counters: &'a [(&'static str, &'static str, u64)],
    /// Name, description and value of the counters that do not concern mail: dropped log lines, failed tasks, displaced
    /// HTTP connections and misdirected HTTP requests.
    pub(crate) process: &'a [(&'static str, &'static str, u64)],
    pub(crate) spool: &'a mailrun_spool::SpoolStats,
    pub(crate) incoming_limit: u64,
    pub(crate) untrusted: UntrustedClients,
    pub(crate) has_failed: bool,
    pub(crate) hostname: &'a str,
    pub(crate) uptime_s: f64,
}

/// Metrics of clients outside of the configured `networks`, to which separate limits apply.
pub(crate) struct UntrustedClients {
    pub(crate) connections: usize,
    pub(crate) incoming_bytes: u64,
    pub(crate) incoming_limit: u64,
    /// Names of the limits, each with the number of refusals that it caused.
    pub(crate) refused: Vec<(&'static str, u64)>,
}

pub(crate) fn render(figures: &RelayMetrics<'_>) -> String {
    let mut text = MetricsText::new("mailrun_relay_", Exposition::Prometheus);
    let totals = &figures.queues.totals;
    text.family("info", "gauge", "version, host name and durability");
    let labels =
        [("version", env!("CARGO_PKG_VERSION")), ("durability", &totals.durability), ("hostname", figures.hostname)];
    text.sample("info", &labels, 1);
    text.gauge("uptime_seconds", "seconds since the start", figures.uptime_s);
    for (name, meaning, value) in figures.counters.iter().chain(figures.process) {
        text.counter(name, meaning, *value);
    }
    text.gauge("workers", "worker threads", totals.workers);
    text.gauge("queue_messages", "messages in the queue", totals.messages);
    text.gauge("couriers", "connections to next hops, and local deliveries", totals.connections);
    text.gauge("letter_bytes", "bytes of messages in memory", totals.message_bytes);
    text.gauge("incoming_bytes", "bytes of messages being received or waiting for their 250", totals.incoming_bytes);
    text.gauge(
        "incoming_limit_bytes",
        "limit of incoming_bytes; above it messages wait, and then are answered 452",
        figures.incoming_limit,
    );
    clients(&mut text, &figures.untrusted);
    text.gauge("hops", "next hops in memory", totals.hops);
    text.gauge(
        "spool_failed",
        "1 if the spool has failed: no mail is accepted until a restart",
        u8::from(figures.has_failed),
    );
    by_hop(&mut text, &figures.queues.hops);
    spool_figures(&mut text, figures.spool);
    text.finish()
}

fn clients(text: &mut MetricsText, untrusted: &UntrustedClients) {
    let meaning = "current connections of clients outside networks";
    text.gauge("limited_connections", meaning, untrusted.connections);
    let meaning = "incoming_bytes of clients outside networks without a login";
    text.gauge("incoming_strangers_bytes", meaning, untrusted.incoming_bytes);
    let meaning = "limit of incoming_strangers_bytes; the rest is reserved for other clients";
    text.gauge("incoming_strangers_limit_bytes", meaning, untrusted.incoming_limit);
    let name = "client_refused_total";
    text.family(name, "counter", "rejections because of limits.client, by limit");
    untrusted.refused.iter().for_each(|(limit, count)| text.sample(name, &[("limit", limit)], count));
}

fn by_hop(text: &mut MetricsText, hops: &[HopRow]) {
    text.family("queue_entries", "gauge", "entries (the recipients of a message at one hop) by hop and state");
    for hop in hops {
        for (state, count) in hop.by_state() {
            text.sample("queue_entries", &[("hop", &hop.hop), ("state", state.name())], count);
        }
    }
    text.family("hop_couriers", "gauge", "connections by hop");
    hops.iter().for_each(|hop| text.sample("hop_couriers", &[("hop", &hop.hop)], hop.connections));
    text.family("hop_shut_seconds", "gauge", "seconds until an unreachable hop is tried again");
    hops.iter()
        .for_each(|hop| text.sample("hop_shut_seconds", &[("hop", &hop.hop)], hop.shut_for_s.unwrap_or_default()));
}

fn spool_figures(text: &mut MetricsText, usage: &mailrun_spool::SpoolStats) {
    text.gauge("spool_messages", "messages in the spool", usage.messages);
    text.gauge("spool_bytes", "bytes of messages in the spool", usage.bytes);
    text.gauge("spool_segments", "files in use", usage.segments);
    text.gauge("spool_disk_bytes", "bytes of all files of the spool", usage.disk_bytes);
    text.counter("spool_commits", "batches written", usage.commits);
    text.counter("spool_syncs", "syncs of batches", usage.syncs);
    text.counter("spool_stored", "messages stored, including notifications", usage.stored);
    text.counter("spool_refused", "messages rejected because the spool was full", usage.refused);
    text.counter("spool_moved", "messages moved by compaction", usage.moved);
    text.counter("spool_unwritten", "state changes not stored because the spool was full", usage.unwritten);
    text.gauge("spool_damaged", "damaged places with losses, found at the start", usage.damaged);
    text.gauge("spool_lost_messages", "messages lost in damaged places, as far as is known", usage.lost_messages);
    text.gauge("spool_cut_bytes", "bytes of an incomplete end, removed at the start", usage.cut_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::TotalsRow;
    use std::collections::HashSet;

    fn rendered(hop: &str) -> String {
        let totals = TotalsRow { durability: "sync".into(), messages: 7, ..TotalsRow::default() };
        let hops = vec![HopRow { hop: hop.into(), deferred: 3, shut_for_s: Some(4), ..HopRow::default() }];
        let survey = QueueStats { totals, hops };
        let usage = mailrun_spool::SpoolStats { syncs: 9, damaged: 2, ..mailrun_spool::SpoolStats::default() };
        render(&RelayMetrics {
            queues: &survey,
            counters: &[("accepted", "messages answered 250", 5)],
            process: &[("log_dropped", "lines of the log that were left out", 3)],
            spool: &usage,
            incoming_limit: 100,
            untrusted: UntrustedClients {
                connections: 2,
                incoming_bytes: 30,
                incoming_limit: 75,
                refused: vec![("connections", 4), ("login_rate", 0)],
            },
            has_failed: true,
            hostname: "relay.example",
            uptime_s: 1.5,
        })
    }

    #[test]
    fn every_sample_belongs_to_a_family_that_is_described_once() {
        let text = rendered("mx:a.example");
        let mut families = HashSet::new();
        let mut kinds = HashSet::new();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["#", "HELP", name, ..] => assert!(families.insert(name.to_string()), "{line}"),
                ["#", "TYPE", name, kind] => {
                    assert!(families.contains(*name) && ["gauge", "counter"].contains(kind), "{line}");
                    assert_eq!(name.ends_with("_total"), *kind == "counter", "{line}");
                    kinds.insert(name.to_string());
                }
                [sample, value] => {
                    assert!(kinds.contains(sample.split('{').next().unwrap()), "{line}");
                    assert!(value.parse::<f64>().is_ok(), "{line}");
                }
                _ => panic!("{line}"),
            }
        }
        assert!(families.len() > 15);
    }

    #[test]
    fn samples_say_what_was_counted() {
        let text = rendered("mx:a.example");
        for line in [
            "mailrun_relay_accepted_total 5",
            "mailrun_relay_log_dropped_total 3",
            "mailrun_relay_queue_messages 7",
            "mailrun_relay_queue_entries{hop=\"mx:a.example\",state=\"deferred\"} 3",
            "mailrun_relay_hop_shut_seconds{hop=\"mx:a.example\"} 4",
            "mailrun_relay_spool_syncs_total 9",
            "mailrun_relay_spool_damaged 2",
            "mailrun_relay_incoming_limit_bytes 100",
            "mailrun_relay_incoming_strangers_bytes 30",
            "mailrun_relay_client_refused_total{limit=\"connections\"} 4",
            "mailrun_relay_spool_failed 1",
        ] {
            assert!(text.lines().any(|sample| sample == line), "{line}\n{text}");
        }
        assert!(text.contains("durability=\"sync\""));
    }

    #[test]
    fn a_label_cannot_break_out() {
        let text = rendered("maildir:/a\"} 1\nx\\\u{202e}");
        assert!(text.contains(r#"{hop="maildir:/a\"} 1\nx\\\\u{202e}",state="ready"} 0"#), "{text}");
    }
}
