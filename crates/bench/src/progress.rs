//! Progress of a run: the line that the bench shows while it sends load and while it waits for
//! deliveries. The figures come from reports of the source and the sink.
use super::plan::{BenchOptions, BenchTarget};
use mailrun_dashboard::live_display::LiveDisplay;
use mailrun_dashboard::live_figures::{LiveValues, load_figures, mades_figures};
use mailrun_dashboard::{PartyLoad, RunSnapshot};
use mailrun_measurement::record::Workload;
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_process::live::{LiveMode, LiveProgress, LiveTimes};
use mailrun_process::live_line::{LiveLine, NonTerminalOutput, RateWindow, waiting_text};
use mailrun_report::load_in_short;
use mailrun_text::numbers::count;
use mailrun_text::printable::printable;
use std::time::{Duration, Instant};

/// Maximum time in seconds between two reports of a running source. If the last report is older, the source has ended.
const MAX_REPORT_INTERVAL_S: f64 = 0.6;

#[derive(Clone, Debug)]
pub(super) struct LatestProgress {
    protocol: RunProtocol,
    source: LiveProgress,
    sink: Option<LiveProgress>,
    source_reported_at: Option<Instant>,
    last_error: String,
    /// Rate of delivered messages or, until a sink reports, of accepted messages. It is computed from the elapsed times
    /// in the reports, so a report that reaches the bench late does not change it.
    rate: RateWindow,
    subject: String,
    thresholds: Vec<Threshold>,
}

impl LatestProgress {
    pub(super) fn new(options: &BenchOptions) -> Self {
        let source = LiveProgress {
            goal_messages: options.workload.messages.unwrap_or_default(),
            goal_s: options.duration_limit_s().unwrap_or_default(),
            ..LiveProgress::default()
        };
        let workload = Workload { duration_limit_s: options.duration_limit_s(), ..options.workload.clone() };
        let server = match &options.target {
            BenchTarget::OwnSink => "its own sink".to_owned(),
            BenchTarget::Relay(relay) => relay.to_string(),
            BenchTarget::Server { address, .. } => address.clone(),
        };
        Self { source, ..Self::of(RunProtocol::Smtp, &server, &workload, &options.thresholds) }
    }

    /// Creates the progress of a run that has not begun. In a MADES run, a single process is both source and sink, and
    /// its reports count as reports of the source.
    pub(super) fn of(protocol: RunProtocol, server: &str, workload: &Workload, thresholds: &[Threshold]) -> Self {
        Self {
            protocol,
            source: LiveProgress::default(),
            sink: None,
            source_reported_at: None,
            last_error: String::new(),
            rate: RateWindow::default(),
            subject: format!("{server} · {}", load_in_short(workload)),
            thresholds: thresholds.to_vec(),
        }
    }

    pub(super) fn update_source(&mut self, progress: LiveProgress) {
        self.source = progress;
        self.source_reported_at = Some(Instant::now());
        match self.protocol {
            RunProtocol::Mades => self.rate.add(progress.elapsed_s, progress.delivered),
            RunProtocol::Smtp if self.sink.is_none() => self.rate.add(progress.elapsed_s, progress.accepted),
            RunProtocol::Smtp => {}
        }
    }

    pub(super) fn update_sink(&mut self, progress: LiveProgress) {
        if self.sink.is_none() {
            // So far, the rate counted accepted messages. From now on, it counts delivered messages, so start it again.
            self.rate.clear();
        }
        self.sink = Some(progress);
        self.rate.add(progress.elapsed_s, progress.delivered);
    }

    pub(super) fn update_error(&mut self, text: String) {
        self.last_error = text;
    }

