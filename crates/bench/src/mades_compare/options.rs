use crate::engine::RoundOrder;
use clap::ValueEnum;
use mailrun_process::live::LiveMode;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MadesTool {
    /// The original MADES bench, the model of `mailrun mades`
    GoMadesBench,
    /// This program: `mailrun mades`
    Mailrun,
    /// quiver with Qpid Proton's client for C
    Quiver,
    /// quiver with Qpid Proton's client for Python
    QuiverPython,
    /// Apache Artemis' bench: `artemis perf client --protocol amqp`
    ArtemisPerf,
}

impl MadesTool {
    /// Returns true if the tool only sends messages into a queue and takes them out again.
    pub fn is_plain_amqp(self) -> bool {
        matches!(self, Self::Quiver | Self::QuiverPython | Self::ArtemisPerf)
    }

    /// Returns true if the comparison runs the tool with this send window. quiver always sends as much as the broker
    /// gives it credit for, and has no option for a window. `artemis perf` is not run with its default window of 1,
    /// because it would wait for each message, unlike the tools that it is compared with.
    pub fn takes(self, window: SendWindow) -> bool {
        match self {
            Self::GoMadesBench | Self::Mailrun => true,
            Self::Quiver | Self::QuiverPython => window == SendWindow::Defaults,
            Self::ArtemisPerf => window != SendWindow::Defaults,
        }
    }

    /// Returns true if the tool empties the queues when it starts.
    pub(super) fn purges(self) -> bool {
        !self.is_plain_amqp()
    }
}

/// Servers between the sender and the receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareMode {
    /// The broker only: messages into a queue and out of it
    Amqp,
    /// Messages via an ECP endpoint
    Endpoint,
    /// Messages via an EDX toolbox
    Toolbox,
    /// Connectivity tests of an ECP endpoint
    Tracing,
}

/// Maximum number of outstanding sends: messages that a program has sent and that the broker has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendWindow {
    /// The same maximum for all programs, which is this number of messages.
    Same(u32),
    /// Each program uses its own default for the number of outstanding sends.
    Defaults,
}

#[derive(Clone)]
pub struct CompareBroker {
    pub url: String,
    pub user: String,
    pub password: String,
    /// Certificates to trust, for contestants that verify certificates.
    pub cacert: Option<PathBuf>,
}

impl std::fmt::Debug for CompareBroker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Leave out the password and also the URL, because a URL may contain a password.
        out.debug_struct("Broker").field("user", &self.user).field("cacert", &self.cacert).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct CompareOptions {
    pub mode: CompareMode,
    pub messages: u64,
    pub message_bytes: u64,
    /// Programs to compare. Programs that are not installed, or that cannot run, are left out of the comparison.
    pub tools: Vec<MadesTool>,
    /// Number of runs for each row of the report, which shows the medians of these runs.
    pub rounds: u32,
    pub order: RoundOrder,
    pub windows: Vec<SendWindow>,
    /// Maximum number of messages under way. This limit applies only with `SendWindow::Same`.
    pub max_in_transit: u32,
    /// Broker that the user has named. If `None`, each run starts a simulated endpoint with an embedded broker.
    pub broker: Option<CompareBroker>,
    pub prefix: String,
    /// Share of the messages that the simulated endpoint loses.
    pub drop: f64,
    /// A run that takes longer than this fails.
    pub max_time: Duration,
    pub live: LiveMode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompareQueues {
    pub(super) outbox: String,
    pub(super) reply: String,
    pub(super) event: String,
    pub(super) inbox: String,
}

impl CompareQueues {
    pub(super) fn of(options: &CompareOptions) -> Self {
        let name = |rest: &str| format!("{}.{rest}", options.prefix);
        let reply = if options.mode == CompareMode::Toolbox { "reply" } else { "outbox.reply" };
        Self { outbox: name("outbox"), reply: name(reply), event: name("send.event"), inbox: name("inbox") }
    }

    /// Returns the options that name the queues of a mode. They are the same for `mailrun mades` and for the simulated
    /// endpoint.
    pub(super) fn arguments(&self, way: CompareMode) -> Vec<&str> {
        let outbox = ["--outbox", &self.outbox, "--outbox-reply", &self.reply];
        let event = ["--send-event", &self.event];
        let inbox = ["--inbox", &self.inbox];
        match way {
            CompareMode::Amqp => inbox.to_vec(),
            CompareMode::Endpoint => [outbox.as_slice(), &event, &inbox].concat(),
            CompareMode::Toolbox => [outbox.as_slice(), &inbox].concat(),
            CompareMode::Tracing => [outbox.as_slice(), &event].concat(),
        }
    }
}
