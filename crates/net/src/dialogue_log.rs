//! A log of what clients and a server say to each other, for a person who wants to know what a client does. The numbers
//! of sessions and lines are limited, so that a load fills neither the memory nor a disk.
use crate::handler::CloseReason;
use crate::tls::Handshake;
use ipnet::IpNet;
use mailrun_eventloop::clock;
use mailrun_smtp::dialogue::Dialogue;
use mailrun_smtp::{AddressPattern, Path};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum number of lines that the log shows of one session, so that a long session cannot fill the log.
const MAX_LINES: usize = 1000;
/// Maximum number of sessions that are shown, so that the log cannot fill a disk.
const MAX_SESSIONS: u64 = 10_000;
/// Maximum number of open sessions whose lines are recorded. With `MAX_HELD_BYTES`, this limits the memory to 64 MiB.
const MAX_OPEN_SESSIONS: usize = 1000;
/// Maximum size in bytes of the lines that are held for a session until a filter selects it. The first line that would
/// exceed this limit is dropped, and so are all lines after it, so that the session has at most one gap in the log.
const MAX_HELD_BYTES: usize = 64 << 10;
const TOO_MANY_LINES: &str = "=== further lines of this session are not shown";

/// Receives the lines of a [`DialogueLog`]. Workers call it on their own threads, so it must not block.
pub trait DialogueWriter: Send + Sync + 'static {
    /// Writes a line that the client or the server of a session has sent, or an event such as the end of the session.
    /// `at` is the time since 1970-01-01T00:00:00Z. Sessions are numbered from 1, and 0 is for lines that concern no
    /// session.
    fn write(&self, at: Duration, session: u64, line: &str);
}

/// Condition that selects sessions to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialogueFilter {
    /// Selects sessions of clients in this network.
    Client(IpNet),
    /// Selects sessions with a sender or recipient that matches this pattern.
    Address(AddressPattern),
    /// Selects sessions that send a notification (`MAIL FROM:<>`).
    NullSender,
}

/// Error for a text that is not a valid [`DialogueFilter`], with a message that shows the valid forms.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no pattern; use ann@a.example, @a.example, ann@, <>, or a client: 192.0.2.1, 192.0.2.0/24")]
pub struct DialogueFilterError(String);

impl FromStr for DialogueFilter {
    type Err = DialogueFilterError;

    fn from_str(text: &str) -> Result<Self, DialogueFilterError> {
        if text == "<>" {
            return Ok(Self::NullSender);
        }
        let network = || text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse()).ok();
        let address = || AddressPattern::parse(text).map(Self::Address);
        network().map(Self::Client).or_else(address).ok_or_else(|| DialogueFilterError(text.to_owned()))
    }
}

impl DialogueFilter {
    fn wants_client(&self, client: IpAddr) -> bool {
        matches!(self, Self::Client(network) if network.contains(&client.to_canonical()))
    }

    fn wants_address(&self, address: &Path<'_>) -> bool {
        match self {
            Self::Address(pattern) => !address.is_null() && pattern.matches(address),
            Self::NullSender => address.is_null(),
            Self::Client(_) => false,
        }
    }
}

/// Shows what clients and servers say to each other, in the sessions of one or several servers.
pub struct DialogueLog {
    /// Filters that select the sessions to show, or none to show all sessions.
    filters: Vec<DialogueFilter>,
    writer: Box<dyn DialogueWriter>,
    numbered: AtomicU64,
    shown: AtomicU64,
    open: AtomicUsize,
    /// Set after the log has said that too many sessions are open to show all of them, so that it says so only once.
    said_too_many: AtomicBool,
}

impl fmt::Debug for DialogueLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialogueLog").field("filters", &self.filters).finish_non_exhaustive()
    }
}

impl DialogueLog {
    /// Creates a log of the sessions that at least one filter selects, or of all sessions if there is no filter.
    pub fn new(filters: Vec<DialogueFilter>, writer: impl DialogueWriter) -> Self {
        Self {
            filters,
            writer: Box::new(writer),
            numbered: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            said_too_many: AtomicBool::new(false),
        }
    }

