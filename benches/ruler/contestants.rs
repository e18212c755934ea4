//! The contestants: the raw pair, mailrun, Postfix's test programs, go-smtp-source, mailrun's source with the raw sink,
//! and the raw source with mailrun's sink. With few sessions, the raw pair and mailrun also take part in a second
//! version, which polls for events instead of sleeping until the next one.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::limit::Waiting;

use super::party::Party;
use super::processor::processor_time;
use super::shapes::Shape;

/// Time limit of a run. A run normally takes a few seconds, so a run that reaches the limit has hung.
const RUN_LIMIT: Duration = Duration::from_secs(180);

const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Program {
    Limit,
    Mailrun,
    Postfix,
    GoSmtpSource,
}

/// A source and a sink that are measured together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) source: Program,
    pub(crate) sink: Program,
    /// Whether source and sink sleep or spin between events. Even if mailrun is told to spin, it falls asleep when
    /// nothing has happened for 50 us (`BUSY_POLL`).
    pub(crate) waiting: Waiting,
}

/// Mailrun's option for spinning. 50 us is longer than a round trip between two processes that are awake, so neither of
/// them falls asleep between messages.
const BUSY_POLL: &str = "--busy-poll=50us";

pub(crate) const LIMIT: Contestant = asleep("limit → limit", Program::Limit, Program::Limit);
pub(crate) const MAILRUN_PAIR: Contestant = asleep("mailrun → mailrun", Program::Mailrun, Program::Mailrun);
pub(crate) const POSTFIX_PAIR: Contestant = asleep("smtp-source → smtp-sink", Program::Postfix, Program::Postfix);
pub(crate) const GO_PAIR: Contestant = asleep("go-smtp-source → smtp-sink", Program::GoSmtpSource, Program::Postfix);
/// The raw pair without sleep. With few sessions, the spinning contestants show how fast the machine is if idle
/// processors need not wake up first.
pub(crate) const LIMIT_SPINNING: Contestant =
    Contestant { name: "limit → limit, spinning", waiting: Waiting::Spins, ..LIMIT };
pub(crate) const MAILRUN_SPINNING: Contestant =
    Contestant { name: "mailrun → mailrun, --busy-poll 50us", waiting: Waiting::Spins, ..MAILRUN_PAIR };
/// Mailrun's source with the raw sink, and the raw source with mailrun's sink. If mailrun's own pair is slow, they show
/// whether its source or its sink is the cause.
pub(crate) const HALVES: [Contestant; 2] = [
    asleep("mailrun → limit", Program::Mailrun, Program::Limit),
    asleep("limit → mailrun", Program::Limit, Program::Mailrun),
];

const fn asleep(name: &'static str, source: Program, sink: Program) -> Contestant {
    Contestant { name, source, sink, waiting: Waiting::Sleeps }
}

#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) messages: u64,
    /// Message size on the source's command line. For smtp-source and go-smtp-source, it is less than the shape's size,
    /// because these programs send a header in addition to the octets that they are told to send.
    pub(crate) size_argument: u64,
}

pub(crate) struct Run {
    pub(crate) rate_per_s: f64,
    /// Rate that the source itself reports. `None` for smtp-source and go-smtp-source, which report no rate.
    pub(crate) reported_rate_per_s: Option<f64>,
    pub(crate) source_microseconds: f64,
    pub(crate) sink_microseconds: f64,
}

/// Runs a new source against a new sink. The rate is computed from the time between the start and the end of the
/// source's process.
pub(crate) fn run(contestant: Contestant, load: Load<'_>) -> anyhow::Result<Run> {
    let (sink, address) = start_sink(contestant)?;
    let record = tempfile::NamedTempFile::new()?;
    let mut command = source_command(contestant.source, load, address, record.path())?;
    command.args(contestant.waiting.words(contestant.source));
    let started = Instant::now();
    let source = Party::start(command)?;
    ensure!(source.ends_within(RUN_LIMIT)?, "the source did not end within {} s", RUN_LIMIT.as_secs());
    let wall = started.elapsed();
    let source_time = processor_time(source.pid())?;
    let sink_time = processor_time(sink.pid())?;
    let said = source.reap()?;
    sink.stop()?;
    Ok(Run {
        rate_per_s: load.messages as f64 / wall.as_secs_f64(),
        reported_rate_per_s: reported_rate(contestant.source, load, &said, record.path())?,
        source_microseconds: source_time.as_secs_f64() * 1e6 / load.messages as f64,
        sink_microseconds: sink_time.as_secs_f64() * 1e6 / load.messages as f64,
    })
}

