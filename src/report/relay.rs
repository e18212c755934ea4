//! What stood between source and sink: how fast it took mail and handed it on, how much waited in it, what it cost.
use super::numbers::{count, figure, latency, memory, rate, seconds};
use super::section::{Body, Section};
use super::table::plain;
use journey::Stage;
use journey::record::{LatencyMs, Party, Record, Role, StageRow};

/// A run's figures as a relay's, whether or not one stood between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Passage {
    /// Messages that were accepted.
    pub(crate) accepted: u64,
    /// Messages that were delivered, as far as figures count them.
    pub(crate) delivered: u64,
    /// From the first message created to the last accepted.
    pub(crate) accept_s: f64,
    /// From the first message created to the last delivered.
    pub(crate) deliver_s: f64,
    /// Messages accepted a second.
    pub(crate) accepted_per_s: f64,
    /// Messages delivered a second.
    pub(crate) delivered_per_s: f64,
    /// Their octets.
    pub(crate) delivered_bytes_per_s: f64,
    /// From created (or due) to delivered.
    pub(crate) flight: Option<LatencyMs>,
    /// The most that was accepted and not delivered at the end of a second, and the second; `None` of an empty series.
    pub(crate) deepest: Option<(u64, u64)>,
}

impl Passage {
    /// `None` where nobody saw both ends.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let stage = |name: Stage| record.stages.iter().find(|row: &&StageRow| row.name == name);
        let (accepted, delivered) = (stage(Stage::Accepted)?, stage(Stage::Delivered)?);
        let first = record.series.first().map_or(0, |row| row.second);
        // Of equals the first: when it began to be that deep.
        let deepest = record.series.iter().rev().max_by_key(|row| row.queued);
        Some(Self {
            accepted: accepted.count,
            delivered: delivered.count,
            accept_s: accepted.duration_s,
            deliver_s: delivered.duration_s,
            accepted_per_s: accepted.rate_per_s,
            delivered_per_s: delivered.rate_per_s,
            delivered_bytes_per_s: delivered.bytes_per_s,
            flight: delivered.latency_ms,
            deepest: deepest.map(|row| (row.queued, row.second - first)),
        })
    }

    /// From the last message accepted to the last delivered.
    pub(crate) fn drain_s(&self) -> f64 {
        (self.deliver_s - self.accept_s).max(0.0)
    }
}

/// The relay of a run.
pub(crate) fn party(record: &Record) -> Option<&Party> {
    record.parties.iter().find(|party| party.role == Role::Relay)
}

/// Milliseconds of processor time, user and system, that a party used for a thousand messages.
pub(crate) fn cpu_ms_per_1000(party: &Party, messages: u64) -> Option<f64> {
    (messages > 0).then_some((party.user_s? + party.sys_s?) * 1e6 / messages as f64)
}

/// The relay; nothing where there was none.
pub(crate) fn between(record: &Record) -> Option<Section> {
    let (relay, passage) = (party(record)?, Passage::of(record)?);
    let mut facts = vec![
        ("relay", format!("{} · durability {}", plain(&relay.name), promise(&relay.durability))),
        ("accepted", format!("{} msg/s, the last after {}", rate(passage.accepted_per_s), seconds(passage.accept_s))),
        (
            "delivered",
            format!("{} msg/s, the last after {}", rate(passage.delivered_per_s), seconds(passage.deliver_s)),
        ),
    ];
    facts.extend(passage.flight.map(|flight| ("flight", in_flight(&flight))));
    facts.extend(passage.deepest.map(|deepest| ("queue", queue(deepest, &passage))));
    facts.push(("CPU", costs(relay, &passage)));
    let note = Some(
        "its figures are those of all its processes, from its start until it rests after the last delivery; queue: \
         accepted and not delivered, at the end of each second"
            .to_owned(),
    );
    Some(Section { title: "Relay", note, body: Body::Facts(facts) })
}

fn promise(durability: &str) -> String {
    match durability {
        "sync" => "sync: what it answers 250 is on disk".to_owned(),
        "write" => "write: what it answers 250 survives its end, and not the loss of power".to_owned(),
        "memory" => "memory: what it answers 250 survives nothing".to_owned(),
        other => plain(other),
    }
}

fn in_flight(flight: &LatencyMs) -> String {
    format!("p50 {} · p99 {} · max {}", latency(flight.p50), latency(flight.p99), latency(flight.max))
}

fn queue((most, second): (u64, u64), passage: &Passage) -> String {
    let drain = seconds(passage.drain_s());
    match most {
        0 => format!("empty at the end of each second · drained {drain} after the last was accepted"),
        most => format!("at most {}, in second {second} · drained {drain} after the last was accepted", count(most)),
    }
}

fn costs(relay: &Party, passage: &Passage) -> String {
    let Some(cpu_ms) = cpu_ms_per_1000(relay, passage.accepted) else {
        return "not seen: the relay was not started by this bench".to_owned();
    };
    let mut parts = vec![format!("{} ms per 1,000 messages", figure(cpu_ms))];
    if let Some(written) = relay.write_bytes.filter(|_| passage.accepted > 0) {
        parts.push(format!("{} written a message", memory(written / passage.accepted)));
    }
    parts.extend(relay.max_rss_bytes.map(|bytes| format!("{} of memory at most", memory(bytes))));
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_run_without_a_relay_has_no_section() {
        assert!(between(&sample::held()).is_none());
        assert!(Passage::of(&sample::unwatched()).is_none(), "nobody saw the far end");
        assert_eq!(Passage::of(&sample::held()).map(|passage| passage.drain_s()), Some(0.0));
    }

    #[test]
    fn the_relay_is_told_with_its_queue_and_its_drain() {
        let text = super::super::terminal(&sample::relayed(), 100);
        for word in [
            "RELAY",
            "durability sync: what it answers 250 is on disk",
            "at most 12,000, in second 2",
            "drained 1.50 s after the last was accepted",
            // 2 s user + 3 s system over 200,000 messages.
            "25.00 ms per 1,000 messages",
            "1.0 KiB written a message",
        ] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
    }

    #[test]
    fn what_was_not_seen_is_said_so() {
        let mut record = sample::relayed();
        for party in &mut record.parties {
            party.user_s = None;
        }
        assert!(super::super::markdown(&record).contains("not seen"), "no figure is made up");
    }

    #[test]
    fn the_deepest_second_is_the_first_of_equals() {
        let mut record = sample::relayed();
        record.series.iter_mut().for_each(|row| row.queued = 7);
        assert_eq!(Passage::of(&record).and_then(|passage| passage.deepest), Some((7, 0)));
    }
}
