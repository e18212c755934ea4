//! Side by side: compares mailrun's source and sink with a raw epoll pair, and with smtp-source and
//! go-smtp-source sending to smtp-sink.
//!
//! `cargo bench --bench side_by_side -- [--quick] [--rounds N] [--only c,r,p,s,64k,10m,c1,r1,s1,c8,r8,s8] [--halves] [--keep-awake on]`
//!
//! The rules: every contestant sends the same number of messages of the same size over the same number of sessions, on
//! loopback. Before the first run, the bench counts the octets of a message from each source, and corrects the message
//! size on the source's command line. Contestants take turns (A B C A B C …), each with a new sink. The same clock
//! measures all of them, from the start of the source's process to its end. A run is so long that the time to start the
//! process does not matter. Exit status: 0 if all targets are met, 1 if a target is missed, 2 if the bench could not
//! run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench reports to the terminal")]

mod limit;
mod ruler;

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use mailrun_process::keep_awake::{self, KeepAwakeMode, keep_awake};

use ruler::contestants::{
    Contestant, GO_PAIR, HALVES, LIMIT, LIMIT_SPINNING, Load, MAILRUN_PAIR, MAILRUN_SPINNING, POSTFIX_PAIR, Program,
    installed_program, run,
};
use ruler::place::place;
use ruler::scale::size_argument;
use ruler::shapes::{SHAPES, Shape};
use ruler::standing::{Lane, Outcome, Standing, table};

/// Measures mailrun against the raw pair and against smtp-source → smtp-sink.
#[derive(Parser)]
struct Options {
    /// Number of rounds for each shape. Each contestant runs once per round.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Make only three rounds of short runs, whose results are too uncertain for a verdict.
    #[arg(long)]
    quick: bool,
    /// Only these shapes: c, r, p, s, 64k, 10m, and with 1 or 8 sessions c1, r1, s1, c8, r8, s8.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Also measure mailrun's source with the raw sink, and the raw source with mailrun's sink.
    #[arg(long)]
    halves: bool,
    /// Leave mailrun out, and measure only the raw pair and smtp-source.
    #[arg(long)]
    without_mailrun: bool,
    /// Keep the processors of this host from sleeping, as mailrun bench does.
    #[arg(long, value_enum, default_value = "auto")]
    keep_awake: KeepAwakeMode,
    /// Has no effect. `cargo bench` passes this option to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// Returns how many seconds a run of the raw pair takes. Slower contestants send the same number of messages, so
    /// their runs take longer.
    fn run_seconds(&self) -> f64 {
        if self.quick { 0.6 } else { 2.0 }
    }

    fn shapes(&self) -> anyhow::Result<Vec<&'static Shape>> {
        if let Some(unknown) = self.only.iter().find(|name| SHAPES.iter().all(|shape| shape.name != **name)) {
            let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            bail!("no shape is called {unknown}: there are {}", names.join(", "));
        }
        let wanted = |shape: &&Shape| self.only.is_empty() || self.only.iter().any(|name| name == shape.name);
        Ok(SHAPES.iter().filter(wanted).collect())
    }

    /// Returns the contestants of a shape, in the order of their turns.
    fn contestants(&self, shape: &Shape) -> Vec<Contestant> {
        let mut contestants = vec![LIMIT];
        if !self.without_mailrun {
            contestants.push(MAILRUN_PAIR);
            if self.halves {
                contestants.extend(HALVES);
            }
        }
        if shape.leaves_processors_idle() {
            contestants.push(LIMIT_SPINNING);
            if !self.without_mailrun {
                contestants.push(MAILRUN_SPINNING);
            }
        }
        let small = shape.message_octets == ruler::shapes::DEFAULT_OCTETS;
        if small && shape.dialogue.smtp_source_options().is_some() && postfix_is_there() {
            contestants.push(POSTFIX_PAIR);
            if shape.leaves_processors_idle() && installed_program("go-smtp-source").is_some() {
                contestants.push(GO_PAIR);
            }
        }
        contestants
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let outcome = match limit::play(&arguments) {
        Some(played) => played.map(|()| ExitCode::SUCCESS),
        None => compare(&Options::parse()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("side_by_side: {error:#}");
        ExitCode::from(2)
    })
}

