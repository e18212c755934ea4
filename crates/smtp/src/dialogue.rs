//! The dialogue of a session as text, in the form that swaks prints: `<-` for lines of the server,
//! ` ->` for lines of the client, and `===` for other events. Login data is hidden.
//!
//! The text is made only from the bytes on the wire, so it shows what was really sent, even if a
//! session misread it. The bytes may arrive in pieces of any size.
use crate::reply::ReceivedReply;

/// Maximum number of bytes of a line that are shown. Longer lines are cut, to save memory.
const MAX_LINE_BYTES: usize = 1000;

/// Commands that the dialogue still shows after the client's first AUTH. Any other line is hidden from then on, because
/// a client may send login data without waiting for the server's 334.
const VERBS: [&str; 17] = [
    "AUTH", "BDAT", "DATA", "EHLO", "ETRN", "EXPN", "HELO", "HELP", "LHLO", "MAIL", "NOOP", "QUIT", "RCPT", "RSET",
    "STARTTLS", "VRFY", "XCLIENT",
];

/// Renders the lines that both sides of a session send. The caller passes the bytes in the order in
/// which they are on the wire.
#[derive(Debug, Default)]
pub struct Dialogue {
    message_lines: u64,
    client_line: HeldLine,
    server_line: HeldLine,
    part: ClientPart,
    /// Number of the client's lines that still await a reply. If this is more than one, the next reply may belong to an
    /// earlier command, and then says nothing about the client's latest AUTH or DATA.
    unanswered: u32,
    /// Set from AUTH until its final reply. The client's lines are then login data and are hidden.
    is_login: bool,
    /// Set after the first AUTH. From then on, only lines that begin with one of `VERBS` are shown.
    has_login: bool,
}

/// Tells whether the client's next bytes are commands or part of a message. The two must be distinguished, because a
/// line of a message may look like a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClientPart {
    #[default]
    Commands,
    /// Lines of a message, up to the final dot. If the reply to DATA is not 354, commands follow
    /// instead.
    Message(ShownMessage),
    /// Content of a chunk (RFC 3030), with the number of its bytes that are still to come.
    Chunk(u64, ShownMessage),
}

/// Number of lines and bytes of a message or chunk that have been sent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ShownMessage {
    lines: u64,
    bytes: u64,
}

impl Dialogue {
    /// Creates a renderer for the lines of a new connection. Shows the first `message_lines` lines of each message and
    /// only counts the others.
    pub fn new(message_lines: u64) -> Self {
        Self { message_lines, ..Self::default() }
    }

    /// Renders bytes that the client has sent, and appends complete lines to `shown`. An incomplete
    /// line waits for the next call.
    pub fn client(&mut self, mut bytes: &[u8], shown: &mut String) {
        while !bytes.is_empty() {
            if let ClientPart::Chunk(rest, message) = self.part {
                self.chunk(rest, message, &mut bytes, shown);
                continue;
            }
            let Some(line) = self.client_line.take(&mut bytes) else { return };
            match self.part {
                ClientPart::Message(message) => self.message_line(&line, message, shown),
                ClientPart::Commands | ClientPart::Chunk(..) => self.command(&line, shown),
            }
        }
    }

    /// Renders bytes that the server has sent, and appends complete lines to `shown`.
    pub fn server(&mut self, mut bytes: &[u8], shown: &mut String) {
        while let Some(line) = self.server_line.take(&mut bytes) {
            self.reply_line(&line, shown);
        }
    }

    /// Renders a reply that the client has already parsed, in the same way as [`Dialogue::server`].
    pub fn reply(&mut self, reply: &ReceivedReply<'_>, shown: &mut String) {
        self.server(reply.wire(), shown);
    }

    /// Appends an event that is not a line of either side, such as the end of the connection.
    pub fn event(text: &str, shown: &mut String) {
        push("===", text.as_bytes(), shown);
    }

    /// Appends the event that TLS has begun, with its version and cipher. Drops incomplete lines, because plain text
    /// from before TLS is not part of the new session.
    pub fn tls_started(&mut self, version: &str, cipher: &str, shown: &mut String) {
        *self = Self { has_login: self.has_login, ..Self::new(self.message_lines) };
        Self::event(&format!("TLS started: {version}, {cipher}"), shown);
    }

