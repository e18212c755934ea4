//! The dashboard on the terminal of this process. This module decides when the dashboard is shown, and starts the
//! thread that draws it and reads its keys.
//!
//! ```text
//! the run ── RunSnapshot ─→ pending ─→ the thread: draws four times a second ─→ alternate_screen
//!    ↑                                    │ reads keys; Ctrl-Z leaves the screen and comes back with fg
//!    └──────────── SIGINT ←─ q ───────────┘
//! ```
use crate::draw::{MIN_COLUMNS, MIN_ROWS, draw};
use crate::snapshot::RunSnapshot;
use crate::state::{Dashboard, DashboardAction, DashboardKey, Palette};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use mailrun_lock::lock;
use mailrun_process::alternate_screen;
use mailrun_process::live::LiveMode;
use mailrun_process::terminal::{CharacterSet, Color};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use ratatui_crossterm::CrosstermBackend;
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{tcgetpgrp, tcgetwinsize};
use std::cell::RefCell;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between drawings. Drawing more often would take CPU time from the run.
const DRAW_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum time for which the thread waits for a key before it checks again whether the run is over.
const KEY_TIMEOUT: Duration = Duration::from_millis(50);
/// Pause after this process has sent itself SIGTSTP, because the signal does not stop all threads at once.
const STOP_DELAY: Duration = Duration::from_millis(200);
/// Elapsed time in seconds after which the dashboard appears. In a shorter run, it would only flash.
const SHOWN_AFTER_S: f64 = 2.0;
/// If the planned duration of a run is at least this many seconds, the dashboard appears immediately.
const SHOWN_AT_ONCE_S: f64 = 5.0;
/// Share of a run's work after which the dashboard no longer appears, because it would soon disappear again.
const ALMOST_DONE: f64 = 0.9;

/// Maximum number of snapshots that wait to be drawn. Normally only a few wait, because the thread takes them about
/// twenty times a second. When this many snapshots wait, a new snapshot replaces the newest of them.
const MAX_PENDING: usize = 1_000;

/// Snapshots of the run that the thread of the dashboard has not drawn yet. All of them are kept, because each is a
/// point of the dashboard's history.
#[derive(Debug, Default)]
struct PendingFigures {
    figures: Mutex<Vec<RunSnapshot>>,
    is_over: AtomicBool,
}

impl PendingFigures {
    fn add(&self, now: &RunSnapshot) {
        let mut figures = lock(&self.figures);
        let has_room = figures.len() < MAX_PENDING;
        match figures.last_mut() {
            Some(last) if !has_room || last.elapsed_s >= now.elapsed_s => last.clone_from(now),
            _ => figures.push(now.clone()),
        }
    }

    fn take(&self) -> Vec<RunSnapshot> {
        std::mem::take(&mut lock(&self.figures))
    }
}

#[derive(Debug, Default)]
pub(crate) struct DashboardDisplay {
    figures: RunSnapshot,
    shared: Arc<PendingFigures>,
    thread: Option<JoinHandle<()>>,
    /// Set once the dashboard has been shown, or an attempt to show it has failed. There is no second attempt.
    is_done: bool,
}

impl DashboardDisplay {
    /// Creates the display, or returns `None` if a dashboard cannot or should not be shown, for example on a small
    /// terminal or in the background. In CI, a dashboard is shown only if the user asked for it.
    pub(crate) fn new(live: LiveMode) -> Option<Self> {
        let terminals = Terminals {
            stdin: io::stdin().is_terminal(),
            stdout: io::stdout().is_terminal(),
            stderr: io::stderr().is_terminal(),
        };
        let is_possible = match live {
            LiveMode::Auto => suits(terminals, env::var_os("CI"), |name| env::var_os(name)),
            LiveMode::Dashboard => terminals.stderr && CharacterSet::of_environment() == CharacterSet::Utf8,
            LiveMode::Line | LiveMode::Json | LiveMode::Off => false,
        };
        (is_possible && is_in_foreground() && is_large_enough()).then(Self::default)
    }

    pub(crate) fn update(&mut self, figures: RunSnapshot) {
        self.figures = RunSnapshot { wait: self.figures.wait.take(), ..figures };
        self.publish();
    }

    pub(crate) fn should_show(&self) -> bool {
        !self.is_done && is_long(&self.figures)
    }

    /// Sets the text that says what the run waits for. `None` removes the text and shows the progress again.
    pub(crate) fn set_wait(&mut self, wait: Option<String>) {
        if self.figures.wait != wait {
            self.figures.wait = wait;
            self.publish();
        }
    }

