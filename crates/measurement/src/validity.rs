//! Finds what limited or disturbed a run, and suggests remedies. The rules concern file descriptors, ports, listen
//! queues, processor time that the hypervisor or other programs took, and delayed ACKs.
//!
//! Each rule returns a sentence for the report, or nothing. Two findings make the run invalid, because its figures do
//! not describe the server: a source or a sink lacked a resource, or the hypervisor gave a quarter of the processor
//! time to others. All other findings are only reported, because they may not have affected the figures.
use crate::foreign_load;
use crate::reason::Reason;
use crate::record::{Cause, ExhaustedRow, PauseRow, Record, Resource, Role, Surroundings};
use mailrun_text::numbers::latency;
use mailrun_text::words::{counted, grouped};

/// Minimum share of processor time stolen by the hypervisor that the report mentions as a possible disturbance.
const STEAL_WARNING_SHARE: f64 = 0.05;
/// Minimum share of processor time stolen by the hypervisor that makes a run invalid, because the figures of the run
/// then no longer describe this host.
const STEAL_LIMIT: f64 = 0.25;
/// Minimum share of processor time used by unrelated processes that the report mentions as a possible disturbance.
const OTHERS_WARNING_SHARE: f64 = 0.10;
/// The report warns if an open-loop source began a message later than planned by more than this number of milliseconds.
/// A single such delay does not make the run invalid, but it may be the cause of the largest latency.
const MAX_LAG_MS: f64 = 100.0;

/// Returns the reasons why the figures cannot be trusted. Any such reason makes the run invalid.
pub fn limits(record: &Record) -> Vec<Reason> {
    let steal =
        record.surroundings.as_ref().and_then(|surroundings| steal_text(surroundings, STEAL_LIMIT..f64::INFINITY));
    let exhausted = record.exhausted.iter().map(|row| Reason::new(Cause::Exhausted, exhausted_text(row)));
    exhausted.chain(steal.map(|text| Reason::new(Cause::Stolen, text))).collect()
}

/// Lists possible disturbances of the run, which do not affect its outcome.
pub fn warnings(record: &Record) -> Vec<String> {
    let mut warnings: Vec<String> = lag_warning(record).into_iter().collect();
    if record.thresholds.iter().any(|row| row.missed) {
        warnings.extend(foreign_load::unknown(record));
    }
    if let Some(surroundings) = &record.surroundings {
        warnings.extend(steal_text(surroundings, STEAL_WARNING_SHARE..STEAL_LIMIT));
        warnings.extend(other_load_warning(surroundings));
        warnings.extend(listen_queue_warning(surroundings));
    }
    warnings.extend(poll_warning(record));
    let parties = record.parties.iter().filter(|party| party.role != Role::Relay);
    warnings.extend(parties.filter_map(|party| {
        let rows: Vec<&PauseRow> = record.pauses.iter().filter(|row| row.party == party.name).collect();
        delayed_ack_warning(party.role, &rows)
    }));
    warnings
}

/// Warns that the delivery times of messages in mailboxes are inexact, because the sink asks for new mail only at
/// intervals.
fn poll_warning(record: &Record) -> Option<String> {
    let watched = record.parties.iter().filter_map(|party| party.reception.as_ref()?.mailboxes.as_ref());
    let ms = watched.filter_map(|watched| watched.poll_ms).reduce(f64::max)?;
    let [interval, mean] = [ms, ms / 2.0].map(latency);
    Some(format!(
        "The mailboxes were asked for new mail every {interval}: announced and delivered are up to {interval} too late, \
         and {mean} on average."
    ))
}

fn lag_warning(record: &Record) -> Option<String> {
    let lag = record.lag_ms?.max;
    (lag > MAX_LAG_MS).then(|| {
        format!(
            "The source itself was up to {} ms late with a message: the largest latencies may be its own. Use an idle host, \
             or more --workers (mailrun source).",
            grouped(lag.round() as u64)
        )
    })
}

