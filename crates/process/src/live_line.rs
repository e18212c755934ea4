//! The progress line of a run, which has the same form for all commands. A terminal shows one line that is redrawn in
//! place. In a file or a pipe, a new line is written every five seconds.
//!
//! ```text
//! ━━━━━━━━━━━━━━━━━━━━─── 3 / 4 s · 30,207 delivered · 12,393 msg/s · p50 6.75 ms · p99 9.08 ms
//! ━━━━━━━━━━━━━━━━━━━━━─ sent 3,000; waiting for 22 at the sink, at most 8 s more
//! ```
//! The line is never wider than the terminal. If there is not enough room, the bar is shortened to as few as eight
//! columns. Then parts are left out in this order: the median, details, the bar, the 99th percentile, the rate, errors,
//! the count. The goal, or the sentence about a wait, always remains, and is cut to the width of the terminal.
use crate::live::{LiveMode, LiveProgress};
use crate::log_writer::LogWriter;
use crate::terminal::CharacterSet;
use mailrun_text::numbers::{count, counted, latency, seconds};
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between two progress lines if standard error is a file or a pipe instead of a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between drawings. Drawing more often would take CPU time from the run.
const DRAW_INTERVAL: Duration = Duration::from_millis(125);
/// Window over which a rate is computed. It is long enough for a steady figure and short enough to show a stall.
const RATE_WINDOW_S: f64 = 1.0;
/// Assumed width in columns of a terminal that does not tell its width.
const DEFAULT_WIDTH: usize = 80;
const MIN_BAR_COLUMNS: usize = 8;
const MAX_BAR_COLUMNS: usize = 24;

/// A short text in the progress line, such as `498 msg/s`. If the terminal is too narrow for all parts, they are left
/// out in the order of these variants, `Median` first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinePart {
    Median,
    Detail,
    Bar,
    Tail,
    Rate,
    Errors,
    Count,
    /// Progress towards the goal of the run, or a sentence about what the run waits for. This part always stays.
    Goal,
}

/// A progress line before it is shortened to the width of a terminal.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveLine {
    /// Part of the goal that has been reached, from 0 to 1. With `None`, no bar is drawn.
    share: Option<f64>,
    parts: Vec<(LinePart, String)>,
}

impl LiveLine {
    /// Creates a progress line that consists of one sentence, for example about the answers for which a process waits.
    pub fn sentence(share: Option<f64>, text: impl Into<String>) -> Self {
        Self { share, parts: vec![(LinePart::Goal, text.into())] }
    }

    /// Creates the progress line of a run, with its goal, count, rate, latencies and errors. `done` is the count so far
    /// and `word` names what is counted, for example `accepted` or `delivered`.
    pub fn of(progress: &LiveProgress, done: u64, word: &str, rate_per_s: f64) -> Self {
        if let Some(wait) = RemainingWait::of(progress) {
            return wait.line(progress.created);
        }
        let elapsed_s = progress.elapsed_s;
        let goal_s = progress.goal_s;
        let mut parts = Vec::new();
        match progress.goal_messages {
            0 if goal_s > 0.0 => parts.push((
                LinePart::Goal,
                format!("{} / {} s", whole_number(elapsed_s.min(goal_s)), whole_number(goal_s)),
            )),
            0 => parts.push((LinePart::Goal, format!("{} s", whole_number(elapsed_s)))),
            _ => {}
        }
        parts.push(match progress.goal_messages {
            0 => (LinePart::Count, format!("{} {word}", count(done))),
            goal => (LinePart::Goal, format!("{} / {} {word}", count(done), count(goal))),
        });
        parts.push((LinePart::Rate, format!("{} msg/s", per_second(rate_per_s))));
        if progress.now.p99_ms > 0.0 {
            parts.push((LinePart::Median, format!("p50 {}", latency(progress.now.p50_ms))));
            parts.push((LinePart::Tail, format!("p99 {}", latency(progress.now.p99_ms))));
        }
        if progress.errors > 0 {
            parts.push((LinePart::Errors, counted(progress.errors, "error")));
        }
        Self { share: share(progress, done), parts }
    }

    /// Creates the progress line of a MADES bench, with its numbers of messages delivered and in transit.
    pub fn of_mades(progress: &LiveProgress, rate_per_s: f64) -> Self {
        let line = Self::of(progress, progress.delivered, "delivered", rate_per_s);
        line.with_detail(progress.open, "in transit")
    }