    /// Begins to follow the session of a client, or returns `None` if the limit of open or of shown sessions is
    /// reached.
    pub(crate) fn session(self: &Arc<Self>, client: SocketAddr) -> Option<Box<SessionDialogue>> {
        let number = self.numbered.fetch_add(1, Ordering::Relaxed) + 1;
        if self.shown.load(Ordering::Relaxed) >= MAX_SESSIONS {
            return None;
        }
        if self.open.fetch_add(1, Ordering::Relaxed) >= MAX_OPEN_SESSIONS {
            self.open.fetch_sub(1, Ordering::Relaxed);
            if !self.said_too_many.swap(true, Ordering::Relaxed) {
                let line = format!("=== {MAX_OPEN_SESSIONS} sessions are open; others are not shown");
                self.writer.write(clock::wall(), 0, &line);
            }
            return None;
        }
        let mut session = Box::new(SessionDialogue {
            log: Arc::clone(self),
            number,
            dialogue: Dialogue::default(),
            state: ShownState::Held(HeldLines::default()),
            lines: 0,
            text: String::new(),
        });
        if self.filters.is_empty() {
            session.choose();
        }
        session.client_is("client", client);
        Some(session)
    }
}

pub(crate) struct SessionDialogue {
    log: Arc<DialogueLog>,
    number: u64,
    dialogue: Dialogue,
    state: ShownState,
    /// Number of lines of the session so far, including lines that were not shown, to enforce `MAX_LINES`.
    lines: usize,
    /// Lines that the current call of a method, such as `client`, adds to the log. The text is empty between calls, and
    /// keeps its memory for the next call.
    text: String,
}

enum ShownState {
    /// No filter matches the session yet. The log holds the lines, because a later MAIL or RCPT may match a filter.
    Held(HeldLines),
    Shown,
    /// A filter matches the session, but `MAX_SESSIONS` sessions were already shown, so the log drops its lines.
    Dropped,
}

#[derive(Default)]
struct HeldLines {
    lines: Vec<(Duration, String)>,
    bytes: usize,
    /// Number of lines that were dropped: the first line that would have exceeded `MAX_HELD_BYTES`, and all later ones.
    dropped: usize,
}

impl HeldLines {
    fn hold(&mut self, at: Duration, line: &str) {
        if self.dropped > 0 || self.bytes + line.len() > MAX_HELD_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += line.len();
        self.lines.push((at, line.to_owned()));
    }
}

impl SessionDialogue {
    pub(crate) fn client(&mut self, bytes: &[u8]) {
        self.dialogue.client(bytes, &mut self.text);
        self.add();
    }

    pub(crate) fn server(&mut self, bytes: &[u8]) {
        self.dialogue.server(bytes, &mut self.text);
        self.add();
    }

    pub(crate) fn event(&mut self, text: &str) {
        Dialogue::event(text, &mut self.text);
        self.add();
    }

    /// Shows the address of the client, or of the real client that a proxy has named. If a filter matches this address,
    /// the log shows the whole session.
    pub(crate) fn client_is(&mut self, role: &str, client: SocketAddr) {
        if self.log.filters.iter().any(|filter| filter.wants_client(client.ip())) {
            self.choose();
        }
        match client.ip().is_unspecified() {
            true => self.event(&format!("{role} at a unix-domain socket")),
            false => self.event(&format!("{role} {client}")),
        }
    }

    pub(crate) fn tls_started(&mut self, handshake: &Handshake) {
        self.dialogue.tls_started(&handshake.version, &handshake.cipher, &mut self.text);
        self.add();
    }

    pub(crate) fn closed(&mut self, reason: CloseReason) {
        self.dialogue.end(&mut self.text);
        self.event(match reason {
            CloseReason::Quit => "closed after QUIT",
            CloseReason::Lost => "closed without QUIT",
            CloseReason::Timeout => "the client took too long",
            CloseReason::HungUp => "the server closed the connection",
            CloseReason::ShuttingDown => "the server stops",
        });
    }