fn exhausted_text(row: &ExhaustedRow) -> String {
    let ExhaustedRow { party, resource, count, limit, needed } = row;
    match resource {
        Resource::Descriptors => {
            let limit = limit.map_or_else(String::new, |limit| format!(", limit {}", grouped(limit)));
            let enough =
                needed.map_or_else(|| "a higher `ulimit -n`".to_owned(), |needed| format!("`ulimit -n {needed}`"));
            format!(
                "The {party} ran out of file descriptors {} (EMFILE{limit}), so it was the limit itself. Use {enough}, or \
                 fewer --sessions.",
                times(*count)
            )
        }
        Resource::HostDescriptors => format!(
            "The host ran out of file descriptors {} when the {party} needed one (ENFILE). Raise the sysctl fs.file-max, or \
             use fewer --sessions.",
            times(*count)
        ),
        Resource::Ports => {
            let limit = limit.map_or_else(String::new, |limit| format!(", {} per address", grouped(limit)));
            format!(
                "The {party} found no free local port {} (EADDRNOTAVAIL{limit}), so it was the limit itself. Use --bind \
                 127.0.0.2-127.0.0.50 for several addresses, --reuse for fewer connections, or widen the sysctl \
                 net.ipv4.ip_local_port_range.",
                times(*count)
            )
        }
    }
}

fn times(count: u64) -> String {
    counted(count, "time")
}

fn steal_text(surroundings: &Surroundings, range: std::ops::Range<f64>) -> Option<String> {
    let share = surroundings.steal_share.filter(|share| range.contains(share))?;
    Some(format!(
        "The hypervisor gave {:.0} % of the CPU to others (steal): rates are too low and latencies too high by an unknown \
         amount. Use a host with processors of its own, or repeat the run.",
        share * 100.0
    ))
}

fn other_load_warning(surroundings: &Surroundings) -> Option<String> {
    let share = surroundings.other_busy_share.filter(|share| *share >= OTHERS_WARNING_SHARE)?;
    Some(format!(
        "Other processes used {:.0} % of the CPU. Results may be too low: repeat on an idle machine.",
        share * 100.0
    ))
}

fn listen_queue_warning(surroundings: &Surroundings) -> Option<String> {
    let [overflows, drops, syns] = [surroundings.listen_overflows, surroundings.listen_drops, surroundings.syn_drops]
        .map(Option::unwrap_or_default);
    let longest = surroundings.somaxconn.map_or_else(String::new, |longest| format!(" (now {})", grouped(longest)));
    (overflows.max(drops).max(syns) > 0).then(|| {
        format!(
            "Listen queues of this host were full {}; {} and {} were dropped (host-wide: of all servers). Dropped \
             connections are retried after 1 s; this adds to latency. Raise the sysctl net.core.somaxconn{longest} and the \
             server's own backlog.",
            times(overflows),
            counted(drops, "connection"),
            counted(syns, "SYN")
        )
    })
}