    /// Ends the dialogue. If the client's last command or message is incomplete, shows it and says so, because the rest
    /// will not arrive.
    pub fn end(&mut self, shown: &mut String) {
        match self.part {
            ClientPart::Message(message) | ClientPart::Chunk(_, message) if message.bytes > 0 => {
                self.message_end(message, shown);
                Self::event("the message is incomplete", shown);
            }
            ClientPart::Commands if !self.client_line.is_empty() => {
                let line = std::mem::take(&mut self.client_line);
                self.command(&line, shown);
                Self::event("the line is incomplete", shown);
            }
            ClientPart::Message(_) | ClientPart::Chunk(..) | ClientPart::Commands => {}
        }
    }

    fn command(&mut self, line: &HeldLine, shown: &mut String) {
        self.unanswered = self.unanswered.saturating_add(1);
        if self.is_login {
            return push(" ->", b"(login data)", shown);
        }
        let text = line.text();
        let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let verb = words.next().unwrap_or_default();
        let is_verb = |known: &str| verb.eq_ignore_ascii_case(known.as_bytes());
        if is_verb("AUTH") {
            (self.is_login, self.has_login) = (true, true);
            let mechanism = words.next().unwrap_or_default();
            let data: &[u8] = if words.next().is_some() { b" (login data)" } else { b"" };
            return push(" ->", &[b"AUTH ", mechanism, data].concat(), shown);
        }
        if self.has_login && !VERBS.into_iter().any(is_verb) {
            return push(" ->", b"(hidden, because it may be login data)", shown);
        }
        line.push(" ->", shown);
        if is_verb("DATA") {
            self.part = ClientPart::Message(ShownMessage::default());
        } else if is_verb("BDAT")
            && let Some(bytes) = words.next().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
            && bytes > 0
        {
            self.part = ClientPart::Chunk(bytes, ShownMessage::default());
        }
    }

    fn message_line(&mut self, line: &HeldLine, mut message: ShownMessage, shown: &mut String) {
        if line.text() == b"." {
            self.message_end(message, shown);
            push(" ->", b".", shown);
            self.unanswered = self.unanswered.saturating_add(1);
            self.part = ClientPart::Commands;
            return;
        }
        self.count(line, &mut message, shown);
        self.part = ClientPart::Message(message);
    }

    fn chunk(&mut self, rest: u64, mut message: ShownMessage, bytes: &mut &[u8], shown: &mut String) {
        let (mut own, following) = bytes.split_at(bytes.len().min(usize::try_from(rest).unwrap_or(usize::MAX)));
        *bytes = following;
        let rest = rest - own.len() as u64;
        while let Some(line) = self.client_line.take(&mut own) {
            self.count(&line, &mut message, shown);
        }
        if rest > 0 {
            self.part = ClientPart::Chunk(rest, message);
            return;
        }
        if !self.client_line.is_empty() {
            let line = std::mem::take(&mut self.client_line);
            self.count(&line, &mut message, shown);
        }
        self.message_end(message, shown);
        self.part = ClientPart::Commands;
    }

    fn count(&self, line: &HeldLine, message: &mut ShownMessage, shown: &mut String) {
        if message.lines < self.message_lines {
            line.push(" ->", shown);
        }
        message.lines += 1;
        message.bytes += line.bytes;
    }

    fn message_end(&self, message: ShownMessage, shown: &mut String) {
        let ShownMessage { lines, bytes } = message;
        let hidden = lines.saturating_sub(self.message_lines);
        if self.message_lines == 0 {
            let lines = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
            push(" ->", format!("(message: {lines}, {bytes} bytes)").as_bytes(), shown);
        } else if hidden > 0 {
            let lines = if hidden == 1 { "line" } else { "lines" };
            push(" ->", format!("({hidden} more {lines})").as_bytes(), shown);
        }
    }

    fn reply_line(&mut self, line: &HeldLine, shown: &mut String) {
        line.push("<- ", shown);
        let text = line.text();
        if text.get(3) == Some(&b'-') {
            return;
        }
        let code = text.get(..3);
        self.unanswered = self.unanswered.saturating_sub(1);
        // A reply other than 334 ends the login. But if the client still awaits another reply, this reply may belong to
        // a command before AUTH. Then keep hiding the client's lines, because they may contain secrets.
        self.is_login = code == Some(b"334") || self.is_login && self.unanswered > 0;
        let is_refused_message = matches!(self.part, ClientPart::Message(_)) && code != Some(b"354");
        if is_refused_message && self.unanswered == 0 {
            self.part = ClientPart::Commands;
        }
    }
}

