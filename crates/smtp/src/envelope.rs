//! The commands MAIL, RCPT and DATA of an envelope. They are rendered once, and can be sent for many messages, together
//! or one at a time.
use crate::address::{Path, PathError};

/// MAIL, RCPT and DATA of one transaction, rendered as bytes.
///
/// ```
/// let envelope = mailrun_smtp::Envelope::new("a@example.com", "SIZE=400", ["b@example.com"]).unwrap();
/// assert_eq!(envelope.recipient(0), b"RCPT TO:<b@example.com>\r\n");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    wire: Vec<u8>,
    /// Offsets in `wire`: the end of MAIL, then the end of each RCPT.
    ends: Vec<u32>,
}

const DATA: &[u8] = b"DATA\r\n";

impl Envelope {
    /// Renders the commands for a sender and at least one recipient. `parameters` are appended to
    /// MAIL, for example `SIZE=400 BODY=8BITMIME`. An empty sender is the null path.
    ///
    /// # Errors
    /// Returns a [`PathError`] if there is no recipient, or if an address or a parameter is invalid. The check prevents
    /// an address with a line end from injecting a command.
    pub fn new<'a>(
        sender: &str,
        parameters: &str,
        recipients: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PathError> {
        let mut envelope = Self { wire: Vec::new(), ends: Vec::new() };
        let recipients = recipients.into_iter().map(|recipient| (recipient.as_bytes(), b"".as_slice()));
        envelope.rewrite_with(sender.as_bytes(), parameters.as_bytes(), recipients)?;
        Ok(envelope)
    }