    /// Creates the progress line of a command that makes `planned` runs, such as a comparison. Shows the current run
    /// and, after the first one, the estimated time that is left.
    pub fn of_runs(done: usize, planned: usize, what: &str, began: Instant) -> Self {
        let share = done as f64 / planned.max(1) as f64;
        let line = Self::sentence(Some(share), format!("run {} of {planned}: {what}", done + 1));
        if done == 0 {
            return line;
        }
        let left_s = began.elapsed().as_secs_f64() / done as f64 * (planned - done) as f64;
        line.with_part(LinePart::Count, format!("about {} left", whole_seconds(left_s)))
    }

    /// Puts a title in front of the line, such as the name of a run in a series.
    pub fn with_title(mut self, title: &str) -> Self {
        self.parts.insert(0, (LinePart::Detail, title.to_owned()));
        self
    }

    /// Adds a count such as `3 lost`, unless the count is 0 or the line only says what the process waits for.
    pub fn with_detail(self, number: u64, word: &str) -> Self {
        let is_wait = matches!(self.parts.as_slice(), [(LinePart::Goal, _)]);
        if number == 0 || is_wait {
            self
        } else {
            self.with_part(LinePart::Detail, format!("{} {word}", count(number)))
        }
    }

    fn with_part(mut self, part: LinePart, text: String) -> Self {
        self.parts.push((part, text));
        self
    }

    /// Returns the whole line without a bar, for files.
    pub fn text(&self) -> String {
        self.joined(LinePart::Median, " · ")
    }

    /// Returns the text of a line that only says what the process waits for, and `None` for a line with counts.
    pub fn wait(&self) -> Option<String> {
        match self.parts.iter().rfind(|(part, _)| *part == LinePart::Goal) {
            Some((_, text)) if self.parts.iter().all(|(part, _)| matches!(part, LinePart::Goal | LinePart::Detail)) => {
                Some(text.clone())
            }
            _ => None,
        }
    }

    /// Joins the parts of the line, except those that are less important than `min_part`.
    fn joined(&self, min_part: LinePart, separator: &str) -> String {
        let kept = self.parts.iter().filter(|(part, _)| *part >= min_part).map(|(_, text)| text.as_str());
        kept.collect::<Vec<_>>().join(separator)
    }

    /// Fits the line to a width in columns. Shortens the bar first, and then leaves out parts, the
    /// least important first.
    pub(crate) fn fit(&self, width: usize, letters: CharacterSet) -> String {
        let separator = match letters {
            CharacterSet::Utf8 => " · ",
            CharacterSet::Ascii => ", ",
        };
        let order = [
            LinePart::Median,
            LinePart::Detail,
            LinePart::Bar,
            LinePart::Tail,
            LinePart::Rate,
            LinePart::Errors,
            LinePart::Count,
            LinePart::Goal,
        ];
        for min_part in order {
            let text = letters.encode(&self.joined(min_part, separator));
            let columns = text.chars().count();
            let bar = self.share.filter(|_| min_part <= LinePart::Bar);
            let room = width.saturating_sub(columns + 1);
            // If there is not enough room for a useful bar, omit another part of the line.
            match bar {
                Some(share) if room >= MIN_BAR_COLUMNS => {
                    return format!("{} {text}", draw_bar(share, room.min(MAX_BAR_COLUMNS), letters));
                }
                None if columns <= width => return text,
                _ => {}
            }
        }
        letters.encode(&self.joined(LinePart::Goal, separator)).chars().take(width).collect()
    }
}

/// Time for which a process still waits for outstanding messages after it has created the last message.
struct RemainingWait {
    open: u64,
    left_s: f64,
}

impl RemainingWait {
    fn of(progress: &LiveProgress) -> Option<Self> {
        (progress.waits_s > 0.0).then_some(Self { open: progress.open, left_s: progress.waits_s })
    }

    fn line(&self, created: u64) -> LiveLine {
        let share = Some(1.0 - self.open as f64 / created.max(1) as f64);
        let what = match self.open {
            0 => "late messages".to_owned(),
            1 => "the last answer".to_owned(),
            open => format!("{} answers", count(open)),
        };
        LiveLine::sentence(share, waiting_text(created, &what, self.left_s))
    }
}

