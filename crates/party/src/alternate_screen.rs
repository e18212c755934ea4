//! The terminal's alternate screen, which a dashboard has as long as it is shown, and what restores the terminal however
//! the process ends.
//!
//! ```text
//! enter ─→ shown ─ leave: the end of the run, an error, a panic, the second signal ─→ as it was before
//!             └ tell!: lines are kept, and written when it is left
//! ```
//! A process has one terminal, and a panic hook is the process's: so is the state.
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Alternate screen on; cursor hidden.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[2J";
/// Colours reset; cursor shown; alternate screen off.
const LEAVE: &str = "\u{1b}[0m\u{1b}[?25h\u{1b}[?1049l";
/// Lines that are kept for the end: more of them nobody reads.
const MAX_KEPT_LINES: usize = 200;

/// The screen that is shown; `None`: the terminal is as its user had it.
static SHOWN: Mutex<Option<ShownScreen>> = Mutex::new(None);

/// State of the terminal before.
struct ShownScreen {
    before: Termios,
    kept_lines: Vec<String>,
}

fn shown() -> MutexGuard<'static, Option<ShownScreen>> {
    // Nothing panics while it is locked; if something did, the terminal is still to be restored.
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters the alternate screen of the terminal on standard error. Keys are read one by one and not shown; Ctrl-C still
/// is a signal.
///
/// # Errors
/// If it is no terminal.
pub(crate) fn enter() -> io::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(leave_on_panic);
    let before = termios::tcgetattr(io::stderr())?;
    let mut modes = before.clone();
    modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    // Suspended by its key, the process has to leave the screen first; a core dump (Ctrl-\) would leave it as it is.
    for code in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
        modes.special_codes[code] = 0;
    }
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    let mut screen = shown();
    termios::tcsetattr(io::stderr(), OptionalActions::Drain, &modes)?;
    *screen = Some(ShownScreen { before, kept_lines: Vec::new() });
    write(ENTER);
    Ok(())
}

/// Leaves the screen, if it is shown: the terminal is as it was, with the lines below that were told meanwhile.
pub(crate) fn leave() {
    // Locked until all is written: nobody else's line comes between.
    let mut shown = shown();
    let Some(screen) = shown.take() else { return };
    write(LEAVE);
    // A terminal that is gone needs no modes.
    let _ = termios::tcsetattr(io::stderr(), OptionalActions::Drain, &screen.before);
    for line in screen.kept_lines {
        write(&format!("{line}\n"));
    }
}

/// Draws, if the screen is still shown. Reports whether it is.
pub(crate) fn draw(frame: &[u8]) -> bool {
    let screen = shown();
    if screen.is_some() {
        let mut errors = io::stderr().lock();
        // A terminal that takes no more is no reason to stop.
        let _ = errors.write_all(frame).and_then(|()| errors.flush());
    }
    screen.is_some()
}

/// Writes a line on standard error, or keeps it until the screen is left.
pub fn tell(line: Arguments<'_>) {
    // What is formatted may panic, and the panic's hook takes the lock.
    let line = line.to_string();
    let mut shown = shown();
    if let Some(screen) = shown.as_mut() {
        if screen.kept_lines.len() < MAX_KEPT_LINES {
            screen.kept_lines.push(line);
        }
        return;
    }
    drop(shown);
    // If standard error is full or closed, the line is lost; this is no reason to stop.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A panic's message belongs on the normal screen.
fn leave_on_panic() {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        other(panic);
    }));
}

fn write(text: &str) {
    let mut errors = io::stderr().lock();
    let _ = errors.write_all(text.as_bytes()).and_then(|()| errors.flush());
}
