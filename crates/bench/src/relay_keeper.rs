//! The relay of runs that follow each other: it runs on from one to the next, as a server does, while nothing is left in its
//! queue.
//!
//! ```text
//! a new relay, at a sink's address that stays ─→ sink, load, all there ─→ sink, load, all there ─→ sink, load, some missing
//!      ↑                                                                            the relay stops, its queue is read ─┘
//!      └────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
use super::contestant::{CERTIFICATE_FILE, Contestant};
use super::directory::RunDirectory;
use super::launch;
use super::parties::{PartyCommand, PartyObservation, PartyProcess};
use super::plan::{BenchOptions, SyscallCounting};
use super::supervisor::{Completeness, StandingRelay, Supervisor};
use anyhow::{Context, Result};
use mailrun_journey::record::{Cause, Record};
use mailrun_journey::trace::RunId;
use mailrun_party::interrupt::StopRequest;
use std::path::{Path, PathBuf};

/// Says how long a relay that the bench starts lives.
#[derive(Debug, Default)]
pub(super) enum RelayKeeper {
    /// As long as the run.
    #[default]
    EachRun,
    /// From one run to the next.
    Kept(RelaySeries),
}

/// The relays of a series of runs, one after the other.
#[derive(Debug)]
pub(super) struct RelaySeries {
    /// Directory of the series, with one for each relay.
    place: PathBuf,
    starts: u32,
    kept: Option<Box<KeptRelay>>,
    /// Relays that were stopped with mail in their queue.
    left_mail: u32,
    /// Sentences on relays that died between two runs.
    deaths: Vec<String>,
}

/// A relay that serves more than one run.
#[derive(Debug)]
struct KeptRelay {
    directory: RunDirectory,
    /// Address of the sinks that it hands on to, one after the other.
    sink: String,
    address: String,
    /// `None` during a run.
    process: Option<StandingRelay>,
}

impl RelayKeeper {
    /// Keeps relays, with a directory for each in `place`.
    pub(super) fn in_directory(place: &Path) -> Self {
        let place = place.to_owned();
        Self::Kept(RelaySeries { place, starts: 0, kept: None, left_mail: 0, deaths: Vec::new() })
    }

    /// A supervisor of the next run; the relay is with it if it runs.
    ///
    /// # Errors
    /// If signals cannot be handled.
    pub(super) fn supervisor(&mut self, options: &BenchOptions) -> Result<Supervisor> {
        match self {
            Self::Kept(series) if options.relay().is_some() => series.supervisor(options),
            _ => Supervisor::new(options),
        }
    }

    /// Starts the sink, and the relay if it does not run; the address at which the relay takes mail.
    ///
    /// # Errors
    /// If one of them cannot run.
    pub(super) fn start(
        &mut self,
        program: &Path,
        options: &BenchOptions,
        run: RunId,
        directory: &RunDirectory,
        supervisor: &mut Supervisor,
    ) -> Result<String> {
        match self {
            Self::Kept(series) if !is_running(options) => series.start(program, options, run, directory, supervisor),
            _ => {
                let sink = supervisor.start_sink(PartyCommand::sink(program, options, run, directory))?;
                start_relay(program, options, directory, &sink, supervisor)
            }
        }
    }

    /// The directory of the relay's files: that of the run, unless it serves others too.
    pub(super) fn relay_directory<'a>(&'a self, run: &'a RunDirectory) -> &'a RunDirectory {
        match self {
            Self::Kept(RelaySeries { kept: Some(kept), .. }) => &kept.directory,
            _ => run,
        }
    }

    /// Reports whether the relay is to run on after a run: nothing of it is left in its queue.
    pub(super) fn keeps(&self, options: &BenchOptions, arrived: Completeness, supervisor: &Supervisor) -> bool {
        let is_series = matches!(self, Self::Kept(RelaySeries { kept: Some(_), .. }));
        let is_well = arrived == Completeness::All && supervisor.deaths().is_empty();
        is_series
            && is_well
            && supervisor.asked() == StopRequest::Nothing
            && options.syscall_counting == SyscallCounting::Off
    }

