//! The broker of a run: the stand-in with queues of its own, the stand-in on a broker, or a broker alone.
use super::contestants::Queues;
use super::{CompareOptions, Way};
use crate::bench::tables::Timed;
use crate::live::Event;
use crate::users::PASSWORD_VARIABLE;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Limit of the time in which a stand-in gets ready, and in which it ends when asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// The default user of go-mades-bench; the embedded listener lets anybody in.
const USER: &str = "endpoint";
const PASSWORD: &str = "password";

/// Address of a contestant's broker.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) url: String,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) cacert: Option<PathBuf>,
    /// Set if other runs used the broker before.
    pub(super) is_shared: bool,
}

/// A broker, and the stand-in on it where the way needs one.
pub(super) struct Ground {
    pub(super) address: Address,
    stand_in: Option<Timed>,
}

impl Ground {
    /// Makes it ready; `place` is where its output goes.
    ///
    /// # Errors
    /// If the stand-in cannot start.
    pub(super) fn prepare(own: &Path, options: &CompareOptions, place: &Path) -> Result<Self> {
        let Some(broker) = &options.broker else {
            let (stand_in, url) = start(own, options, place, |command| {
                command.args(["--embedded", "--listen", "127.0.0.1:0"]);
            })?;
            let (user, password) = (USER.to_owned(), PASSWORD.to_owned());
            let url = url.context("the stand-in did not report its address")?;
            let address = Address { url, user, password, cacert: None, is_shared: false };
            return Ok(Self { address, stand_in: Some(stand_in) });
        };
        let address = Address {
            url: broker.url.clone(),
            user: broker.user.clone(),
            password: broker.password.clone(),
            cacert: broker.cacert.clone(),
            is_shared: true,
        };
        let stand_in = match options.way {
            Way::Amqp => None,
            Way::Endpoint | Way::Toolbox | Way::Tracing => Some(start(own, options, place, |command| {
                command.args(["--broker", &broker.url]);
                command.args(["--user", &broker.user]).env(PASSWORD_VARIABLE, &broker.password);
                if let Some(cacert) = &broker.cacert {
                    command.arg("--cacert").arg(cacert);
                }
            })?),
        };
        Ok(Self { address, stand_in: stand_in.map(|(process, _)| process) })
    }

    /// Ends it; processor time that the stand-in has used.
    ///
    /// # Errors
    /// If the stand-in has ended by itself.
    pub(super) fn clear(mut self) -> Result<Option<f64>> {
        let Some(mut stand_in) = self.stand_in.take() else { return Ok(None) };
        if stand_in.ends()? {
            let words = stand_in.last_words();
            bail!("the stand-in ended during the run: {}", words.as_deref().unwrap_or("no output"));
        }
        let (_, costs) = stand_in.stop(PATIENCE)?;
        Ok(Some(costs.cpu_s()))
    }
}

/// Starts a stand-in and waits until it is ready; where it listens itself.
fn start(
    own: &Path,
    options: &CompareOptions,
    place: &Path,
    tell: impl FnOnce(&mut Command),
) -> Result<(Timed, Option<String>)> {
    let mut command = Command::new(own);
    command.args(["mades-endpoint", "--live", "json"]);
    tell(&mut command);
    command.args(Queues::of(options).words(options.way));
    match options.way {
        Way::Amqp => {}
        // go-mades-bench waits for ever for what the protocol has.
        Way::Tracing => drop(command.args(["--mode", "tracing", "--go-mades-bench-compat"])),
        way => drop(command.args(["--mode", way.name()])),
    }
    if options.drop > 0.0 {
        command.args(["--drop", &options.drop.to_string()]);
    }
    let said = place.join("stand-in.out");
    command.stdout(File::create(&said).with_context(|| format!("cannot write {}", said.display()))?);
    let mut process = Timed::start(command)?;
    loop {
        let has_ended = process.ends()?;
        let text = fs::read_to_string(&said).unwrap_or_default();
        let ready = text.lines().find_map(|line| match Event::from_line(line) {
            Some(Event::Ready { amqp }) => Some(amqp),
            _ => None,
        });
        if let Some(amqp) = ready.filter(|_| !has_ended) {
            return Ok((process, amqp.first().map(|address| format!("amqp://{address}"))));
        }
        if has_ended {
            let words = process.last_words();
            bail!("the stand-in ended before it was ready: {}", words.as_deref().unwrap_or("no output"));
        }
        ensure!(process.age() < PATIENCE, "the stand-in was not ready within {} s", PATIENCE.as_secs());
    }
}
