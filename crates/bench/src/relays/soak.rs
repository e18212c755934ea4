//! The scenario `relay-soak` sends a million messages through a relay. It checks that the relay's memory does not grow
//! after the first tenth of the messages, that the relay frees its disk space at the end, and that every message is
//! accounted for.
use super::goals::{self, Goal, GoalResult};
use super::measure::RelayMeasurement;
use super::scenario::{LoadShape, ScenarioOptions, ScenarioRun, offered};
use crate::BenchOutcome;
use crate::engine::{TextReport, bytes, shown};
use crate::launch;
use crate::relay::Relay;
use crate::usage::{DiskUsage, MemoryCurve};
use anyhow::{Context, Result};
use mailrun_measurement::record::{Ending, Record, SeriesRow};
use mailrun_text::numbers::{count, counted, figure, memory, rate};
use mailrun_text::table::{Align, Table};

#[derive(Clone, Debug)]
pub struct SoakOptions {
    pub scenario: ScenarioOptions,
    pub relay: Relay,
    pub shape: LoadShape,
    pub messages: u64,
    /// Messages per second in an open loop. `None` means a closed loop, which sends as fast as the relay accepts
    /// messages.
    pub rate_per_s: Option<f64>,
    /// Maximum growth of the relay's memory, or `None` if the memory is not judged.
    pub memory_growth: Option<MemoryGrowth>,
    pub max_idle_spool_bytes: Option<u64>,
}

/// Growth of the relay's memory that the target allows. The peak after the first tenth of the messages may be at most
/// `factor` times the peak in the first tenth, plus `allowance_bytes`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryGrowth {
    pub factor: f64,
    pub allowance_bytes: u64,
}

/// Runs the scenario until all messages are sent, or until SIGINT or SIGTERM. The report covers the messages that were
/// sent.
///
/// # Errors
/// Returns an error if the run fails or is interrupted before the first message.
pub fn run(options: &SoakOptions) -> Result<TextReport> {
    launch::check(&options.relay)?;
    let scenario = ScenarioRun::prepare(&options.scenario)?;
    let load = offered(options.messages, options.rate_per_s);
    let bench = scenario.bench("", &options.relay, &options.shape, load);
    let outcome = scenario.run(&bench).context("interrupted before the first message")??;
    scenario.directory().write("memory.tsv", &outcome.relay_memory.lines())?;
    scenario.save(report(&outcome, options)?)
}

/// Returns the relay's peak memory in the first tenth of the run and in the rest. The first tenth
/// ends when a tenth of the messages has been accepted.
fn memory_peaks(record: &Record, memory: &MemoryCurve) -> Option<[u64; 2]> {
    let tenth_ns = first_tenth_end_ns(&record.series, record.origin_ns)?;
    Some([memory.peak(0, tenth_ns)?, memory.peak(tenth_ns + 1, u64::MAX)?])
}

/// Returns the time at which a tenth of all messages had been accepted, rounded up to the end of a second.
fn first_tenth_end_ns(series: &[SeriesRow], origin_ns: u64) -> Option<u64> {
    let all: u64 = series.iter().map(|row| row.accepted).sum();
    let mut sum = 0;
    let row = series.iter().find(|row| {
        sum += row.accepted;
        sum * 10 >= all
    })?;
    Some(origin_ns + (row.second + 1) * 1_000_000_000)
}

fn report(outcome: &BenchOutcome, options: &SoakOptions) -> Result<TextReport> {
    let record = &outcome.record;
    let measure = RelayMeasurement::of(record, outcome.disk_bytes, options.messages)?;
    let title = format!(
        "{}: {} {} through {} (durability {})",
        options.scenario.name,
        count(options.messages),
        options.shape.description(std::slice::from_ref(&options.relay)),
        options.relay,
        options.relay.durability()
    );
    let tenths = memory_peaks(record, &outcome.relay_memory);
    let mut goals = vec![account_goal(record, &measure, options.messages)];
    goals.extend(options.memory_growth.map(|growth| memory_goal(tenths, growth)));
    if matches!(options.relay, Relay::Mailrun(_)) {
        goals.extend(options.max_idle_spool_bytes.map(|limit| disk_goal(outcome.disk_usage, limit)));
    }
    let mut remarks = vec![format!("RSS over time: {}  (all samples: memory.tsv)", outcome.relay_memory.bars())];
    remarks.extend(measure.flaws.fault.iter().map(|fault| format!("NOT OK: {fault}")));
    remarks.extend(measure.flaws.notes.iter().cloned());
    let defects = measure.flaws.defects();
    Ok(goals::report(&title, vec![figures(&measure), memory_and_disk(tenths, outcome)], &goals, defects, remarks))
}

