//! Keeps a relay running across consecutive runs, because a server in production keeps running as well. If a run leaves
//! mail in the relay's queue, the relay is stopped, and the next run starts a new one.
//!
//! ```text
//! a new relay, at a sink's address that stays ─→ sink, load, all there ─→ sink, load, all there ─→ sink, load, some missing
//!      ↑                                                                            the relay stops, its queue is read ─┘
//!      └────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
use super::directory::RunDirectory;
use super::launch;
use super::parties::{PartyCommand, PartyObservation, PartyProcess};
use super::plan::{BenchOptions, SyscallCounting};
use super::relay::{CERTIFICATE_FILE, Relay};
use super::supervisor::{Completeness, StandingRelay, Supervisor};
use anyhow::{Context, Result};
use mailrun_measurement::record::{Cause, Record};
use mailrun_measurement::trace::RunId;
use mailrun_process::host_sampler::HostSampler;
use mailrun_process::interrupt::StopRequest;
use std::path::{Path, PathBuf};

/// Decides whether the bench starts a new relay for each run, or keeps a relay running for several runs.
#[derive(Debug, Default)]
pub(super) enum RelayKeeper {
    /// Each run starts a relay and stops it at the end.
    #[default]
    EachRun,
    /// A relay serves several runs, until a run leaves mail in the relay's queue.
    Kept(RelaySeries),
}

#[derive(Debug)]
pub(super) struct RelaySeries {
    /// Directory of the series, with a subdirectory for each relay.
    place: PathBuf,
    starts: u32,
    kept: Option<Box<KeptRelay>>,
    /// Number of relays that were stopped because a run had left mail in their queue.
    left_mail: u32,
    /// One sentence about each relay that died between two runs, and about each relay that was stopped because a
    /// process died during a run.
    deaths: Vec<String>,
}

#[derive(Debug)]
struct KeptRelay {
    directory: RunDirectory,
    /// Address of the sinks to which the relay forwards. Each run starts a new sink at this address.
    sink: String,
    address: String,
    /// `None` during a run, because the run's `Supervisor` then owns the relay's process.
    process: Option<StandingRelay>,
}

impl RelayKeeper {
    /// Makes the bench keep a relay running for several runs. Each relay gets a directory in `place`.
    pub(super) fn in_directory(place: &Path) -> Self {
        let place = place.to_owned();
        Self::Kept(RelaySeries { place, starts: 0, kept: None, left_mail: 0, deaths: Vec::new() })
    }

    /// Creates the supervisor, which starts and stops the processes of the next run. If a kept relay is still running,
    /// the supervisor takes it over.
    pub(super) fn supervisor(&mut self, options: &BenchOptions) -> Result<Supervisor> {
        match self {
            Self::Kept(series) if options.relay().is_some() => series.supervisor(options),
            _ => Supervisor::new(options),
        }
    }

    /// Starts the sink, and the relay if none is running. Returns the address to send mail to.
    pub(super) fn start(
        &mut self,
        program: &Path,
        options: &BenchOptions,
        run: RunId,
        directory: &RunDirectory,
        supervisor: &mut Supervisor,
        sampler: &mut HostSampler,
    ) -> Result<String> {
        match self {
            Self::Kept(series) if !is_running(options) => {
                series.start(program, options, run, directory, supervisor, sampler)
            }
            _ => {
                let start_sink = |supervisor: &mut Supervisor, listen: &str| {
                    supervisor.start_sink(PartyCommand::sink_at(program, options, run, directory, listen))
                };
                let listen = options.sink_listen();
                let (address, _) = start_both(program, options, directory, listen, start_sink, supervisor, sampler)?;
                Ok(address)
            }
        }
    }

    /// Returns the directory of the relay's files. This is the run's own directory, unless the
    /// relay serves several runs.
    pub(super) fn relay_directory<'a>(&'a self, run: &'a RunDirectory) -> &'a RunDirectory {
        match self {
            Self::Kept(RelaySeries { kept: Some(kept), .. }) => &kept.directory,
            _ => run,
        }
    }