impl Waiting {
    /// Returns the option that makes `program` spin instead of sleep between events. Returns nothing if the program
    /// should sleep, or if it cannot spin. The option must come after all other arguments.
    fn words(self, program: Program) -> &'static [&'static str] {
        match (self, program) {
            (Self::Spins, Program::Limit) => &["--spin"],
            (Self::Spins, Program::Mailrun) => &[BUSY_POLL],
            _ => &[],
        }
    }
}

fn start_sink(contestant: Contestant) -> anyhow::Result<(Party, SocketAddr)> {
    let waiting = contestant.waiting.words(contestant.sink);
    match contestant.sink {
        Program::Limit => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("limit-sink").args(waiting);
            Party::start_listening(command)
        }
        Program::Mailrun => {
            let mut command = Command::new(MAILRUN);
            command.args(["sink", "--listen", "127.0.0.1:0", "--live", "json", "--workers", "1"]).args(waiting);
            Party::start_listening(command)
        }
        Program::Postfix | Program::GoSmtpSource => start_smtp_sink(),
    }
}

/// Starts smtp-sink on a port that was free a moment ago, because smtp-sink cannot report a port that the kernel
/// chooses.
fn start_smtp_sink() -> anyhow::Result<(Party, SocketAddr)> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut command = Command::new(installed_program("smtp-sink").context("smtp-sink is not installed")?);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "nobody"]);
    }
    command.arg(address.to_string()).arg("4096");
    let party = Party::start(command)?;
    let limit = Instant::now() + Duration::from_secs(10);
    while !answers(address) {
        let ended = party.ends_within(Duration::from_millis(20))?;
        ensure!(!ended && Instant::now() < limit, "smtp-sink does not listen: {}", party.complaint());
    }
    Ok((party, address))
}

fn answers(address: SocketAddr) -> bool {
    TcpStream::connect(address).and_then(|mut stream| stream.write_all(b"QUIT\r\n")).is_ok()
}

/// Returns the command that makes a program send the load.
pub(crate) fn source_command(
    program: Program,
    load: Load<'_>,
    to: SocketAddr,
    record: &Path,
) -> anyhow::Result<Command> {
    let Load { shape, messages, size_argument } = load;
    let messages = messages.to_string();
    let sessions = shape.sessions.to_string();
    let size = size_argument.to_string();
    Ok(match program {
        Program::Limit => {
            let mut command = Command::new(std::env::current_exe()?);
            let port = to.port().to_string();
            command.args(["limit-source", &port, &messages, &sessions, &size, shape.dialogue.letter()]);
            command
        }
        Program::Mailrun => {
            let mut command = Command::new(MAILRUN);
            command.args(["source", &to.to_string(), "--messages", &messages, "--sessions", &sessions]);
            command.args(["--message-size", &size, "--workers", "1", "--json"]).arg(record);
            command.args(shape.dialogue.mailrun_options());
            command
        }
        Program::Postfix | Program::GoSmtpSource => {
            let name = if program == Program::Postfix { "smtp-source" } else { "go-smtp-source" };
            let path = installed_program(name).with_context(|| format!("{name} is not installed"))?;
            let mut command = Command::new(path);
            command.args(["-m", &messages, "-s", &sessions, "-l", &size]);
            command.args(["-f", "from@example.com", "-t", "to@example.com"]);
            command.args(shape.dialogue.smtp_source_options().context("smtp-source does not pipeline")?);
            command.arg(to.to_string());
            command
        }
    })
}

/// Returns the rate that the source itself reports, or `None` for smtp-source and go-smtp-source, which report no rate.
/// Fails if the report shows that the source did not send all messages.
fn reported_rate(program: Program, load: Load<'_>, said: &str, record: &Path) -> anyhow::Result<Option<f64>> {
    let (accepted, rate) = match program {
        Program::Postfix | Program::GoSmtpSource => return Ok(None),
        Program::Limit => {
            let report: serde_json::Value = serde_json::from_str(said).context("the raw source's report")?;
            (report["messages"].as_u64(), report["rate_per_s"].as_f64())
        }
        Program::Mailrun => {
            let record: serde_json::Value =
                serde_json::from_slice(&std::fs::read(record)?).context("mailrun source's record")?;
            let stages = record["stages"].as_array().context("a record has stages")?;
            let accepted = stages.iter().find(|stage| stage["name"] == "accepted").context("no stage accepted")?;
            (accepted["count"].as_u64(), accepted["rate_per_s"].as_f64())
        }
    };
    ensure!(accepted == Some(load.messages), "{accepted:?} of {} messages were accepted", load.messages);
    Ok(rate)
}

/// Finds a test program, such as smtp-source, in PATH, /usr/sbin or /usr/local/sbin. The PATH of a normal user on
/// Debian lacks the last two.
pub(crate) fn installed_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}
