//! Dialog files say what a client sends and what a server must answer. The same files are played against every server
//! under test.
//!
//! | line | meaning |
//! |---|---|
//! | `# text` | a comment; `# ours only: why` says that other servers differ, and that is no fault |
//! | `@ recipients 3` | a limit to start the server with, by its name in `mailrun_smtp::Limits` |
//! | `+ word` | what the server offers or wants besides: `lmtp`, `starttls`, `auth`, `xclient`, `needs-tls`, `needs-auth`, `auth-needs-tls`; `turned-away`: it greets with 554 |
//! | `> text` | the client sends this line and CRLF |
//! | `>! text` | the same, with escapes: `\r`, `\n`, `\0`, `\xHH`, `\\`, `{text*count}` |
//! | `>> text` | with escapes and without CRLF |
//! | `< 250 2.1.0` | the next reply: its code, and how its last line goes on |
//! | `<3 250 2.1.5` | three such replies |
//! | `<- SIZE` | a line of the reply just read begins like this |
//! | `~ tls` | both sides begin TLS here |
//! | `< closed` | the server has closed the connection |
//! | `= text` | with escapes: the content of an accepted message, as the server passes it on; for all of them, or for none |
//!
//! The application behind the server refuses an address whose local part is `refuse-550` with 550, see [`refusal`]. It
//! accepts `deliver-550`, and later refuses the message for this recipient with 550 (LMTP). Users are `tim` with the
//! password `tanstaaftanstaaf`, and `user` with `pencil`. Nonces are `eighteen octets ok`. Each test that plays dialogs
//! includes this file by its path.
#![allow(dead_code)] // Each place that includes this file uses only a part of it

use mailrun_smtp::sasl::Mechanisms;
use mailrun_smtp::server::{Offer, Protocol};
use mailrun_smtp::xclient::Attributes;
use std::path::Path;

#[derive(Clone, Debug)]
pub(crate) struct Dialog {
    pub(crate) name: String,
    pub(crate) ours_only: bool,
    pub(crate) limits: Vec<(String, u64)>,
    pub(crate) offers: Vec<String>,
    pub(crate) steps: Vec<Step>,
    /// Contents of the messages that must be accepted, in order.
    pub(crate) messages: Vec<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Expect(Expected),
    Tls,
    Closed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The code, and the beginning of the last line's text.
    pub(crate) last_line: String,
    /// Beginnings of the other lines, without the code.
    pub(crate) lines: Vec<String>,
}