    /// Returns true if the relay should keep running after this run. The queue must be empty, no
    /// process may have died, and the user must not have asked to stop. A relay under strace is
    /// always stopped, because strace writes its counts at the end.
    pub(super) fn keeps(&self, options: &BenchOptions, arrived: Completeness, supervisor: &Supervisor) -> bool {
        let is_series = matches!(self, Self::Kept(RelaySeries { kept: Some(_), .. }));
        let is_well = arrived == Completeness::All && supervisor.deaths().is_empty();
        is_series
            && is_well
            && supervisor.asked() == StopRequest::Nothing
            && options.syscall_counting == SyscallCounting::Off
    }

    /// Ends a run. If the relay is still running, takes it back from the supervisor, so that the next run can use it.
    /// Returns the supervisor's observations of the run's processes, such as their CPU time.
    pub(super) fn finish_run(&mut self, supervisor: Supervisor) -> Vec<PartyObservation> {
        let (observations, running) = supervisor.finish_run();
        if let Self::Kept(RelaySeries { kept: Some(kept), .. }) = self {
            kept.process = running;
        }
        observations
    }

    /// If the run has stopped the kept relay, forgets this relay, so that the next run starts a new one. Deletes the
    /// relay's spool only if no mail is missing, because missing mail may still be in the spool.
    pub(super) fn settle(&mut self, options: &BenchOptions, record: &Record) -> Result<()> {
        let Self::Kept(series) = self else { return Ok(()) };
        let Some(kept) = series.kept.take_if(|kept| kept.process.is_none()) else { return Ok(()) };
        match &record.verdict.causes {
            causes if causes.contains(&Cause::Interrupted) => {}
            causes if causes.contains(&Cause::Died) => {
                series.deaths.push("A process died during a trial, so the server was started anew.".to_owned())
            }
            _ if options.syscall_counting == SyscallCounting::Off => series.left_mail += 1,
            _ => {}
        }
        if record.ledger.lost.unwrap_or_default() == 0 && record.verdict.closed {
            kept.directory.remove_spool()?;
        }
        Ok(())
    }

    /// Stops the kept relay after the last run and deletes its spool.
    pub(super) fn finish(&mut self, options: &BenchOptions) -> Result<()> {
        let Self::Kept(series) = self else { return Ok(()) };
        let Some(kept) = series.kept.take() else { return Ok(()) };
        let KeptRelay { directory, process, .. } = *kept;
        if let Some(relay) = process {
            let mut supervisor = Supervisor::with_relay(options, relay)?;
            // Ignore how the relay exits, because all runs are finished and their results cannot change.
            supervisor.stop_relay(PartyProcess::terminate)?;
        }
        directory.remove_spool()
    }

    /// Returns remarks about relays that the bench replaced, for example because mail was left in their queue.
    pub(super) fn remarks(&self) -> Vec<String> {
        let Self::Kept(series) = self else { return Vec::new() };
        let mut remarks: Vec<String> = series.deaths.clone();
        match series.left_mail {
            0 => {}
            1 => {
                remarks.push("The server was started anew once, after a trial that left mail in its queue.".to_owned())
            }
            times => remarks
                .push(format!("The server was started anew {times} times, after trials that left mail in its queue.")),
        }
        remarks
    }
}

impl RelaySeries {
    fn supervisor(&mut self, options: &BenchOptions) -> Result<Supervisor> {
        let Some(mut relay) = self.kept.as_mut().and_then(|kept| kept.process.take()) else {
            return Supervisor::new(options);
        };
        match relay.exit()? {
            None => Supervisor::with_relay(options, relay),
            Some(how) => {
                self.deaths.push(format!("The server died between two trials ({how}), and was started anew."));
                self.kept.take().map_or(Ok(()), |kept| kept.directory.remove_spool())?;
                Supervisor::new(options)
            }
        }
    }

