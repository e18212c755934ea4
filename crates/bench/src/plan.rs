//! Options of a bench run, and the command-line options that the bench passes to its sink and its source.
use super::directory::PartyFiles;
use super::placement::Placement;
use super::recipe::MailboxKeys;
use super::relay::{CERTIFICATE_FILE, ListenerOptions, Relay};
use mailrun_measurement::record::{Arrival, Workload};
use mailrun_measurement::threshold::Threshold;
use mailrun_measurement::trace::RunId;
use mailrun_process::cpus::CpuList;
use mailrun_process::live::LiveMode;
use mailrun_process::local_address::is_on_this_host;
use mailrun_process::party_options::{PartyOptions, value_name};
use std::path::PathBuf;
use std::time::Duration;

/// Duration of a bench without a relay, if the user gave neither a number of messages nor a duration.
const DEFAULT_DURATION_S: f64 = 10.0;
/// Duration of a bench with a relay, if the user gave neither a number of messages nor a duration. It is shorter than
/// `DEFAULT_DURATION_S`, because after the load, the relay may need the same time to forward the accepted mail.
const RELAYED_DURATION_S: f64 = 8.0;
/// Address on which the bench's own sink listens. Because of port 0, the kernel chooses a free port.
const ANY_PORT: &str = "127.0.0.1:0";

/// Option that makes a sink watch mailboxes instead of listening.
const MAILBOX: &str = "mailbox";

/// Source option that omits the trace line, so that the sink cannot recognise the messages.
pub(super) const NO_TRACE: &str = "no-trace";

#[derive(Clone, Debug, Default)]
pub struct BenchOptions {
    pub name: String,
    /// Run directory, or `None` for a new one under `mailrun-results/`.
    pub out: Option<PathBuf>,
    /// ID of the run, or `None` for a random one.
    pub run: Option<RunId>,
    pub target: BenchTarget,
    /// The part of the load that the bench itself has to know, such as the number of messages. The
    /// record contains the whole load, as the source describes it.
    pub workload: Workload,
    /// Further options for the source, such as its recipients and the sizes of messages. If the bench derives an option
    /// from `workload`, such as `--rate`, the derived value replaces an option of that name in this field.
    pub source_options: PartyOptions,
    /// Further options for the sink, such as its fault rules.
    pub sink_options: PartyOptions,
    /// Options for each of mailrun's own processes: `--workers` and `--busy-poll`.
    pub party_options: PartyOptions,
    /// Says whether the relay runs under strace, which counts its system calls but slows it down.
    pub syscall_counting: SyscallCounting,
    /// Number of processors that the server under test may use, if the bench starts it. `None` means all of them.
    pub server_cores: Option<u32>,
    pub placement: Placement,
    pub trusted: TrustedCertificate,
    pub listener: ListenerOptions,
    pub thresholds: Vec<Threshold>,
    /// Says whether the source tries one connection before the load. The bench turns this off for
    /// servers that it has started itself, because they are known to be ready.
    pub preflight: BenchPreflight,
    /// HTTP addresses of sinks whose clocks are compared with the clock of this host. They are set if this run sends
    /// only a part of a load. `mailrun merge` needs this comparison to judge the latencies of all parts.
    pub clock_sinks: Vec<String>,
    /// If no message arrives for this long, the messages that are still missing count as lost. `None` means 2 s, or
    /// 10 s if a server passes the mail on to the sink.
    pub lost_after: Option<Duration>,
    /// HTTP address of a second sink, to which the server sends notifications of mail that it could not deliver.
    pub bounces_to: Option<String>,
    pub live: LiveMode,
    /// Name of the run in the progress line, if it is one of several runs.
    pub title: Option<String>,
    /// Command line that the user typed, for the record.
    pub command: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrustedCertificate {
    /// The source's own options, for example `--cacert`, decide which certificates it trusts.
    #[default]
    Configured,
    /// The source trusts only the certificate that the bench's own sink writes into the run directory.
    OwnSink,
    /// The source trusts only the certificate of the relay that the bench starts.
    OwnRelay,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BenchPreflight {
    On,
    #[default]
    Off,
}

/// Target of the load, which also determines the sink that observes deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BenchTarget {
    /// A sink that the bench starts for itself.
    #[default]
    OwnSink,
    /// A relay that forwards to the bench's own sink. Use `OwnSink` instead of `Relay::None`, which is not allowed
    /// here.
    Relay(Relay),
    /// A server that was running before the bench.
    Server {
        /// `HOST:PORT` of the server.
        address: String,
        /// HTTP address of the mailrun sink to which the server passes the mail on. `None` if no sink observes
        /// deliveries.
        sink: Option<String>,
    },
}

impl BenchTarget {
    /// Returns the target for a relay or, for `Relay::None`, the bench's own sink.
    pub fn of(relay: Relay) -> Self {
        match relay {
            Relay::None => Self::OwnSink,
            relay => Self::Relay(relay),
        }
    }

    /// Reports whether a server under test runs on this host, next to the load generator.
    pub fn has_server_here(&self) -> bool {
        match self {
            Self::OwnSink => false,
            Self::Server { address, .. } | Self::Relay(Relay::Running { address, .. }) => is_on_this_host(address),
            Self::Relay(_) => true,
        }
    }