impl Expected {
    /// Checks a reply with all its lines. Enhanced codes and texts are compared only for our own servers.
    pub(crate) fn check(&self, reply: &[u8], whose: Whose) -> Result<(), String> {
        let text = String::from_utf8_lossy(reply);
        let wanted = match whose {
            Whose::Ours => self.last_line.as_str(),
            Whose::Foreign => &self.last_line[..3],
        };
        if !text.lines().last().unwrap_or_default().starts_with(wanted) {
            return Err(format!("wanted {:?}, got {text:?}", self.last_line));
        }
        let has = |start: &&String| text.lines().any(|line| line.get(4..).is_some_and(|line| line.starts_with(*start)));
        match self.lines.iter().find(|start| !has(start)) {
            Some(start) => Err(format!("no line {start:?} in {text:?}")),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Foreign,
}

impl Dialog {
    /// Every `.dialog` file of a directory, sorted by name.
    pub(crate) fn all(directory: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(directory).expect("the directory of dialogs is there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "dialog"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Self {
        let name = path.file_stem().expect("it has a name").to_string_lossy();
        let text = std::fs::read_to_string(path).expect("a dialog is text");
        Self::parse(&name, &text).unwrap_or_else(|what| panic!("{name}.dialog: {what}"))
    }

    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let ours_only = false;
        let limits = Vec::new();
        let offers = Vec::new();
        let steps = Vec::new();
        let messages = Vec::new();
        let mut dialog = Self { name: name.to_owned(), ours_only, limits, offers, steps, messages };
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            if dialog.steps.last() == Some(&Step::Closed) && !line.starts_with('#') {
                return Err(format!("line {}: nothing can follow `< closed`", number + 1));
            }
            dialog.line(line).map_err(|what| format!("line {}: {what}: {line}", number + 1))?;
        }
        Ok(dialog)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        match mark {
            "#" => self.ours_only |= rest.starts_with("ours only"),
            "@" => self.limits.push(limit(rest).ok_or("a limit is a name and a number")?),
            "+" if !rest.is_empty() => self.offers.push(rest.to_owned()),
            "~" if rest == "tls" => self.steps.push(Step::Tls),
            ">" => self.steps.push(Step::Send([rest.as_bytes(), b"\r\n"].concat())),
            ">!" => self.steps.push(Step::Send([unescaped(rest)?.as_slice(), b"\r\n"].concat())),
            ">>" => self.steps.push(Step::Send(unescaped(rest)?)),
            "=" => self.messages.push(unescaped(rest)?),
            "<" if rest == "closed" => self.steps.push(Step::Closed),
            "<-" => match self.steps.last_mut() {
                Some(Step::Expect(expected)) => expected.lines.push(rest.to_owned()),
                _ => return Err("there is not a reply before it".to_owned()),
            },
            _ => {
                let count = mark.strip_prefix('<').ok_or("no such line")?;
                let count = if count.is_empty() { 1 } else { count.parse().map_err(|_| "no such line")? };
                let code = rest.get(..3).filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()));
                code.ok_or("a reply begins with three digits")?;
                let expected = Expected { last_line: rest.to_owned(), lines: Vec::new() };
                self.steps.extend(std::iter::repeat_n(Step::Expect(expected), count));
            }
        }
        Ok(())
    }

    /// Adds the extensions and requirements of this dialog to a server's offer.
    pub(crate) fn change(&self, offer: &mut Offer) {
        for word in &self.offers {
            match word.as_str() {
                "lmtp" => offer.protocol = Protocol::Lmtp,
                "starttls" => offer.extensions.starttls = true,
                "auth" => offer.extensions.auth = Mechanisms::ALL,
                "xclient" => offer.extensions.xclient = Attributes::ALL,
                "needs-tls" => offer.requires.tls = true,
                "needs-auth" => offer.requires.auth = true,
                "auth-needs-tls" => offer.requires.tls_for_auth = true,
                // This word changes only the greeting, which is not part of the offer.
                "turned-away" => {}
                word => panic!("{}: nothing is called {word}", self.name),
            }
        }
    }

    /// Code and text of the greeting if it refuses the client.
    pub(crate) fn refused_greeting(&self) -> Option<(u16, &'static str)> {
        self.offers.iter().any(|word| word == "turned-away").then_some((554, "5.3.2 No service"))
    }

    /// Everything that the client sends, in one piece.
    pub(crate) fn said(&self) -> Vec<u8> {
        let sent = |step: &Step| if let Step::Send(bytes) = step { bytes.clone() } else { Vec::new() };
        self.steps.iter().flat_map(sent).collect()
    }
}

fn limit(text: &str) -> Option<(String, u64)> {
    let (name, number) = text.split_once(' ')?;
    Some((name.to_owned(), number.parse().ok()?))
}

/// Resolves escapes and repetitions. Repetitions do not nest.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match first {
            '{' => {
                let (inner, after) = rest[1..].split_once('}').ok_or("a { without }")?;
                let (repeated, count) = inner.rsplit_once('*').ok_or("a repetition is {text*count}")?;
                let count = count.parse().map_err(|_| "a repetition is {text*count}")?;
                out.extend(unescaped(repeated)?.repeat(count));
                rest = after;
            }
            '\\' => rest = escape(&rest[1..], &mut out)?,
            _ => {
                let (head, after) = rest.split_at(first.len_utf8());
                out.extend_from_slice(head.as_bytes());
                rest = after;
            }
        }
    }
    Ok(out)
}

/// Resolves one escape after its backslash. Returns the rest of the text.
fn escape<'a>(text: &'a str, out: &mut Vec<u8>) -> Result<&'a str, String> {
    let octet = match text.bytes().next() {
        Some(b'r') => b'\r',
        Some(b'n') => b'\n',
        Some(b'0') => 0,
        Some(b'\\') => b'\\',
        Some(b'{') => b'{',
        Some(b'x') => {
            let digits = text.get(1..3).ok_or("\\x needs two digits")?;
            out.push(u8::from_str_radix(digits, 16).map_err(|_| "\\x needs two digits")?);
            return Ok(&text[3..]);
        }
        _ => return Err("no such escape".to_owned()),
    };
    out.push(octet);
    Ok(&text[1..])
}