    /// Returns the figures of the run for the dashboard. `parties` contains the CPU and memory usage of the run's
    /// processes.
    pub(super) fn figures(&self, parties: Vec<PartyLoad>) -> RunSnapshot {
        let silence_s = self.source_reported_at.map_or(0.0, |at| at.elapsed().as_secs_f64());
        // The elapsed time comes from the source's reports, which stop when the source ends. From then on, add the time
        // since the last report.
        let beyond_s = if silence_s > MAX_REPORT_INTERVAL_S { silence_s } else { 0.0 };
        // Over MADES, one process is both source and sink, and all latencies in its report are latencies of delivery.
        // Use this report for the sink, and a copy without latencies for the source.
        let untimed = LiveProgress { run: LiveTimes::default(), ..self.source };
        let (figures, values) = match self.protocol {
            RunProtocol::Smtp => {
                let sink = self.sink.as_ref();
                (load_figures(&self.source, sink), LiveValues { source: &self.source, sink })
            }
            RunProtocol::Mades => {
                (mades_figures(&self.source), LiveValues { source: &untimed, sink: Some(&self.source) })
            }
        };
        RunSnapshot {
            elapsed_s: figures.elapsed_s + beyond_s,
            parties,
            last_error: self.last_error.clone(),
            subject: self.subject.clone(),
            thresholds: values.states(&self.thresholds),
            ..figures
        }
    }

    pub(super) fn source(&self) -> LiveProgress {
        self.source
    }

    pub(super) fn delivered(&self) -> u64 {
        self.sink.map_or(0, |sink| sink.delivered)
    }

    /// Returns how many messages of the run have been delivered or have bounced. A message counts once for each of its
    /// recipients.
    pub(super) fn settled(&self) -> u64 {
        self.sink.map_or(0, |sink| sink.settled)
    }

    /// Returns true if the sink watches mailboxes but cannot read all of them at the moment.
    pub(super) fn has_closed_mailboxes(&self) -> bool {
        self.sink.is_some_and(|sink| sink.closed > 0)
    }

    /// Builds the progress line, which shows delivered messages and their latencies if a sink reports them, and
    /// accepted messages otherwise.
    pub(super) fn line(&self) -> LiveLine {
        let rate_per_s = self.rate.per_s();
        if self.protocol == RunProtocol::Mades {
            return LiveLine::of_mades(&self.source, rate_per_s);
        }
        let Some(sink) = self.sink else {
            return LiveLine::of(&self.source, self.source.accepted, "accepted", rate_per_s);
        };
        let errors = self.source.errors_with_sink(&sink);
        let progress = LiveProgress { now: sink.now, errors, ..self.source };
        LiveLine::of(&progress, sink.delivered, "delivered", rate_per_s)
    }
}

/// Builds the line that is shown while the bench waits for messages that were accepted but have not arrived.
pub(super) fn wait_line(arrived: u64, accepted: u64, left: Duration) -> LiveLine {
    let share = if accepted == 0 { 1.0 } else { arrived as f64 / accepted as f64 };
    let missing = format!("{} at the sink", count(accepted.saturating_sub(arrived)));
    LiveLine::sentence(Some(share), waiting_text(accepted, &missing, left.as_secs_f64()))
}

#[derive(Debug)]
pub(super) struct ProgressDisplay {
    display: LiveDisplay,
    /// Name of the run within a series, for example `run 3 of 16: postfix`.
    title: Option<String>,
    name: String,
}

impl ProgressDisplay {
    pub(super) fn new(live: LiveMode, title: Option<String>, name: &str) -> Self {
        let name =
            title.clone().unwrap_or_else(|| if name == "bench" { name.to_owned() } else { format!("bench · {name}") });
        Self { display: LiveDisplay::on_stderr(live, NonTerminalOutput::Lines), title, name }
    }

    /// Passes the figures of the run to the dashboard. If there is no dashboard, `figures` is not called.
    pub(super) fn update(&mut self, figures: impl FnOnce() -> RunSnapshot) {
        let name = &self.name;
        self.display.update(|| RunSnapshot { title: name.clone(), ..figures() });
    }

    /// Shows a progress line, unless the previous line is still recent. In that case, `line` is not called, so callers
    /// can call this often.
    pub(super) fn show(&mut self, line: impl FnOnce() -> LiveLine) {
        let title = self.title.as_deref();
        self.display.show(|| title.into_iter().fold(line(), LiveLine::with_title));
    }

