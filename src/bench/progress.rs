//! How far the run is, for whoever waits: a bar on a terminal, a line every five seconds elsewhere.
use super::plan::BenchOptions;
use crate::live::Progress;
use crate::printable::printable;
use crate::report::numbers::{count, counted, latency, rate};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Between two changes of a bar.
const DRAW_EVERY: Duration = Duration::from_millis(125);
/// How far back the rate looks: long enough to be steady, short enough to show a stall.
const WINDOW_S: f64 = 1.0;

/// When the run is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// When so many messages are.
    Messages(u64),
    /// After so many seconds.
    Seconds(f64),
}

impl Goal {
    /// The goal of these options; messages are the surer measure where both are given.
    pub(super) fn of(options: &BenchOptions) -> Self {
        match (options.workload.messages, options.duration_limit_s()) {
            (Some(messages), _) => Self::Messages(messages),
            (None, limit_s) => Self::Seconds(limit_s.unwrap_or(0.0)),
        }
    }
}

/// What the parties last said.
#[derive(Clone, Debug)]
pub(super) struct View {
    goal: Goal,
    source: Progress,
    sink: Option<Progress>,
    /// Messages done, by the reporting party's own clock.
    steps: VecDeque<(f64, u64)>,
}

impl View {
    /// Nothing said yet.
    pub(super) fn new(goal: Goal) -> Self {
        Self { goal, source: Progress::default(), sink: None, steps: VecDeque::new() }
    }

    /// The source says how far it is.
    pub(super) fn hear_source(&mut self, progress: Progress) {
        self.source = progress;
        if self.sink.is_none() {
            self.step(progress.elapsed_s, progress.accepted);
        }
    }

    /// The sink says how far it is.
    pub(super) fn hear_sink(&mut self, progress: Progress) {
        if self.sink.is_none() {
            self.steps.clear();
        }
        self.sink = Some(progress);
        self.step(progress.elapsed_s, progress.delivered);
    }

    /// Messages that the sink has.
    pub(super) fn delivered(&self) -> u64 {
        self.sink.map_or(0, |sink| sink.delivered)
    }

    fn step(&mut self, at_s: f64, done: u64) {
        self.steps.push_back((at_s, done));
        while self.steps.len() > 2 && self.steps[1].0 <= at_s - WINDOW_S {
            self.steps.pop_front();
        }
    }

    /// Messages that have come as far as anybody sees.
    fn done(&self) -> u64 {
        self.sink.map_or(self.source.accepted, |sink| sink.delivered)
    }

    fn rate_per_s(&self) -> f64 {
        match (self.steps.front(), self.steps.back()) {
            (Some((from_s, before)), Some((to_s, after))) if to_s > from_s => {
                after.saturating_sub(*before) as f64 / (to_s - from_s)
            }
            _ => 0.0,
        }
    }

    /// Share of the goal that is reached, in thousandths.
    fn permille(&self) -> u64 {
        let share = match self.goal {
            Goal::Messages(0) => 1.0,
            Goal::Messages(goal) => self.done() as f64 / goal as f64,
            Goal::Seconds(goal) if goal > 0.0 => self.source.elapsed_s / goal,
            Goal::Seconds(_) => 0.0,
        };
        (share * 1e3).clamp(0.0, 1e3) as u64
    }

    /// `123,456 / 200,000 messages · 54,321 msg/s · p50 1.42 ms · p99 3.10 ms`
    pub(super) fn line(&self) -> String {
        let mut parts = match self.goal {
            Goal::Messages(goal) => vec![format!("{} / {} messages", count(self.done()), count(goal))],
            Goal::Seconds(goal) => {
                let elapsed = self.source.elapsed_s.min(goal);
                vec![format!("{elapsed:.0} / {goal:.0} s"), counted(self.done(), "message")]
            }
        };
        parts.push(format!("{} msg/s", rate(self.rate_per_s().round())));
        let latest = self.sink.unwrap_or(self.source);
        if latest.p99_ms > 0.0 {
            parts.push(format!("p50 {}", latency(latest.p50_ms)));
            parts.push(format!("p99 {}", latency(latest.p99_ms)));
        }
        let errors = self.source.errors + self.sink.map_or(0, |sink| sink.errors);
        if errors > 0 {
            parts.push(counted(errors, "error"));
        }
        parts.join(" · ")
    }
}

