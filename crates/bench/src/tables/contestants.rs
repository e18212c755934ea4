//! The command lines of the sources and sinks of the published tables.
use super::cases::{ConnectionReuse, TableCase};
use crate::programs::ComparedProgram;
use crate::scenario::{SinkTool, SourceTool};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

impl ComparedProgram for SourceTool {
    fn name(self) -> &'static str {
        SourceTool::name(self)
    }

    fn is_own(self) -> bool {
        matches!(self, Self::Mailrun | Self::MailrunBusyPoll)
    }
}

impl ComparedProgram for SinkTool {
    fn name(self) -> &'static str {
        SinkTool::name(self)
    }

    fn is_own(self) -> bool {
        self == Self::Mailrun
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageMarking {
    /// The messages are those of the published table. The sink cannot always tell them apart.
    AsPublished,
    /// Each message is different. go-smtp-source gives all messages the same Message-Id, so it is
    /// told to put their number into the subject. The other sources number their messages by
    /// themselves.
    Unique,
}

/// Returns the command with which a tool sends the load of a row.
pub(super) fn command(
    program: &Path,
    case: &TableCase,
    messages: u64,
    marking: MessageMarking,
    to: SocketAddr,
) -> Command {
    let mut command = Command::new(program);
    if case.tool.is_own() {
        command.arg("smtp-source");
    }
    let own: &[&str] = match (case.tool, marking) {
        (SourceTool::GoSmtpSource, MessageMarking::AsPublished) => &["-resolve-once"],
        (SourceTool::GoSmtpSource, MessageMarking::Unique) => &["-resolve-once", "-S", "message %d"],
        // Without -M the tool uses the name of the machine and may reject that name.
        (SourceTool::SmtpSource | SourceTool::Mailrun, _) => &["-M", "smtp.example.com"],
        (SourceTool::MailrunBusyPoll, _) => &["--busy-poll", "50us", "-M", "smtp.example.com"],
    };
    command.args(own);
    command.args(["-s", &case.sessions.to_string(), "-m", &messages.to_string()]);
    if case.connections == ConnectionReuse::Reused {
        command.arg("-d");
    }
    if case.recipients > 1 {
        command.args(["-r", &case.recipients.to_string()]);
    }
    command.args(["-f", "from@example.com", "-t", "to@example.com", &to.to_string()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_told_the_same() {
        let case = |tool| TableCase {
            tool,
            receiver: SinkTool::Mailrun,
            sessions: 100,
            connections: ConnectionReuse::Reused,
            recipients: 3,
        };
        let to = SocketAddr::from(([127, 0, 0, 1], 2525));
        let words = |tool, marking| {
            let command = command(Path::new("x"), &case(tool), 50, marking, to);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        let load = "-s 100 -m 50 -d -r 3 -f from@example.com -t to@example.com 127.0.0.1:2525";
        let go = words(SourceTool::GoSmtpSource, MessageMarking::Unique);
        assert_eq!(go, format!("-resolve-once -S message %d {load}"));
        let theirs = words(SourceTool::SmtpSource, MessageMarking::AsPublished);
        assert_eq!(theirs, format!("-M smtp.example.com {load}"));
        assert_eq!(words(SourceTool::Mailrun, MessageMarking::AsPublished), format!("smtp-source {theirs}"));
        let polling = words(SourceTool::MailrunBusyPoll, MessageMarking::AsPublished);
        assert_eq!(polling, format!("smtp-source --busy-poll 50us {theirs}"));
    }
}