#[derive(Debug, Default)]
struct HeldLine {
    held: Vec<u8>,
    /// Number of bytes of the line that have arrived. This includes the line end, and bytes that
    /// are not in `held` because the line is too long.
    bytes: u64,
}

impl HeldLine {
    /// Takes the bytes of one line from the front of `input`. Returns the line once its end has arrived.
    fn take(&mut self, input: &mut &[u8]) -> Option<Self> {
        let end = memchr::memchr(b'\n', input).map(|end| end + 1);
        let (part, rest) = input.split_at(end.unwrap_or(input.len()));
        *input = rest;
        let room = MAX_LINE_BYTES + 2 - self.held.len();
        self.held.extend_from_slice(&part[..part.len().min(room)]);
        self.bytes += part.len() as u64;
        end.map(|_| std::mem::take(self))
    }

    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns at most [`MAX_LINE_BYTES`] of the line, without its line end.
    fn text(&self) -> &[u8] {
        let line = self.held.strip_suffix(b"\n").unwrap_or(&self.held);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        &line[..line.len().min(MAX_LINE_BYTES)]
    }

    fn push(&self, arrow: &str, shown: &mut String) {
        push(arrow, self.text(), shown);
        if self.bytes > self.held.len() as u64 {
            shown.pop();
            shown.push_str("… (");
            shown.push_str(&self.bytes.to_string());
            shown.push_str(" bytes)\n");
        }
    }
}

