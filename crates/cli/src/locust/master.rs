//! `mailrun locust master`: runs Locust as the master of mailrun's workers, with a test that is described in a file.
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::{text_file, toml_file};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

const MAX_FILE_BYTES: u64 = 1 << 16;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const HOW_TO_INSTALL: &str = "Locust is not installed here: `pip install locust`, or `apt install python3-locust`; or name it with --locust PROGRAM";

/// Runs Locust as the master of mailrun's workers, with a test from a TOML file
///
/// Locust itself must be installed on this host, but not on the workers. The exit status is Locust's: 0 if the test
/// passed, 1 if messages failed or a threshold was missed, 3 if reports were lost.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MasterArgs {
    /// File with the test: stages, workers, drain, thresholds, report, listen, web (see docs/locust.md).
    #[arg(value_name = "FILE.toml")]
    test: PathBuf,
    /// Name or path of the program with which Locust is started.
    #[arg(long, value_name = "PROGRAM", default_value = "locust")]
    locust: PathBuf,
    /// Further arguments for Locust, after --.
    #[arg(last = true, value_name = "LOCUST ARGUMENTS")]
    arguments: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  mailrun locust master test.toml
  mailrun locust master test.toml -- --html report.html";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterTest {
    /// Numbers of users over time. For example, `10s:10` means ten users for 10 s, and `60s:10..200` is a ramp.
    stages: Vec<String>,
    /// Number of workers that must have connected before the test starts. Has no effect with `web`, because the user
    /// then starts the test on the web page.
    #[serde(default = "one")]
    workers: u32,
    /// Time without users after the last stage, in which messages in transit can still arrive.
    drain: Option<String>,
    /// Conditions that the merged result of all workers must meet.
    #[serde(default)]
    thresholds: Vec<String>,
    report: Option<PathBuf>,
    listen: Option<SocketAddr>,
    /// Address of Locust's web page. Without it, the test starts as soon as the workers have connected.
    web: Option<SocketAddr>,
}

fn one() -> u32 {
    1
}

impl ClusterTest {
    fn arguments(&self) -> Vec<String> {
        let mut words = vec!["--master".to_owned(), "--enable-rebalancing".to_owned()];
        let mut push = |option: &str, value: String| words.push(format!("{option}={value}"));
        push("--mailrun-stages", self.stages.join(","));
        push("--mailrun-thresholds", self.thresholds.join(","));
        self.drain.iter().for_each(|drain| push("--mailrun-drain", drain.clone()));
        self.report.iter().for_each(|file| push("--mailrun-report", file.display().to_string()));
        if let Some(listen) = self.listen {
            push("--master-bind-host", listen.ip().to_string());
            push("--master-bind-port", listen.port().to_string());
        }
        match self.web {
            Some(web) => {
                push("--web-host", web.ip().to_string());
                push("--web-port", web.port().to_string());
            }
            None => {
                push("--expect-workers", self.workers.to_string());
                words.push("--headless".to_owned());
            }
        }
        words
    }
}

impl MasterArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let test = self.read()?;
        let interrupt = Interrupt::watch()?;
        let directory = tempfile::tempdir().context("cannot make a directory for the locustfile")?;
        let locustfile = directory.path().join("locustfile.py");
        fs::write(&locustfile, mailrun_locust::LOCUSTFILE)
            .with_context(|| format!("cannot write {}", locustfile.display()))?;
        let started = Command::new(&self.locust)
            .arg("-f")
            .arg(&locustfile)
            .args(test.arguments())
            .args(&self.arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            // Start Locust in its own process group, because it would otherwise receive Ctrl-C twice: from the
            // terminal, and from this process, which passes it on.
            .process_group(0)
            .spawn();
        let status = match started {
            Ok(child) => wait(child, &interrupt)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("{HOW_TO_INSTALL}"),
            Err(error) => return Err(anyhow!("cannot run {}: {error}", self.locust.display())),
        };
        io::stdout().flush()?;
        Ok(status_of(status))
    }

    fn read(&self) -> Result<ClusterTest> {
        let path = self.test.display();
        let text = text_file::read(&self.test, MAX_FILE_BYTES).with_context(|| format!("cannot read {path}"))?;
        let test: ClusterTest = toml_file::read(&text).map_err(|error| anyhow!(error.in_file(&self.test)))?;
        if test.stages.is_empty() {
            bail!("{path}: stages is empty; write at least one, such as \"60s:100\"");
        }
        Ok(test)
    }
}

/// Waits for Locust to exit. Each request to stop this process is passed on to Locust as SIGINT.
fn wait(mut child: Child, interrupt: &Interrupt) -> Result<ExitStatus> {
    let mut passed_on = StopRequest::Nothing;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let requested = interrupt.requested();
        if requested > passed_on {
            passed_on = requested;
            let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(process) = process {
                // Ignore the error, because Locust may have exited in the meantime.
                let _ = kill_process(process, Signal::INT);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Converts Locust's exit status into the status of this process. If a signal killed Locust, the status is 128 plus the
/// number of the signal, as in a shell.
fn status_of(status: ExitStatus) -> ExitCode {
    let by_signal = || status.signal().map_or(2, |signal| 128 + signal);
    ExitCode::from(u8::try_from(status.code().unwrap_or_else(by_signal)).unwrap_or(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_arguments_of_locust() {
        let text = "stages = [\"10s:10\", \"60s:10..200\"]\nworkers = 4\nthresholds = [\"p99<50ms\"]\nlisten = \"127.0.0.1:15557\"";
        let words = toml::from_str::<ClusterTest>(text).unwrap().arguments();
        for word in [
            "--mailrun-stages=10s:10,60s:10..200",
            "--mailrun-thresholds=p99<50ms",
            "--expect-workers=4",
            "--master-bind-port=15557",
            "--headless",
        ] {
            assert!(words.iter().any(|found| found == word), "{word}: {words:?}");
        }
        let with_page = format!("{text}\nweb = \"127.0.0.1:8089\"");
        let words = toml::from_str::<ClusterTest>(&with_page).unwrap().arguments();
        assert!(words.iter().any(|word| word == "--web-port=8089") && !words.iter().any(|word| word == "--headless"));
        assert!(toml::from_str::<ClusterTest>("stages = []\nusers = 3").is_err());
    }

    #[test]
    fn a_mistake_in_a_test_is_named_with_its_line() {
        let place = tempfile::tempdir().unwrap();
        let test = place.path().join("test.toml");
        fs::write(&test, "workers = 2\nstags = [\"10s:1\"]\n").unwrap();
        let master = MasterArgs { test, locust: PathBuf::new(), arguments: Vec::new() };
        let error = master.read().unwrap_err().to_string();
        assert!(error.contains("test.toml:2:1: ") && error.contains("stags"), "{error}");
    }
}