    /// Renders the commands with arguments that may be malformed, to test a server. Each text
    /// follows `MAIL FROM:` or `RCPT TO:` as it is, so it usually has its own brackets.
    ///
    /// # Errors
    /// Returns a [`PathError`] if there is no recipient, or if a text contains CR, LF or NUL,
    /// because a line end would split the text into several commands.
    pub fn verbatim<'a>(sender: &str, recipients: impl IntoIterator<Item = &'a str>) -> Result<Self, PathError> {
        let mut envelope = Self { wire: Vec::new(), ends: Vec::new() };
        let lines = recipients.into_iter().map(|recipient| ("RCPT TO:", recipient));
        for (command, text) in [("MAIL FROM:", sender)].into_iter().chain(lines) {
            if text.contains(['\r', '\n', '\0']) {
                return Err(PathError::Syntax);
            }
            envelope.push_line([command.as_bytes(), text.as_bytes(), b""], b"")?;
        }
        envelope.wire.extend_from_slice(DATA);
        if envelope.ends.len() < 2 { Err(PathError::Syntax) } else { Ok(envelope) }
    }

    /// Renders the commands of another transaction into the same buffer. Each recipient is a path and the parameters of
    /// its RCPT, such as `NOTIFY=NEVER` (see [`crate::dsn`]). Allocates only if the new commands are longer than any
    /// that the envelope has held before.
    ///
    /// # Errors
    /// Returns the same errors as [`Envelope::new`]. After an error, the envelope must be rewritten
    /// before it is used.
    pub fn rewrite_with<'a>(
        &mut self,
        sender: &[u8],
        parameters: &[u8],
        recipients: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), PathError> {
        self.wire.clear();
        self.ends.clear();
        Path::mailbox(sender)?;
        self.push_line([b"MAIL FROM:<", sender, b">"], parameters)?;
        for (recipient, parameters) in recipients {
            if Path::mailbox(recipient)?.is_null() {
                return Err(PathError::Syntax);
            }
            self.push_line([b"RCPT TO:<", recipient, b">"], parameters)?;
        }
        self.wire.extend_from_slice(DATA);
        if self.ends.len() < 2 { Err(PathError::Syntax) } else { Ok(()) }
    }

    fn push_line(&mut self, command: [&[u8]; 3], parameters: &[u8]) -> Result<(), PathError> {
        command.into_iter().for_each(|part| self.wire.extend_from_slice(part));
        if !parameters.is_empty() {
            if parameters.iter().any(u8::is_ascii_control) {
                return Err(PathError::Syntax);
            }
            self.wire.push(b' ');
            self.wire.extend_from_slice(parameters);
        }
        self.wire.extend_from_slice(b"\r\n");
        self.ends.push(u32::try_from(self.wire.len()).expect("the paths of one envelope stay far below 4 GB"));
        Ok(())
    }

    /// Returns the number of recipients, which is at least one.
    pub fn recipients(&self) -> usize {
        self.ends.len() - 1
    }

    /// Returns the MAIL command, `MAIL FROM:<…>\r\n`.
    pub fn mail(&self) -> &[u8] {
        &self.wire[..self.ends[0] as usize]
    }

    /// Returns the RCPT command of a recipient, `RCPT TO:<…>\r\n`. `number` counts from 0.
    pub fn recipient(&self, number: usize) -> &[u8] {
        &self.wire[self.ends[number] as usize..self.ends[number + 1] as usize]
    }

    /// Returns the DATA command, `DATA\r\n`, for a client that sends one command at a time.
    pub fn data(&self) -> &[u8] {
        DATA
    }

    /// Returns MAIL and all RCPT together but no DATA, for a message that is sent with BDAT (RFC 3030 §4.2).
    pub fn addresses(&self) -> &[u8] {
        &self.wire[..self.wire.len() - DATA.len()]
    }

    /// Returns MAIL, all RCPT and DATA together, to be sent as a group (RFC 2920 §3.1).
    pub fn group(&self) -> &[u8] {
        &self.wire
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_envelope_is_sent_as_it_is_but_stays_one_line_a_command() {
        let envelope = Envelope::verbatim("<a b@@> X", ["c", ""]).unwrap();
        assert_eq!(envelope.group(), b"MAIL FROM:<a b@@> X\r\nRCPT TO:c\r\nRCPT TO:\r\nDATA\r\n");
        for (sender, recipients) in [("a\r\nDATA", &["b"][..]), ("a", &["b\nc"]), ("a", &["\0"]), ("a", &[])] {
            assert!(Envelope::verbatim(sender, recipients.iter().copied()).is_err(), "{sender:?} {recipients:?}");
        }
    }

    #[test]
    fn the_parts_make_up_the_whole() {
        let mut envelope = Envelope::new("a@b", "SIZE=1", ["c@d", "e@f"]).unwrap();
        let parts = [envelope.mail(), envelope.recipient(0), envelope.recipient(1), envelope.data()].concat();
        assert_eq!(parts, envelope.group());
        assert_eq!(envelope.mail(), b"MAIL FROM:<a@b> SIZE=1\r\n");
        assert_eq!(Envelope::new("", "", ["c@d"]).unwrap().mail(), b"MAIL FROM:<>\r\n");
        assert_eq!([envelope.addresses(), DATA].concat(), envelope.group());
        let recipients = [(b"c@d".as_slice(), b"NOTIFY=NEVER".as_slice()), (b"e@f", b"")];
        envelope.rewrite_with(b"a@b", b"RET=HDRS", recipients.into_iter()).unwrap();
        assert_eq!(envelope.mail(), b"MAIL FROM:<a@b> RET=HDRS\r\n");
        assert_eq!(envelope.recipient(0), b"RCPT TO:<c@d> NOTIFY=NEVER\r\n");
        assert_eq!(envelope.recipient(1), b"RCPT TO:<e@f>\r\n");
    }

    #[test]
    fn rewritten_it_is_as_if_new_in_the_same_memory() {
        let mut envelope = Envelope::new("long@example.com", "SIZE=100000", ["c@d", "e@f", "g@h"]).unwrap();
        let memory = envelope.wire.as_ptr();
        let recipients = [(b"c@d".as_slice(), b"".as_slice()), (b"e@f", b"")];
        assert!(envelope.rewrite_with(b"a b", b"", recipients.into_iter()).is_err());
        envelope.rewrite_with(b"a@b", b"SIZE=1", recipients.into_iter()).unwrap();
        assert_eq!(envelope, Envelope::new("a@b", "SIZE=1", ["c@d", "e@f"]).unwrap());
        assert_eq!(envelope.wire.as_ptr(), memory);
    }

    #[test]
    fn nothing_is_smuggled_in_through_an_address() {
        assert!(Envelope::new("a@b>\r\nRCPT TO:<x@y", "", ["c@d"]).is_err());
        assert!(Envelope::new("a@b", "SIZE=1\r\nQUIT", ["c@d"]).is_err());
        assert!(Envelope::new("a@b", "", ["c@d>\r\nQUIT\r\n<"]).is_err());
        assert!(Envelope::new("a@b", "", [""]).is_err());
        let smuggled = [(b"c@d".as_slice(), b"NOTIFY=NEVER\r\nQUIT".as_slice())];
        let mut envelope = Envelope::new("a@b", "", ["c@d"]).unwrap();
        assert!(envelope.rewrite_with(b"a@b", b"", smuggled.into_iter()).is_err());
        assert!(Envelope::new("a@b", "", []).is_err());
    }
}
