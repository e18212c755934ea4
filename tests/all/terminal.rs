//! A pseudo-terminal that records, frame by frame, what a program draws.
use crate::party::{MAILRUN, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// A program on a terminal. It is killed when dropped.
pub(crate) struct OnTerminal {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    columns: usize,
    _place: TempDir,
}

pub(crate) struct Seen {
    /// Exit status. `None` if a signal ended the program.
    pub(crate) code: Option<i32>,
    pub(crate) screen: Screen,
}

impl OnTerminal {
    /// Starts mailrun on a terminal with `columns` columns and these environment variables.
    pub(crate) fn start(columns: u16, variables: &[(&str, &str)], words: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let user = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&user, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(MAILRUN);
        command.args(words).current_dir(place.path()).process_group(0).stdin(Stdio::null());
        command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8").envs(variables.iter().copied());
        command.stdout(user.try_clone().unwrap()).stderr(user);
        let child = command.spawn().unwrap();
        // The command holds the terminal's other end open. Drop the command, so that the reader notices when the
        // program ends.
        drop(command);
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let reader = std::thread::spawn(move || read(File::from(controller), &heard));
        Self { child, said, reader: Some(reader), columns: columns.into(), _place: place }
    }

    pub(crate) fn screen(&self) -> Screen {
        Screen::of(&self.said.lock().unwrap(), self.columns)
    }

    pub(crate) fn wait_for(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        wait_until(what, || self.screen().frames.into_iter().find(|frame| is_it(frame)))
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    pub(crate) fn finish(mut self) -> Seen {
        let status = wait_until("a program to end", || self.child.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        Seen { code: status.code(), screen: self.screen() }
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Ignore errors, because the program may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut controller: File, heard: &Mutex<Vec<u8>>) {
    let mut block = [0; 4096];
    // Reading fails with EIO when the other end is closed, so stop at any error.
    while let Ok(length @ 1..) = controller.read(&mut block) {
        heard.lock().unwrap().extend_from_slice(&block[..length]);
    }
}

/// Content of a terminal after a program's output, including all lines that have scrolled out of view.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    pub(crate) lines: Vec<String>,
    /// Contents of the line that was being drawn before each CR, LF and escape sequence.
    pub(crate) frames: Vec<String>,
    /// Frames that did not fit on a line.
    pub(crate) wrapped: Vec<String>,
}

impl Screen {
    /// Interprets what mailrun writes: CR, LF, colours, erasing to the end of line or screen, and moving up.
    pub(crate) fn of(bytes: &[u8], columns: usize) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut screen = Self { lines: vec![String::new()], ..Self::default() };
        let mut row = 0;
        let mut column = 0;
        let mut has_wrapped = false;
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\r' | '\n' | '\u{1b}' if column > 0 => {
                    let frame = screen.lines[row].clone();
                    if has_wrapped {
                        screen.wrapped.push(frame.clone());
                    }
                    screen.frames.push(frame);
                    has_wrapped = false;
                }
                _ => {}
            }
            match letter {
                '\r' => column = 0,
                '\n' => {
                    row += 1;
                    screen.lines.resize(screen.lines.len().max(row + 1), String::new());
                }
                '\u{1b}' => match sequence(&mut letters) {
                    ('K', _) => screen.lines[row] = screen.lines[row].chars().take(column).collect(),
                    ('J', _) => {
                        screen.lines[row] = screen.lines[row].chars().take(column).collect();
                        screen.lines.truncate(row + 1);
                    }
                    ('A', rows) => row -= rows.max(1),
                    ('m', _) => {}
                    (other, _) => panic!("an escape sequence that ends in {other:?}"),
                },
                letter => {
                    if column == columns {
                        (row, column, has_wrapped) = (row + 1, 0, true);
                        screen.lines.resize(screen.lines.len().max(row + 1), String::new());
                    }
                    let line = &screen.lines[row];
                    let rest: String = line.chars().skip(column + 1).collect();
                    screen.lines[row] = line.chars().take(column).chain([letter]).chain(rest.chars()).collect();
                    column += 1;
                }
            }
        }
        screen
    }
}

/// Reads a control sequence. Returns its final letter, and its first number or 0.
fn sequence(letters: &mut std::str::Chars<'_>) -> (char, usize) {
    let mut digits = String::new();
    for letter in letters.skip(1) {
        if letter.is_ascii_alphabetic() {
            return (letter, digits.split(';').next().and_then(|number| number.parse().ok()).unwrap_or(0));
        }
        digits.push(letter);
    }
    ('\0', 0)
}

#[test]
fn a_screen_is_what_a_terminal_shows() {
    let screen = Screen::of(b"one\r\n12345678\rab\r\x1b[Kxy\x1b[32mz\x1b[0m\r\n", 8);
    assert_eq!(screen.lines, ["one", "xyz", ""]);
    assert!(screen.frames.contains(&"ab345678".to_owned()) && screen.wrapped.is_empty(), "{screen:?}");
    let screen = Screen::of(b"123456789\r\x1b[1A\x1b[Jnew", 8);
    assert_eq!((screen.lines, screen.wrapped), (vec!["new".to_owned()], vec!["9".to_owned()]));
}
