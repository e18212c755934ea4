//! `mailrun mades --payload-ladder`: sends some messages of each size, from the smallest size to the largest, until
//! messages take longer than the time limit.
use crate::report::results::{Strictness, exit_code, write_all};
use anyhow::Result;
use mailrun_load::source::Distribution;
use mailrun_mades_bench::{MadesOptions, MadesPreflight};
use mailrun_measurement::record::{Ending, Mades, Outcome, Record};
use mailrun_process::interrupt::{INTERRUPTED_STATUS, Interrupt, Interrupted, StopRequest};
use mailrun_process::outputs::FinishedRun;
use mailrun_text::table::{Align, Table, right};
use mailrun_text::words::{counted, grouped};
use std::io;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// Default number of messages of each size. They are sent one after the other, because only one message may be in
/// transit by default (`IN_TRANSIT`).
pub(crate) const MESSAGES: u64 = 5;
pub(crate) const IN_TRANSIT: u32 = 1;
/// Numbers of bytes, KiB or MiB that a payload ladder measures between its two ends. For example, `1M..20M` also
/// measures 2, 5 and 10 MiB.
const STEPS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];
/// Largest size of a payload. mailrun cannot receive messages of more than 64 MiB, including their properties.
const MAX_BYTES: u64 = 63 << 20;
const WIDTH: usize = 100;

/// Payload sizes to measure, in bytes and in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PayloadLadder(Vec<u64>);

impl FromStr for PayloadLadder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once("..").ok_or("use something like 1M..20M")?;
        let from = mailrun_text::quantities::bytes(ends.0)?;
        let to = mailrun_text::quantities::bytes(ends.1)?;
        if from == 0 || from >= to {
            return Err("the first size must be less than the last, and not 0".to_owned());
        }
        if to > MAX_BYTES {
            return Err(format!("a payload can have at most {} here", size_text(MAX_BYTES)));
        }
        let units = [1, 1 << 10, 1 << 20];
        let steps = units.into_iter().flat_map(|unit| STEPS.map(|step| step * unit));
        let between = steps.filter(|size| (from + 1..to).contains(size));
        Ok(Self(std::iter::once(from).chain(between).chain([to]).collect()))
    }
}