/// Describes a wait, for example `sent 3,000; waiting for 22 at the sink, at most 8 s more`.
pub fn waiting_text(sent: u64, what: &str, left_s: f64) -> String {
    format!("sent {}; waiting for {what}, at most {} more", count(sent), whole_seconds(left_s.ceil()))
}

/// Returns the share of the goal that is reached, by messages or by time, whichever is larger.
/// Messages that were rejected or failed count too, because the run does not send them again.
fn share(progress: &LiveProgress, done: u64) -> Option<f64> {
    let settled = done + progress.rejected + progress.failed;
    let messages = (progress.goal_messages > 0).then(|| settled as f64 / progress.goal_messages as f64);
    let time = (progress.goal_s > 0.0).then(|| progress.elapsed_s / progress.goal_s);
    messages.into_iter().chain(time).reduce(f64::max)
}

fn draw_bar(share: f64, columns: usize, letters: CharacterSet) -> String {
    let full = (share.clamp(0.0, 1.0) * columns as f64) as usize;
    let (done, open) = match letters {
        CharacterSet::Utf8 => ("━", "─"),
        CharacterSet::Ascii => ("=", "-"),
    };
    done.repeat(full) + &open.repeat(columns - full)
}

/// Formats a rate, for example `0.4` or `12,393`.
fn per_second(rate: f64) -> String {
    let is_slow = rate > 0.0 && rate < 9.95;
    if is_slow { format!("{rate:.1}") } else { count(rate.round() as u64) }
}

fn whole_number(value_s: f64) -> String {
    count(value_s.max(0.0).round() as u64)
}

/// Formats a duration in whole seconds, for example `8 s` or `2 min 03 s`.
fn whole_seconds(value_s: f64) -> String {
    if value_s < 99.5 { format!("{} s", whole_number(value_s)) } else { seconds(value_s) }
}

/// Computes the messages per second over the last second, from message counts that a process reports with its own time.
#[derive(Clone, Debug, Default)]
pub struct RateWindow {
    steps: VecDeque<(f64, u64)>,
}

impl RateWindow {
    /// Adds a count that was reported at the time `at_s`, and drops counts that the window no longer needs.
    pub fn add(&mut self, at_s: f64, done: u64) {
        self.steps.push_back((at_s, done));
        while self.steps.len() > 2 && self.steps[1].0 <= at_s - RATE_WINDOW_S {
            self.steps.pop_front();
        }
    }

    /// Discards all counts. Must be called before counts of another process are added, for example when the counts of
    /// the sink follow those of the source.
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Returns the rate over the window, or 0 if there are fewer than two counts.
    pub fn per_s(&self) -> f64 {
        match (self.steps.front(), self.steps.back()) {
            (Some((from_s, before)), Some((to_s, after))) if to_s > from_s => {
                after.saturating_sub(*before) as f64 / (to_s - from_s)
            }
            _ => 0.0,
        }
    }
}

/// What a process writes about its progress if standard error is not a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonTerminalOutput {
    /// The process writes a new line every five seconds.
    Lines,
    /// The process writes no progress lines. Used for servers, which may run for weeks and would fill a file.
    Nothing,
}

#[derive(Debug)]
pub enum LineDisplay {
    /// A terminal with a line that is redrawn in place.
    Terminal(TerminalLine),
    /// A file or a pipe, to which a line is written every five seconds.
    Lines {
        written_at: Instant,
    },
    Nothing,
}

#[derive(Debug)]
pub struct TerminalLine {
    charset: CharacterSet,
    /// Set if the terminal does not support escape sequences. The line is then erased with blanks.
    is_dumb: bool,
    /// Width of the line that is on the terminal, or 0 if there is no line.
    columns: usize,
    drawn_at: Option<Instant>,
}

impl LineDisplay {
    /// Creates a display on standard error. If that is no terminal, `elsewhere` tells whether lines are written to it.
    pub fn on_stderr(live: LiveMode, elsewhere: NonTerminalOutput) -> Self {
        if !live.is_shown() {
            return Self::Nothing;
        }
        if io::stderr().is_terminal() {
            return Self::Terminal(TerminalLine::of_environment());
        }
        match elsewhere {
            NonTerminalOutput::Lines => Self::Lines { written_at: Instant::now() },
            NonTerminalOutput::Nothing => Self::Nothing,
        }
    }