    /// Returns true while the dashboard is on the screen. During that time, nothing else may be written to the
    /// terminal.
    pub(crate) fn is_shown(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Closes the dashboard for the rest of the run, and waits until the thread has ended. Does nothing if the
    /// dashboard was never shown.
    pub(crate) fn leave(&mut self) {
        self.is_done = true;
        if let Some(thread) = self.thread.take() {
            self.shared.is_over.store(true, Ordering::Relaxed);
            // Ignore a panic of the display thread, because the panic hook has already left the alternate screen.
            let _ = thread.join();
            alternate_screen::leave();
        }
    }

    /// Shows the dashboard until the end of the run. If the terminal cannot be used, the run continues without a
    /// dashboard.
    pub(crate) fn show(&mut self) {
        self.is_done = true;
        if !is_in_foreground() || alternate_screen::enter().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let screen = move || DashboardScreen::new(&shared).run();
        match thread::Builder::new().name("dashboard".to_owned()).spawn(screen) {
            Ok(thread) => self.thread = Some(thread),
            Err(_) => alternate_screen::leave(),
        }
    }

    fn publish(&self) {
        if !self.is_done || self.is_shown() {
            self.shared.add(&self.figures);
        }
    }
}

impl Drop for DashboardDisplay {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns true if the run is long enough for a dashboard: it is planned to take a long time, or it has lasted for some
/// time and will not end soon.
fn is_long(figures: &RunSnapshot) -> bool {
    let is_timed = figures.goal_messages == 0 && figures.goal_s > 0.0;
    if is_timed && figures.goal_s >= SHOWN_AT_ONCE_S && figures.elapsed_s > 0.0 {
        return true;
    }
    let messages = figures.messages.settled() as f64;
    let is_almost_done = figures.goal_messages > 0 && messages >= figures.goal_messages as f64 * ALMOST_DONE
        || is_timed && figures.elapsed_s >= figures.goal_s * ALMOST_DONE;
    figures.elapsed_s >= SHOWN_AFTER_S && !is_almost_done
}

#[derive(Clone, Copy, Debug)]
struct Terminals {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

/// Returns true if a user would expect a dashboard here, because a person sits at the terminal and no other program
/// reads the output.
fn suits(terminals: Terminals, ci: Option<OsString>, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_ci = ci.is_some_and(|value| !value.is_empty() && value != "false" && value != "0");
    let is_dumb = variable("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let all = terminals.stdin && terminals.stdout && terminals.stderr;
    all && !is_ci && !is_dumb && CharacterSet::of(variable) == CharacterSet::Utf8
}

/// Returns true if this process may read from its terminal and change the terminal's modes. The kernel would stop a
/// background job that tries to do so.
fn is_in_foreground() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp())
}

fn is_large_enough() -> bool {
    let size = size();
    size.width >= MIN_COLUMNS && size.height >= MIN_ROWS
}

/// Returns the size of the terminal, or the minimum size that shows all panes if the terminal does not tell its size.
fn size() -> Rect {
    let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(Rect::new(0, 0, MIN_COLUMNS, MIN_ROWS), |size| Rect::new(0, 0, size.ws_col, size.ws_row))
}

/// Escape sequences that reset the colours and clear the screen.
const CLEAR: &[u8] = b"\x1b[0m\x1b[2J";

/// Collects the bytes of a drawing, so that the drawing is written to the terminal in one piece.
#[derive(Clone, Debug, Default)]
struct FrameBytes(Rc<RefCell<Vec<u8>>>);

impl Write for FrameBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct DashboardScreen<'a> {
    shared: &'a PendingFigures,
    dashboard: Dashboard,
    area: Rect,
    frame: FrameBytes,
    /// The terminal with its last drawn content, so that the next drawing writes only the changed cells. `None` if the
    /// whole screen must be drawn again.
    terminal: Option<Terminal<CrosstermBackend<FrameBytes>>>,
    drawn_at: Option<Instant>,
    needs_drawing: bool,
}

impl<'a> DashboardScreen<'a> {
    fn new(shared: &'a PendingFigures) -> Self {
        let palette = if Color::Auto.is_enabled(true) { Palette::Colour } else { Palette::Plain };
        Self {
            shared,
            dashboard: Dashboard::new(palette),
            area: size(),
            frame: FrameBytes::default(),
            terminal: None,
            drawn_at: None,
            needs_drawing: true,
        }
    }

    fn run(&mut self) {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            for figures in self.shared.take() {
                self.dashboard.update(figures);
                self.needs_drawing |= !self.dashboard.is_paused();
            }
            let is_due = self.drawn_at.is_none_or(|at| at.elapsed() >= DRAW_INTERVAL);
            if is_due && !self.draw() {
                return;
            }
            if self.read_keys().is_err() {
                // If the keyboard cannot be read, `read_keys` returns at once, so sleep to avoid spinning.
                thread::sleep(KEY_TIMEOUT);
            }
        }
    }

    /// Draws the dashboard if something has changed. Returns false if the dashboard is no longer on the screen.
    fn draw(&mut self) -> bool {
        let area = size();
        if area != self.area {
            self.area = area;
            self.terminal = None;
        }
        if !self.needs_drawing && self.terminal.is_some() {
            return true;
        }
        self.drawn_at = Some(Instant::now());
        self.needs_drawing = false;
        self.frame.0.borrow_mut().clear();
        let terminal = match self.terminal.take() {
            Some(terminal) => Ok(terminal),
            None => self.new_terminal(),
        };
        let Ok(mut terminal) = terminal else { return false };
        // Ignore the result, because writing to memory cannot fail.
        let _ = terminal.draw(|frame| draw(&self.dashboard, frame));
        self.terminal = Some(terminal);
        alternate_screen::draw(&self.frame.0.borrow())
    }

