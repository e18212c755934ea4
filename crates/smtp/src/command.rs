//! Command lines, read strictly (RFC 5321 §4.1.1); a wrong one names its verdict.
use crate::address::{BadPath, Path};
use crate::extensions::number;
use crate::limits::{COMMAND_LINE_BYTES, MAIL_PARAMETER_BYTES};
use crate::verdict::Verdict;

/// The longest command line that any verb may have.
pub(crate) const LONGEST_LINE_BYTES: usize = COMMAND_LINE_BYTES + MAIL_PARAMETER_BYTES;

/// Which greeting a client used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// EHLO: extensions are on.
    Extended,
    /// HELO: they are not.
    Plain,
}

/// What the message's octets may be (RFC 6152).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyType {
    /// ASCII.
    #[default]
    SevenBit,
    /// Any octet, in lines.
    EightBitMime,
}

/// MAIL: the sender and what it says of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mail<'a> {
    /// The reverse-path.
    pub sender: Path<'a>,
    /// SIZE, where the client gave it.
    pub size: Option<u64>,
    /// BODY.
    pub body: BodyType,
    /// SMTPUTF8.
    pub smtp_utf8: bool,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// EHLO, HELO and the client's name.
    Hello(Hello, &'a [u8]),
    /// MAIL FROM.
    Mail(Mail<'a>),
    /// RCPT TO and the forward-path.
    Recipient(Path<'a>),
    /// DATA.
    Data,
    /// RSET.
    Reset,
    /// NOOP.
    Noop,
    /// VRFY and its argument.
    Verify(&'a [u8]),
    /// HELP.
    Help,
    /// QUIT.
    Quit,
}

impl<'a> Command<'a> {
    /// Reads a command line without its `<CRLF>`.
    ///
    /// # Errors
    /// The [`Verdict`] to answer with.
    pub fn parse(line: &'a [u8]) -> Result<Self, Verdict> {
        if memchr::memchr2(b'\r', 0, line).is_some() {
            return Err(Verdict::BareLineFeed);
        }
        let (verb, argument) = split_verb(line);
        let limit = if verb == *b"MAIL" { LONGEST_LINE_BYTES } else { COMMAND_LINE_BYTES };
        if line.len() + 2 > limit {
            return Err(Verdict::LineTooLong);
        }
        match &verb {
            b"EHLO" => hello(Hello::Extended, argument),
            b"HELO" => hello(Hello::Plain, argument),
            b"MAIL" => mail(argument),
            b"RCPT" => recipient(argument),
            b"DATA" => bare(argument, Self::Data),
            b"RSET" => bare(argument, Self::Reset),
            b"QUIT" => bare(argument, Self::Quit),
            b"NOOP" => Ok(Self::Noop),
            b"HELP" => Ok(Self::Help),
            b"VRFY" if argument.is_empty() => Err(Verdict::Syntax),
            b"VRFY" => Ok(Self::Verify(argument)),
            b"EXPN" | b"TURN" | b"ETRN" | b"SEND" | b"SOML" | b"SAML" | b"STAR" | b"AUTH" | b"BDAT" => {
                Err(Verdict::NotImplemented)
            }
            _ => Err(Verdict::UnknownCommand),
        }
    }
}

/// The verb in capitals and its trimmed argument. All verbs spoken here have four letters; STARTTLS is known by
/// its first four.
fn split_verb(line: &[u8]) -> ([u8; 4], &[u8]) {
    let end = memchr::memchr(b' ', line).unwrap_or(line.len());
    let (word, argument) = line.split_at(end);
    let mut verb = [0; 4];
    if word.len() == 4 || word.eq_ignore_ascii_case(b"STARTTLS") {
        verb.copy_from_slice(&word[..4]);
        verb.make_ascii_uppercase();
    }
    (verb, argument.trim_ascii())
}

fn bare<'a>(argument: &[u8], command: Command<'a>) -> Result<Command<'a>, Verdict> {
    if argument.is_empty() { Ok(command) } else { Err(Verdict::Syntax) }
}

/// The name is not checked beyond being one word of printable text: RFC 5321 §4.1.4 forbids to refuse mail for it.
fn hello(kind: Hello, name: &[u8]) -> Result<Command<'_>, Verdict> {
    if name.is_empty() || name.iter().any(|byte| byte.is_ascii_control() || *byte == b' ') {
        return Err(Verdict::HelloNeedsName);
    }
    Ok(Command::Hello(kind, name))
}

/// The path after `FROM:` or `TO:` and the parameters after it. A blank after the colon is forgiven.
fn path_after<'a>(keyword: &[u8], argument: &'a [u8], bad: Verdict) -> Result<(Path<'a>, &'a [u8]), Verdict> {
    let matches = argument.len() >= keyword.len() && argument[..keyword.len()].eq_ignore_ascii_case(keyword);
    if !matches {
        return Err(Verdict::Syntax);
    }
    let (path, rest) = Path::parse(argument[keyword.len()..].trim_ascii_start()).map_err(|why| match why {
        BadPath::Syntax => bad,
        BadPath::TooLong => Verdict::PathTooLong,
    })?;
    if rest.is_empty() || rest[0] == b' ' { Ok((path, rest)) } else { Err(bad) }
}

fn mail(argument: &[u8]) -> Result<Command<'_>, Verdict> {
    let (sender, rest) = path_after(b"FROM:", argument, Verdict::BadSender)?;
    let mut mail = Mail { sender, size: None, body: BodyType::SevenBit, smtp_utf8: false };
    if !rest.is_empty() {
        let mut body = None;
        for word in rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
            parameter(word, &mut mail, &mut body)?;
        }
        mail.body = body.unwrap_or_default();
    }
    Ok(Command::Mail(mail))
}

