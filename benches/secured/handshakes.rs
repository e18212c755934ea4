//! Full and resumed TLS handshakes: the pairs of clients and servers that make them, and the processor time that a
//! handshake costs each side.

use anyhow::ensure;

use super::bench::{Bench, Run};
use super::openssl;
use super::row::{Row, Target};
use super::shaker::{self, Parting};
use crate::party::Party;
use crate::spread::Spread;

/// Mailrun's client must make at least this share of the handshakes that OpenSSL's s_time makes in the same processor
/// time. The same share applies to mailrun's sink and OpenSSL's s_server.
const OF_LIMIT: f64 = 0.90;

/// With TLS 1.2, the rate of resumed handshakes must be at least this multiple of the rate of full handshakes.
const OF_FULL: f64 = 3.0;

/// Number of parallel connections of [`Pair::ManyToSink`], the pair that measures the rate of handshakes.
const SESSIONS: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Tls13,
    Tls12,
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::Tls13 => "TLS 1.3",
            Self::Tls12 => "TLS 1.2",
        }
    }

    /// Returns the cipher's name in rustls. OpenSSL's programs are told to use the same cipher.
    pub(crate) fn cipher(self) -> &'static str {
        match self {
            Self::Tls13 => "TLS13_AES_256_GCM_SHA384",
            Self::Tls12 => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Full,
    Resumed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) version: Version,
    pub(crate) kind: Kind,
}

impl Case {
    fn name(self) -> String {
        format!("{}, {}", self.version.name(), if self.kind == Kind::Full { "full" } else { "resumed" })
    }

    /// Returns true if OpenSSL's s_time can make these handshakes. It cannot resume with TLS 1.3, because it reads
    /// nothing after the handshake and so never receives a ticket.
    fn is_for_s_time(self) -> bool {
        self != Self { version: Version::Tls13, kind: Kind::Resumed }
    }

    fn parting(self) -> Parting {
        if self.is_for_s_time() { Parting::AtOnce } else { Parting::Heard }
    }
}

/// A client and a server that make handshakes with each other. Within a round, the pairs take turns in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pair {
    TimeToServer,
    TimeToSink,
    ShakerToServer,
    ShakerToSink,
    ManyToSink,
}

const PAIRS: [Pair; 5] =
    [Pair::TimeToServer, Pair::TimeToSink, Pair::ShakerToServer, Pair::ShakerToSink, Pair::ManyToSink];

impl Pair {
    fn name(self) -> &'static str {
        match self {
            Self::TimeToServer => "s_time → s_server",
            Self::TimeToSink => "s_time → mailrun sink",
            Self::ShakerToServer => "mailrun's client → s_server",
            Self::ShakerToSink => "mailrun's client → mailrun sink",
            Self::ManyToSink => "the same, 8 at a time",
        }
    }

    fn is_of_s_time(self) -> bool {
        matches!(self, Self::TimeToServer | Self::TimeToSink)
    }
}

#[derive(Clone, Copy)]
struct Taken {
    pair: Pair,
    per_s: f64,
    client_us: f64,
    server_us: f64,
}

/// All runs of a round. The outer list has an entry for each case, the inner list the runs of the pairs in that case.
pub(crate) type Round = Vec<Vec<Shaken>>;

pub(crate) struct Shaken(Taken);

pub(crate) fn round(bench: &Bench, cases: &[Case]) -> anyhow::Result<Round> {
    let of_case = |case: &Case| {
        let pairs = PAIRS.into_iter().filter(|pair| case.is_for_s_time() || !pair.is_of_s_time());
        pairs.map(|pair| run(bench, *case, pair).map(Shaken)).collect()
    };
    cases.iter().map(of_case).collect()
}

fn run(bench: &Bench, case: Case, pair: Pair) -> anyhow::Result<Taken> {
    let Case { version, kind } = case;
    let (server, address) = match pair {
        Pair::TimeToServer | Pair::ShakerToServer => openssl::start_server(bench, version)?,
        Pair::TimeToSink | Pair::ShakerToSink | Pair::ManyToSink => bench.start_sink("implicit")?,
    };
    let (sessions, parting) = if pair == Pair::ManyToSink { (SESSIONS, Parting::Heard) } else { (1, case.parting()) };
    let run = bench.attend(&server, || match pair.is_of_s_time() {
        true => openssl::start_s_time(bench, version, kind, address),
        false => shaker::start(bench, version, kind, parting, sessions, address),
    })?;
    end(server)?;
    let (count, seconds) = match pair.is_of_s_time() {
        true => (openssl::connections(&run.said, kind)?, run.wall.as_secs_f64()),
        false => {
            let report = shaker::report(&run.said, kind, sessions)?;
            let cipher = version.cipher();
            ensure!(report.cipher == cipher, "{} was agreed on, not {cipher}", report.cipher);
            (report.handshakes, report.seconds)
        }
    };
    Ok(taken(pair, &run, count, seconds))
}

