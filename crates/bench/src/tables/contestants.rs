use super::cases::{ConnectionReuse, SinkTool, SourceTool, TableCase};
use crate::programs::ComparedProgram;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

impl ComparedProgram for SourceTool {
    fn name(self) -> &'static str {
        match self {
            Self::SmtpSource => "smtp-source",
            Self::GoSmtpSource => "go-smtp-source",
            Self::Mailrun => "mailrun",
            Self::MailrunBusyPoll => "mailrun-busy-poll",
        }
    }

    fn is_own(self) -> bool {
        matches!(self, Self::Mailrun | Self::MailrunBusyPoll)
    }
}

impl ComparedProgram for SinkTool {
    fn name(self) -> &'static str {
        match self {
            Self::SmtpSink => "smtp-sink",
            Self::Mailrun => "mailrun",
        }
    }

    fn is_own(self) -> bool {
        self == Self::Mailrun
    }
}

pub(super) fn command(program: &Path, case: &TableCase, messages: u64, to: SocketAddr) -> Command {
    let mut command = Command::new(program);
    if case.tool.is_own() {
        command.arg("smtp-source");
    }
    let own: &[&str] = match case.tool {
        SourceTool::GoSmtpSource => &["-resolve-once"],
        // Pass a valid name for the greeting, because both tools may refuse to run if this host's name is not valid.
        SourceTool::SmtpSource | SourceTool::Mailrun => &["-M", "smtp.example.com"],
        SourceTool::MailrunBusyPoll => &["--busy-poll", "50us", "-M", "smtp.example.com"],
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
        let words = |tool| {
            let command = command(Path::new("x"), &case(tool), 50, to);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        let load = "-s 100 -m 50 -d -r 3 -f from@example.com -t to@example.com 127.0.0.1:2525";
        let go = words(SourceTool::GoSmtpSource);
        assert_eq!(go, format!("-resolve-once {load}"));
        let theirs = words(SourceTool::SmtpSource);
        assert_eq!(theirs, format!("-M smtp.example.com {load}"));
        assert_eq!(words(SourceTool::Mailrun), format!("smtp-source {theirs}"));
        let polling = words(SourceTool::MailrunBusyPoll);
        assert_eq!(polling, format!("smtp-source --busy-poll 50us {theirs}"));
    }
}
