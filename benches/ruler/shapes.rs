//! The shapes of load (dialogue, sessions and message size) under which the contestants are compared, and mailrun's
//! targets in each of them.

pub(crate) struct Shape {
    /// Name that selects this shape with `--only`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) dialogue: Dialogue,
    pub(crate) sessions: u32,
    /// Octets of the whole message with its header, without the dot that ends it.
    pub(crate) message_octets: u64,
    pub(crate) targets: &'static [Target],
}

impl Shape {
    /// Returns true if a processor may become idle between two events, because there are few sessions and their
    /// messages are small.
    pub(crate) fn leaves_processors_idle(&self) -> bool {
        self.sessions <= 8 && self.message_octets == DEFAULT_OCTETS
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialogue {
    ConnectionEach,
    Reuse,
    Group,
    Stream,
}

impl Dialogue {
    /// Returns the letter for this dialogue on the command line of the raw source.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::ConnectionEach => "c",
            Self::Reuse => "r",
            Self::Group => "p",
            Self::Stream => "s",
        }
    }

    /// Returns the options with which `mailrun source` holds this dialogue.
    pub(crate) fn mailrun_options(self) -> &'static [&'static str] {
        match self {
            Self::ConnectionEach => &["--pipelining", "off"],
            Self::Reuse => &["--reuse", "--pipelining", "off"],
            Self::Group => &["--reuse", "--pipelining", "group"],
            Self::Stream => &["--reuse", "--pipelining", "stream"],
        }
    }

    /// Returns the options with which smtp-source holds this dialogue, or `None` if the dialogue is pipelined, which
    /// smtp-source cannot do.
    pub(crate) fn smtp_source_options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::ConnectionEach => Some(&[]),
            Self::Reuse => Some(&["-d"]),
            Self::Group | Self::Stream => None,
        }
    }
}

/// Minimum that the median of mailrun's runs must reach, for example 0.9 times the rate of the raw pair.
pub(crate) struct Target {
    pub(crate) measure: Measure,
    pub(crate) least: f64,
    /// A higher value that we would like to reach. The bench does not fail if mailrun misses it.
    pub(crate) goal: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Mailrun's rate divided by the raw pair's rate.
    OfLimit,
    /// Mailrun's rate divided by the rate of smtp-source with smtp-sink.
    OfSmtpSource,
    GigabytesPerSecond,
}

pub(crate) const DEFAULT_OCTETS: u64 = 400;

/// All shapes of load that the bench measures. Mailrun's targets for them come from issue 2, "Speed and memory".
pub(crate) const SHAPES: [Shape; 12] = [
    Shape {
        name: "c",
        title: "a connection each",
        dialogue: Dialogue::ConnectionEach,
        sessions: 100,
        message_octets: DEFAULT_OCTETS,
        targets: &[of_limit(0.90, 0.95), of_smtp_source(1.3)],
    },
    Shape {
        name: "r",
        title: "reuse, lock step",
        dialogue: Dialogue::Reuse,
        sessions: 100,
        message_octets: DEFAULT_OCTETS,
        targets: &[of_limit(0.90, 0.95), of_smtp_source(1.5)],
    },
    Shape {
        name: "p",
        title: "pipelined group",
        dialogue: Dialogue::Group,
        sessions: 100,
        message_octets: DEFAULT_OCTETS,
        targets: &[of_limit(0.90, 0.95)],
    },
    Shape {
        name: "s",
        title: "stream, one write",
        dialogue: Dialogue::Stream,
        sessions: 100,
        message_octets: DEFAULT_OCTETS,
        targets: &[of_limit(0.80, 0.90)],
    },
    Shape {
        name: "64k",
        title: "64 KB, lock step",
        dialogue: Dialogue::Reuse,
        sessions: 100,
        message_octets: 64 * 1024,
        targets: &[of_limit(0.75, 0.90)],
    },
    Shape {
        name: "10m",
        title: "10 MB",
        dialogue: Dialogue::Reuse,
        sessions: 1,
        message_octets: 10 * 1024 * 1024,
        targets: &[Target { measure: Measure::GigabytesPerSecond, least: 2.0, goal: Some(3.0) }],
    },
    few("c1", "a connection each", Dialogue::ConnectionEach, 1, &[of_limit(0.90, 0.95)]),
    few("r1", "reuse, lock step", Dialogue::Reuse, 1, &[of_limit(0.90, 0.95)]),
    few("s1", "stream, one write", Dialogue::Stream, 1, &[of_limit(0.90, 0.95)]),
    few("c8", "a connection each", Dialogue::ConnectionEach, 8, &[]),
    few("r8", "reuse, lock step", Dialogue::Reuse, 8, &[]),
    few("s8", "stream, one write", Dialogue::Stream, 8, &[]),
];

/// Builds a shape with small messages and so few sessions that processors become idle between messages.
const fn few(
    name: &'static str,
    title: &'static str,
    dialogue: Dialogue,
    sessions: u32,
    targets: &'static [Target],
) -> Shape {
    Shape { name, title, dialogue, sessions, message_octets: DEFAULT_OCTETS, targets }
}

const fn of_limit(least: f64, goal: f64) -> Target {
    Target { measure: Measure::OfLimit, least, goal: Some(goal) }
}

const fn of_smtp_source(least: f64) -> Target {
    Target { measure: Measure::OfSmtpSource, least, goal: None }
}
