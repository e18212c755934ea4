//! Builds everything that the raw source sends. This is done once, before the first connection, so that a run takes no
//! time for it.

use anyhow::{Context, bail, ensure};

const HEADER: &[u8] = b"From: <from@example.com>\r\nTo: <to@example.com>\r\nDate: Sat, 21 Nov 2026 01:44:44 +0000\r\n\
Message-Id: <1234.0001.0001@smtp.example.com>\r\nSubject: x\r\n\r\n";

/// Length of a body line with its CRLF. RFC 5322 §2.1.1 recommends at most 78 characters, without the CRLF.
const LINE_OCTETS: usize = 80;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Mode `c` opens a new connection for each message, and sends each command after the reply to the previous
    /// command.
    ConnectionEach,
    /// Mode `r` sends all messages of a session over one connection, and each command after the reply to the previous
    /// command.
    Reuse,
    /// Mode `p` sends MAIL, RCPT and DATA in one write, and the message in a second write.
    Group,
    /// Mode `s` sends each message in one write with MAIL, RCPT and DATA of the next message.
    Stream,
}

impl Mode {
    fn from_word(word: &str) -> anyhow::Result<Self> {
        match word {
            "c" => Ok(Self::ConnectionEach),
            "r" => Ok(Self::Reuse),
            "p" => Ok(Self::Group),
            "s" => Ok(Self::Stream),
            other => bail!("mode {other} is none of c, r, p, s"),
        }
    }

    pub(super) fn is_grouped(self) -> bool {
        matches!(self, Self::Group | Self::Stream)
    }
}

pub(super) struct Plan {
    pub(super) port: u16,
    pub(super) messages: u64,
    pub(super) sessions: usize,
    pub(super) mode: Mode,
    /// MAIL, RCPT and DATA, for the modes that send them in one write.
    pub(super) group: Vec<u8>,
    /// The message with its header, and the dot and CRLF that end it.
    pub(super) body: Vec<u8>,
    pub(super) body_and_group: Vec<u8>,
}

impl Plan {
    pub(super) fn from_words(words: &[&str]) -> anyhow::Result<Self> {
        let [port, messages, sessions, octets, mode] = words else {
            bail!("limit-source needs PORT MESSAGES SESSIONS OCTETS MODE");
        };
        let mode = Mode::from_word(mode)?;
        let mut body = message(octets.parse().context("OCTETS is a number")?)?;
        body.extend_from_slice(b".\r\n");
        let group = b"MAIL FROM:<from@example.com>\r\nRCPT TO:<to@example.com>\r\nDATA\r\n".to_vec();
        let body_and_group = [body.as_slice(), group.as_slice()].concat();
        Ok(Self {
            port: port.parse().context("PORT is a number")?,
            messages: messages.parse().context("MESSAGES is a number")?,
            sessions: sessions.parse().context("SESSIONS is a number")?,
            mode,
            group,
            body,
            body_and_group,
        })
    }
}

/// Builds a message of exactly `octets` octets, including the last line's CRLF. The message has a header, an empty line
/// and lines of at most 78 characters.
fn message(octets: usize) -> anyhow::Result<Vec<u8>> {
    let least = HEADER.len() + 2;
    ensure!(octets >= least, "a message of {octets} octets has no room for its header: {least} is the least");
    let mut message = Vec::with_capacity(octets + LINE_OCTETS);
    message.extend_from_slice(HEADER);
    while message.len() < octets {
        let left = octets - message.len();
        // The last line needs two octets for its CRLF. If only one octet would be left for the last line, make this
        // line one octet shorter.
        let line = if left == LINE_OCTETS + 1 { LINE_OCTETS - 1 } else { left.min(LINE_OCTETS) };
        message.extend(std::iter::repeat_n(b'X', line - 2));
        message.extend_from_slice(b"\r\n");
    }
    Ok(message)
}