    pub(super) fn remote_sink(&self) -> Option<&str> {
        match self {
            Self::OwnSink | Self::Relay(_) => None,
            Self::Server { sink, .. } => sink.as_deref(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SyscallCounting {
    #[default]
    Off,
    /// Path of the strace program, which counts the relay's system calls.
    Strace(PathBuf),
}

impl BenchOptions {
    /// Returns the maximum duration of the run in seconds, or `None` if only the number of messages is limited. If the
    /// user limited neither the duration nor the number of messages, a default limit applies.
    pub(super) fn duration_limit_s(&self) -> Option<f64> {
        let workload = &self.workload;
        let default_s = if self.relay().is_some() { RELAYED_DURATION_S } else { DEFAULT_DURATION_S };
        workload.duration_limit_s.or(workload.messages.is_none().then_some(default_s))
    }

    pub(super) fn has_trace(&self) -> bool {
        !self.source_options.has(NO_TRACE)
    }

    pub(super) fn relay(&self) -> Option<&Relay> {
        match &self.target {
            BenchTarget::Relay(relay) => Some(relay),
            BenchTarget::OwnSink | BenchTarget::Server { .. } => None,
        }
    }

    /// Returns the mailboxes that the sink has to watch, if the bench starts a server that delivers to mailboxes.
    pub(super) fn mailboxes(&self) -> Option<&MailboxKeys> {
        self.relay()?.mailboxes()
    }

    pub(super) fn sink_listen(&self) -> &str {
        match self.relay() {
            Some(Relay::Running { sink, .. }) => sink,
            _ => ANY_PORT,
        }
    }

    /// Makes the options for `mailrun sink`, which listens at the address `listen` or watches the mailboxes of a server
    /// at this address.
    pub(super) fn sink_arguments(&self, run: RunId, files: &PartyFiles, listen: &str) -> PartyOptions {
        let own_certificate = (self.trusted == TrustedCertificate::OwnSink).then(|| files.certificate());
        let mailboxes = self.mailboxes().map(|mailboxes| mailboxes.sink_options(listen)).unwrap_or_default();
        let sink_options = self.sink_options.clone().and(mailboxes);
        // Give no listening address to a sink that watches mailboxes, because it accepts no connections.
        let listen = Some(listen).filter(|_| !sink_options.has(MAILBOX));
        of_party(run, files)
            .and(self.party_options.clone())
            .and(sink_options)
            .with_some("listen", listen)
            // A relay may deliver messages that it did not answer with 250, so a count does not show that all accepted
            // messages have arrived. This HTTP port lets the bench ask the sink which messages it has.
            .with_some("http", self.relay().map(|_| "127.0.0.1:0"))
            .with("seed", self.workload.seed)
            .with_some("tls-write-cert", own_certificate)
            .with_some("cpus", self.placement.sink.as_ref())
    }

    /// Makes the options for `mailrun source`, which sends the load to `target`.
    pub(super) fn source_arguments(&self, run: RunId, files: &PartyFiles, target: &str) -> PartyOptions {
        let workload = &self.workload;
        let limit_s = self.duration_limit_s().filter(|_| workload.stages.is_empty());
        let arrival = Some(workload.arrival).filter(|arrival| !matches!(arrival, Arrival::Closed | Arrival::Market));
        // Send no preflight message to a server that the bench has just started. This server is known to be ready, and
        // the message might use up a fault rule that is meant for the load.
        let is_own = !matches!(self.target, BenchTarget::Server { .. } | BenchTarget::Relay(Relay::Running { .. }));
        let options = of_party(run, files)
            .and(self.party_options.clone())
            .and(self.source_options.clone())
            .and(self.mailboxes().map(MailboxKeys::source_options).unwrap_or_default())
            .argument(target)
            .with_some("messages", workload.messages)
            .with_some("duration", limit_s.map(|limit_s| format!("{}ms", (limit_s * 1e3).round() as u64)))
            .with("sessions", workload.sessions)
            .with("pipelining", value_name(workload.pipelining))
            .with("seed", workload.seed)
            .with_some("rate", workload.rate_per_s.filter(|_| arrival.is_some()))
            .with_some("arrival", arrival.map(value_name))
            .with_some("cpus", self.placement.source.as_ref())
            .flag("no-preflight", is_own || self.preflight == BenchPreflight::Off);
        match self.trusted {
            TrustedCertificate::Configured => options,
            TrustedCertificate::OwnSink => options.with("cacert", files.certificate()),
            TrustedCertificate::OwnRelay => {
                options.with("cacert", files.record.with_file_name(CERTIFICATE_FILE).display())
            }
        }
    }
}

fn of_party(run: RunId, files: &PartyFiles) -> PartyOptions {
    PartyOptions::default()
        .with("run-id", run)
        .with("json", files.record.display())
        .with("ledger", files.ledger.display())
        .with("hlog", files.intervals.display())
        .with("live", "json")
}

/// Returns the command-line option that makes a mailrun process run only on the processors in `cpus`. The process then
/// starts one worker for each of these processors.
pub(super) fn cpus_option(cpus: &CpuList) -> String {
    format!("--cpus={cpus}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::RelayDurability;
    use mailrun_measurement::record::OfferedStage;

    fn options(workload: Workload) -> BenchOptions {
        BenchOptions {
            name: "quick".to_owned(),
            workload,
            source_options: PartyOptions::default().flag("reuse", true),
            party_options: PartyOptions::default().with("workers", 2),
            sink_options: PartyOptions::default().with("fault", "drop"),
            preflight: BenchPreflight::On,
            live: LiveMode::Off,
            ..BenchOptions::default()
        }
    }

    fn files() -> PartyFiles {
        PartyFiles { record: "d/p.json".into(), ledger: "d/p.ledger".into(), intervals: "d/p.hlog".into() }
    }

    fn source_line(workload: Workload) -> String {
        options(workload).source_arguments(RunId([1; 16]), &files(), "127.0.0.1:25").words().join(" ")
    }

    #[test]
    fn a_bench_without_an_end_takes_ten_seconds() {
        assert!(source_line(Workload::default()).contains("--duration=10000ms"));
        let counted = source_line(Workload { messages: Some(5), ..Workload::default() });
        assert!(counted.contains("--messages=5") && !counted.contains("--duration"), "{counted}");
    }

    #[test]
    fn messages_have_a_trace_unless_the_source_is_told_otherwise() {
        let mut options = options(Workload::default());
        assert!(options.has_trace());
        options.source_options = options.source_options.flag(NO_TRACE, true);
        assert!(!options.has_trace());
    }

    #[test]
    fn a_server_is_here_unless_it_is_elsewhere() {
        let running = |address: &str| Relay::Running { address: address.to_owned(), sink: ANY_PORT.to_owned() };
        let server = |address: &str| BenchTarget::Server { address: address.to_owned(), sink: None };
        assert!(!BenchTarget::OwnSink.has_server_here());
        assert!(BenchTarget::Relay(Relay::Mailrun(RelayDurability::Sync)).has_server_here());
        for (address, is_here) in [("127.0.0.1:25", true), ("192.0.2.1:25", false)] {
            assert_eq!(server(address).has_server_here(), is_here);
            assert_eq!(BenchTarget::Relay(running(address)).has_server_here(), is_here);
        }
    }

    #[test]
    fn a_relay_that_is_running_is_given_its_sink() {
        let relay = Relay::Running { address: "127.0.0.1:25".to_owned(), sink: "127.0.0.1:2526".to_owned() };
        let options = BenchOptions { target: BenchTarget::Relay(relay), ..options(Workload::default()) };
        assert_eq!(options.sink_listen(), "127.0.0.1:2526");
        assert_eq!(options.duration_limit_s(), Some(RELAYED_DURATION_S));
    }

    #[test]
    fn stages_have_an_end_of_their_own() {
        let stage = OfferedStage { name: None, length_s: 30.0, from_per_s: 1.0, to_per_s: 2.0 };
        let arrival = Arrival::Poisson;
        let staged = Workload { duration_limit_s: Some(30.0), stages: vec![stage], arrival, ..Workload::default() };
        let words = source_line(staged);
        assert!(!words.contains("--duration") && !words.contains("--rate"), "{words}");
        assert!(words.contains("--arrival=poisson") && words.ends_with("--workers=2"), "{words}");
    }

    #[test]
    fn the_sink_watches_the_mailboxes_of_a_relay_that_has_some_and_the_source_sends_to_them() {
        let relay = BenchTarget::Relay("dovecot".parse().unwrap());
        let options =
            BenchOptions { target: relay, sink_options: PartyOptions::default(), ..options(Workload::default()) };
        let sink = options.sink_arguments(RunId([1; 16]), &files(), "127.0.0.1:1143").words().join(" ");
        assert!(
            sink.contains("--mailbox=imap://user{0..99}@127.0.0.1:1143 --mailbox-domain=mail.example")
                && !sink.contains("--listen"),
            "{sink}"
        );
        let source = options.source_arguments(RunId([1; 16]), &files(), "127.0.0.1:24").words().join(" ");
        assert!(source.contains("--to=user{0..99}@mail.example") && source.contains("--lmtp "), "{source}");
    }

    #[test]
    fn open_loop_is_handed_on_and_closed_loop_is_silent() {
        let open = Workload { arrival: Arrival::Poisson, rate_per_s: Some(1_000.0), ..Workload::default() };
        assert!(source_line(open).contains("--rate=1000"));
        assert!(!source_line(Workload::default()).contains("--rate"));
    }

    #[test]
    fn a_sink_is_told_its_faults() {
        let words = options(Workload::default()).sink_arguments(RunId([1; 16]), &files(), ANY_PORT).words().join(" ");
        let own = "--fault=drop --hlog=d/p.hlog --json=d/p.json --ledger=d/p.ledger --listen=127.0.0.1:0 --live=json";
        assert!(words.starts_with(own) && words.ends_with("--workers=2"), "{words}");
    }
}