/// Takes a whole reply, with all its lines, from the front of `said`.
pub(crate) fn take_reply(said: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut end = 0;
    loop {
        let line = &said[end..];
        let length = line.iter().position(|byte| *byte == b'\n')? + 1;
        end += length;
        if line.get(3) != Some(&b'-') {
            return Some(said.drain(..end).collect());
        }
    }
}

pub(crate) fn password(name: &str) -> Option<&'static str> {
    match name {
        "tim" => Some("tanstaaftanstaaf"),
        "user" => Some("pencil"),
        _ => None,
    }
}

/// Returns the code with which the application refuses an address, for example 550 for `refuse-550@anywhere`.
pub(crate) fn refusal(address: &[u8]) -> Option<u16> {
    code_after(b"refuse-", address)
}

/// Returns the code with which the application refuses the message for a recipient whose address it accepted, for
/// example 550 for `deliver-550@anywhere`.
pub(crate) fn late_refusal(address: &[u8]) -> Option<u16> {
    code_after(b"deliver-", address)
}

fn code_after(prefix: &[u8], address: &[u8]) -> Option<u16> {
    let digits = address.strip_prefix(prefix)?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_read() {
        let text = "# ours only: it is a test\n@ errors 3\n+ lmtp\n~ tls\n> EHLO a\n<2 250\n<- SIZE\n>! \
                    {ab*2}\\x41\n>> \\r\\n\\0\\\\\n= x\n< closed\n";
        let dialog = Dialog::parse("test", text).unwrap();
        let plain = Expected { last_line: "250".to_owned(), lines: Vec::new() };
        let with_line = Expected { lines: vec!["SIZE".to_owned()], ..plain.clone() };
        let steps = [
            Step::Tls,
            Step::Send(b"EHLO a\r\n".to_vec()),
            Step::Expect(plain),
            Step::Expect(with_line),
            Step::Send(b"ababA\r\n".to_vec()),
            Step::Send(b"\r\n\0\\".to_vec()),
            Step::Closed,
        ];
        assert_eq!(dialog.steps, steps);
        assert_eq!((dialog.ours_only, &dialog.messages), (true, &vec![b"x".to_vec()]));
        assert_eq!(dialog.limits, [("errors".to_owned(), 3)]);
        assert_eq!(dialog.offers, ["lmtp"]);
        assert_eq!(dialog.said(), b"EHLO a\r\nababA\r\n\r\n\0\\");
    }

    #[test]
    fn what_is_no_dialog_is_named_with_its_line() {
        for text in [
            "hello",
            "< 25",
            "<x 250",
            "<- SIZE",
            ">! {a*",
            ">! {a}",
            ">> \\q",
            ">> \\x4",
            "@ errors",
            "+",
            "~ ssl",
            "< closed\n> NOOP",
        ] {
            assert!(Dialog::parse("test", text).is_err(), "{text}");
        }
    }

    #[test]
    fn replies_are_taken_whole_and_checked() {
        let mut said = b"250-a\r\n250 b\r\n221 x\r\n22".to_vec();
        let reply = take_reply(&mut said).unwrap();
        assert_eq!(reply, b"250-a\r\n250 b\r\n");
        assert_eq!(take_reply(&mut said).unwrap(), b"221 x\r\n");
        assert_eq!(take_reply(&mut said), None);
        let expected = |last_line: &str, line: &str| Expected { last_line: last_line.into(), lines: vec![line.into()] };
        assert!(expected("250 b", "a").check(&reply, Whose::Ours).is_ok());
        assert!(expected("250 c", "a").check(&reply, Whose::Ours).is_err());
        assert!(expected("250 c", "a").check(&reply, Whose::Foreign).is_ok());
        assert!(expected("250 b", "c").check(&reply, Whose::Ours).is_err());
        assert!(expected("251", "a").check(&reply, Whose::Foreign).is_err());
    }

    #[test]
    fn the_application_refuses_by_name() {
        assert_eq!(refusal(b"refuse-450@a"), Some(450));
        assert_eq!(refusal(b"a@b"), None);
        assert_eq!((late_refusal(b"deliver-452@a"), late_refusal(b"refuse-450@a")), (Some(452), None));
    }
}