/// Formats a size, for example `1M`, `64k` or `1000`.
fn size_text(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Rung {
    size: u64,
    created: u64,
    /// Number of messages of this size that reached the last stage within the time limit.
    in_time: u64,
    p50_ms: Option<f64>,
    max_ms: Option<f64>,
    fate: RungFate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RungFate {
    InTime,
    TimedOut,
    /// The run failed for the reason in the text, such as a rejected message, and not because of the time limit.
    Failed(String),
}

impl Rung {
    fn of(size: u64, record: &Record, mades: &Mades) -> Self {
        let last = record.stages.last();
        let latency_ms = last.and_then(|row| row.latency_ms).filter(|times| times.max.is_finite());
        let is_timed_out = mades.troubles.iter().any(|trouble| trouble.kind == "time-out");
        let fate = match record.verdict.outcome {
            _ if is_timed_out => RungFate::TimedOut,
            Some(Outcome::Fail) => RungFate::Failed(record.verdict.why.clone()),
            _ => RungFate::InTime,
        };
        Self {
            size,
            created: record.ledger.created.unwrap_or_default(),
            in_time: last.map_or(0, |row| row.count - row.late),
            p50_ms: latency_ms.map(|latency| latency.p50),
            max_ms: latency_ms.map(|latency| latency.max),
            fate,
        }
    }
}

/// Measures each payload size of the ladder in a run of its own, and prints a table of the results. Stops after the
/// first size at which some messages do not arrive in time.
pub(crate) fn climb(ladder: &PayloadLadder, options: &MadesOptions) -> Result<ExitCode> {
    let mut rungs = Vec::new();
    let status = measure_sizes(ladder, options, &mut rungs);
    // Print the sizes that have been measured, even if `measure_sizes` then failed or was interrupted.
    if !rungs.is_empty() {
        let stage = options.path().last().name();
        write_all(&mut io::stdout().lock(), &text(ladder, &rungs, stage, options.timeout))?;
    }
    status
}

/// Runs the bench with one payload size after the other, and adds the result of each run to `rungs`. Stops after the
/// first size whose run fails or exceeds the time limit, or if the user interrupts.
fn measure_sizes(ladder: &PayloadLadder, options: &MadesOptions, rungs: &mut Vec<Rung>) -> Result<ExitCode> {
    let interrupted = ExitCode::from(INTERRUPTED_STATUS);
    // A run sees only signals that arrive after its start, so watch here for signals between two runs.
    let interrupt = Interrupt::watch()?;
    for size in &ladder.0 {
        if interrupt.requested() != StopRequest::Nothing {
            return Ok(interrupted);
        }
        let is_first = rungs.is_empty();
        let FinishedRun { record, write_error } = match mailrun_mades_bench::run(options_of(*size, options, is_first)) {
            // If Ctrl-C comes before a run's first message, the run returns an error. Report the error only if there
            // are no results of smaller sizes to print.
            Err(error) if error.is::<Interrupted>() && !is_first => return Ok(interrupted),
            finished => finished?,
        };
        let Some(mades) = record.mades.as_ref().filter(|_| record.ending != Some(Ending::Interrupted)) else {
            return write_error.map_or(Ok(interrupted), Err);
        };
        let rung = Rung::of(*size, &record, mades);
        let fate = rung.fate.clone();
        rungs.push(rung);
        match (write_error, fate) {
            (Some(error), _) => return Err(error),
            (None, RungFate::InTime) => {}
            // Exceeding the time limit is a success, because the user wants to know the size at which this happens.
            (None, RungFate::TimedOut) => return Ok(ExitCode::SUCCESS),
            (None, RungFate::Failed(_)) => return Ok(exit_code(&record, Strictness::Lenient)),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the options for the run that measures payloads of `size` bytes. Only the first run has a preflight, because
/// a further preflight would check the same broker again.
fn options_of(size: u64, options: &MadesOptions, is_first: bool) -> MadesOptions {
    MadesOptions {
        name: format!("{} {}", options.name, size_text(size)),
        sizes: Distribution::constant(size),
        preflight: if is_first { options.preflight } else { MadesPreflight::Off },
        out: options.out.as_ref().map(|directory| directory.join(size_text(size))),
        ..options.clone()
    }
}

/// Formats the table and, below it, the conclusion, for example at which size the time limit was exceeded.
fn text(ladder: &PayloadLadder, rungs: &[Rung], stage: &str, limit: Duration) -> String {
    let mut table = Table::new([right("size"), right("in time"), right("p50 ms"), right("max ms"), ("", Align::Left)]);
    let ms = |time: Option<f64>| time.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    for rung in rungs {
        let note = match &rung.fate {
            RungFate::InTime => String::new(),
            RungFate::TimedOut => "--message-timeout crossed".to_owned(),
            RungFate::Failed(_) => "failed".to_owned(),
        };
        let share = format!("{} of {}", grouped(rung.in_time), grouped(rung.created));
        table.row(vec![size_text(rung.size), share, ms(rung.p50_ms), ms(rung.max_ms), note]);
    }
    for size in &ladder.0[rungs.len()..] {
        table.row(vec![size_text(*size), "-".to_owned(), "-".to_owned(), "-".to_owned(), "not measured".to_owned()]);
    }
    format!(
        "created to {stage}, by size of the payload\n{}\n{}\n",
        table.terminal(WIDTH),
        conclusion(rungs, stage, limit)
    )
}

fn conclusion(rungs: &[Rung], stage: &str, limit: Duration) -> String {
    let limit_s = limit.as_secs_f64();
    let slowest = |rung: &Rung| match rung.max_ms {
        Some(ms) => format!("{} took {:.1} s at most", size_text(rung.size), ms / 1e3),
        None => format!("{} has no times", size_text(rung.size)),
    };
    let Some((last, before)) = rungs.split_last() else { return String::new() };
    let size = size_text(last.size);
    match &last.fate {
        RungFate::Failed(reason) => format!("The ladder ended at {size}: {reason}"),
        RungFate::InTime => {
            format!("--message-timeout of {limit_s} s was not crossed up to {size}: {}.", slowest(last))
        }
        RungFate::TimedOut => {
            let missed = last.created - last.in_time.min(last.created);
            let missed = format!("{} of {}", grouped(missed), counted(last.created, "message"));
            let before = before.last().map(|rung| format!("; {}", slowest(rung))).unwrap_or_default();
            format!(
                "--message-timeout of {limit_s} s is crossed at {size}: {missed} did not reach {stage} in time{before}."
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_a_ladder_are_round() {
        for (text, sizes) in [
            ("1M..20M", "1M 2M 5M 10M 20M"),
            ("1M..2M", "1M 2M"),
            ("3M..12M", "3M 5M 10M 12M"),
            ("500k..2M", "500k 1M 2M"),
            ("900..3k", "900 1k 2k 3k"),
        ] {
            let ladder: PayloadLadder = text.parse().unwrap();
            assert_eq!(ladder.0.into_iter().map(size_text).collect::<Vec<_>>().join(" "), sizes, "{text}");
        }
        for (text, expected) in [
            ("5M", "use something like 1M..20M"),
            ("5M..5M", "must be less"),
            ("0..5M", "not 0"),
            ("1M..64M", "at most 63M"),
            ("1M..x", "x"),
        ] {
            let error = text.parse::<PayloadLadder>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_table_names_the_size_at_which_the_limit_is_crossed() {
        let ladder: PayloadLadder = "1M..5M".parse().unwrap();
        let rung = |size: u64, in_time, max_ms, fate| Rung {
            size: size << 20,
            created: 5,
            in_time,
            p50_ms: max_ms,
            max_ms,
            fate,
        };
        let one = rung(1, 5, Some(900.0), RungFate::InTime);
        let limit = Duration::from_secs(2);
        let crossed = [one.clone(), rung(2, 3, Some(1_990.0), RungFate::TimedOut)];
        let output = text(&ladder, &crossed, "RECEIVED", limit);
        assert!(
            output.contains("is crossed at 2M: 2 of 5 messages did not reach RECEIVED in time; 1M took 0.9 s at most."),
            "{output}"
        );
        assert!(output.contains("3 of 5") && output.contains("not measured"), "{output}");
        let output = text(&ladder, std::slice::from_ref(&one), "RECEIVED", limit);
        assert!(output.contains("of 2 s was not crossed up to 1M: 1M took 0.9 s at most."), "{output}");
        let failed = [one, rung(2, 0, None, RungFate::Failed("Nothing was delivered.".to_owned()))];
        assert!(
            text(&ladder, &failed, "RECEIVED", limit).ends_with("The ladder ended at 2M: Nothing was delivered.\n")
        );
    }
}