    /// Ends a run; gives what was seen of its parties.
    pub(super) fn finish_run(&mut self, supervisor: Supervisor) -> Vec<PartyObservation> {
        let (observations, running) = supervisor.finish_run();
        if let Self::Kept(RelaySeries { kept: Some(kept), .. }) = self {
            kept.process = running;
        }
        observations
    }

    /// Leaves a relay that was stopped behind. Its directory stays if it may have mail that is missing.
    ///
    /// # Errors
    /// If its spool cannot be removed.
    pub(super) fn settle(&mut self, record: &Record) -> Result<()> {
        let Self::Kept(series) = self else { return Ok(()) };
        let Some(kept) = series.kept.take_if(|kept| kept.process.is_none()) else { return Ok(()) };
        series.left_mail += u32::from(!record.verdict.causes.contains(&Cause::Interrupted));
        if record.ledger.lost.unwrap_or_default() == 0 && record.verdict.closed {
            kept.directory.remove_spool()?;
        }
        Ok(())
    }

    /// Stops the relay: there are no more runs.
    ///
    /// # Errors
    /// If it does not stop, or its spool cannot be removed.
    pub(super) fn finish(&mut self, options: &BenchOptions) -> Result<()> {
        let Self::Kept(series) = self else { return Ok(()) };
        let Some(kept) = series.kept.take() else { return Ok(()) };
        let KeptRelay { directory, process, .. } = *kept;
        if let Some(relay) = process {
            let mut supervisor = Supervisor::with_relay(options, relay)?;
            // What it complains of at its end concerns no run.
            supervisor.stop_relay(PartyProcess::terminate)?;
        }
        directory.remove_spool()
    }

    /// Remarks on relays that did not run from the first run to the last.
    pub(super) fn remarks(&self) -> Vec<String> {
        let Self::Kept(series) = self else { return Vec::new() };
        let mut remarks: Vec<String> = series.deaths.clone();
        match series.left_mail {
            0 => {}
            1 => remarks.push("The relay was started anew once, after a trial that left mail in its queue.".to_owned()),
            times => remarks
                .push(format!("The relay was started anew {times} times, after trials that left mail in its queue.")),
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
                self.deaths.push(format!("The relay died between two trials ({how}), and was started anew."));
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
        let sink = start_sink(supervisor, &launch::free_port()?.to_string())?;
        let started = start_relay(program, options, &own, &sink, supervisor);
        let address = started.inspect_err(|_| own.discard())?;
        self.kept = Some(Box::new(KeptRelay { directory: own, sink, address: address.clone(), process: None }));
        Ok(address)
    }
}

impl Drop for RelaySeries {
    /// Leaves no mail behind where the series could not be ended.
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            let KeptRelay { directory, process, .. } = *kept;
            drop(process);
            // The error that is on its way to the user matters more.
            let _ = directory.remove_spool();
        }
    }
}

/// Reports whether the relay is the user's own, and running.
fn is_running(options: &BenchOptions) -> bool {
    matches!(options.relay(), Some(Contestant::Running { .. }))
}

/// Starts the relay, if it is not running already; where it takes mail.
fn start_relay(
    program: &Path,
    options: &BenchOptions,
    directory: &RunDirectory,
    sink: &str,
    supervisor: &mut Supervisor,
) -> Result<String> {
    let relay = options.relay().context("no relay can be started")?;
    if let Contestant::Running { address, .. } = relay {
        return Ok(address.clone());
    }
    let launch = launch::prepare(relay, options, program, directory, sink)?;
    let started = supervisor.start_relay(launch.context("no relay can be started")?);
    options.listener.remove_secrets(directory);
    started.map_err(|error| match relay {
        Contestant::Recipe(recipe) => recipe.start_error(&error, &directory.spool()),
        _ => error,
    })
}
