//! TLS side by side: compares mailrun's handshakes, resumed handshakes and bulk transfer with
//! OpenSSL's programs on the same cores.
//!
//! `cargo bench --bench tls -- [--quick] [--rounds N] [--only full,resumed,bulk]`
//!
//! The rules: all contestants use the same certificate, cipher and versions. Contestants take turns
//! (A B C A B C …), with client and server on a core each. Handshakes are compared by the processor
//! time that they cost a side. Rates would not be a fair comparison, because a client and a server
//! that wait for each other mainly show how fast this machine wakes them. Two servers are compared
//! by measuring both with the same client, and two clients by measuring both with the same server.
//! Exit status: 0 if all targets are met, 1 if a target is missed, 2 if the bench could not run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench reports to the terminal")]

#[path = "ruler/party.rs"]
mod party;
#[path = "ruler/place.rs"]
mod place;
#[path = "ruler/processor.rs"]
mod processor;
mod secured;
#[path = "ruler/spread.rs"]
mod spread;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use mailrun_bench::TextReport;
use mailrun_report::{ReportLength, TextStyle};

use secured::bench::Bench;
use secured::bulk::Bulk;
use secured::handshakes::{Case, Kind, Version};
use secured::row::{Row, table};
use secured::{bulk, handshakes, shaker};

/// Measures mailrun's TLS against OpenSSL's programs.
#[derive(Parser)]
struct Options {
    /// Number of rounds. Each contestant runs once per round.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Make only three rounds, whose results are too uncertain for a verdict.
    #[arg(long)]
    quick: bool,
    /// Write the tables as JSON to this file, for `mailrun report`.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure only these: full, resumed (which measures full handshakes too), bulk.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Has no effect. `cargo bench` passes this option to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == what)
    }

    fn cases(&self) -> Vec<Case> {
        let kinds: &[Kind] = match (self.wants("full"), self.wants("resumed")) {
            (_, true) => &[Kind::Full, Kind::Resumed],
            (true, false) => &[Kind::Full],
            (false, false) => &[],
        };
        let versions = [Version::Tls13, Version::Tls12];
        versions.into_iter().flat_map(|version| kinds.iter().map(move |&kind| Case { version, kind })).collect()
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let outcome = match shaker::play(&arguments) {
        Some(played) => played.map(|()| ExitCode::SUCCESS),
        None => compare(&Options::parse()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("tls: {error:#}");
        ExitCode::from(2)
    })
}

fn compare(options: &Options) -> anyhow::Result<ExitCode> {
    if cfg!(debug_assertions) {
        println!("tls: a debug build measures nothing; run `cargo bench --bench tls`");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = options.only.iter().find(|name| !["full", "resumed", "bulk"].contains(&name.as_str())) {
        bail!("nothing is called {unknown}: there are full, resumed, bulk");
    }
    let place = place::place();
    let bench = Bench::new()?;
    let [tls13, tls12] = [Version::Tls13, Version::Tls12].map(Version::cipher);
    let rows = measure(options, &bench)?;
    let mut remarks = vec![
        format!("{place}."),
        format!("{}; client and server {}; {tls13}, {tls12}.", bench.openssl_version(), bench.cores()),
        "µs: user and system time of /proc/PID/stat, of the whole process, for a handshake or a MB. Ratios are medians of the \
         rounds' ratios."
            .to_owned(),
    ];
    if options.wants("resumed") {
        remarks.push(
            "Resumed ÷ full is judged for TLS 1.2 alone: TLS 1.3 makes a key exchange on resumption too (psk_dhe_ke), which \
             no implementation saves; there it stands beside what s_server gains. Rates hold the TCP connection's cost."
                .to_owned(),
        );
    }
    if options.quick {
        remarks.push("--quick: too few runs to judge by; take the verdicts as hints.".to_owned());
    }
    let title =
        format!("tls: mailrun's handshakes and bulk beside OpenSSL's programs; {} rounds, by turns", options.rounds());
    let missed: Vec<String> = rows.iter().flat_map(Row::missed).collect();
    let has_failed = !missed.is_empty();
    let report = TextReport::of_targets(&title, vec![table(&rows)], remarks, missed, "all targets met");
    print!("{}", report.render(None, ReportLength::Full, TextStyle::Plain));
    if let Some(path) = &options.json {
        std::fs::write(path, report.to_json()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::from(u8::from(has_failed)))
}

fn measure(options: &Options, bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let cases = options.cases();
    let mut shaken = Vec::new();
    let mut carried = Vec::new();
    for round in 1..=options.rounds() {
        eprintln!("round {round}");
        shaken.push(handshakes::round(bench, &cases).context("handshakes")?);
        if options.wants("bulk") {
            carried.push(Bulk::run(bench).context("bulk")?);
        }
    }
    let mut rows = handshakes::rows(&cases, &shaken);
    rows.extend(bulk::rows(&carried));
    Ok(rows)
}
