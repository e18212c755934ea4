//! Prints the dialogue of a single message as swaks does: `<-` for lines of the server, `->` for
//! lines to it, and `===` for other events.
use mailrun_net::Handshake;
use mailrun_smtp::ReceivedReply;
use std::io::{self, Write};

/// Maximum number of lines of a message that are shown. Of a longer message, only the number of
/// lines is shown.
const MAX_LINES: usize = 200;

#[derive(Debug, Default)]
pub(super) struct Dialogue {
    /// Set while the server asks for login data.
    asks_for_login: bool,
}

impl Dialogue {
    pub(super) fn event(text: &str) {
        print(&format!("=== {text}\n"));
    }

    pub(super) fn tls_established(handshake: &Handshake) {
        Self::event(&format!("TLS started: {}, {}", handshake.version, handshake.cipher));
    }

    pub(super) fn sent(&self, octets: &[u8]) {
        print(&self.sent_text(octets));
    }

    pub(super) fn received(&mut self, reply: &ReceivedReply<'_>) {
        print(&self.received_text(reply));
    }

    fn sent_text(&self, octets: &[u8]) -> String {
        if self.asks_for_login {
            return " -> (login data)\n".to_owned();
        }
        let text = String::from_utf8_lossy(octets);
        let lines: Vec<&str> = text.lines().collect();
        let mut shown: String =
            lines.iter().take(MAX_LINES).map(|line| format!(" -> {}\n", without_login(line))).collect();
        if let Some(more @ 1..) = lines.len().checked_sub(MAX_LINES) {
            shown.push_str(&format!(" -> ({more} more lines)\n"));
        }
        shown
    }

    fn received_text(&mut self, reply: &ReceivedReply<'_>) -> String {
        self.asks_for_login = reply.code() == 334;
        let mut lines = reply.lines().peekable();
        let mut shown = String::new();
        while let Some(line) = lines.next() {
            let separator = if lines.peek().is_some() { '-' } else { ' ' };
            shown.push_str(&format!("<-  {}{separator}{}\n", reply.code(), printable(&String::from_utf8_lossy(line))));
        }
        shown
    }
}

/// Hides the text that follows `AUTH MECHANISM` in the line.
fn without_login(line: &str) -> String {
    let mut words = line.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some("AUTH"), Some(mechanism), Some(_)) => format!("AUTH {} (login data)", printable(mechanism)),
        _ => printable(line),
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '?' } else { c }).collect()
}

fn print(text: &str) {
    // Ignore the error: if standard output is closed, the run continues.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_smtp::reply::ReplyReader;

    #[test]
    fn a_dialogue_reads_as_it_was_held_and_hides_the_login() {
        let mut dialogue = Dialogue::default();
        let mut text = String::new();
        let mut reader = ReplyReader::default();
        for (is_sent, octets) in [
            (false, "220 mx ESMTP\r\n"),
            (true, "EHLO me\r\n"),
            (false, "250-mx\r\n250 AUTH PLAIN\r\n"),
            (true, "AUTH PLAIN AGFubgBzZWNyZXQ=\r\n"),
            (false, "334 VXNlcm5hbWU6\r\n"),
            (true, "c2VjcmV0\r\n"),
            (false, "235 2.7.0 ok\x07\r\n"),
            (true, "MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\n"),
        ] {
            match is_sent {
                true => text.push_str(&dialogue.sent_text(octets.as_bytes())),
                false => {
                    let mut input = octets.as_bytes();
                    let reply = reader.next(&mut input).expect("well-formed").expect("complete");
                    text.push_str(&dialogue.received_text(&reply));
                }
            }
        }
        let expected = "<-  220 mx ESMTP\n -> EHLO me\n<-  250-mx\n<-  250 AUTH PLAIN\n -> AUTH PLAIN (login data)\n\
            <-  334 VXNlcm5hbWU6\n -> (login data)\n<-  235 2.7.0 ok?\n -> MAIL FROM:<a@b>\n -> RCPT TO:<c@d>\n";
        assert_eq!(text, expected);
        let long = "x\r\n".repeat(250);
        assert!(dialogue.sent_text(long.as_bytes()).ends_with(" -> x\n -> (50 more lines)\n"));
    }
}