/// One parameter of MAIL; each may stand once (RFC 5321 §4.1.2: esmtp-param).
fn parameter(word: &[u8], mail: &mut Mail<'_>, body: &mut Option<BodyType>) -> Result<(), Verdict> {
    let (keyword, value) = match memchr::memchr(b'=', word) {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    };
    let is = |name: &[u8]| keyword.eq_ignore_ascii_case(name);
    let once = |seen: bool| if seen { Err(Verdict::BadParameter) } else { Ok(()) };
    if is(b"SIZE") {
        once(mail.size.is_some())?;
        mail.size = Some(value.and_then(number).ok_or(Verdict::BadParameter)?);
    } else if is(b"BODY") {
        once(body.is_some())?;
        *body = Some(body_type(value).ok_or(Verdict::BadParameter)?);
    } else if is(b"SMTPUTF8") {
        once(mail.smtp_utf8 || value.is_some())?;
        mail.smtp_utf8 = true;
    } else {
        return Err(Verdict::UnknownParameter);
    }
    Ok(())
}

fn body_type(value: Option<&[u8]>) -> Option<BodyType> {
    match value {
        Some(value) if value.eq_ignore_ascii_case(b"7BIT") => Some(BodyType::SevenBit),
        Some(value) if value.eq_ignore_ascii_case(b"8BITMIME") => Some(BodyType::EightBitMime),
        _ => None,
    }
}

fn recipient(argument: &[u8]) -> Result<Command<'_>, Verdict> {
    let (path, rest) = path_after(b"TO:", argument, Verdict::BadRecipient)?;
    match rest.trim_ascii() {
        _ if path.is_null() => Err(Verdict::BadRecipient),
        [] => Ok(Command::Recipient(path)),
        _ => Err(Verdict::UnknownParameter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        match Command::parse(line.as_bytes()) {
            Ok(Command::Mail(mail)) => format!(
                "mail {} {:?} {:?} {}",
                String::from_utf8_lossy(mail.sender.as_bytes()),
                mail.size,
                mail.body,
                mail.smtp_utf8
            ),
            Ok(Command::Recipient(path)) => format!("rcpt {}", String::from_utf8_lossy(path.as_bytes())),
            Ok(Command::Hello(kind, name)) => format!("{kind:?} {}", String::from_utf8_lossy(name)),
            Ok(Command::Verify(who)) => format!("vrfy {}", String::from_utf8_lossy(who)),
            Ok(other) => format!("{other:?}"),
            Err(verdict) => verdict.reply().code().to_string() + " " + &format!("{verdict:?}"),
        }
    }

    #[test]
    fn a_table_of_commands() {
        let rows = [
            ("EHLO a.b", "Extended a.b"),
            ("helo [127.0.0.1]", "Plain [127.0.0.1]"),
            ("EHLO", "501 HelloNeedsName"),
            ("EHLO a b", "501 HelloNeedsName"),
            ("MAIL FROM:<>", "mail  None SevenBit false"),
            ("mail from:<a@b>", "mail a@b None SevenBit false"),
            ("MAIL FROM: <a@b> SIZE=10 BODY=8bitmime SMTPUTF8", "mail a@b Some(10) EightBitMime true"),
            ("MAIL FROM:<a@b> SIZE=x", "501 BadParameter"),
            ("MAIL FROM:<a@b> SIZE=1 SIZE=2", "501 BadParameter"),
            ("MAIL FROM:<a@b> BODY=7BIT BODY=8BITMIME", "501 BadParameter"),
            ("MAIL FROM:<a@b> SMTPUTF8=1", "501 BadParameter"),
            ("MAIL FROM:<a@b> BODY=BINARYMIME", "501 BadParameter"),
            ("MAIL FROM:<a@b> FOO=BAR", "555 UnknownParameter"),
            ("MAIL FROM:<a@b>SIZE=1", "501 BadSender"),
            ("MAIL FROM:a@b", "501 BadSender"),
            ("MAIL TO:<a@b>", "501 Syntax"),
            ("MAIL", "501 Syntax"),
            ("RCPT TO:<a@b>", "rcpt a@b"),
            ("RCPT TO:<Postmaster>", "rcpt Postmaster"),
            ("RCPT TO:<>", "501 BadRecipient"),
            ("RCPT TO:<a@b> NOTIFY=NEVER", "555 UnknownParameter"),
            ("DATA", "Data"),
            ("DATA x", "501 Syntax"),
            ("RSET ", "Reset"),
            ("NOOP anything", "Noop"),
            ("VRFY a", "vrfy a"),
            ("VRFY", "501 Syntax"),
            ("HELP me", "Help"),
            ("quit", "Quit"),
            ("EXPN a", "502 NotImplemented"),
            ("STARTTLS", "502 NotImplemented"),
            ("BDAT 3", "502 NotImplemented"),
            ("STARTED", "500 UnknownCommand"),
            ("", "500 UnknownCommand"),
            (" NOOP", "500 UnknownCommand"),
            ("NOOP \0", "500 BareLineFeed"),
            ("NO\rOP", "500 BareLineFeed"),
        ];
        for (line, expected) in rows {
            assert_eq!(said(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_command_line_is_512_octets_and_mail_has_room_for_its_parameters() {
        assert_eq!(said(&format!("NOOP {}", "x".repeat(505))), "Noop");
        assert_eq!(said(&format!("NOOP {}", "x".repeat(506))), "500 LineTooLong");
        let mail = format!("MAIL FROM:<a@b>{}SIZE=1", " ".repeat(LONGEST_LINE_BYTES - 2 - 15 - 6));
        assert_eq!(said(&mail), "mail a@b Some(1) SevenBit false");
        assert_eq!(said(&format!("{mail}1")), "500 LineTooLong");
    }
}