    /// Returns true if it is time for a new line, and starts the next interval. The caller must then show a line.
    pub fn take_turn(&mut self) -> bool {
        let now = Instant::now();
        match self {
            Self::Terminal(terminal) if terminal.is_due() => terminal.drawn_at = Some(now),
            Self::Lines { written_at } if written_at.elapsed() >= LINE_INTERVAL => *written_at = now,
            Self::Terminal(_) | Self::Lines { .. } | Self::Nothing => return false,
        }
        true
    }

    /// If it is time for a new line, calls `line` and shows the line that it returns.
    pub fn show(&mut self, line: impl FnOnce() -> LiveLine) {
        if !self.take_turn() {
            return;
        }
        match self {
            Self::Terminal(terminal) => write(&terminal.frame(&line(), width())),
            Self::Lines { .. } => crate::tell!("mailrun: {}", line().text()),
            Self::Nothing => {}
        }
    }

    /// Removes the line from the terminal, so that something else can be written there.
    pub fn clear(&mut self) {
        if let Self::Terminal(terminal) = self {
            write(&terminal.erase(width()));
        }
    }
}

impl Drop for LineDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}

impl TerminalLine {
    fn of_environment() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { charset: CharacterSet::of_environment(), is_dumb, columns: 0, drawn_at: None }
    }

    fn is_due(&self) -> bool {
        self.drawn_at.is_none_or(|at| at.elapsed() >= DRAW_INTERVAL)
    }

    /// Returns the bytes that erase the current line on the terminal and write `line` in its place. The last column
    /// stays free, because writing there would make a terminal move to the next line.
    fn frame(&mut self, line: &LiveLine, width: usize) -> String {
        let text = line.fit(width.saturating_sub(1), self.charset);
        let columns = text.chars().count();
        let erased = self.erase(width);
        self.columns = columns;
        erased + &text
    }

    /// Returns the bytes that remove the line, even if the terminal has become narrower and has wrapped it.
    fn erase(&mut self, width: usize) -> String {
        let columns = std::mem::take(&mut self.columns);
        match columns {
            0 => String::new(),
            columns if self.is_dumb => format!("\r{}\r", " ".repeat(columns)),
            columns => match (columns - 1) / width.max(1) {
                0 => "\r\u{1b}[K".to_owned(),
                rows => format!("\r\u{1b}[{rows}A\u{1b}[J"),
            },
        }
    }
}

/// Shows the progress of a server, such as the relay, below the log that the server writes to a terminal. The log's
/// thread draws the line, so that the two do not mix.
pub struct ServerLiveLine {
    display: Option<LogDisplay>,
    accepted: RateWindow,
    delivered: RateWindow,
}

struct LogDisplay {
    log: LogWriter,
    charset: CharacterSet,
}

impl ServerLiveLine {
    /// Creates the line, which is shown only if `live` allows it and if the terminal supports escape sequences. The
    /// thread that writes `log` draws the line.
    pub fn new(live: LiveMode, log: &LogWriter) -> Self {
        let display = LineDisplay::on_stderr(live, NonTerminalOutput::Nothing);
        let letters = match &display {
            LineDisplay::Terminal(terminal) if !terminal.is_dumb => Some(terminal.charset),
            _ => None,
        };
        let log_display = letters.map(|letters| LogDisplay { log: log.clone(), charset: letters });
        Self { display: log_display, accepted: RateWindow::default(), delivered: RateWindow::default() }
    }

    pub fn show(&mut self, progress: &LiveProgress) {
        let Some(LogDisplay { log, charset: letters }) = &self.display else { return };
        self.accepted.add(progress.elapsed_s, progress.accepted);
        self.delivered.add(progress.elapsed_s, progress.delivered);
        let line = relay_line(progress, self.accepted.per_s(), self.delivered.per_s());
        log.show_status(line.fit(width().saturating_sub(1), *letters));
    }
}

impl Drop for ServerLiveLine {
    fn drop(&mut self) {
        if let Some(LogDisplay { log, .. }) = &self.display {
            log.show_status(String::new());
        }
    }
}

