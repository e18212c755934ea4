//! What a published table measures.
use crate::engine::RoundOrder;
use clap::ValueEnum;
use mailrun_process::live::LiveMode;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceTool {
    /// Postfix's `smtp-source`, with which the others are compared.
    SmtpSource,
    GoSmtpSource,
    /// mailrun as `mailrun smtp-source`.
    Mailrun,
    /// mailrun as `mailrun smtp-source --busy-poll 50us`.
    MailrunBusyPoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SinkTool {
    /// Postfix's `smtp-sink`.
    SmtpSink,
    /// mailrun as `mailrun sink`.
    Mailrun,
}

#[derive(Clone, Debug)]
pub struct TableOptions {
    pub messages: u64,
    /// Sources. Those that are not installed are left out.
    pub tools: Vec<SourceTool>,
    pub receivers: Vec<SinkTool>,
    /// Runs of each row. The figures are the medians of the runs.
    pub rounds: u32,
    pub order: RoundOrder,
    /// Numbers of sessions. Each number has its own group of rows.
    pub sessions: Vec<u32>,
    /// Numbers of recipients per message. Each number has its own group of rows.
    pub recipients: Vec<u32>,
    /// Time limit for each run.
    pub limit: Duration,
    pub live: LiveMode,
}
