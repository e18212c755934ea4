//! Sends large messages with Python's smtplib instead of mailrun's source. Others have published figures of smtplib, so
//! the report can be compared with them.
use super::measurement::ProfileMeasurement;
use crate::engine::{RunTurn, TimedChild, miscount};
use crate::plan::BenchTarget;
use crate::programs::{ComparedProgram, InstalledPrograms, own_program};
use crate::tables::{SinkTool, TableSink};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Python program that sends the message `count` times on one connection. It prints how many seconds have passed from
/// just before it connected until it received the last reply.
const SCRIPT: &str = r#"import smtplib, sys, time
host, port, path, count, recipient, quoting = sys.argv[1:]
if quoting == "unquoted":
    smtplib._quote_periods = lambda message: message
with open(path, "rb") as file:
    message = file.read()
began = time.monotonic()
client = smtplib.SMTP(host, int(port), local_hostname="mailrun.example.com", timeout=60)
for _ in range(int(count)):
    client.sendmail("from@example.com", [recipient], message)
print(time.monotonic() - began)
client.quit()
"#;

const RUN_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Python;

impl ComparedProgram for Python {
    fn name(self) -> &'static str {
        "python3"
    }

    fn is_own(self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Smtplib {
    /// Smtplib doubles the dot of each line that begins with a dot (RFC 5321 §4.5.2).
    Original,
    /// Smtplib sends the message unchanged, so no line of the message may begin with a dot.
    Unquoted,
}

pub(super) struct SmtplibRun<'r> {
    pub(super) smtplib: Smtplib,
    pub(super) target: &'r BenchTarget,
    pub(super) recipient: &'r str,
    pub(super) file: &'r Path,
    pub(super) messages: u64,
}

/// Returns the reason why smtplib cannot send to this target, or `None` if it can.
pub(super) fn missing(target: &BenchTarget) -> Option<&'static str> {
    match target {
        BenchTarget::Relay(_) => Some("smtplib: not run, because it sends to mailrun's sink or to SERVER alone."),
        BenchTarget::Server { address, .. } if address.starts_with("unix:") => {
            Some("smtplib: not run, because it connects to no unix-domain socket.")
        }
        _ if InstalledPrograms::find(&[Python]).is_err() => Some("smtplib: not run, because python3 is not installed."),
        BenchTarget::OwnSink | BenchTarget::Server { .. } => None,
    }
}

impl SmtplibRun<'_> {
    /// Sends all messages with smtplib, and returns the figures of this run. Returns `None` if the user ended the run.
    ///
    /// # Errors
    /// Returns an error if the sink or Python could not be started, or if one of them failed.
    pub(super) fn measure(&self, turn: &mut RunTurn<'_>) -> Result<Option<ProfileMeasurement>> {
        let sink = match self.target {
            BenchTarget::OwnSink => Some(start_sink()?),
            _ => None,
        };
        let address = match (&sink, self.target) {
            (Some(sink), _) => sink.address().to_string(),
            (None, BenchTarget::Server { address, .. }) => address.clone(),
            (None, _) => bail!("smtplib sends to mailrun's sink or to SERVER alone"),
        };
        let mut output = tempfile::tempfile().context("cannot create a temporary file")?;
        let mut client = TimedChild::start(self.command(&address, &output)?)?;
        let Some((status, costs)) = turn.await_exit(&mut client, RUN_TIMEOUT, || None, || Ok(()))? else {
            return Ok(None);
        };
        if !status.success() {
            return Err(client.exit_error(status));
        }
        let mut seconds = String::new();
        output
            .rewind()
            .and_then(|()| output.read_to_string(&mut seconds))
            .context("cannot read what python3 printed")?;
        let elapsed_s: f64 = seconds.trim().parse().context("python3 printed no time")?;
        let (sink_cpu_s, arrived) = match sink.map(TableSink::stop).transpose()? {
            Some((costs, arrived)) => (Some(costs.cpu_s()), arrived),
            None => (None, None),
        };
        let bytes = self.messages * fs::metadata(self.file)?.len();
        let mut measured = ProfileMeasurement::of_client(self.messages, bytes, elapsed_s, costs.cpu_s(), sink_cpu_s);
        measured.flaws.fault = arrived.and_then(|arrived| miscount(arrived, self.messages));
        Ok(Some(measured))
    }

    fn command(&self, address: &str, output: &File) -> Result<Command> {
        let (host, port) = address.rsplit_once(':').context("the server has no port")?;
        let python = InstalledPrograms::find(&[Python])?;
        let mut command = Command::new(python.path(Python)?);
        command.args(["-c", SCRIPT, host.trim_matches(['[', ']']), port]).arg(self.file);
        let quoting = if self.smtplib == Smtplib::Unquoted { "unquoted" } else { "quoted" };
        command.args([&self.messages.to_string(), self.recipient, quoting]).stdout(output.try_clone()?);
        Ok(command)
    }
}

fn start_sink() -> Result<TableSink> {
    TableSink::start(SinkTool::Mailrun, &own_program()?, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_smtplib_cannot_do_is_said() {
        let relay = BenchTarget::Relay("postfix".parse().unwrap());
        assert!(missing(&relay).is_some_and(|reason| reason.contains("SERVER alone")));
        let socket = BenchTarget::Server { address: "unix:/tmp/x".to_owned(), sink: None };
        assert!(missing(&socket).is_some_and(|reason| reason.contains("unix-domain")));
    }

    #[test]
    fn an_address_is_given_in_two_words() {
        if missing(&BenchTarget::OwnSink).is_some() {
            return;
        }
        let target = BenchTarget::OwnSink;
        let run =
            |smtplib| SmtplibRun { smtplib, target: &target, recipient: "a@b", file: Path::new("m.eml"), messages: 5 };
        let output = tempfile::tempfile().unwrap();
        for (smtplib, quoting) in [(Smtplib::Original, "quoted"), (Smtplib::Unquoted, "unquoted")] {
            let command = run(smtplib).command("[::1]:25", &output).unwrap();
            let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            assert_eq!(words[2..], ["::1", "25", "m.eml", "5", "a@b", quoting]);
        }
        assert!(run(Smtplib::Original).command("nowhere", &output).is_err());
    }
}