/// Where it is shown.
#[derive(Debug)]
pub(super) enum Display {
    /// A terminal: one line that changes.
    Bar {
        bar: ProgressBar,
        /// When it was changed last.
        shown_at: Option<Instant>,
    },
    /// A file or a pipe: a line now and then.
    Lines {
        /// When the last was written.
        written_at: Instant,
    },
}

impl Display {
    /// On standard error, as it is.
    pub(super) fn on_stderr() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { written_at: Instant::now() };
        }
        let style = ProgressStyle::with_template(" {bar:24.cyan/dim} {msg}").expect("the template is well formed");
        let bar = ProgressBar::with_draw_target(Some(1_000), ProgressDrawTarget::stderr_with_hz(8));
        bar.set_style(style.progress_chars("━━─"));
        Self::Bar { bar, shown_at: None }
    }

    /// Shows how far the run is.
    pub(super) fn show(&mut self, view: &View) {
        self.show_line(view.permille(), || view.line());
    }

    /// Shows that the load is sent and its last messages are awaited.
    pub(super) fn show_wait(&mut self, arrived: u64, accepted: u64) {
        let permille = (arrived.min(accepted) * 1_000).checked_div(accepted).unwrap_or(1_000);
        self.show_line(permille, || {
            format!("all sent; {} of {} arrived at the far end", count(arrived), count(accepted))
        });
    }

    /// Leaves the terminal as it was.
    pub(super) fn clear(&self) {
        if let Self::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }

    /// Says something that stays.
    pub(super) fn say(&self, line: &str) {
        // It may hold what a stranger's server said.
        let line = line.split('\n').map(printable).collect::<Vec<_>>().join("\n");
        match self {
            Self::Bar { bar, .. } => bar.suspend(|| tell!("mailrun: {line}")),
            Self::Lines { .. } => tell!("mailrun: {line}"),
        }
    }

    /// Shows a line of its caller's own, if it is time for another: drawing costs time that the parties may need.
    pub(super) fn show_line(&mut self, permille: u64, line: impl FnOnce() -> String) {
        match self {
            Self::Bar { bar, shown_at } if shown_at.is_none_or(|at| at.elapsed() >= DRAW_EVERY) => {
                *shown_at = Some(Instant::now());
                bar.set_message(line());
                bar.set_position(permille);
            }
            Self::Lines { written_at } if written_at.elapsed() >= LINE_EVERY => {
                *written_at = Instant::now();
                tell!("mailrun: {}", line());
            }
            Self::Bar { .. } | Self::Lines { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(elapsed_s: f64, messages: u64) -> Progress {
        Progress { elapsed_s, accepted: messages, delivered: messages, ..Progress::default() }
    }

    #[test]
    fn a_line_has_count_rate_and_latency() {
        let mut view = View::new(Goal::Messages(200_000));
        view.hear_source(said(1.0, 50_000));
        view.hear_sink(said(1.0, 40_000));
        view.hear_sink(Progress { p50_ms: 1.42, p99_ms: 3.1, ..said(2.0, 94_000) });
        assert_eq!(view.line(), "94,000 / 200,000 messages · 54,000 msg/s · p50 1.42 ms · p99 3.10 ms");
        assert_eq!(view.permille(), 470);
    }

    #[test]
    fn time_is_the_measure_where_it_is_the_limit() {
        let mut view = View::new(Goal::Seconds(10.0));
        view.hear_source(Progress { errors: 1, ..said(3.0, 1_500) });
        assert_eq!(view.line(), "3 / 10 s · 1,500 messages · 0 msg/s · 1 error");
        assert_eq!(view.permille(), 300);
    }

    #[test]
    fn the_rate_looks_back_one_second() {
        let mut view = View::new(Goal::Seconds(10.0));
        for quarter in 0..20_u64 {
            // A thousand a second, and nothing in the last second.
            view.hear_source(said(quarter as f64 / 4.0, (quarter * 250).min(3_750)));
        }
        assert_eq!(view.rate_per_s(), 0.0);
        assert!(view.steps.len() < 10);
    }

    #[test]
    fn no_messages_are_no_division_by_nought() {
        assert_eq!(View::new(Goal::Messages(0)).permille(), 1_000);
        assert_eq!(View::new(Goal::Seconds(0.0)).permille(), 0);
        Display::Lines { written_at: Instant::now() }.show_wait(0, 0);
    }
}
