//! Builds the rows of a table. Each row measures one source with one sink and one load. Rows that differ only in the
//! source are adjacent, because they are compared with each other.
use crate::engine::RoundOrder;
use crate::programs::ComparedProgram;
use clap::ValueEnum;
use mailrun_process::live::LiveMode;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionReuse {
    PerMessage,
    /// Each session sends all its messages on one connection (option `-d` of the sources).
    Reused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableCase {
    pub(super) tool: SourceTool,
    pub(super) receiver: SinkTool,
    pub(super) sessions: u32,
    pub(super) connections: ConnectionReuse,
    pub(super) recipients: u32,
}

impl TableCase {
    /// Describes the row, for example `smtp-source → mailrun sink, 100 sessions, -d`.
    pub(super) fn description(&self) -> String {
        let sink = match self.receiver {
            SinkTool::SmtpSink => "smtp-sink",
            SinkTool::Mailrun => "mailrun sink",
        };
        let source = match self.tool {
            SourceTool::Mailrun => "mailrun smtp-source",
            SourceTool::MailrunBusyPoll => "mailrun smtp-source --busy-poll 50us",
            tool => tool.name(),
        };
        let plural = |number: u32, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        let mut words = format!("{source} → {sink}, {}", plural(self.sessions, "session"));
        if self.recipients > 1 {
            words.push_str(&format!(", {}", plural(self.recipients, "recipient")));
        }
        if self.connections == ConnectionReuse::Reused {
            words.push_str(", -d");
        }
        words
    }

    pub(super) fn with_tool(self, tool: SourceTool) -> Self {
        Self { tool, ..self }
    }
}

pub(super) fn cases(
    tools: &[SourceTool],
    receivers: &[SinkTool],
    sessions: &[u32],
    recipients: &[u32],
) -> Vec<TableCase> {
    let mut cases = Vec::new();
    for &receiver in receivers {
        for &sessions in sessions {
            for &recipients in recipients {
                for connections in [ConnectionReuse::PerMessage, ConnectionReuse::Reused] {
                    cases.extend(tools.iter().map(|&tool| TableCase {
                        tool,
                        receiver,
                        sessions,
                        connections,
                        recipients,
                    }));
                }
            }
        }
    }
    cases
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceTool {
    /// Postfix's `smtp-source`, with which the other sources are compared.
    SmtpSource,
    GoSmtpSource,
    /// mailrun's own source, started as `mailrun smtp-source`.
    Mailrun,
    /// mailrun's own source, started as `mailrun smtp-source --busy-poll 50us`.
    MailrunBusyPoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SinkTool {
    /// Postfix's `smtp-sink`.
    SmtpSink,
    /// mailrun's own sink, started as `mailrun sink`.
    Mailrun,
}

#[derive(Clone, Debug)]
pub struct TableOptions {
    pub messages: u64,
    /// Sources that the table compares. It leaves out sources that are not installed, and names them in a note.
    pub tools: Vec<SourceTool>,
    pub receivers: Vec<SinkTool>,
    /// How often each row of the table is measured. The row shows the medians of these runs.
    pub rounds: u32,
    pub order: RoundOrder,
    /// Numbers of parallel sessions. The table has a group of rows for each number.
    pub sessions: Vec<u32>,
    /// Numbers of recipients per message. The table has a group of rows for each number.
    pub recipients: Vec<u32>,
    /// Time limit for each run. A run that takes longer has failed, and its processes are killed.
    pub limit: Duration,
    pub live: LiveMode,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [SourceTool; 3] = [SourceTool::SmtpSource, SourceTool::GoSmtpSource, SourceTool::Mailrun];
    const SINKS: [SinkTool; 2] = [SinkTool::SmtpSink, SinkTool::Mailrun];

    #[test]
    fn every_combination_is_a_row_once() {
        let cases = cases(&SOURCES, &SINKS, &[1, 100, 1000], &[1, 3]);
        assert_eq!(cases.len(), 3 * 2 * 3 * 2 * 2);
        assert!(cases.iter().enumerate().all(|(at, case)| !cases[..at].contains(case)));
        assert_eq!(cases[1], cases[0].with_tool(SourceTool::GoSmtpSource), "the compared stand next to each other");
    }

    #[test]
    fn a_row_is_said_in_words() {
        let all = cases(&[SourceTool::Mailrun], &[SinkTool::SmtpSink], &[1, 100], &[1, 3]);
        let words: Vec<String> = all.iter().map(TableCase::description).collect();
        assert_eq!(words[0], "mailrun smtp-source → smtp-sink, 1 session");
        assert_eq!(words[7], "mailrun smtp-source → smtp-sink, 100 sessions, 3 recipients, -d");
    }
}
