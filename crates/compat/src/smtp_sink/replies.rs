//! The replies of smtp-sink, byte for byte. Replies that depend on options are rendered once, at the start.
use super::commands::Reject;

/// This reply and the replies below it are constants, because no option can change them.
pub(super) const OK: &[u8] = b"250 2.0.0 Ok\r\n";
pub(super) const MAIL_OK: &[u8] = b"250 2.1.0 Ok\r\n";
pub(super) const RCPT_OK: &[u8] = b"250 2.1.5 Ok\r\n";
pub(super) const RSET_OK: &[u8] = b"250 2.1.0 Ok\r\n";
pub(super) const START_DATA: &[u8] = b"354 End data with <CR><LF>.<CR><LF>\r\n";
pub(super) const DELIVERED: &[u8] = b"250 2.2.0 Ok\r\n";
pub(super) const NESTED_MAIL: &[u8] = b"503 5.5.1 Error: nested MAIL command\r\n";
pub(super) const NEED_MAIL: &[u8] = b"503 5.5.1 Error: need MAIL command\r\n";
pub(super) const NEED_RCPT: &[u8] = b"503 5.5.1 Error: need RCPT command\r\n";
pub(super) const UNKNOWN_COMMAND: &[u8] = b"500 5.5.1 Error: unknown command\r\n";
pub(super) const EMPTY_COMMAND: &[u8] = b"500 5.5.2 Error: unknown command\r\n";
pub(super) const SERVICE_CLOSING: &[u8] = b"421 4.0.0 Server closing connection\r\n";
pub(super) const VIOLATION: &[u8] = b"550 This violates SMTP\r\n";
pub(super) const BYE: &[u8] = b"221 Bye\r\n";
/// The sink sends this reply and the next five in answer to AUTH (RFC 4954 §4 and §6). The challenges of LOGIN are
/// `Username:` and `Password:` in Base64.
pub(super) const LOGGED_IN: &[u8] = b"235 2.7.0 Authentication successful\r\n";
pub(super) const CHALLENGE: &[u8] = b"334 \r\n";
pub(super) const USERNAME: &[u8] = b"334 VXNlcm5hbWU6\r\n";
pub(super) const PASSWORD: &[u8] = b"334 UGFzc3dvcmQ6\r\n";
pub(super) const CANCELLED: &[u8] = b"501 5.7.0 Authentication cancelled\r\n";
pub(super) const NO_MECHANISM: &[u8] = b"504 5.5.4 Unrecognized authentication type\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedExtensions {
    pub(super) pipelining: bool,
    pub(super) eight_bit_mime: bool,
    pub(super) auth: bool,
    pub(super) xclient: bool,
    pub(super) xforward: bool,
    pub(super) enhanced_status_codes: bool,
    pub(super) dsn: bool,
    pub(super) esmtp: bool,
    pub(super) pix: bool,
}

impl Default for AnnouncedExtensions {
    fn default() -> Self {
        Self {
            pipelining: true,
            eight_bit_mime: true,
            auth: true,
            xclient: true,
            xforward: true,
            enhanced_status_codes: true,
            dsn: true,
            esmtp: true,
            pix: false,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ConfiguredReplies {
    pub(super) greeting: Vec<u8>,
    pub(super) helo: Vec<u8>,
    pub(super) ehlo: Vec<u8>,
    soft: Vec<u8>,
    hard: Vec<u8>,
}

impl ConfiguredReplies {
    pub(super) fn new(hostname: &str, extensions: &AnnouncedExtensions, soft: &str, hard: &str) -> Self {
        let greeting = match extensions {
            AnnouncedExtensions { pix: true, .. } => "220 ********".to_owned(),
            AnnouncedExtensions { esmtp: false, .. } => format!("220 {hostname}"),
            _ => format!("220 {hostname} ESMTP"),
        };
        Self {
            greeting: line(&greeting),
            helo: line(&format!("250 {hostname}")),
            ehlo: ehlo(hostname, extensions),
            soft: line(soft),
            hard: line(hard),
        }
    }

    pub(super) fn error(&self, reject: Reject) -> &[u8] {
        match reject {
            Reject::Soft => &self.soft,
            Reject::Hard => &self.hard,
        }
    }
}

fn line(text: &str) -> Vec<u8> {
    [text, "\r\n"].concat().into_bytes()
}

/// Renders the reply to EHLO: the host name, one line for each announced extension, and a last line `250 ` without a
/// text. RFC 5321 §4.2 requires the space even then.
fn ehlo(hostname: &str, extensions: &AnnouncedExtensions) -> Vec<u8> {
    let keywords = [
        (true, hostname),
        (extensions.pipelining, "PIPELINING"),
        (extensions.eight_bit_mime, "8BITMIME"),
        (extensions.auth, "AUTH PLAIN LOGIN"),
        (extensions.xclient, "XCLIENT NAME HELO"),
        (extensions.xforward, "XFORWARD NAME ADDR PROTO HELO"),
        (extensions.enhanced_status_codes, "ENHANCEDSTATUSCODES"),
        (extensions.dsn, "DSN"),
    ];
    let lines = keywords.iter().filter(|(announced, _)| *announced).map(|(_, keyword)| format!("250-{keyword}\r\n"));
    [lines.collect::<String>(), "250 \r\n".to_owned()].concat().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_depends_on_the_dialect() {
        let greeting = |extensions| ConfiguredReplies::new("mx", &extensions, "450 s", "550 h").greeting;
        assert_eq!(greeting(AnnouncedExtensions::default()), b"220 mx ESMTP\r\n");
        assert_eq!(greeting(AnnouncedExtensions { esmtp: false, ..AnnouncedExtensions::default() }), b"220 mx\r\n");
        assert_eq!(
            greeting(AnnouncedExtensions { esmtp: false, pix: true, ..AnnouncedExtensions::default() }),
            b"220 ********\r\n"
        );
    }

    #[test]
    fn what_is_not_announced_is_left_out() {
        let extensions =
            AnnouncedExtensions { pipelining: false, dsn: false, xclient: false, ..AnnouncedExtensions::default() };
        let expected = "250-mx\r\n250-8BITMIME\r\n250-AUTH PLAIN LOGIN\r\n250-XFORWARD NAME ADDR PROTO HELO\r\n\
                        250-ENHANCEDSTATUSCODES\r\n250 \r\n";
        assert_eq!(ehlo("mx", &extensions), expected.as_bytes());
    }
}