fn compare(options: &Options) -> anyhow::Result<ExitCode> {
    if cfg!(debug_assertions) {
        println!("side_by_side: a debug build measures nothing; run `cargo bench --bench side_by_side`");
        return Ok(ExitCode::SUCCESS);
    }
    let _awake = keep_awake(options.keep_awake, true)?;
    println!("{}{}", place(), keep_awake::state().map(|state| format!(", {}", state.words())).unwrap_or_default());
    if !postfix_is_there() {
        println!("SKIPPED: smtp-source → smtp-sink: not in PATH nor in /usr/sbin (Debian: apt-get install postfix)");
    }
    if installed_program("go-smtp-source").is_none() {
        println!("SKIPPED: go-smtp-source → smtp-sink: go-smtp-source is not in PATH");
    }
    let shapes = options.shapes()?;
    let mut weights = Weights::default();
    let mut standings = Vec::new();
    for shape in shapes {
        standings.push(measure(options, shape, &mut weights).with_context(|| format!("shape {}", shape.name))?);
    }
    report(options, &standings);
    let failed = standings.iter().flat_map(Standing::outcomes).any(|outcome| outcome == Outcome::Failed);
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn measure<'a>(options: &Options, shape: &'a Shape, weights: &mut Weights) -> anyhow::Result<Standing<'a>> {
    let contestants = options.contestants(shape);
    for contestant in &contestants {
        weights.size_argument(contestant.source, shape.message_octets).context(contestant.name)?;
    }
    let messages = enough_messages(shape, options.run_seconds())?;
    eprintln!("{}: {} sessions, {messages} messages of {} octets", shape.name, shape.sessions, shape.message_octets);
    let mut lanes: Vec<Lane> =
        contestants.into_iter().map(|contestant| Lane { contestant, runs: Vec::new() }).collect();
    for round in 1..=options.rounds() {
        for lane in &mut lanes {
            let contestant = lane.contestant;
            let size_argument = weights.size_argument(contestant.source, shape.message_octets)?;
            let run = run(contestant, Load { shape, messages, size_argument }).context(contestant.name)?;
            eprintln!("{} round {round}: {:<36} {:>10.0} msg/s", shape.name, contestant.name, run.rate_per_s);
            lane.runs.push(run);
        }
    }
    Ok(Standing { shape, lanes })
}

/// Returns the number of messages that keep the raw pair busy for `seconds`, found by trial runs. These runs also warm
/// up the machine.
fn enough_messages(shape: &Shape, seconds: f64) -> anyhow::Result<u64> {
    let mut messages = u64::from(shape.sessions) * 10;
    for _ in 0..16 {
        let run = run(LIMIT, Load { shape, messages, size_argument: shape.message_octets })?;
        let took = messages as f64 / run.rate_per_s;
        if took >= 0.4 {
            return Ok((run.rate_per_s * seconds).ceil() as u64);
        }
        messages *= 4;
    }
    bail!("{messages} messages took no time at all")
}

/// Cache of the size arguments by program and message size, so that each of them is determined only once.
#[derive(Default)]
struct Weights(HashMap<(Program, u64), u64>);

impl Weights {
    fn size_argument(&mut self, program: Program, octets: u64) -> anyhow::Result<u64> {
        if let Some(argument) = self.0.get(&(program, octets)) {
            return Ok(*argument);
        }
        let argument = size_argument(program, octets)?;
        self.0.insert((program, octets), argument);
        Ok(argument)
    }
}

fn report(options: &Options, standings: &[Standing<'_>]) {
    println!();
    println!(
        "{} rounds, contestants in turn; one worker a side. Rate: messages / wall time of the source's process, \
         start and end included, for all alike. × limit: median of the rounds' ratios.\n\
         Message octets are equal for all contestants of a shape (weighed). CPU: user + system, /proc/PID/stat.",
        options.rounds()
    );
    if options.quick {
        println!("--quick: runs are too short to judge by; take the verdicts as hints.");
    }
    println!("{}", table(standings).terminal(usize::MAX));
}

fn postfix_is_there() -> bool {
    installed_program("smtp-source").is_some() && installed_program("smtp-sink").is_some()
}
