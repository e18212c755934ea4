//! The terminal's alternate screen, which a dashboard uses while it is shown. The terminal is restored at the end of
//! the run, and also after an error, a panic or a second Ctrl-C.
//!
//! ```text
//! enter ─→ shown ─ leave: the end of the run, an error, a panic, the second signal ─→ as it was before
//!             └ tell!: lines are kept, and written when it is left
//! ```
//! A process has one terminal and one panic hook, so the state is global.
use mailrun_lock::lock;
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, Once};

/// Escape sequences that switch to the alternate screen, hide the cursor and clear the screen.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[2J";
/// Escape sequences that reset colours, show the cursor and leave the alternate screen.
const LEAVE: &str = "\u{1b}[0m\u{1b}[?25h\u{1b}[?1049l";
/// Maximum number of lines that are kept while the dashboard is shown. Further lines are dropped,
/// because nobody would read so many of them afterwards.
const MAX_KEPT_LINES: usize = 200;

static SHOWN: Mutex<Option<ShownScreen>> = Mutex::new(None);

struct ShownScreen {
    before: Termios,
    kept_lines: Vec<String>,
}

fn shown() -> MutexGuard<'static, Option<ShownScreen>> {
    // Use the screen even if the lock is poisoned, because the terminal must be restored after a panic as well.
    lock(&SHOWN)
}

/// Switches the terminal on standard error to the alternate screen. Keys are read one by one and
/// are not echoed. Ctrl-C still sends a signal.
///
/// # Errors
/// Returns an error if standard error is not a terminal.
pub fn enter() -> io::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(leave_on_panic);
    let before = termios::tcgetattr(io::stderr())?;
    let mut modes = before.clone();
    modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    // Disable Ctrl-Z and Ctrl-\, because a process that is suspended or dumps core would leave the terminal on the
    // alternate screen.
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

/// Leaves the alternate screen if it is shown, restores the terminal, and prints the lines that
/// were kept in the meantime.
pub fn leave() {
    // Hold the lock until everything is written, so that no other thread prints a line in between.
    let mut shown = shown();
    let Some(screen) = shown.take() else { return };
    write(LEAVE);
    // Ignore errors, because the terminal may be gone.
    let _ = termios::tcsetattr(io::stderr(), OptionalActions::Drain, &screen.before);
    for line in screen.kept_lines {
        write(&format!("{line}\n"));
    }
}

/// Draws a frame if the screen is still shown. Returns false if the screen has been left, for
/// example because the user pressed Ctrl-C twice.
pub fn draw(frame: &[u8]) -> bool {
    let screen = shown();
    if screen.is_some() {
        let mut errors = io::stderr().lock();
        // Ignore write errors, so that the run goes on even if its terminal is gone.
        let _ = errors.write_all(frame).and_then(|()| errors.flush());
    }
    screen.is_some()
}

/// Writes a line to standard error or, while the screen is shown, keeps it until the screen is
/// left.
pub fn tell(line: Arguments<'_>) {
    // Format the line before taking the lock. Formatting may panic, and the panic hook could then
    // not take the lock.
    let line = line.to_string();
    let mut shown = shown();
    if let Some(screen) = shown.as_mut() {
        if screen.kept_lines.len() < MAX_KEPT_LINES {
            screen.kept_lines.push(line);
        }
        return;
    }
    drop(shown);
    // Ignore errors. The line is then lost, but the process must go on even if standard error is full or closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Leaves the screen on a panic, so that the panic's message appears on the normal screen.
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