    /// Prints a line that later progress lines do not overwrite.
    pub(super) fn print_line(&mut self, line: &str) {
        self.display.make_room();
        // Escape each line, because it may contain text from an unknown server.
        let line = line.split('\n').map(printable).collect::<Vec<_>>().join("\n");
        mailrun_process::tell!("mailrun: {line}");
    }

    pub(super) fn clear(&mut self) {
        self.display.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;

    fn progress(elapsed_s: f64, messages: u64) -> LiveProgress {
        LiveProgress {
            elapsed_s,
            accepted: messages,
            delivered: messages,
            goal_messages: 200_000,
            ..LiveProgress::default()
        }
    }

    #[test]
    fn a_line_has_count_rate_and_latency() {
        let mut view = LatestProgress::new(&tests::options());
        assert_eq!(view.line().text(), "0 / 1,000 accepted · 0 msg/s", "before anybody says anything");
        view.update_source(progress(1.0, 50_000));
        view.update_sink(progress(1.0, 40_000));
        let now = LiveTimes { p50_ms: 1.42, p99_ms: 3.1, ..LiveTimes::default() };
        view.update_sink(LiveProgress { now, errors: 2, ..progress(2.0, 94_000) });
        let text = view.line().with_title("run 3 of 16: postfix").text();
        let rest = "94,000 / 200,000 delivered · 54,000 msg/s · p50 1.42 ms · p99 3.10 ms · 2 errors";
        assert_eq!(text, format!("run 3 of 16: postfix · {rest}"));
        view.update_source(LiveProgress { errors: 7, ..progress(2.0, 50_000) });
        view.update_sink(LiveProgress { errors: 7, ordered: 7, ..progress(2.0, 94_000) });
        let text = view.line().text();
        assert!(text.ends_with(" · 7 errors"), "source and sink have counted the same faults: {text}");
        assert_eq!((view.delivered(), view.source().accepted), (94_000, 50_000));
    }

    #[test]
    fn the_dashboard_names_server_load_and_thresholds() {
        let threshold = Threshold::parse("accepted.p99 < 50ms", RunProtocol::Smtp).unwrap();
        let target = BenchTarget::Server { address: "mx.example:25".to_owned(), sink: None };
        let options = BenchOptions { target, thresholds: vec![threshold], ..tests::options() };
        let mut view = LatestProgress::new(&options);
        let state = |view: &LatestProgress| view.figures(Vec::new()).thresholds[0].passed;
        assert!(view.figures(Vec::new()).subject.starts_with("mx.example:25 · "));
        assert_eq!(state(&view), None, "nothing is known yet");
        let run = LiveTimes { p99_ms: 80.0, max_ms: 90.0, ..LiveTimes::default() };
        view.update_source(LiveProgress { run, ..progress(1.0, 50) });
        assert_eq!(state(&view), Some(false));
    }

    #[test]
    fn over_mades_the_source_reports_what_arrived() {
        let threshold = Threshold::parse("delivered.p99 < 50ms", RunProtocol::Mades).unwrap();
        let mut view = LatestProgress::of(RunProtocol::Mades, "stand-in", &Workload::default(), &[threshold]);
        let run = LiveTimes { p99_ms: 80.0, max_ms: 90.0, ..LiveTimes::default() };
        view.update_source(LiveProgress { open: 3, run, ..progress(1.0, 40) });
        view.update_source(LiveProgress { open: 3, run, ..progress(2.0, 90) });
        assert_eq!(view.line().text(), "90 / 200,000 delivered · 50 msg/s · 3 in transit");
        let figures = view.figures(Vec::new());
        let stages: Vec<_> = figures.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!((figures.queue, figures.messages.delivered, stages), (3, Some(90), vec!["delivered"]));
        assert_eq!(figures.thresholds[0].passed, Some(false));
    }

    #[test]
    fn a_wait_says_for_what_and_how_long() {
        let text = |arrived, accepted| wait_line(arrived, accepted, Duration::from_millis(7_300)).text();
        assert_eq!(text(2_978, 3_000), "sent 3,000; waiting for 22 at the sink, at most 8 s more");
        assert_eq!(text(0, 0), "sent 0; waiting for 0 at the sink, at most 8 s more");
    }
}