/// Warns of delayed ACKs. Gives figures only for the phase with the most pauses, because with pipelined commands, the
/// same pause is counted in several phases.
fn delayed_ack_warning(role: Role, rows: &[&PauseRow]) -> Option<String> {
    let worst = rows.iter().max_by_key(|row| row.count)?;
    let share = worst.count as f64 * 100.0 / worst.of.max(1) as f64;
    let cluster = format!(
        "{share:.0} % ({} of {}) took 38 to 45 ms and hardly any about as long",
        grouped(worst.count),
        grouped(worst.of)
    );
    Some(match role {
        Role::Sink => format!(
            "Messages as the sink read them: {cluster}, the signature of a delayed ACK. Their sender writes in pieces and \
             waits for an ACK between them: it should set TCP_NODELAY, or write a message at once."
        ),
        Role::Source | Role::Relay => {
            let phases = rows.iter().map(|row| row.phase.name()).collect::<Vec<_>>().join(", ");
            format!(
                "The server's replies ({phases}): {cluster}, the signature of a delayed ACK. The server writes a reply in \
                 pieces and waits for an ACK between them: it should set TCP_NODELAY, or write each reply at once."
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Phase;

    fn around(change: impl FnOnce(&mut Surroundings)) -> Surroundings {
        let mut around = Surroundings::default();
        change(&mut around);
        around
    }

    #[test]
    fn steal_is_said_from_5_percent_on_and_unbelievable_from_25() {
        for (share, is_said, is_limit) in
            [(0.0, false, false), (0.049, false, false), (0.05, true, false), (0.249, true, false), (0.25, false, true)]
        {
            let around = around(|around| around.steal_share = Some(share));
            assert_eq!(steal_text(&around, STEAL_WARNING_SHARE..STEAL_LIMIT).is_some(), is_said, "{share}");
            assert_eq!(steal_text(&around, STEAL_LIMIT..f64::INFINITY).is_some(), is_limit, "{share}");
        }
        assert_eq!(steal_text(&Surroundings::default(), 0.0..1.0), None, "unknown is not zero");
    }

    #[test]
    fn other_processes_are_said_from_a_tenth_on() {
        for (share, is_said) in [(None, false), (Some(0.099), false), (Some(0.1), true), (Some(1.0), true)] {
            assert_eq!(
                other_load_warning(&around(|around| around.other_busy_share = share)).is_some(),
                is_said,
                "{share:?}"
            );
        }
    }

    #[test]
    fn one_drop_is_said_with_what_to_raise() {
        assert_eq!(listen_queue_warning(&Surroundings::default()), None);
        let quiet = |around: &mut Surroundings| {
            (around.listen_overflows, around.listen_drops, around.syn_drops) = (Some(0), Some(0), Some(0));
            around.somaxconn = Some(128);
        };
        assert_eq!(listen_queue_warning(&around(quiet)), None);
        let one: [fn(&mut Surroundings); 3] =
            [|s| s.listen_overflows = Some(1), |s| s.listen_drops = Some(1), |s| s.syn_drops = Some(1)];
        for change in one {
            let mut around = around(quiet);
            change(&mut around);
            let text = listen_queue_warning(&around).unwrap();
            assert!(text.contains("net.core.somaxconn (now 128)") && text.contains("host-wide"), "{text}");
        }
    }

    #[test]
    fn what_ran_out_is_named_with_what_to_set() {
        let row =
            |resource, limit, needed| ExhaustedRow { party: "source".to_owned(), resource, count: 7, limit, needed };
        for (row, words) in [
            (row(Resource::Descriptors, Some(40), Some(164)), "7 times (EMFILE, limit 40)|`ulimit -n 164`"),
            (row(Resource::Descriptors, None, None), "(EMFILE)|Use a higher `ulimit -n`"),
            (row(Resource::HostDescriptors, None, None), "when the source needed one (ENFILE)|fs.file-max"),
            (
                row(Resource::Ports, Some(28_232), None),
                "EADDRNOTAVAIL, 28,232 per address|--bind 127.0.0.2-127.0.0.50|--reuse|net.ipv4.ip_local_port_range",
            ),
        ] {
            let text = exhausted_text(&row);
            assert!(words.split('|').all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn a_delayed_ack_is_named_with_its_side() {
        let row = |phase, count| PauseRow { party: "x".to_owned(), phase, count, of: 1000 };
        let mail = row(Phase::Mail, 20);
        let reply = row(Phase::Reply, 50);
        let text = delayed_ack_warning(Role::Source, &[&mail, &reply]).unwrap();
        assert!(text.starts_with("The server's replies (mail, reply): 5 % (50 of 1,000)"), "{text}");
        assert!(text.contains("set TCP_NODELAY"), "{text}");
        let text = delayed_ack_warning(Role::Sink, &[&row(Phase::Body, 1000)]).unwrap();
        assert!(text.contains("as the sink read them: 100 %") && text.contains("TCP_NODELAY"), "{text}");
        assert_eq!(delayed_ack_warning(Role::Source, &[]), None);
    }
}