    fn new_terminal(&self) -> io::Result<Terminal<CrosstermBackend<FrameBytes>>> {
        let options = TerminalOptions { viewport: Viewport::Fixed(self.area) };
        // Do not use `Terminal::clear`, because it would ask the terminal for the cursor's position, and write this
        // request to standard output.
        self.frame.0.borrow_mut().extend_from_slice(CLEAR);
        Terminal::with_options(CrosstermBackend::new(self.frame.clone()), options)
    }

    fn read_keys(&mut self) -> io::Result<()> {
        if !event::poll(KEY_TIMEOUT)? {
            return Ok(());
        }
        if let Event::Key(key) = event::read()? {
            self.press(key);
        }
        Ok(())
    }

    fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            if key.code == KeyCode::Char('z') {
                self.suspend();
            }
            return;
        }
        let key = match key.code {
            KeyCode::Char(letter) => DashboardKey::Character(letter),
            KeyCode::Tab => DashboardKey::Tab,
            KeyCode::BackTab => DashboardKey::BackTab,
            KeyCode::Esc => DashboardKey::Escape,
            _ => return,
        };
        match self.dashboard.press(key) {
            DashboardAction::Nothing => {}
            DashboardAction::Redraw => self.needs_drawing = true,
            DashboardAction::Stop => {
                self.needs_drawing = true;
                // Send SIGINT to this process, as Ctrl-C does. The first SIGINT stops the load and waits for
                // outstanding results, and the second ends the wait.
                let _ = kill_process(getpid(), Signal::INT);
            }
        }
    }

    /// Leaves the alternate screen and stops the process, as Ctrl-Z does in other programs. Shows the dashboard again
    /// once the process is in the foreground.
    fn suspend(&mut self) {
        alternate_screen::leave();
        let _ = kill_process(getpid(), Signal::TSTP);
        self.terminal = None;
        // SIGTSTP stops all threads, but this thread continues for a moment after it has sent the signal. Without this
        // pause, the loop below would find the process still in the foreground and enter the screen again.
        thread::sleep(STOP_DELAY);
        while !self.shared.is_over.load(Ordering::Relaxed) {
            if is_in_foreground() {
                // Ignore an error: if the screen cannot be entered, the next `alternate_screen::draw` returns false,
                // and the thread ends.
                let _ = alternate_screen::enter();
                return;
            }
            thread::sleep(KEY_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::MessageCounts;

    const ALL: Terminals = Terminals { stdin: true, stdout: true, stderr: true };

    fn of<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn a_dashboard_is_for_a_person_before_a_terminal() {
        let usual = [("TERM", "xterm"), ("LANG", "C.UTF-8")];
        assert!(suits(ALL, None, of(&usual)));
        for less in
            [Terminals { stdin: false, ..ALL }, Terminals { stdout: false, ..ALL }, Terminals { stderr: false, ..ALL }]
        {
            assert!(!suits(less, None, of(&usual)), "{less:?}");
        }
        for other in
            [&[("TERM", "dumb"), ("LANG", "C.UTF-8")][..], &[("LANG", "C.UTF-8")], &[("TERM", "xterm"), ("LANG", "C")]]
        {
            assert!(!suits(ALL, None, of(other)), "{other:?}");
        }
        for (ci, is_shown) in [("true", false), ("1", false), ("false", true), ("0", true), ("", true)] {
            assert_eq!(suits(ALL, Some(OsString::from(ci)), of(&usual)), is_shown, "{ci}");
        }
    }

    #[test]
    fn a_run_is_shown_if_it_lasts() {
        let run = |elapsed_s, goal_s, goal_messages, accepted| RunSnapshot {
            elapsed_s,
            goal_s,
            goal_messages,
            messages: MessageCounts { accepted, ..MessageCounts::default() },
            ..RunSnapshot::default()
        };
        assert!(!is_long(&run(1.9, 0.0, 1_000, 10)), "it may end soon");
        assert!(is_long(&run(2.0, 0.0, 1_000, 10)));
        assert!(!is_long(&run(2.0, 0.0, 1_000, 950)), "it is about to end");
        let refused = MessageCounts { rejected: 500, failed: 450, ..MessageCounts::default() };
        assert!(!is_long(&RunSnapshot { messages: refused, ..run(2.0, 0.0, 1_000, 0) }), "nothing is left to do");
        assert!(is_long(&run(0.25, 10.0, 0, 10)), "it is known to last");
        assert!(!is_long(&run(0.0, 10.0, 0, 0)), "nothing has begun");
        assert!(!is_long(&run(2.0, 2.0, 0, 10)) && is_long(&run(2.0, 4.0, 0, 10)));
        assert!(is_long(&run(2.0, 0.0, 0, 10)), "it has no planned end");
    }

    #[test]
    fn no_other_form_has_a_dashboard() {
        for live in [LiveMode::Line, LiveMode::Json, LiveMode::Off] {
            assert!(DashboardDisplay::new(live).is_none());
        }
    }
}