/// Appends a line to the shown text. Control characters become `?`, because they could control a
/// terminal.
fn push(arrow: &str, text: &[u8], shown: &mut String) {
    let text = String::from_utf8_lossy(text);
    shown.push_str(arrow);
    shown.push(' ');
    shown.extend(text.chars().map(|letter| if letter.is_control() && letter != '\t' { '?' } else { letter }));
    shown.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Renders a script whose lines begin with `C ` (client) or `S ` (server). Each line arrives in pieces of at most
    /// `piece` bytes.
    fn rendered(message_lines: u64, script: &str, piece: usize) -> String {
        let mut dialogue = Dialogue::new(message_lines);
        let mut shown = String::new();
        for line in script.lines() {
            let bytes = format!("{}\r\n", &line[2..]);
            for part in bytes.as_bytes().chunks(piece) {
                match &line[..1] {
                    "C" => dialogue.client(part, &mut shown),
                    _ => dialogue.server(part, &mut shown),
                }
            }
        }
        dialogue.end(&mut shown);
        shown
    }

    #[test]
    fn dialogues_read_as_they_were_held() {
        for (name, script, expected) in [
            (
                "lock step",
                "S 220 mx\nC EHLO me\nS 250-mx\nS 250 SIZE\nC MAIL FROM:<a@b>\nS 250 ok\nC QUIT\nS 221 bye",
                "<-  220 mx\n -> EHLO me\n<-  250-mx\n<-  250 SIZE\n -> MAIL FROM:<a@b>\n<-  250 ok\n -> QUIT\n<-  221 bye\n",
            ),
            (
                "a message, and dots that do not end it",
                "C DATA\nS 354 go\nC Subject: x\nC ..\nC .a\nC .\nS 250 kept\nC QUIT",
                " -> DATA\n<-  354 go\n -> Subject: x\n -> ..\n -> (1 more line)\n -> .\n<-  250 kept\n -> QUIT\n",
            ),
            (
                "a refused DATA among pipelined commands",
                "C MAIL FROM:<a@b>\nC RCPT TO:<c@d>\nC DATA\nS 250 ok\nS 450 later\nS 554 nobody\nC RSET\nS 250 ok",
                " -> MAIL FROM:<a@b>\n -> RCPT TO:<c@d>\n -> DATA\n<-  250 ok\n<-  450 later\n<-  554 nobody\n -> RSET\n<-  250 ok\n",
            ),
            (
                "replies of pipelined commands that come one by one",
                "C MAIL FROM:<a@b>\nC DATA\nS 250 ok\nS 354 go\nC RSET\nC .\nS 250 kept",
                " -> MAIL FROM:<a@b>\n -> DATA\n<-  250 ok\n<-  354 go\n -> RSET\n -> .\n<-  250 kept\n",
            ),
            (
                "a chunk, which may hold a dot or a command",
                "C BDAT 9\nC .\nC RSET\nS 250 9\nC BDAT 0 LAST\nS 250 kept\nC QUIT",
                " -> BDAT 9\n -> .\n -> RSET\n<-  250 9\n -> BDAT 0 LAST\n<-  250 kept\n -> QUIT\n",
            ),
            (
                "a message that breaks off",
                "C DATA\nS 354 go\nC x",
                " -> DATA\n<-  354 go\n -> x\n=== the message is incomplete\n",
            ),
            ("control characters", "S 220 \x1b[2J", "<-  220 ?[2J\n"),
        ] {
            for piece in [1, 3, 1000] {
                assert_eq!(rendered(2, script, piece), expected, "{name}, by {piece}");
            }
        }
    }

    #[test]
    fn login_data_is_never_shown() {
        for (name, script) in [
            ("at once", "C AUTH PLAIN SECRET"),
            ("in lower case, with other spaces", "C  auth\tplain\tSECRET"),
            ("when asked", "C AUTH LOGIN\nS 334 VXNlcm5hbWU6\nC SECRET\nS 334 UGFzc3dvcmQ6\nC SECRET\nS 235 ok"),
            ("without waiting", "C AUTH LOGIN\nC SECRET\nC SECRET\nS 334 a\nS 334 b\nS 235 ok"),
            ("after commands", "C NOOP\nC AUTH LOGIN\nS 250 ok\nC SECRET\nS 334 a\nC SECRET"),
            ("although the server refused AUTH", "C AUTH LOGIN\nS 504 no\nC SECRET\nS 500 what\nC SECRET"),
            ("after a restart under TLS", "C AUTH LOGIN\nS 530 TLS first\nC STARTTLS\nS 220 go\nC SECRET"),
            ("cut off", "C AUTH LOGIN\nS 334 a\nC SECRET"),
        ] {
            for piece in [1, 1000] {
                let shown = rendered(0, script, piece);
                assert!(!shown.contains("SECRET") && shown.contains("AUTH"), "{name}: {shown}");
            }
        }
        let mail = "C AUTH PLAIN x\nS 235 ok\nC MAIL FROM:<a@b>\nS 250 ok\nC mail from:<a@b>";
        assert!(rendered(0, mail, 1000).ends_with("<-  250 ok\n -> mail from:<a@b>\n"), "commands after it are shown");
    }

    #[test]
    fn a_message_is_counted_where_it_is_not_shown() {
        let script = "C DATA\nS 354 go\nC Subject: x\nC \nC y\nC .\nS 250 ok";
        let expected = " -> DATA\n<-  354 go\n -> (message: 3 lines, 17 bytes)\n -> .\n<-  250 ok\n";
        assert_eq!(rendered(0, script, 1000), expected);
    }

    #[test]
    fn a_long_line_is_cut() {
        let script = format!("C {}\nC {}", "x".repeat(5000), "y".repeat(MAX_LINE_BYTES));
        let expected =
            format!(" -> {}… (5002 bytes)\n -> {}\n", "x".repeat(MAX_LINE_BYTES), "y".repeat(MAX_LINE_BYTES));
        assert_eq!(rendered(0, &script, 7), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_make_lines_with_arrows_and_little_is_held(
            parts in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20)
        ) {
            let mut dialogue = Dialogue::new(3);
            let mut shown = String::new();
            for (is_client, bytes) in &parts {
                match is_client {
                    true => dialogue.client(bytes, &mut shown),
                    false => dialogue.server(bytes, &mut shown),
                }
                prop_assert!(dialogue.client_line.held.len() <= MAX_LINE_BYTES + 2);
            }
            dialogue.end(&mut shown);
            prop_assert!(shown.lines().all(|line| [" -> ", "<-  ", "=== "].iter().any(|arrow| line.starts_with(arrow))));
        }
    }
}