fn taken(pair: Pair, run: &Run, count: u64, seconds: f64) -> Taken {
    let microseconds = |time: std::time::Duration| time.as_secs_f64() * 1e6 / count as f64;
    Taken {
        pair,
        per_s: count as f64 / seconds,
        client_us: microseconds(run.client_time),
        server_us: microseconds(run.server_time),
    }
}

/// Stops a server. Ignores the exit status, because s_server only ever ends by a signal.
pub(crate) fn end(server: Party) -> anyhow::Result<()> {
    server.stop().map(drop)
}

/// Returns the rows of the table of results: for each case, a row for each pair that was measured.
pub(crate) fn rows(cases: &[Case], rounds: &[Round]) -> Vec<Row> {
    let judge = Judge { cases, rounds };
    let of_case = |case: &Case| {
        let pairs = PAIRS.into_iter().filter(|pair| judge.spread(*case, *pair, |taken| taken.per_s).is_some());
        pairs.map(|pair| judge.row(*case, pair)).collect::<Vec<_>>()
    };
    cases.iter().flat_map(of_case).collect()
}

struct Judge<'a> {
    cases: &'a [Case],
    rounds: &'a [Round],
}

impl Judge<'_> {
    /// Returns the runs of a pair, in the order of the rounds.
    fn runs(&self, case: Case, pair: Pair) -> Vec<Taken> {
        let Some(at) = self.cases.iter().position(|other| *other == case) else { return Vec::new() };
        let of_round = |round: &Round| round[at].iter().map(|run| run.0).find(|taken| taken.pair == pair);
        self.rounds.iter().filter_map(of_round).collect()
    }

    fn spread(&self, case: Case, pair: Pair, value: fn(&Taken) -> f64) -> Option<Spread> {
        Spread::of(self.runs(case, pair).iter().map(value))
    }

    /// For each round, divides `value` of the run of one case and pair by `value` of the run of another case and pair.
    /// Returns the spread of these ratios.
    fn ratio(&self, one: (Case, Pair), other: (Case, Pair), value: fn(&Taken) -> f64) -> Option<Spread> {
        let one = self.runs(one.0, one.1);
        let other = self.runs(other.0, other.1);
        Spread::of(one.iter().zip(&other).map(|(one, other)| value(one) / value(other)))
    }

    fn row(&self, case: Case, pair: Pair) -> Row {
        let middle = |value| self.spread(case, pair, value).map(|spread| spread.median);
        Row {
            case: case.name(),
            contestant: pair.name().to_owned(),
            rate: self.spread(case, pair, |taken| taken.per_s),
            client_us: middle(|taken| taken.client_us),
            server_us: middle(|taken| taken.server_us),
            targets: self.targets(case, pair),
        }
    }

    fn targets(&self, case: Case, pair: Pair) -> Vec<Target> {
        let target = |words: &'static str, ratio, least| Target { words, ratio, least };
        let limit = |pair| (case, pair);
        match pair {
            Pair::TimeToSink => {
                let ratio = self.ratio(limit(Pair::TimeToServer), (case, pair), |taken| taken.server_us);
                vec![target("a core's handshakes: sink ÷ s_server", ratio, Some(OF_LIMIT))]
            }
            Pair::ShakerToServer if case.is_for_s_time() => {
                let ratio = self.ratio(limit(Pair::TimeToServer), (case, pair), |taken| taken.client_us);
                vec![target("a core's handshakes: client ÷ s_time", ratio, Some(OF_LIMIT))]
            }
            Pair::ShakerToSink => {
                let ratio = self.ratio(limit(Pair::ShakerToServer), (case, pair), |taken| taken.server_us);
                vec![target("a core's handshakes: sink ÷ s_server", ratio, Some(OF_LIMIT))]
            }
            Pair::ManyToSink if case.kind == Kind::Resumed => self.resumption(case),
            Pair::TimeToServer | Pair::ShakerToServer | Pair::ManyToSink => Vec::new(),
        }
    }

    /// Compares resumed with full handshakes. A resumed handshake of TLS 1.2 needs no public-key operation, so it must
    /// be faster by `OF_FULL`. A resumed handshake of TLS 1.3 still needs a key exchange (psk_dhe_ke, RFC 8446 §2.2),
    /// so mailrun's gain is only shown next to the gain of OpenSSL's server.
    fn resumption(&self, case: Case) -> Vec<Target> {
        let full = Case { kind: Kind::Full, ..case };
        let gain = self.ratio((case, Pair::ManyToSink), (full, Pair::ManyToSink), |taken| taken.per_s);
        let least = (case.version == Version::Tls12).then_some(OF_FULL);
        let ours = self.ratio((full, Pair::ManyToSink), (case, Pair::ManyToSink), |taken| taken.server_us);
        let theirs = self.ratio((full, Pair::ShakerToServer), (case, Pair::ShakerToServer), |taken| taken.server_us);
        vec![
            Target { words: "handshakes/s: resumed ÷ full", ratio: gain, least },
            Target { words: "sink's µs: full ÷ resumed", ratio: ours, least: None },
            Target { words: "s_server's µs: full ÷ resumed", ratio: theirs, least: None },
        ]
    }
}