fn figures(measure: &RelayMeasurement) -> Table {
    let titles = ["accept s", "accepted/s", "deliver s", "delivered/s", "drain s", "queue", "CPU ms/1,000", "disk/msg"];
    let mut table = Table::new(titles.map(|title| (title, Align::Right)));
    let figures = &measure.figures;
    table.row(vec![
        figure(figures.accept_s),
        rate(figures.accepted_per_s),
        figure(figures.deliver_s),
        rate(figures.delivered_per_s),
        figure(figures.drain_s()),
        shown(figures.deepest, |(messages, _)| count(messages)),
        shown(measure.cpu_ms_per_1000, figure),
        shown(measure.disk_per_message, bytes),
    ]);
    table
}

fn memory_and_disk(tenths: Option<[u64; 2]>, outcome: &BenchOutcome) -> Table {
    let titles = ["RSS, first tenth", "RSS, the rest", "disk at the start", "disk at the end"];
    let mut table = Table::new(titles.map(|title| (title, Align::Right)));
    let rss = |index: usize| shown(tenths, |tenths| memory(tenths[index]));
    table.row(vec![rss(0), rss(1), memory(outcome.disk_usage.at_start), memory(outcome.disk_usage.at_end)]);
    table
}

fn account_goal(record: &Record, measure: &RelayMeasurement, messages: u64) -> Goal {
    let ledger = &record.ledger;
    let accepted = ledger.accepted.unwrap_or_default();
    let refused: u64 = [ledger.rejected, ledger.failed, ledger.in_doubt].into_iter().flatten().sum();
    let is_interrupted = record.ending == Some(Ending::Interrupted);
    let is_stopped_early = is_interrupted && refused == 0 && record.verdict.closed && accepted < messages;
    let result = match &measure.flaws.fault {
        None if ledger.delivered == Some(messages) => {
            GoalResult::Pass(format!("{} delivered, each once", counted(messages, "message")))
        }
        None => {
            let delivered = count(ledger.delivered.unwrap_or_default());
            GoalResult::Pass(format!("{delivered} of {} delivered, as the thresholds allow", count(messages)))
        }
        Some(_) if is_stopped_early => {
            GoalResult::Unknown(format!("stopped after {}, all delivered", counted(accepted, "message")))
        }
        Some(_) if measure.flaws.undelivered.is_some() => GoalResult::Unknown("see below".to_owned()),
        Some(_) => GoalResult::Unaccounted("see below".to_owned()),
    };
    Goal::new("every message accounted for", "closes", result)
}

fn memory_goal(tenths: Option<[u64; 2]>, growth: MemoryGrowth) -> Goal {
    let what = format!(
        "peak RSS after the first tenth, limit: peak in it × {} + {}",
        growth.factor,
        memory(growth.allowance_bytes)
    );
    let Some([first, rest]) = tenths else {
        return Goal::new(what, "no more", GoalResult::Unknown("too short to measure".to_owned()));
    };
    let limit = (first as f64 * growth.factor) as u64 + growth.allowance_bytes;
    Goal::condition(what, rest <= limit, memory(rest), format!("≤ {}", memory(limit)))
}

