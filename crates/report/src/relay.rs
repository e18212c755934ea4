//! Reports on the relay between source and sink: its rates, its queue, and what it cost.
use super::figures::{Section, SectionBody};
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Party, Record, Role};
use mailrun_text::numbers::{count, figure, memory, seconds};
use mailrun_text::table::plain;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelayFigures {
    pub accepted: u64,
    /// Seconds from the first created message to the last accepted message.
    pub accept_s: f64,
    /// Seconds from the first created message to the last delivered message.
    pub deliver_s: f64,
    /// Accepted messages per second. NaN if there were too few messages for a rate.
    pub accepted_per_s: f64,
    pub delivered_per_s: f64,
    pub delivered_bytes_per_s: f64,
    /// Peak of the relay's queue: the largest number of accepted but undelivered messages at the end of a second, and
    /// the number of that second. `None` if the record has no figures by second.
    pub deepest: Option<(u64, u64)>,
}

impl RelayFigures {
    /// Returns the relay's figures, or `None` if the record has no accepted stage or no delivered stage.
    pub fn of(record: &Record) -> Option<Self> {
        let accepted = record.stage(Stage::Accepted)?;
        let delivered = record.stage(Stage::Delivered)?;
        // Search from the end, because `max_by_key` returns the last of several equal maxima, but we want the earliest.
        let deepest = record.series.iter().rev().max_by_key(|row| row.queued);
        Some(Self {
            accepted: accepted.count,
            accept_s: accepted.duration_s,
            deliver_s: delivered.duration_s,
            accepted_per_s: accepted.rate_per_s.unwrap_or(f64::NAN),
            delivered_per_s: delivered.rate_per_s.unwrap_or(f64::NAN),
            delivered_bytes_per_s: delivered.bytes_per_s().unwrap_or(f64::NAN),
            deepest: deepest.map(|row| (row.queued, row.second)),
        })
    }

    /// Returns the seconds between the last accepted and the last delivered message, in which the relay emptied its
    /// queue.
    pub fn drain_s(&self) -> f64 {
        (self.deliver_s - self.accept_s).max(0.0)
    }
}

pub fn party(record: &Record) -> Option<&Party> {
    record.parties.iter().find(|party| party.role == Role::Relay)
}

/// Returns the CPU time per thousand messages, user and system together, in milliseconds.
pub fn cpu_ms_per_1000(party: &Party, messages: u64) -> Option<f64> {
    (messages > 0).then_some(party.work_s()? * 1e6 / messages as f64)
}

pub(crate) fn between(record: &Record) -> Option<Section> {
    let relay = party(record)?;
    let passage = RelayFigures::of(record)?;
    let mut facts =
        vec![("relay", format!("{} · durability {}", plain(&relay.name), durability_text(&relay.durability)))];
    facts.extend(passage.deepest.map(|deepest| ("queue", queue(deepest, &passage))));
    facts.push(("CPU", costs(record, relay, &passage)));
    facts.extend(disk(record, &passage).map(|disk| ("disk", disk)));
    let note = Some(
        "CPU: of all its processes, from its start until it rests after the last delivery; queue: accepted and not \
         delivered, at the end of each second; disk: what the device wrote, for everybody on the host"
            .to_owned(),
    );
    Some(Section { title: "Relay", note, body: SectionBody::Facts(facts) })
}

fn durability_text(durability: &str) -> String {
    match durability {
        "sync" => "sync: a message is on disk before it is answered 250".to_owned(),
        "write" => "write: messages survive a crash of the relay, not a loss of power".to_owned(),
        "memory" => "memory: messages do not survive the end of the relay".to_owned(),
        other => plain(other),
    }
}

fn queue((peak, second): (u64, u64), passage: &RelayFigures) -> String {
    let drain = seconds(passage.drain_s());
    match peak {
        0 => format!("empty at the end of each second · drained {drain} after the last was accepted"),
        peak => format!("at most {}, in second {second} · drained {drain} after the last was accepted", count(peak)),
    }
}

fn costs(record: &Record, relay: &Party, passage: &RelayFigures) -> String {
    match cpu_ms_per_1000(relay, record.with_warm_up(passage.accepted)) {
        Some(cpu_ms) => format!("{} ms per 1,000 messages", figure(cpu_ms)),
        None if record.audit.is_some() => "not measured in an audit".to_owned(),
        None if passage.accepted == 0 => "no message was accepted".to_owned(),
        None => "unknown: the relay was not started by this bench".to_owned(),
    }
}

/// Returns the bytes that all programs of the host wrote to the disk, for example `291 MiB written, 23.4 KiB per
/// message`. Returns `None` if the device does not count them.
fn disk(record: &Record, passage: &RelayFigures) -> Option<String> {
    let written_bytes = record.surroundings.as_ref()?.disk_written_bytes?;
    let each = written_bytes.checked_div(record.with_warm_up(passage.accepted));
    let each = each.map_or_else(String::new, |each| format!(", {} per message", memory(each)));
    Some(format!("{} written{each}", memory(written_bytes)))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use mailrun_measurement::record::{Audit, WarmUp};

    #[test]
    fn a_run_without_a_relay_has_no_section() {
        assert!(between(&sample::held()).is_none());
        assert!(RelayFigures::of(&sample::unwatched()).is_none(), "nobody saw the far end");
        assert_eq!(RelayFigures::of(&sample::held()).map(|passage| passage.drain_s()), Some(0.0));
    }

    #[test]
    fn the_relay_is_told_with_its_queue_and_its_drain() {
        let text = super::super::terminal(&sample::relayed(), 100);
        for word in [
            "RELAY",
            "durability sync: a message is on disk before it is answered 250",
            "at most 12,000, in second 1",
            "drained 1.50 s after the last was accepted",
            // 2 s of user time and 3 s of system time for 200,000 messages are 25 ms per 1,000 messages.
            "25.00 ms per 1,000 messages",
            "200 MiB written, 1.0 KiB per message",
        ] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
    }

    #[test]
    fn costs_are_shared_out_over_the_warm_up_as_well() {
        let warm_up = Some(WarmUp { length_s: 3.684, created: 200_000, accepted: 200_000 });
        let text = super::super::terminal(&Record { warm_up, ..sample::relayed() }, 100);
        assert!(text.contains("12.50 ms per 1,000 messages") && text.contains("524 B per message"), "{text}");
    }

    #[test]
    fn what_was_not_seen_is_said_so() {
        let mut record = sample::relayed();
        for party in &mut record.parties {
            party.user_s = None;
        }
        assert!(super::super::markdown(&record).contains("unknown: the relay"), "no figure is made up");
        record.audit = Some(Audit::default());
        assert!(super::super::markdown(&record).contains("not measured in an audit"), "which starts the relay");
    }

    #[test]
    fn the_deepest_second_is_the_first_of_equals() {
        let mut record = sample::relayed();
        record.series.iter_mut().for_each(|row| row.queued = 7);
        assert_eq!(RelayFigures::of(&record).and_then(|passage| passage.deepest), Some((7, 0)));
    }
}