    /// Shows the lines of the session that were held until now, and every line from now on.
    fn choose(&mut self) {
        let ShownState::Held(held) = &mut self.state else { return };
        let held = std::mem::take(held);
        let shown = self.log.shown.fetch_add(1, Ordering::Relaxed) + 1;
        if shown > MAX_SESSIONS {
            self.state = ShownState::Dropped;
            return;
        }
        self.state = ShownState::Shown;
        if shown == MAX_SESSIONS {
            self.log.writer.write(clock::wall(), 0, &format!("=== later sessions than {MAX_SESSIONS} are not shown"));
        }
        held.lines.iter().for_each(|(at, line)| self.log.writer.write(*at, self.number, line));
        if held.dropped > 0 {
            let line = format!("=== {} lines are left out here", held.dropped);
            self.log.writer.write(clock::wall(), self.number, &line);
        }
        if self.lines > MAX_LINES {
            self.log.writer.write(clock::wall(), self.number, TOO_MANY_LINES);
        }
    }

    fn add(&mut self) {
        let text = std::mem::take(&mut self.text);
        let at = clock::wall();
        for line in text.split_terminator('\n') {
            self.add_line(at, line);
        }
        self.text = text;
        self.text.clear();
    }

    fn add_line(&mut self, at: Duration, line: &str) {
        if matches!(self.state, ShownState::Held(..))
            && let Some(address) = envelope_address(line)
            && self.log.filters.iter().any(|filter| filter.wants_address(&address))
        {
            self.choose();
        }
        self.lines += 1;
        let is_within_limit = self.lines <= MAX_LINES;
        match &mut self.state {
            ShownState::Held(held) if is_within_limit => held.hold(at, line),
            ShownState::Shown if is_within_limit => self.log.writer.write(at, self.number, line),
            ShownState::Shown if self.lines == MAX_LINES + 1 => self.log.writer.write(at, self.number, TOO_MANY_LINES),
            ShownState::Held(_) | ShownState::Shown | ShownState::Dropped => {}
        }
    }
}

impl Drop for SessionDialogue {
    fn drop(&mut self) {
        self.log.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the address in a line, if the line is a client's MAIL or RCPT.
fn envelope_address(line: &str) -> Option<Path<'_>> {
    let command = line.strip_prefix(" -> ")?;
    let (verb, path) = command.split_once(':')?;
    let is_envelope = ["MAIL FROM", "RCPT TO"].iter().any(|known| verb.eq_ignore_ascii_case(known));
    if !is_envelope {
        return None;
    }
    Path::parse(path.trim_start().as_bytes()).ok().map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<(u64, String)>>>);

    impl DialogueWriter for Written {
        fn write(&self, _: Duration, session: u64, line: &str) {
            self.0.lock().expect("not poisoned").push((session, line.to_owned()));
        }
    }

    impl Written {
        fn take(&self) -> Vec<(u64, String)> {
            std::mem::take(&mut self.0.lock().expect("not poisoned"))
        }
    }

    fn log(filters: &[&str]) -> (Arc<DialogueLog>, Written) {
        let written = Written::default();
        let filters = filters.iter().map(|text| text.parse().expect("a filter")).collect();
        (Arc::new(DialogueLog::new(filters, written.clone())), written)
    }

    fn address(client: &str) -> SocketAddr {
        format!("{client}:5000").parse().expect("an address")
    }

    fn transaction(session: &mut SessionDialogue, sender: &str, recipient: &str) {
        session.server(b"220 mx\r\n");
        session.client(format!("MAIL FROM:<{sender}> SIZE=5\r\nrcpt to: <{recipient}>\r\n").as_bytes());
    }