/// Makes the line of a relay, for example `12 s · 5,000 accepted · 498 msg/s · 4,950 delivered, 490
/// per second · 50 queued`.
fn relay_line(progress: &LiveProgress, accepted_per_s: f64, delivered_per_s: f64) -> LiveLine {
    let line = LiveLine::of(progress, progress.accepted, "accepted", accepted_per_s);
    let delivered = format!("{} delivered, {} per second", count(progress.delivered), per_second(delivered_per_s));
    line.with_part(LinePart::Tail, delivered).with_part(LinePart::Tail, format!("{} queued", count(progress.open)))
}

/// Returns the width of the terminal on standard error, or `DEFAULT_WIDTH` if the terminal does not tell it.
fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { DEFAULT_WIDTH } else { columns }
}

fn write(frame: &str) {
    let mut out = io::stderr().lock();
    // Ignore write errors, so that the run goes on even if its terminal is gone.
    let _ = out.write_all(frame.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::LiveTimes;
    use proptest::prelude::*;

    fn running() -> LiveProgress {
        LiveProgress {
            elapsed_s: 3.2,
            goal_s: 4.0,
            created: 30_300,
            now: LiveTimes { p50_ms: 6.75, p99_ms: 9.08, ..LiveTimes::default() },
            errors: 1,
            ..LiveProgress::default()
        }
    }

    fn line() -> LiveLine {
        LiveLine::of(&running(), 30_207, "delivered", 12_393.4).with_detail(1_042, "queued")
    }

    #[test]
    fn parts_go_in_the_stated_order() {
        let rows = [
            (
                200,
                "━━━━━━━━━━━━━━━━━━━───── 3 / 4 s · 30,207 delivered · 12,393 msg/s · p50 6.75 ms · p99 9.08 ms · 1 error · 1,042 queued",
            ),
            (79, "━━━━━━━━━━─── 3 / 4 s · 30,207 delivered · 12,393 msg/s · p99 9.08 ms · 1 error"),
            (70, "3 / 4 s · 30,207 delivered · 12,393 msg/s · p99 9.08 ms · 1 error"),
            (60, "3 / 4 s · 30,207 delivered · 12,393 msg/s · 1 error"),
            (40, "3 / 4 s · 30,207 delivered · 1 error"),
            (30, "3 / 4 s · 30,207 delivered"),
            (20, "3 / 4 s"),
            (5, "3 / 4"),
        ];
        for (width, text) in rows {
            assert_eq!(line().fit(width, CharacterSet::Utf8), text, "{width}");
        }
        assert_eq!(line().fit(60, CharacterSet::Ascii), "3 / 4 s, 30,207 delivered, 12,393 msg/s, 1 error");
        assert!(
            line().fit(79, CharacterSet::Ascii).starts_with("=============---- 3 / 4 s, "),
            "{}",
            line().fit(79, CharacterSet::Ascii)
        );
    }

    #[test]
    fn the_bar_moves_by_messages_or_time() {
        let by = |goal_messages, goal_s| share(&LiveProgress { goal_messages, goal_s, ..running() }, 500);
        assert_eq!(by(1_000, 0.0), Some(0.5));
        assert_eq!(by(0, 4.0), Some(0.8));
        assert_eq!(by(1_000, 4.0), Some(0.8));
        assert_eq!(by(0, 0.0), None);
        let refused = LiveProgress { goal_messages: 1_000, goal_s: 0.0, rejected: 300, failed: 200, ..running() };
        assert_eq!(share(&refused, 500), Some(1.0), "nothing is left to do");
        let counted = LiveProgress { goal_messages: 200_000, errors: 0, ..running() };
        let line = LiveLine::of(&counted, 94_000, "accepted", 54_000.0);
        assert_eq!(line.text(), "94,000 / 200,000 accepted · 54,000 msg/s · p50 6.75 ms · p99 9.08 ms");
        let endless = LiveProgress { elapsed_s: 3_600.0, ..LiveProgress::default() };
        assert_eq!(LiveLine::of(&endless, 1_234, "received", 0.0).text(), "3,600 s · 1,234 received · 0 msg/s");
    }

    #[test]
    fn a_wait_says_for_what_and_how_long() {
        let wait = |open, waits_s| {
            LiveLine::of(&LiveProgress { created: 3_000, open, waits_s, ..running() }, 1, "x", 0.0).text()
        };
        assert_eq!(wait(22, 7.2), "sent 3,000; waiting for 22 answers, at most 8 s more");
        assert_eq!(wait(1, 300.0), "sent 3,000; waiting for the last answer, at most 5 min 00 s more");
        assert_eq!(wait(0, 2.0), "sent 3,000; waiting for late messages, at most 2 s more");
        assert_eq!(
            waiting_text(3_000, "22 at the sink", 8.0),
            "sent 3,000; waiting for 22 at the sink, at most 8 s more"
        );
    }

    #[test]
    fn runs_of_a_comparison_have_whole_seconds() {
        let began = Instant::now() - Duration::from_millis(2_400);
        let text = LiveLine::of_runs(4, 16, "postfix", began).text();
        assert_eq!(text, "run 5 of 16: postfix · about 7 s left");
        assert_eq!(LiveLine::of_runs(0, 16, "postfix", began).text(), "run 1 of 16: postfix");
    }

    #[test]
    fn a_relays_line_has_both_rates_and_the_queue() {
        let progress =
            LiveProgress { elapsed_s: 12.0, accepted: 5_000, delivered: 4_950, open: 50, ..LiveProgress::default() };
        let text = relay_line(&progress, 498.2, 490.0).text();
        assert_eq!(text, "12 s · 5,000 accepted · 498 msg/s · 4,950 delivered, 490 per second · 50 queued");
    }

    #[test]
    fn a_rate_looks_back_one_second() {
        let mut window = RateWindow::default();
        for quarter in 0..20_u64 {
            // The count grows until 3.75 s, and then stays the same for a second, until the last report at 4.75 s. The
            // rate must then be 0.
            window.add(quarter as f64 / 4.0, (quarter * 250).min(3_750));
        }
        assert_eq!(window.per_s(), 0.0);
        assert!(window.steps.len() < 10);
        window.clear();
        window.add(1.0, 5);
        assert_eq!(window.per_s(), 0.0, "one look is no rate");
        window.add(2.0, 54_005);
        assert_eq!(window.per_s(), 54_000.0);
    }

    #[test]
    fn what_stood_there_is_removed_though_it_was_wrapped() {
        let mut terminal = TerminalLine { charset: CharacterSet::Utf8, is_dumb: false, columns: 0, drawn_at: None };
        let sentence = |text: &str| LiveLine::sentence(None, text);
        assert_eq!(terminal.frame(&sentence("first line of it"), 80), "first line of it");
        assert_eq!(terminal.frame(&sentence("second"), 80), "\r\u{1b}[Ksecond");
        terminal.frame(&sentence("a line of thirty columns, long"), 80);
        assert_eq!(terminal.frame(&sentence("short"), 20), "\r\u{1b}[1A\u{1b}[Jshort");
        assert_eq!(terminal.erase(20), "\r\u{1b}[K");
        assert_eq!(terminal.erase(20), "", "nothing stands there");
        let mut dumb = TerminalLine { is_dumb: true, ..terminal };
        dumb.frame(&sentence("abc"), 80);
        assert_eq!(dumb.frame(&sentence("d"), 80), "\r   \rd");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_its_terminal(
            width in 1_usize..200,
            numbers in any::<[u64; 4]>(),
            times in [0.0..1e9, 0.0..1e6, 0.0..1e6, 0.0..1e6_f64],
            is_ascii: bool,
        ) {
            let letters = if is_ascii { CharacterSet::Ascii } else { CharacterSet::Utf8 };
            let [goal_messages, created, open, errors] = numbers;
            let [elapsed_s, goal_s, p99_ms, waits_s] = times;
            let now = LiveTimes { p99_ms, ..LiveTimes::default() };
            for waits_s in [0.0, waits_s] {
                let progress =
                    LiveProgress { elapsed_s, goal_s, goal_messages, created, open, errors, now, waits_s, ..LiveProgress::default() };
                let line = LiveLine::of_mades(&progress, p99_ms);
                let fitted = line.fit(width, letters);
                prop_assert!(fitted.chars().count() <= width && !fitted.is_empty(), "{fitted}");
                prop_assert!(!is_ascii || fitted.is_ascii(), "{fitted}");
            }
        }
    }
}