fn disk_goal(disk_usage: DiskUsage, limit_bytes: u64) -> Goal {
    let what = "disk used by the spool when everything is delivered";
    Goal::condition(
        what,
        disk_usage.at_end <= limit_bytes,
        memory(disk_usage.at_end),
        format!("≤ {}", memory(limit_bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::scenario::sample_options;
    use super::*;
    use crate::relay::RelayDurability;
    use crate::usage::curve;

    const MAX_IDLE_SPOOL_BYTES: u64 = 321 << 20;
    use mailrun_report::sample;

    fn outcome(first: u64, rest: u64, at_end: u64) -> BenchOutcome {
        let record = sample::relayed();
        let at = |second: u64| record.origin_ns + second * 1_000_000_000 + 500_000_000;
        let relay_memory = curve(&[(at(0), first), (at(1), rest), (at(4), rest - 1)]);
        let disk_usage = DiskUsage { at_start: 128 << 20, at_end };
        BenchOutcome { record, directory: "d".into(), disk_bytes: None, relay_memory, disk_usage, unwritten: None }
    }

    fn judged(outcome: &BenchOutcome, messages: u64) -> TextReport {
        let options = SoakOptions {
            scenario: sample_options("relay-soak"),
            relay: Relay::Mailrun(RelayDurability::Sync),
            shape: LoadShape { sessions: 100, message_bytes: 400, reuse: None, pipelining: Default::default() },
            messages,
            rate_per_s: None,
            memory_growth: Some(MemoryGrowth { factor: 1.2, allowance_bytes: 16 << 20 }),
            max_idle_spool_bytes: Some(MAX_IDLE_SPOOL_BYTES),
        };
        report(outcome, &options).unwrap()
    }

    #[test]
    fn the_first_tenth_ends_with_the_second_in_which_it_was_full() {
        // The sample accepts 20,000 of its 200,000 messages in second 0, so their first tenth ends with this second.
        let record = sample::relayed();
        assert_eq!(first_tenth_end_ns(&record.series, 7), Some(1_000_000_007));
        assert_eq!(first_tenth_end_ns(&[], 7), None);
        let empty = MemoryCurve::default();
        assert_eq!(memory_peaks(&record, &empty), None);
    }

    #[test]
    fn memory_that_stays_and_disk_that_is_given_back_pass() {
        let good = judged(&outcome(100 << 20, 130 << 20, MAX_IDLE_SPOOL_BYTES), 200_000);
        assert!(good.is_good() && good.text.matches("PASS").count() == 3, "{}", good.text);
        let leak = judged(&outcome(100 << 20, 140 << 20, MAX_IDLE_SPOOL_BYTES), 200_000);
        assert!(!leak.is_good() && leak.text.matches("FAIL").count() == 1, "{}", leak.text);
        let full = judged(&outcome(100 << 20, 100 << 20, MAX_IDLE_SPOOL_BYTES + 1), 200_000);
        assert!(!full.is_good() && full.text.matches("FAIL").count() == 1, "{}", full.text);
    }

    #[test]
    fn half_a_soak_is_none_and_a_loss_is_missed() {
        let mut cut = outcome(1 << 20, 1 << 20, 0);
        cut.record.ending = Some(Ending::Interrupted);
        let of_cut = judged(&cut, 300_000);
        assert!(of_cut.text.contains("stopped after 200,000 messages, all delivered"), "{}", of_cut.text);
        assert!(!of_cut.is_good() && of_cut.text.contains("INCONCLUSIVE"), "{}", of_cut.text);
        // If the relay refuses mail, the result must be FAIL, even if the user also interrupted the run.
        let mut refusing = outcome(1 << 20, 1 << 20, 0);
        refusing.record.ledger.rejected = Some(100_000);
        for ending in [Ending::Complete, Ending::Interrupted] {
            refusing.record.ending = Some(ending);
            let refusing = judged(&refusing, 300_000);
            assert!(!refusing.is_good() && refusing.text.matches("FAIL").count() == 1, "{}", refusing.text);
            assert!(!refusing.text.contains("stopped after"), "{}", refusing.text);
        }
        let mut lossy = outcome(1 << 20, 1 << 20, 0);
        (lossy.record.ledger, lossy.record.verdict) = (sample::lossy().ledger, sample::lossy().verdict);
        let lossy = judged(&lossy, 200_000);
        assert!(!lossy.is_good() && lossy.text.contains("lost 200") && lossy.text.contains("FAIL"), "{}", lossy.text);
    }
}
