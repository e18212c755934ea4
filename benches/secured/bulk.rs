//! Large messages over TLS. Mailrun's rate is compared with the rate of OpenSSL's programs for the same number of
//! octets, and with the highest rate that the speed of the cipher allows.

use std::fs::File;

use anyhow::{Context, ensure};

use super::bench::{Bench, Run};
use super::handshakes::{Version, end};
use super::openssl;
use super::row::{Row, Target};
use crate::spread::Spread;

const MESSAGE_OCTETS: u64 = 10 * 1024 * 1024;
const MESSAGES: u64 = 100;
const OCTETS: u64 = MESSAGES * MESSAGE_OCTETS;

/// Mailrun's rate must be at least this share of the rate of OpenSSL's programs and of [`Bulk::limit`].
const OF_LIMIT: f64 = 0.90;

#[derive(Clone, Copy)]
struct Carried {
    octets_per_s: f64,
    client_us: f64,
    server_us: f64,
}

impl Carried {
    /// Computes the rate, and the processor time of each side in microseconds per megabyte.
    fn of(run: &Run) -> Self {
        let by_megabyte = |time: std::time::Duration| time.as_secs_f64() * 1e12 / OCTETS as f64;
        Self {
            octets_per_s: OCTETS as f64 / run.wall.as_secs_f64(),
            client_us: by_megabyte(run.client_time),
            server_us: by_megabyte(run.server_time),
        }
    }
}

pub(crate) struct Bulk {
    /// Octets per second that a core can encrypt if it does nothing else.
    cipher: f64,
    openssl: Carried,
    plain: Carried,
    secured: Carried,
}

impl Bulk {
    /// Runs every contestant once.
    pub(crate) fn run(bench: &Bench) -> anyhow::Result<Self> {
        Ok(Self {
            cipher: openssl::speed(bench).context("openssl speed")?,
            openssl: by_openssl(bench).context("s_client → s_server")?,
            plain: by_mailrun(bench, "none").context("mailrun, plain")?,
            secured: by_mailrun(bench, "implicit").context("mailrun, TLS")?,
        })
    }

    /// Returns the highest rate that TLS allows, in octets per second. The limit assumes that each octet takes as long
    /// as without TLS, plus the time to encrypt it.
    fn limit(&self) -> f64 {
        1.0 / (1.0 / self.plain.octets_per_s + 1.0 / self.cipher)
    }
}

fn by_openssl(bench: &Bench) -> anyhow::Result<Carried> {
    let path = bench.path("octets");
    // The file consists of one hole, so it takes no space on the disk. Reading it still costs a copy, as reading a file
    // from the page cache does.
    File::create(&path)?.set_len(OCTETS)?;
    let (server, address) = openssl::start_server(bench, Version::Tls13)?;
    let file = File::open(&path)?;
    let run = bench.attend(&server, || openssl::start_s_client(bench, Version::Tls13, file, address))?;
    end(server)?;
    Ok(Carried::of(&run))
}

fn by_mailrun(bench: &Bench, tls: &str) -> anyhow::Result<Carried> {
    let (sink, address) = bench.start_sink(tls)?;
    let record = bench.path("record.json");
    let mut command = bench.source();
    command.args([&address.to_string(), "--messages", &MESSAGES.to_string(), "--sessions", "1", "--reuse"]);
    command
        .args(["--message-size", &MESSAGE_OCTETS.to_string(), "--workers", "1", "--tls", tls, "--json"])
        .arg(&record);
    if tls != "none" {
        command.arg("--insecure");
    }
    let run = bench.attend(&sink, || crate::party::Party::start(command))?;
    end(sink)?;
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record)?).context("the source's record")?;
    let stages = record["stages"].as_array().context("a record has stages")?;
    let accepted = stages.iter().find(|stage| stage["name"] == "accepted").context("no stage accepted")?;
    ensure!(accepted["count"] == MESSAGES, "{} of {MESSAGES} messages were accepted", accepted["count"]);
    let cipher = &record["tls"][0]["cipher"];
    ensure!(tls == "none" || *cipher == Version::Tls13.cipher(), "{cipher} was agreed on");
    Ok(Carried::of(&run))
}

pub(crate) fn rows(rounds: &[Bulk]) -> Vec<Row> {
    let row = |contestant: &str, carried: fn(&Bulk) -> Carried, targets| Row {
        case: format!("TLS 1.3, {MESSAGES} × 10 MB"),
        contestant: contestant.to_owned(),
        rate: Spread::of(rounds.iter().map(|bulk| carried(bulk).octets_per_s)),
        client_us: Spread::of(rounds.iter().map(|bulk| carried(bulk).client_us)).map(|spread| spread.median),
        server_us: Spread::of(rounds.iter().map(|bulk| carried(bulk).server_us)).map(|spread| spread.median),
        targets,
    };
    let ratio = |words, to: fn(&Bulk) -> f64, least| Target {
        words,
        ratio: Spread::of(rounds.iter().map(|bulk| bulk.secured.octets_per_s / to(bulk))),
        least,
    };
    let targets = vec![
        ratio("÷ s_client → s_server", |bulk| bulk.openssl.octets_per_s, Some(OF_LIMIT)),
        ratio("÷ the pair in the clear with the cipher's time added", Bulk::limit, Some(OF_LIMIT)),
        ratio("÷ openssl speed", |bulk| bulk.cipher, None),
    ];
    if rounds.is_empty() {
        return Vec::new();
    }
    let alone = |bulk: &Bulk| Carried { octets_per_s: bulk.cipher, client_us: 1e12 / bulk.cipher, server_us: f64::NAN };
    vec![
        row("openssl speed, encryption alone", alone, Vec::new()),
        row("s_client → s_server", |bulk| bulk.openssl, Vec::new()),
        row("mailrun → mailrun, in the clear", |bulk| bulk.plain, Vec::new()),
        row("mailrun → mailrun", |bulk| bulk.secured, targets),
    ]
}
