//! MAIL, RCPT and DATA rendered once, to be sent many times: whole, or one command at a time.
use crate::address::{BadPath, Path};
use std::fmt::Write;

/// A transaction's commands as they go on the wire.
///
/// ```
/// let envelope = smtp::Envelope::new("a@example.com", "SIZE=400", ["b@example.com"]).unwrap();
/// assert_eq!(envelope.recipient(0), b"RCPT TO:<b@example.com>\r\n");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    wire: Vec<u8>,
    /// Where MAIL ends, then each RCPT.
    ends: Vec<u32>,
}

const DATA: &[u8] = b"DATA\r\n";

impl Envelope {
    /// Renders the commands. `parameters` go behind the sender (`SIZE=400 BODY=8BITMIME`); an empty sender is the
    /// null path.
    ///
    /// # Errors
    /// [`BadPath`] where an address is none: nothing can be smuggled in through it.
    pub fn new<'a>(
        sender: &str,
        parameters: &str,
        recipients: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, BadPath> {
        Path::mailbox(sender.as_bytes())?;
        if parameters.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(BadPath::Syntax);
        }
        let blank = if parameters.is_empty() { "" } else { " " };
        let mut wire = format!("MAIL FROM:<{sender}>{blank}{parameters}\r\n");
        let mut ends = vec![end_of(&wire)];
        for recipient in recipients {
            if Path::mailbox(recipient.as_bytes())?.is_null() {
                return Err(BadPath::Syntax);
            }
            write!(wire, "RCPT TO:<{recipient}>\r\n").expect("a String takes any text");
            ends.push(end_of(&wire));
        }
        let mut wire = wire.into_bytes();
        wire.extend_from_slice(DATA);
        if ends.len() < 2 { Err(BadPath::Syntax) } else { Ok(Self { wire, ends }) }
    }

    /// How many recipients it has; at least one.
    pub fn recipients(&self) -> usize {
        self.ends.len() - 1
    }

    /// `MAIL FROM:<…>\r\n`
    pub fn mail(&self) -> &[u8] {
        &self.wire[..self.ends[0] as usize]
    }

    /// `RCPT TO:<…>\r\n` of the recipient with that number, from 0.
    pub fn recipient(&self, number: usize) -> &[u8] {
        &self.wire[self.ends[number] as usize..self.ends[number + 1] as usize]
    }

    /// `DATA\r\n`
    pub fn data(&self) -> &[u8] {
        DATA
    }

    /// All of them in one piece (RFC 2920 §3.1).
    pub fn group(&self) -> &[u8] {
        &self.wire
    }
}

fn end_of(wire: &str) -> u32 {
    u32::try_from(wire.len()).expect("the paths of one envelope stay far below 4 GB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_up_the_whole() {
        let envelope = Envelope::new("a@b", "SIZE=1", ["c@d", "e@f"]).unwrap();
        let parts = [envelope.mail(), envelope.recipient(0), envelope.recipient(1), envelope.data()].concat();
        assert_eq!(parts, envelope.group());
        assert_eq!(envelope.mail(), b"MAIL FROM:<a@b> SIZE=1\r\n");
        assert_eq!(Envelope::new("", "", ["c@d"]).unwrap().mail(), b"MAIL FROM:<>\r\n");
    }

    #[test]
    fn nothing_is_smuggled_in_through_an_address() {
        assert!(Envelope::new("a@b>\r\nRCPT TO:<x@y", "", ["c@d"]).is_err());
        assert!(Envelope::new("a@b", "SIZE=1\r\nQUIT", ["c@d"]).is_err());
        assert!(Envelope::new("a@b", "", ["c@d>\r\nQUIT\r\n<"]).is_err());
        assert!(Envelope::new("a@b", "", [""]).is_err());
        assert!(Envelope::new("a@b", "", []).is_err());
    }
}
