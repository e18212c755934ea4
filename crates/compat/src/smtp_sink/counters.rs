//! Counts ended sessions, QUITs and messages. With `-c`, prints these counts after each session and each message.
use super::options::Settings;
use crate::timing::{latency, rate};
use mailrun_measurement::Latencies;
use mailrun_net::clock;
use std::io::{self, Write};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct SmtpSinkCounters {
    sessions: u64,
    quits: u64,
    messages: u64,
    quit_limit: Option<u64>,
    message_limit: Option<u64>,
    is_shown: bool,
    /// With `--report`, the times at which the first client connected and the latest message was complete.
    times: Option<[Option<Duration>; 2]>,
    text: Vec<u8>,
}

impl SmtpSinkCounters {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            quit_limit: settings.quit_limit,
            message_limit: settings.message_limit,
            is_shown: settings.shows_counters,
            times: settings.own_options.reports.then_some([None; 2]),
            ..Self::default()
        }
    }

    pub(super) fn count_quit(&mut self) {
        self.quits += 1;
    }

    pub(super) fn record_client(&mut self) {
        if let Some([first @ None, _]) = &mut self.times {
            *first = Some(clock::now());
        }
    }

    pub(super) fn count_message(&mut self) {
        self.messages += 1;
        if let Some([_, last]) = &mut self.times {
            *last = Some(clock::now());
        }
        self.show();
    }

    pub(super) fn count_session(&mut self) {
        self.sessions += 1;
        self.show();
    }

    pub(super) fn reached_quit_limit(&self) -> bool {
        self.quit_limit.is_some_and(|wanted| self.quits >= wanted)
    }

    pub(super) fn reached_message_limit(&self) -> bool {
        self.message_limit.is_some_and(|wanted| self.messages >= wanted)
    }

    /// Returns the line that `--report` prints: the counts, the rate of messages and, with `--trace`, their latency.
    pub(super) fn report(&self, times: Option<&Latencies>) -> String {
        let Self { sessions, quits, messages, .. } = self;
        let [first, last] = self.times.unwrap_or_default();
        let elapsed = last.zip(first).map_or(Duration::ZERO, |(last, first)| last.saturating_sub(first));
        let text = format!("{messages} messages, {sessions} sessions, {quits} QUITs, {}", rate(*messages, elapsed));
        times.map_or_else(|| text.clone(), |times| format!("{text}, {}", latency(times)))
    }

    fn show(&mut self) {
        if self.is_shown {
            let Self { sessions, quits, messages, text, .. } = self;
            text.extend_from_slice(format!("sess={sessions} quit={quits} mesg={messages}\r").as_bytes());
        }
    }

    pub(super) fn print(&mut self) {
        if !self.text.is_empty() {
            self.print_to(&mut io::stdout().lock());
        }
    }

    fn print_to(&mut self, out: &mut impl Write) {
        // Ignore the error, because mail must be accepted even if standard output is closed.
        let _ = out.write_all(&self.text).and_then(|()| out.flush());
        self.text.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_runs_and_the_limits_are_told() {
        let mut counters = SmtpSinkCounters {
            is_shown: true,
            quit_limit: Some(2),
            message_limit: Some(1),
            ..SmtpSinkCounters::default()
        };
        assert!(!counters.reached_message_limit() && !counters.reached_quit_limit());
        counters.count_message();
        counters.count_quit();
        counters.count_session();
        counters.count_quit();
        let mut out = Vec::new();
        counters.print_to(&mut out);
        assert_eq!(out, b"sess=0 quit=0 mesg=1\rsess=1 quit=1 mesg=1\r");
        assert!(counters.reached_message_limit() && counters.reached_quit_limit() && counters.text.is_empty());
    }
}