    fn start(
        &mut self,
        program: &Path,
        options: &BenchOptions,
        run: RunId,
        directory: &RunDirectory,
        supervisor: &mut Supervisor,
        sampler: &mut HostSampler,
    ) -> Result<String> {
        let start_sink = |supervisor: &mut Supervisor, listen: &str| {
            supervisor.start_sink(PartyCommand::sink_at(program, options, run, directory, listen))
        };
        if let Some(certificate) = &options.listener.certificate {
            directory.write(CERTIFICATE_FILE, &certificate.chain)?;
        }
        if let Some(kept) = &self.kept {
            start_sink(supervisor, &kept.sink)?;
            return Ok(kept.address.clone());
        }
        self.starts += 1;
        let place = self.place.join(format!("relay-{}", self.starts));
        let own = RunDirectory::create(Some(&place), &options.name, jiff::Timestamp::now())?;
        let listen = launch::free_port()?.to_string();
        let started = start_both(program, options, &own, &listen, start_sink, supervisor, sampler);
        let (address, sink) = started.inspect_err(|_| own.discard())?;
        self.kept = Some(Box::new(KeptRelay { directory: own, sink, address: address.clone(), process: None }));
        Ok(address)
    }
}

impl Drop for RelaySeries {
    /// Kills the relay and deletes its spool if the series ends because of an error.
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            let KeptRelay { directory, process, .. } = *kept;
            drop(process);
            // Ignore this error, because the user needs to see the error that ended the series.
            let _ = directory.remove_spool();
        }
    }
}

fn is_running(options: &BenchOptions) -> bool {
    matches!(options.relay(), Some(Relay::Running { .. }))
}

/// Starts the sink, and then the relay that hands mail on to it. If the relay delivers to mailboxes, the relay starts
/// first, because the sink opens the mailboxes when it starts. Returns the address of the relay, and the address of the
/// sink or, for mailboxes, the address at which the mailboxes can be read.
fn start_both(
    program: &Path,
    options: &BenchOptions,
    directory: &RunDirectory,
    listen: &str,
    start_sink: impl Fn(&mut Supervisor, &str) -> Result<String>,
    supervisor: &mut Supervisor,
    sampler: &mut HostSampler,
) -> Result<(String, String)> {
    if options.mailboxes().is_none() {
        let sink = start_sink(supervisor, listen)?;
        return Ok((start_relay(program, options, directory, &sink, supervisor, sampler)?, sink));
    }
    let mailboxes = launch::free_port()?.to_string();
    let address = start_relay(program, options, directory, &mailboxes, supervisor, sampler)?;
    start_sink(supervisor, &mailboxes)?;
    // Count the relay's CPU time only from now on. So far, the relay has spent CPU time on the sink's logins to the
    // mailboxes, which are not part of the run.
    supervisor.begin_relay_usage();
    Ok((address, mailboxes))
}

/// Starts the relay unless it is already running, and returns the address to send mail to.
fn start_relay(
    program: &Path,
    options: &BenchOptions,
    directory: &RunDirectory,
    sink: &str,
    supervisor: &mut Supervisor,
    sampler: &mut HostSampler,
) -> Result<String> {
    let relay = options.relay().context("no relay can be started")?;
    if let Relay::Running { address, .. } = relay {
        return Ok(address.clone());
    }
    let launch = launch::prepare(relay, options, program, directory, sink)?;
    // Restart the sampler, because preparing the relay, for example unpacking its root, is not part of the run.
    *sampler = HostSampler::start();
    let started = supervisor.start_relay(launch.context("no relay can be started")?);
    options.listener.remove_secrets(directory);
    started.map_err(|error| match relay {
        Relay::Recipe(recipe) => recipe.start_error(&error, &directory.spool()),
        _ => error,
    })
}