    #[test]
    fn sessions_are_chosen_by_client_sender_and_recipient() {
        for (filter, client, sender, recipient, is_shown) in [
            ("127.0.0.1", "127.0.0.1", "a@b", "c@d", true),
            ("127.0.0.0/8", "127.3.0.1", "a@b", "c@d", true),
            ("127.0.0.0/8", "[::ffff:127.3.0.1]", "a@b", "c@d", true),
            ("127.0.0.2", "127.0.0.1", "a@b", "c@d", false),
            ("@B", "127.0.0.1", "a@b", "c@d", true),
            ("@d", "127.0.0.1", "a@b", "c@d", true),
            ("c@", "127.0.0.1", "a@b", "c@d", true),
            ("c@b", "127.0.0.1", "a@b", "c@d", false),
            ("<>", "127.0.0.1", "", "c@d", true),
            ("<>", "127.0.0.1", "a@b", "c@d", false),
            ("*", "127.0.0.1", "", "c@d", true),
        ] {
            let (log, written) = log(&[filter]);
            let mut session = log.session(address(client)).expect("below the limits");
            transaction(&mut session, sender, recipient);
            let lines = written.take();
            assert_eq!(!lines.is_empty(), is_shown, "{filter} {client} {sender} {recipient}");
            if is_shown {
                assert!(lines[0].1.starts_with("=== client "), "{filter}: the lines before are shown, too: {lines:?}");
                assert_eq!(lines.len(), 4, "{filter}: {lines:?}");
            }
        }
        for text in ["", "a", "127.0.0.1/40", "@"] {
            assert!(text.parse::<DialogueFilter>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_session_has_a_number_and_an_end() {
        let (log, written) = log(&[]);
        let first = log.session(address("127.0.0.1"));
        let mut second = log.session(address("[::1]")).expect("below the limits");
        second.client(b"QUI");
        second.closed(CloseReason::Lost);
        let expected = [
            (1, "=== client 127.0.0.1:5000"),
            (2, "=== client [::1]:5000"),
            (2, " -> QUI"),
            (2, "=== the line is incomplete"),
            (2, "=== closed without QUIT"),
        ];
        assert_eq!(written.take(), expected.map(|(number, line)| (number, line.to_owned())));
        drop(first);
    }

    #[test]
    fn lines_sessions_and_memory_are_limited() {
        let (log, written) = log(&["@wanted"]);
        let mut open = Vec::new();
        while let Some(session) = log.session(address("127.0.0.1")) {
            open.push(session);
        }
        assert_eq!(open.len(), MAX_OPEN_SESSIONS);
        assert!(log.session(address("127.0.0.1")).is_none());
        assert_eq!(written.take(), [(0, "=== 1000 sessions are open; others are not shown".to_owned())]);
        let mut long = open.pop().expect("one of them");
        drop(open);
        for _ in 0..100 {
            long.client(format!("NOOP {}\r\n", "x".repeat(900)).as_bytes());
            // When the log is too full for a long line, this short line would still fit. The log must drop it as well,
            // so that there is only one gap.
            long.client(b"NOOP\r\n");
        }
        let ShownState::Held(held) = &long.state else { panic!("nobody wants it") };
        assert!(held.bytes <= MAX_HELD_BYTES);
        transaction(&mut long, "a@wanted", "b@c");
        let lines = written.take();
        let gap = lines.iter().position(|(_, line)| line.ends_with(" lines are left out here")).expect("a gap");
        // Before MAIL, the session has 202 lines: the client's address, 200 commands and the greeting. The log shows
        // the first `gap` lines, and its notice must state how many lines are left out.
        let left_out = 1 + 200 + 1 - gap;
        assert_eq!(lines[gap].1, format!("=== {left_out} lines are left out here"));
        assert_eq!(lines[gap + 1].1, " -> MAIL FROM:<a@wanted> SIZE=5");
        for _ in 0..MAX_LINES {
            long.client(b"NOOP\r\n");
        }
        let lines = written.take();
        assert_eq!(lines.last().expect("lines").1, "=== further lines of this session are not shown");
        assert!(lines.len() < MAX_LINES);
        let mut late = log.session(address("127.0.0.1")).expect("below the limits");
        (0..MAX_LINES).for_each(|_| late.client(b"NOOP\r\n"));
        transaction(&mut late, "a@wanted", "b@c");
        assert_eq!(written.take().last().expect("lines").1, TOO_MANY_LINES);
        drop(late);
        while let Some(mut session) = log.session(address("127.0.0.1")) {
            transaction(&mut session, "a@wanted", "b@c");
        }
        let lines = written.take();
        let of_sessions = lines.iter().filter(|(number, _)| *number > 0).count() as u64;
        assert_eq!(of_sessions, (MAX_SESSIONS - 2) * 4, "two were shown before");
        assert!(lines.contains(&(0, "=== later sessions than 10000 are not shown".to_owned())));
    }
}
