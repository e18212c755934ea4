//! The result of sending a single message: a line for people, and an exit status for scripts.
use super::options::QuitAfter;
use mailrun_net::SessionEnd;
use mailrun_process::reason::reason;
use mailrun_smtp::client::{GaveUp, Verb};
use std::io::ErrorKind;
use std::time::Duration;

/// Stage at which a message was rejected or the session failed. Each stage has the same exit status as in swaks. Only a
/// failed connection has the exit status 2, as in our other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStage {
    Connect,
    /// The command of `--pipe` ended before the session was over.
    Pipe,
    /// The server closed the connection although it had not rejected anything.
    Closed,
    Banner,
    Hello,
    Mail,
    Recipients,
    Data,
    Message,
    Auth,
    Tls,
    HelloAfterTls,
    Xclient,
}

impl SendStage {
    pub const ALL: [(Self, u8, &'static str); 13] = [
        (Self::Connect, 2, "connect"),
        (Self::Pipe, 5, "pipe"),
        (Self::Closed, 6, "connection"),
        (Self::Banner, 21, "banner"),
        (Self::Hello, 22, "ehlo"),
        (Self::Mail, 23, "mail"),
        (Self::Recipients, 24, "rcpt"),
        (Self::Data, 25, "data"),
        (Self::Message, 26, "message"),
        (Self::Auth, 28, "auth"),
        (Self::Tls, 29, "tls"),
        (Self::HelloAfterTls, 32, "ehlo after tls"),
        (Self::Xclient, 33, "xclient"),
    ];

    fn row(self) -> (u8, &'static str) {
        let row = Self::ALL.iter().find(|(stage, ..)| *stage == self);
        row.map_or((2, ""), |(_, status, name)| (*status, name))
    }

    pub(super) fn of(verb: Verb, is_over_tls: bool) -> Self {
        match verb {
            Verb::Greeting => Self::Banner,
            Verb::Hello if is_over_tls => Self::HelloAfterTls,
            Verb::Hello => Self::Hello,
            Verb::StartTls => Self::Tls,
            Verb::Xclient => Self::Xclient,
            Verb::Auth => Self::Auth,
            Verb::Mail => Self::Mail,
            Verb::Recipient(_) => Self::Recipients,
            Verb::Data => Self::Data,
            Verb::Chunk | Verb::Message | Verb::Delivery(_) => Self::Message,
            Verb::Reset | Verb::Quit => Self::Closed,
        }
    }
}

/// Exit status if only some of the recipients were accepted.
const PARTLY_ACCEPTED: u8 = 1;

/// Result of the attempt to send the message. It determines the last line of output and the exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// The server accepted the message for `accepted` of `recipients` recipients. `reply` is its last positive reply.
    Accepted {
        accepted: usize,
        recipients: usize,
        reply: String,
    },
    Stopped(QuitAfter),
    Rejected(SendStage, String),
    Failed(SendStage, String),
}

#[derive(Clone, Debug)]
pub struct SendReport {
    pub end: SendEnd,
    /// Time from before the first attempt to connect until the end of the session.
    pub took: Duration,
    /// Time on the monotonic clock at which the server accepted the message, if it did.
    pub answered_at: Option<Duration>,
    /// True if the session failed while waiting for the reply to the message. The server may then have the message.
    pub is_in_doubt: bool,
    /// Time at which the server's certificate expires, in seconds since 1970, if the options ask for it.
    pub certificate_ends: Option<i64>,
}

impl SendReport {
    pub fn status(&self) -> u8 {
        match &self.end {
            SendEnd::Accepted { accepted, recipients, .. } if accepted < recipients => PARTLY_ACCEPTED,
            SendEnd::Accepted { .. } | SendEnd::Stopped(_) => 0,
            SendEnd::Rejected(stage, _) | SendEnd::Failed(stage, _) => stage.row().0,
        }
    }

    /// Returns the line that is printed at the end, for example `rejected at rcpt: 550 5.1.1 No such user (12 ms)`.
    pub fn line(&self) -> String {
        let took = mailrun_text::numbers::latency(self.took.as_secs_f64() * 1e3);
        match &self.end {
            SendEnd::Accepted { accepted: 1, recipients: 1, reply } => format!("accepted: {reply} ({took})"),
            SendEnd::Accepted { accepted, recipients, reply } => {
                format!("accepted for {accepted} of {recipients} recipients: {reply} ({took})")
            }
            SendEnd::Stopped(point) => format!("stopped after {}, as asked ({took})", point.name()),
            SendEnd::Rejected(stage, reply) => format!("rejected at {}: {reply} ({took})", stage.row().1),
            SendEnd::Failed(stage, text) => format!("failed at {}: {text} ({took})", stage.row().1),
        }
    }
}

/// Returns true if the server may have accepted the message although its reply did not arrive.
pub(super) fn is_in_doubt(ended: &SessionEnd) -> bool {
    let (SessionEnd::Lost(verb, _) | SessionEnd::Timeout(verb) | SessionEnd::Violated(verb, _)) = ended else {
        return false;
    };
    matches!(verb, Some(Verb::Chunk | Verb::Message | Verb::Delivery(_)))
}

