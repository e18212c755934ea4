//! `--cpus` and related options, which select the processors on which a process runs.
use super::values;
use anyhow::{Context, Result, bail};
use clap::Args;
use mailrun_bench::BenchTarget;
use mailrun_bench::placement::{Placement, RelayPresence};
use mailrun_bench::relay::Relay;
use mailrun_net::BusyPoll;
use mailrun_process::cpus::CpuList;

/// The option `--cpus`, which selects the processors of this process.
#[derive(Args, Clone, Debug)]
pub(crate) struct CpusArg {
    /// Processors to run on: 0,1 or 0-3. Unless --workers is given, each of these processors gets a worker [default:
    /// all processors].
    #[arg(long, value_name = "LIST", hide_short_help = true)]
    cpus: Option<CpuList>,
}

impl CpusArg {
    /// Binds this process to the processors of `--cpus`. Must be called before a thread is started, because only later
    /// threads inherit the binding.
    ///
    /// # Errors
    ///
    /// Returns an error if a processor is not available.
    pub(crate) fn place(&self) -> Result<()> {
        self.cpus.as_ref().map_or(Ok(()), |cpus| cpus.place_this_process().context("--cpus"))
    }

    /// Returns the default number of workers: one for each processor of `--cpus`, or `None` without this option.
    pub(crate) fn workers(&self) -> Option<usize> {
        self.cpus.as_ref().map(|cpus| cpus.numbers().len())
    }
}

/// Options that say on which processors the processes of a bench run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Processors of the source: 0,1 or 0-3. If bench starts the source, the sink and any relay itself, and the host
    /// has at least 8 processors on 4 cores, each of these processes gets separate processors. --workers or an option
    /// for processors turns this off [default: all processors].
    #[arg(long, value_name = "LIST", hide_short_help = true)]
    source_cpus: Option<CpuList>,
    /// Processors of the bench's own sink.
    #[arg(long, value_name = "LIST", hide_short_help = true)]
    sink_cpus: Option<CpuList>,
    /// Processors of the relay that bench starts, and of all processes that the relay starts.
    #[arg(long, value_name = "LIST", hide_short_help = true)]
    relay_cpus: Option<CpuList>,
}

impl PlacementArgs {
    /// Refuses processors that are not available, and processors for a process that the bench does not start.
    pub(crate) fn check(&self, has_own_sink: bool, has_own_relay: bool) -> Result<()> {
        if self.relay_cpus.is_some() && !has_own_relay {
            bail!("--relay-cpus requires a relay that mailrun starts: start yours with taskset(1)");
        }
        if self.sink_cpus.is_some() && !has_own_sink {
            bail!("--sink-cpus requires the bench's own sink: give --cpus to the sink that you start");
        }
        let lists = [
            ("--source-cpus", &self.source_cpus),
            ("--sink-cpus", &self.sink_cpus),
            ("--relay-cpus", &self.relay_cpus),
        ];
        for (option, list) in lists {
            list.as_ref().map_or(Ok(()), CpuList::check).context(option)?;
        }
        Ok(())
    }

    /// Returns the processors on which each process of the bench may run. If the user gave neither processors nor a
    /// number of workers, and the bench starts all processes itself, each process gets processors of its own, provided
    /// that the host has enough of them.
    pub(crate) fn placement(&self, target: &BenchTarget, workers: Option<usize>) -> Placement {
        let Self { source_cpus: source, sink_cpus: sink, relay_cpus: relay } = self.clone();
        let typed = Placement { source, relay, sink };
        if !typed.is_empty() || workers.is_some() {
            return typed;
        }
        match target {
            BenchTarget::OwnSink => Placement::apart(RelayPresence::Absent),
            // By default, bind no process to processors, because somebody else started the server and chose its
            // processors.
            BenchTarget::Server { .. } | BenchTarget::Relay(Relay::Running { .. }) => typed,
            BenchTarget::Relay(_) => Placement::apart(RelayPresence::Present),
        }
    }
}

/// Options for the threads of a source or a sink, which a bench passes on to both.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ThreadArgs {
    /// Worker threads [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers)]
    pub(crate) workers: Option<usize>,
    #[command(flatten)]
    pub(crate) busy_poll: BusyPollArg,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BusyPollArg {
    /// Let each worker look for events for TIME, such as 50us or 1ms, before it sleeps. With few sessions, mailrun then
    /// notices replies sooner, but keeps processors busy. Use this option on hosts where --keep-awake is not permitted
    /// [default: off].
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    busy_poll: Option<BusyPoll>,
}

impl BusyPollArg {
    pub(crate) fn value(self) -> BusyPoll {
        self.busy_poll.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Option<CpuList> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn options_place_parties_and_nothing_else_does_then() {
        let typed = PlacementArgs { sink_cpus: list("1"), ..PlacementArgs::default() };
        let placement = typed.placement(&BenchTarget::OwnSink, None);
        assert_eq!(placement, Placement { sink: list("1"), ..Placement::default() });
        assert!(PlacementArgs::default().placement(&BenchTarget::OwnSink, Some(3)).is_empty());
        let server = BenchTarget::Server { address: "127.0.0.1:25".to_owned(), sink: None };
        assert!(PlacementArgs::default().placement(&server, None).is_empty());
    }

    #[test]
    fn only_a_party_of_the_bench_can_be_placed() {
        let typed = PlacementArgs { sink_cpus: list("0"), ..PlacementArgs::default() };
        assert!(typed.check(false, false).unwrap_err().to_string().starts_with("--sink-cpus requires"));
        let typed = PlacementArgs { relay_cpus: list("0"), ..PlacementArgs::default() };
        assert!(typed.check(true, false).unwrap_err().to_string().starts_with("--relay-cpus requires"));
        let typed = PlacementArgs { source_cpus: list("1023"), ..PlacementArgs::default() };
        let error = format!("{:#}", typed.check(true, true).unwrap_err());
        assert!(error.starts_with("--source-cpus: processor 1023 is not available; available: "), "{error}");
    }
}
