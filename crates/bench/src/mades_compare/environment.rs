//! Provides the broker for a run. If the user names no broker, the run uses the broker that is embedded in the
//! simulated endpoint. If the user names a broker, a simulated endpoint connects to it, except in the mode `amqp`.
use super::options::{CompareMode, CompareOptions, CompareQueues};
use crate::engine::TimedChild;
use anyhow::{Context, Result};
use mailrun_process::live::LiveEvent;
use mailrun_process::party_options::value_name;
use mailrun_process::users::PASSWORD_VARIABLE;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for the simulated endpoint to become ready, and for it to exit when it is asked to.
const STAND_IN_TIMEOUT: Duration = Duration::from_secs(10);
/// User for the embedded broker, which admits any user. This name is the default of go-mades-bench.
const USER: &str = "endpoint";
const PASSWORD: &str = "password";

#[derive(Clone)]
pub(super) struct BrokerAddress {
    pub(super) url: String,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) cacert: Option<PathBuf>,
    /// Set if all runs use the same broker, so that its queues may still hold messages of earlier runs.
    pub(super) is_shared: bool,
}

impl BrokerAddress {
    /// Returns the scheme and the host of the broker's URL, for quiver and `artemis perf`. A login in the URL is left
    /// out, because these programs get it from `user` and `password`.
    pub(super) fn scheme_and_host(&self) -> (&str, &str) {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("amqp", &self.url));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        (scheme, host.trim_end_matches('/'))
    }
}

pub(super) struct CompareEnvironment {
    pub(super) address: BrokerAddress,
    stand_in: Option<TimedChild>,
}

impl CompareEnvironment {
    /// Starts the simulated endpoint if the run needs one. Its output goes into `directory`.
    ///
    /// # Errors
    /// Fails if the simulated endpoint cannot start.
    pub(super) fn prepare(own: &Path, options: &CompareOptions, directory: &Path) -> Result<Self> {
        let Some(broker) = &options.broker else {
            let (stand_in, url) = start_stand_in(own, options, directory, |command| {
                command.args(["--embedded", "--listen", "127.0.0.1:0"]);
            })?;
            let user = USER.to_owned();
            let password = PASSWORD.to_owned();
            let url = url.context("the stand-in did not report its address")?;
            let address = BrokerAddress { url, user, password, cacert: None, is_shared: false };
            return Ok(Self { address, stand_in: Some(stand_in) });
        };
        let address = BrokerAddress {
            url: broker.url.clone(),
            user: broker.user.clone(),
            password: broker.password.clone(),
            cacert: broker.cacert.clone(),
            is_shared: true,
        };
        let stand_in = match options.mode {
            CompareMode::Amqp => None,
            CompareMode::Endpoint | CompareMode::Toolbox | CompareMode::Tracing => {
                Some(start_stand_in(own, options, directory, |command| {
                    command.args(["--broker", &broker.url]);
                    command.args(["--user", &broker.user]).env(PASSWORD_VARIABLE, &broker.password);
                    if let Some(cacert) = &broker.cacert {
                        command.arg("--cacert").arg(cacert);
                    }
                })?)
            }
        };
        Ok(Self { address, stand_in: stand_in.map(|(process, _)| process) })
    }

    /// Stops the simulated endpoint. Returns the CPU time in seconds that it has used, or `None` if the run has no
    /// simulated endpoint.
    ///
    /// # Errors
    /// Fails if the simulated endpoint has exited by itself.
    pub(super) fn stop(mut self) -> Result<Option<f64>> {
        let Some(mut stand_in) = self.stand_in.take() else { return Ok(None) };
        stand_in.ensure_running("the stand-in")?;
        let (_, costs) = stand_in.stop(STAND_IN_TIMEOUT)?;
        Ok(Some(costs.cpu_s()))
    }
}

/// Starts a simulated endpoint and waits until it is ready. Returns its process, and the URL of its embedded broker if
/// it has one.
fn start_stand_in(
    own: &Path,
    options: &CompareOptions,
    directory: &Path,
    tell: impl FnOnce(&mut Command),
) -> Result<(TimedChild, Option<String>)> {
    let mut command = Command::new(own);
    command.arg("mades-endpoint");
    tell(&mut command);
    command.args(CompareQueues::of(options).arguments(options.mode));
    match options.mode {
        CompareMode::Amqp => {}
        // go-mades-bench waits for DELIVERED events, but in the protocol, the endpoint sends TRACING events. Without
        // this flag, go-mades-bench would wait forever.
        CompareMode::Tracing => drop(command.args(["--mode", "tracing", "--go-mades-bench-compat"])),
        way => drop(command.args(["--mode", &value_name(way)])),
    }
    if options.drop > 0.0 {
        command.args(["--drop", &options.drop.to_string()]);
    }
    let output = directory.join("stand-in.out");
    let (process, amqp) =
        TimedChild::start_reporting(command, &output, "the stand-in", STAND_IN_TIMEOUT, |event| match event {
            LiveEvent::Ready { amqp } => Some(amqp),
            _ => None,
        })?;
    Ok((process, amqp.first().map(|address| format!("amqp://{address}"))))
}