/// Describes the failure of a session in which the message was neither accepted nor rejected.
pub(super) fn failure(ended: &SessionEnd, is_over_tls: bool, is_pipe: bool, timeout: Duration) -> SendEnd {
    let at = |verb: &Option<Verb>| verb.map_or(SendStage::Tls, |verb| SendStage::of(verb, is_over_tls));
    let before = |verb: &Option<Verb>| match verb {
        Some(Verb::Message | Verb::Delivery(_)) => {
            " before the reply to the message, which the server may have accepted".to_owned()
        }
        Some(Verb::Greeting) => " before the greeting".to_owned(),
        Some(verb) => format!(" before the reply to {}", SendStage::of(*verb, is_over_tls).row().1),
        None => String::new(),
    };
    let (stage, text) = match ended {
        SessionEnd::Closed => (SendStage::Closed, "the server ended the session".to_owned()),
        SessionEnd::GaveUp(cause) => (stage_of_cause(*cause), cause.to_string()),
        // In TLS 1.3, the client learns only after its handshake that the server rejects its certificate. So this late
        // error still belongs to TLS.
        SessionEnd::Lost(_, error) if error.kind() == ErrorKind::InvalidData => (SendStage::Tls, reason(error)),
        SessionEnd::Lost(verb, _) if is_pipe => (SendStage::Pipe, format!("the command ended{}", before(verb))),
        SessionEnd::Lost(verb, error) if error.kind() == ErrorKind::UnexpectedEof => {
            (SendStage::Closed, format!("the server closed the connection{}", before(verb)))
        }
        SessionEnd::Lost(verb, error) => (SendStage::Closed, format!("{}{}", reason(error), before(verb))),
        SessionEnd::Timeout(verb) => (at(verb), format!("no reply within {timeout:?}")),
        SessionEnd::Violated(verb, violation) => (at(verb), violation.to_string()),
        SessionEnd::TlsFailed(error) => (SendStage::Tls, reason(error)),
    };
    SendEnd::Failed(stage, text)
}

fn stage_of_cause(cause: GaveUp) -> SendStage {
    match cause {
        GaveUp::NoTls | GaveUp::TlsRefused => SendStage::Tls,
        GaveUp::NoMechanism | GaveUp::NotAuthenticated | GaveUp::Exchange(_) => SendStage::Auth,
        GaveUp::NoXclient | GaveUp::XclientRefused => SendStage::Xclient,
        GaveUp::NoDsn => SendStage::Mail,
        GaveUp::OwnName => SendStage::Banner,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn each_end_has_a_line_and_a_status() {
        let lost = |verb| SessionEnd::Lost(verb, ErrorKind::UnexpectedEof.into());
        let ended = |end: SessionEnd, is_pipe| failure(&end, false, is_pipe, Duration::from_secs(5));
        let accepted = |accepted, recipients| SendEnd::Accepted { accepted, recipients, reply: "250 Ok".to_owned() };
        let refused = |stage| SendEnd::Rejected(stage, "550 no".to_owned());
        for (end, status, line) in [
            (accepted(1, 1), 0, "accepted: 250 Ok"),
            (accepted(2, 2), 0, "accepted for 2 of 2 recipients: 250 Ok"),
            (accepted(1, 2), 1, "accepted for 1 of 2 recipients: 250 Ok"),
            (SendEnd::Stopped(QuitAfter::Rcpt), 0, "stopped after rcpt, as asked"),
            (refused(SendStage::Recipients), 24, "rejected at rcpt: 550 no"),
            (refused(SendStage::Message), 26, "rejected at message: 550 no"),
            (
                ended(lost(Some(Verb::Greeting)), false),
                6,
                "failed at connection: the server closed the connection before the greeting",
            ),
            (
                ended(lost(Some(Verb::Message)), false),
                6,
                "failed at connection: the server closed the connection before the reply to the message, which the server may have accepted",
            ),
            (ended(lost(Some(Verb::Mail)), true), 5, "failed at pipe: the command ended before the reply to mail"),
            (ended(SessionEnd::Timeout(Some(Verb::Data)), false), 25, "failed at data: no reply within 5s"),
            (ended(SessionEnd::GaveUp(GaveUp::NoTls), false), 29, "failed at tls: the server does not offer STARTTLS"),
            (
                ended(SessionEnd::GaveUp(GaveUp::NoMechanism), false),
                28,
                "failed at auth: the server offers no usable AUTH mechanism",
            ),
            (ended(SessionEnd::TlsFailed(io::Error::other("expired")), false), 29, "failed at tls: expired"),
            (
                failure(&SessionEnd::Timeout(Some(Verb::Hello)), true, false, Duration::from_secs(5)),
                32,
                "failed at ehlo after tls: no reply within 5s",
            ),
        ] {
            let took = Duration::from_millis(12);
            let report = SendReport { end, took, answered_at: None, is_in_doubt: false, certificate_ends: None };
            assert_eq!(report.line(), format!("{line} (12.00 ms)"));
            assert_eq!(report.status(), status, "{line}");
        }
    }

    #[test]
    fn a_message_is_in_doubt_from_its_end_to_its_reply() {
        let lost = |verb| SessionEnd::Lost(verb, ErrorKind::UnexpectedEof.into());
        for (ended, expected) in [
            (lost(Some(Verb::Message)), true),
            (SessionEnd::Timeout(Some(Verb::Message)), true),
            (SessionEnd::Timeout(Some(Verb::Data)), false),
            (lost(Some(Verb::Mail)), false),
            (lost(None), false),
            (SessionEnd::Closed, false),
        ] {
            assert_eq!(is_in_doubt(&ended), expected, "{ended:?}");
        }
    }

    #[test]
    fn statuses_are_unique_and_do_not_contradict_those_of_a_run() {
        for (at, (_, status, name)) in SendStage::ALL.iter().enumerate() {
            assert!(SendStage::ALL[..at].iter().all(|(_, other, _)| other != status), "{name}");
            assert!(![0, 1, 3, 130].contains(status), "{name}");
        }
    }
}
