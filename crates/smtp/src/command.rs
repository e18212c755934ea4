//! Parses command lines (RFC 5321 §4.1.1), and returns the reason to refuse lines that violate the grammar.
use crate::address::{Path, PathError};
use crate::dsn::{Notify, OriginalRecipient, Return, envelope_id};
use crate::extensions::number;
use crate::limits::{MAX_COMMAND_LINE_BYTES, MAX_MAIL_PARAMETER_BYTES, MAX_RCPT_PARAMETER_BYTES};
use crate::reply_reason::ReplyReason;
use crate::sasl::{MAX_EXCHANGE_LINE_BYTES, Mechanism};
use crate::xclient::Xclient;
use crate::xtext::Xtext;
use std::ops::Deref;

/// Maximum length in bytes of any command line except AUTH, including CRLF. Only MAIL may be this long.
pub(crate) const MAX_LINE_BYTES: usize = MAX_COMMAND_LINE_BYTES + MAX_MAIL_PARAMETER_BYTES;

/// Command with which a client opens the session (RFC 5321 §4.1.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// The client wants to know the server's extensions (EHLO).
    Extended,
    /// The client uses no extensions (HELO).
    Plain,
    /// The client wants to know the extensions of an LMTP server (LHLO, RFC 2033).
    Lmtp,
}

/// Content of the message as declared by BODY (RFC 6152).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyType {
    /// Lines of ASCII (BODY=7BIT). This is the default.
    #[default]
    SevenBit,
    /// Lines that may contain bytes above 127 (BODY=8BITMIME, RFC 6152).
    EightBitMime,
    /// Any bytes, not divided into lines (BODY=BINARYMIME, RFC 3030 §3).
    Binary,
}

/// The MAIL command: the sender, and the parameters of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mail<'a> {
    /// Address of the sender, which RFC 5321 calls the reverse-path.
    pub sender: Path<'a>,
    /// Size of the message in bytes, if the client gave SIZE.
    pub size: Option<u64>,
    /// Value of BODY, or `SevenBit` if the client gave no BODY.
    pub body: BodyType,
    /// Set if the client gave SMTPUTF8, so addresses and headers may be UTF-8 (RFC 6531 §3.4).
    pub smtp_utf8: bool,
    /// Value of RET: the part of the message that a notification should return (RFC 3461 §4.3).
    pub returns: Option<Return>,
    /// Value of ENVID: an id that notifications repeat to the sender (RFC 3461 §4.4).
    pub envelope_id: Option<Xtext<'a>>,
    /// Value of AUTH: the original sender according to the client (RFC 4954 §5). `<>` means that
    /// the sender is unknown.
    pub auth: Option<Xtext<'a>>,
}

/// The RCPT command: the recipient, and the events that the sender wants to be notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipient<'a> {
    /// Address of the recipient, which RFC 5321 calls the forward-path.
    pub path: Path<'a>,
    /// Value of NOTIFY: the events that the sender wants to be notified of (RFC 3461 §4.1).
    pub notify: Option<Notify>,
    /// Value of ORCPT: the recipient's address as the sender first gave it (RFC 3461 §4.2).
    pub original: Option<OriginalRecipient<'a>>,
}

impl<'a> Deref for Recipient<'a> {
    type Target = Path<'a>;

    fn deref(&self) -> &Path<'a> {
        &self.path
    }
}

/// The BDAT command, which announces a chunk of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the message's bytes that follow the command.
    pub bytes: u64,
    /// Set if the command ends with LAST, which means that these bytes end the message.
    pub last: bool,
}

/// A command whose syntax is valid. The session checks later whether its state allows the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// EHLO, HELO or LHLO, with the client's name for itself.
    Hello(Hello, &'a [u8]),
    /// MAIL, which begins a transaction (RFC 5321 §4.1.1.2).
    Mail(Mail<'a>),
    /// RCPT, which adds a recipient to the transaction (RFC 5321 §4.1.1.3).
    Recipient(Recipient<'a>),
    /// DATA, after which the client sends the message (RFC 5321 §4.1.1.4).
    Data,
    /// RSET, which ends an open transaction (RFC 5321 §4.1.1.5).
    Reset,
    /// NOOP, which has no effect (RFC 5321 §4.1.1.9).
    Noop,
    /// VRFY, with the user name or mailbox to verify (RFC 5321 §4.1.1.6).
    Verify(&'a [u8]),
    /// HELP, whose argument is ignored (RFC 5321 §4.1.1.8).
    Help,
    /// QUIT, which ends the session (RFC 5321 §4.1.1.10).
    Quit,
    /// BDAT, which announces a chunk of the message (RFC 3030 §2).
    Chunk(Chunk),
    /// STARTTLS, with which the client asks to begin TLS (RFC 3207 §4).
    StartTls,
    /// AUTH, with the mechanism and the undecoded initial response. The mechanism is `None` if this
    /// crate does not know it.
    Auth(Option<Mechanism>, Option<&'a [u8]>),
    /// XCLIENT, a Postfix extension with which a proxy names the client for which it connects.
    Xclient(Xclient<'a>),
}

impl<'a> Command<'a> {
    /// Parses a command line without its `<CRLF>`. Drops invalid values of parameters that a server
    /// only passes on (ENVID, ORCPT and AUTH=), because they are no reason to refuse mail.
    ///
    /// # Errors
    /// If the line is invalid, returns the [`ReplyReason`] with which the server refuses it.
    pub fn parse(line: &'a [u8]) -> Result<Self, ReplyReason> {
        Self::parse_with(line, InvalidValue::Drop)
    }

    /// Parses a command line, and refuses it if any parameter is invalid.
    ///
    /// # Errors
    /// If the line is invalid, returns the [`ReplyReason`] with which the server refuses it.
    pub fn parse_strictly(line: &'a [u8]) -> Result<Self, ReplyReason> {
        Self::parse_with(line, InvalidValue::Refuse)
    }

    fn parse_with(line: &'a [u8], invalid: InvalidValue) -> Result<Self, ReplyReason> {
        if memchr::memchr2(b'\r', 0, line).is_some() {
            return Err(ReplyReason::BareLineFeed);
        }
        let (verb, argument) = split_verb(line);
        if line.len() + 2 > max_line_bytes(verb) {
            return Err(ReplyReason::LineTooLong);
        }
        match &verb {
            b"EHLO" => hello(Hello::Extended, argument),
            b"HELO" => hello(Hello::Plain, argument),
            b"LHLO" => hello(Hello::Lmtp, argument),
            b"MAIL" => mail(argument, invalid),
            b"RCPT" => recipient(argument, invalid),
            b"DATA" => bare(argument, Self::Data),
            b"BDAT" => chunk(argument),
            b"RSET" => bare(argument, Self::Reset),
            b"QUIT" => bare(argument, Self::Quit),
            b"NOOP" => Ok(Self::Noop),
            b"HELP" => Ok(Self::Help),
            b"AUTH" => auth(argument),
            b"VRFY" if argument.is_empty() => Err(ReplyReason::Syntax),
            b"VRFY" => Ok(Self::Verify(argument)),
            b"EXPN" | b"TURN" | b"ETRN" | b"SEND" | b"SOML" | b"SAML" => Err(ReplyReason::NotImplemented),
            LONG_VERB => long_verb(line, argument),
            _ => Err(ReplyReason::UnknownCommand),
        }
    }
}

/// Stands for every verb that does not have four letters, such as STARTTLS.
const LONG_VERB: &[u8; 4] = b"\0\0\0\0";

/// Returns the maximum length in bytes of a command line with this verb, including CRLF.
fn max_line_bytes(verb: [u8; 4]) -> usize {
    match &verb {
        b"MAIL" => MAX_LINE_BYTES,
        b"RCPT" => MAX_COMMAND_LINE_BYTES + MAX_RCPT_PARAMETER_BYTES,
        // RFC 4954 §4 sets this limit for the client's responses to challenges. Permit the same length for the AUTH
        // line itself, because clients also send long tokens as the initial response.
        b"AUTH" => MAX_EXCHANGE_LINE_BYTES,
        _ => MAX_COMMAND_LINE_BYTES,
    }
}

/// Returns the verb in capitals, and the trimmed argument. A verb that does not have four letters
/// becomes `LONG_VERB`.
fn split_verb(line: &[u8]) -> ([u8; 4], &[u8]) {
    let end = memchr::memchr(b' ', line).unwrap_or(line.len());
    let (word, argument) = line.split_at(end);
    let mut verb = *LONG_VERB;
    if word.len() == 4 {
        verb.copy_from_slice(word);
        verb.make_ascii_uppercase();
    }
    (verb, argument.trim_ascii())
}

fn long_verb<'a>(line: &'a [u8], argument: &'a [u8]) -> Result<Command<'a>, ReplyReason> {
    let word = line.split(|octet| *octet == b' ').next().unwrap_or_default();
    if word.eq_ignore_ascii_case(b"STARTTLS") {
        return bare(argument, Command::StartTls);
    }
    if word.eq_ignore_ascii_case(b"XCLIENT") {
        return Xclient::parse(argument).map(Command::Xclient).ok_or(ReplyReason::Syntax);
    }
    Err(ReplyReason::UnknownCommand)
}

/// Parses BDAT. If the size is invalid, the session must end, because the server cannot tell
/// whether the next bytes are part of the message or commands.
fn chunk(argument: &[u8]) -> Result<Command<'_>, ReplyReason> {
    let mut words = argument.split(|octet| *octet == b' ').filter(|word| !word.is_empty());
    let bytes = words.next().and_then(number).ok_or(ReplyReason::BadChunk)?;
    let last = match words.next() {
        None => false,
        Some(word) if word.eq_ignore_ascii_case(b"LAST") => true,
        Some(_) => return Err(ReplyReason::BadChunk),
    };
    if words.next().is_some() {
        return Err(ReplyReason::BadChunk);
    }
    Ok(Command::Chunk(Chunk { bytes, last }))
}

fn auth(argument: &[u8]) -> Result<Command<'_>, ReplyReason> {
    let mut words = argument.splitn(2, |octet| *octet == b' ');
    let mechanism = words.next().filter(|name| !name.is_empty()).ok_or(ReplyReason::Syntax)?;
    Ok(Command::Auth(Mechanism::parse(mechanism), words.next().map(<[u8]>::trim_ascii)))
}

fn bare<'a>(argument: &[u8], command: Command<'a>) -> Result<Command<'a>, ReplyReason> {
    if argument.is_empty() { Ok(command) } else { Err(ReplyReason::Syntax) }
}

/// Parses EHLO, HELO or LHLO. Accepts the rest of the line as the client's name, whatever it contains. RFC 5321 §4.1.4
/// forbids refusing mail because of a wrong name, and the server does not use the name.
fn hello(kind: Hello, name: &[u8]) -> Result<Command<'_>, ReplyReason> {
    if name.is_empty() { Err(ReplyReason::HelloNeedsName) } else { Ok(Command::Hello(kind, name)) }
}

/// Returns the path after `FROM:` or `TO:`, and the parameters. Spaces after the colon are
/// accepted.
fn path_after<'a>(keyword: &[u8], argument: &'a [u8], bad: ReplyReason) -> Result<(Path<'a>, &'a [u8]), ReplyReason> {
    let matches = argument.len() >= keyword.len() && argument[..keyword.len()].eq_ignore_ascii_case(keyword);
    if !matches {
        return Err(ReplyReason::Syntax);
    }
    let (path, rest) = Path::parse(argument[keyword.len()..].trim_ascii_start()).map_err(|error| match error {
        PathError::Syntax => bad,
        PathError::TooLong => ReplyReason::PathTooLong,
    })?;
    if rest.is_empty() || rest[0] == b' ' { Ok((path, rest)) } else { Err(bad) }
}

fn mail(argument: &[u8], invalid: InvalidValue) -> Result<Command<'_>, ReplyReason> {
    let (sender, rest) = path_after(b"FROM:", argument, ReplyReason::BadSender)?;
    let mut mail = Mail {
        sender,
        size: None,
        body: BodyType::SevenBit,
        smtp_utf8: false,
        returns: None,
        envelope_id: None,
        auth: None,
    };
    if !rest.is_empty() {
        let mut body = None;
        for word in words(rest) {
            mail_parameter(word, &mut mail, &mut body, invalid)?;
        }
        mail.body = body.unwrap_or_default();
    }
    Ok(Command::Mail(mail))
}

fn words(parameters: &[u8]) -> impl Iterator<Item = &[u8]> {
    parameters.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

fn split_parameter(word: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'=', word) {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    }
}

/// Sets a parameter of MAIL or RCPT. Returns an error if the value is invalid or if the parameter
/// occurs twice (esmtp-param in RFC 5321 §4.1.2).
fn set<T>(target: &mut Option<T>, value: Option<T>) -> Result<(), ReplyReason> {
    if target.is_some() || value.is_none() {
        return Err(ReplyReason::BadParameter);
    }
    *target = value;
    Ok(())
}

#[derive(Clone, Copy)]
enum InvalidValue {
    Drop,
    Refuse,
}

/// Sets a parameter that is only passed on to the next server. An invalid or second value is
/// ignored or refused, depending on `invalid`.
fn pass_on<T>(target: &mut Option<T>, value: Option<T>, invalid: InvalidValue) -> Result<(), ReplyReason> {
    match invalid {
        InvalidValue::Refuse => set(target, value),
        InvalidValue::Drop => {
            *target = target.take().or(value);
            Ok(())
        }
    }
}

fn mail_parameter<'a>(
    word: &'a [u8],
    mail: &mut Mail<'a>,
    body: &mut Option<BodyType>,
    invalid: InvalidValue,
) -> Result<(), ReplyReason> {
    let (keyword, value) = split_parameter(word);
    let is = |name: &[u8]| keyword.eq_ignore_ascii_case(name);
    if is(b"SIZE") {
        set(&mut mail.size, value.and_then(number))
    } else if is(b"BODY") {
        set(body, body_type(value))
    } else if is(b"SMTPUTF8") {
        let is_new = !mail.smtp_utf8 && value.is_none();
        mail.smtp_utf8 = true;
        if is_new { Ok(()) } else { Err(ReplyReason::BadParameter) }
    } else if is(b"RET") {
        set(&mut mail.returns, value.and_then(Return::parse))
    } else if is(b"ENVID") {
        pass_on(&mut mail.envelope_id, value.and_then(envelope_id), invalid)
    } else if is(b"AUTH") {
        pass_on(&mut mail.auth, value.filter(|value| !value.is_empty()).and_then(Xtext::parse), invalid)
    } else {
        Err(ReplyReason::UnknownParameter)
    }
}

fn body_type(value: Option<&[u8]>) -> Option<BodyType> {
    match value {
        Some(value) if value.eq_ignore_ascii_case(b"7BIT") => Some(BodyType::SevenBit),
        Some(value) if value.eq_ignore_ascii_case(b"8BITMIME") => Some(BodyType::EightBitMime),
        Some(value) if value.eq_ignore_ascii_case(b"BINARYMIME") => Some(BodyType::Binary),
        _ => None,
    }
}

fn recipient(argument: &[u8], invalid: InvalidValue) -> Result<Command<'_>, ReplyReason> {
    let (path, rest) = path_after(b"TO:", argument, ReplyReason::BadRecipient)?;
    if path.is_null() {
        return Err(ReplyReason::BadRecipient);
    }
    let mut recipient = Recipient { path, notify: None, original: None };
    if !rest.is_empty() {
        for word in words(rest) {
            recipient_parameter(word, &mut recipient, invalid)?;
        }
    }
    Ok(Command::Recipient(recipient))
}

fn recipient_parameter<'a>(
    word: &'a [u8],
    recipient: &mut Recipient<'a>,
    invalid: InvalidValue,
) -> Result<(), ReplyReason> {
    let (keyword, value) = split_parameter(word);
    if keyword.eq_ignore_ascii_case(b"NOTIFY") {
        set(&mut recipient.notify, value.and_then(Notify::parse))
    } else if keyword.eq_ignore_ascii_case(b"ORCPT") {
        pass_on(&mut recipient.original, value.and_then(OriginalRecipient::parse), invalid)
    } else {
        Err(ReplyReason::UnknownParameter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        match Command::parse(line.as_bytes()) {
            Ok(Command::Mail(mail)) => format!(
                "mail {} {:?} {:?} {}{}",
                String::from_utf8_lossy(mail.sender.as_bytes()),
                mail.size,
                mail.body,
                mail.smtp_utf8,
                [
                    mail.returns.map(|it| format!(" {it:?}")),
                    mail.envelope_id.map(|it| format!(" id {it:?}")),
                    mail.auth.map(|it| format!(" auth {it:?}")),
                ]
                .into_iter()
                .flatten()
                .collect::<String>()
            ),
            Ok(Command::Recipient(Recipient { path, notify, original })) => format!(
                "rcpt {}{}{}",
                String::from_utf8_lossy(path.as_bytes()),
                notify.map_or(String::new(), |it| format!(" {it:?}")),
                original.map_or(String::new(), |it| format!(" {:?}", String::from_utf8_lossy(it.address))),
            ),
            Ok(Command::Chunk(chunk)) => format!("bdat {} {}", chunk.bytes, chunk.last),
            Ok(Command::Auth(mechanism, initial)) => {
                format!("auth {mechanism:?} {:?}", initial.map(String::from_utf8_lossy))
            }
            Ok(Command::Xclient(xclient)) => format!("xclient {}", xclient.attributes().count()),
            Ok(Command::Hello(kind, name)) => format!("{kind:?} {}", String::from_utf8_lossy(name)),
            Ok(Command::Verify(who)) => format!("vrfy {}", String::from_utf8_lossy(who)),
            Ok(other) => format!("{other:?}"),
            Err(verdict) => verdict.reply().code().to_string() + " " + &format!("{verdict:?}"),
        }
    }

    fn check(rows: &[(&str, &str)]) {
        for (line, expected) in rows {
            assert_eq!(said(line), *expected, "{line:?}");
        }
    }

    #[test]
    fn a_table_of_commands() {
        check(&[
            ("EHLO a.b", "Extended a.b"),
            ("helo [127.0.0.1]", "Plain [127.0.0.1]"),
            ("EHLO", "501 HelloNeedsName"),
            ("EHLO  ", "501 HelloNeedsName"),
            ("EHLO Editor 9.0.3", "Extended Editor 9.0.3"),
            ("EHLO a\tb\u{7f}", "Extended a\tb\u{7f}"),
            ("EHLO https://x.example", "Extended https://x.example"),
            ("LHLO a", "Lmtp a"),
            ("BDAT 3", "bdat 3 false"),
            ("bdat 0 last", "bdat 0 true"),
            ("BDAT 99999999999999999999 LAST", "bdat 18446744073709551615 true"),
            ("BDAT", "421 BadChunk"),
            ("BDAT LAST", "421 BadChunk"),
            ("BDAT -1", "421 BadChunk"),
            ("BDAT 0x10", "421 BadChunk"),
            ("BDAT 100000000000000000000", "421 BadChunk"),
            ("BDAT 3 FIRST", "421 BadChunk"),
            ("BDAT 3 LAST 3", "421 BadChunk"),
            ("AUTH PLAIN AGEAYg==", "auth Some(Plain) Some(\"AGEAYg==\")"),
            ("auth login", "auth Some(Login) None"),
            ("AUTH SCRAM-SHA-256 =", "auth Some(ScramSha256) Some(\"=\")"),
            ("AUTH KERBEROS_V4", "auth None None"),
            ("AUTH", "501 Syntax"),
            ("XCLIENT NAME=a ADDR=127.0.0.1", "xclient 2"),
            ("XCLIENT", "501 Syntax"),
            ("XCLIENT SHOE=42", "501 Syntax"),
            ("DATA", "Data"),
            ("DATA x", "501 Syntax"),
            ("RSET ", "Reset"),
            ("NOOP anything", "Noop"),
            ("VRFY a", "vrfy a"),
            ("VRFY", "501 Syntax"),
            ("HELP me", "Help"),
            ("quit", "Quit"),
            ("EXPN a", "502 NotImplemented"),
            ("StartTLS", "StartTls"),
            ("STARTTLS now", "501 Syntax"),
            ("STARTED", "500 UnknownCommand"),
            ("STAR", "500 UnknownCommand"),
            ("\u{1}\u{1}\u{1}\u{1}", "500 UnknownCommand"),
            ("", "500 UnknownCommand"),
            (" NOOP", "500 UnknownCommand"),
            ("NOOP \0", "500 BareLineFeed"),
            ("NO\rOP", "500 BareLineFeed"),
        ]);
    }

    #[test]
    fn a_table_of_mail() {
        check(&[
            ("MAIL FROM:<>", "mail  None SevenBit false"),
            ("mail from:<a@b>", "mail a@b None SevenBit false"),
            ("MAIL FROM: <a@b> SIZE=10 BODY=8bitmime SMTPUTF8", "mail a@b Some(10) EightBitMime true"),
            ("MAIL FROM:<a@b> SIZE=x", "501 BadParameter"),
            ("MAIL FROM:<a@b> SIZE=1 SIZE=2", "501 BadParameter"),
            ("MAIL FROM:<a@b> BODY=7BIT BODY=8BITMIME", "501 BadParameter"),
            ("MAIL FROM:<a@b> SMTPUTF8=1", "501 BadParameter"),
            ("MAIL FROM:<a@b> BODY=BINARYMIME", "mail a@b None Binary false"),
            ("MAIL FROM:<a@b> BODY=UUENCODED", "501 BadParameter"),
            ("MAIL FROM:<a@b> SMTPUTF8 SMTPUTF8", "501 BadParameter"),
            ("MAIL FROM:<a@b> RET=HDRS ENVID=QQ314159", "mail a@b None SevenBit false Header id \"QQ314159\""),
            ("MAIL FROM:<a@b> ret=full", "mail a@b None SevenBit false Full"),
            ("MAIL FROM:<a@b> RET=FULL RET=FULL", "501 BadParameter"),
            ("MAIL FROM:<a@b> RET", "501 BadParameter"),
            ("MAIL FROM:<a@b> RET=HEADERS", "501 BadParameter"),
            ("MAIL FROM:<a@b> ENVID=", "mail a@b None SevenBit false"),
            ("MAIL FROM:<a@b> ENVID=a+b", "mail a@b None SevenBit false"),
            ("MAIL FROM:<a@b> ENVID=1 ENVID=2", "mail a@b None SevenBit false id \"1\""),
            ("MAIL FROM:<a@b> AUTH=<>", "mail a@b None SevenBit false auth \"<>\""),
            ("MAIL FROM:<a@b> AUTH=e+3Dmc2@example.com", "mail a@b None SevenBit false auth \"e+3Dmc2@example.com\""),
            ("MAIL FROM:<a@b> AUTH=", "mail a@b None SevenBit false"),
            ("MAIL FROM:<a@b> AUTH=a=b", "mail a@b None SevenBit false"),
            ("MAIL FROM:<a@b> NOTIFY=NEVER", "555 UnknownParameter"),
            ("MAIL FROM:<a@b> FOO=BAR", "555 UnknownParameter"),
            ("MAIL FROM:<a@b>SIZE=1", "501 BadSender"),
            ("MAIL FROM:a@b", "501 BadSender"),
            ("MAIL TO:<a@b>", "501 Syntax"),
            ("MAIL", "501 Syntax"),
        ]);
    }

    #[test]
    fn a_table_of_recipients() {
        check(&[
            ("RCPT TO:<a@b>", "rcpt a@b"),
            ("RCPT TO:<Postmaster>", "rcpt Postmaster"),
            ("RCPT TO:<>", "501 BadRecipient"),
            ("RCPT TO:<a@b> NOTIFY=NEVER", "rcpt a@b Notify(0)"),
            ("RCPT TO:<a@b> orcpt=rfc822;a+2Bc@b notify=success,DELAY", "rcpt a@b Notify(5) \"a+2Bc@b\""),
            ("RCPT TO:<a@b> NOTIFY=NEVER,DELAY", "501 BadParameter"),
            ("RCPT TO:<a@b> NOTIFY=NEVER NOTIFY=DELAY", "501 BadParameter"),
            ("RCPT TO:<a@b> NOTIFY", "501 BadParameter"),
            ("RCPT TO:<böb@b> ORCPT=rfc822;b+C3+B6b@b", "rcpt böb@b \"b+C3+B6b@b\""),
            ("RCPT TO:<a@b> ORCPT=a@b", "rcpt a@b"),
            ("RCPT TO:<a@b> ORCPT", "rcpt a@b"),
            ("RCPT TO:<a@b> ORCPT=rfc822;a+b ORCPT=rfc822;c ORCPT=rfc822;d", "rcpt a@b \"c\""),
            ("RCPT TO:<a@b> RET=FULL", "555 UnknownParameter"),
            ("RCPT TO:<a@b>NOTIFY=NEVER", "501 BadRecipient"),
        ]);
    }

    #[test]
    fn values_that_are_only_passed_on_are_refused_or_dropped() {
        for (invalid, valid) in [
            ("MAIL FROM:<a@b> ENVID=a+2", "MAIL FROM:<a@b> ENVID=a+2B"),
            ("MAIL FROM:<a@b> ENVID=", "MAIL FROM:<a@b> envid=x"),
            ("MAIL FROM:<a@b> ENVID=1 ENVID=2", "MAIL FROM:<a@b> ENVID=1 RET=FULL"),
            ("MAIL FROM:<a@b> AUTH=", "MAIL FROM:<a@b> AUTH=<>"),
            ("RCPT TO:<a@b> ORCPT=root", "RCPT TO:<a@b> ORCPT=rfc822;root"),
            ("RCPT TO:<a@b> ORCPT=rfc822;", "RCPT TO:<a@b> NOTIFY=NEVER ORCPT=rfc822;a+2Bc"),
            ("RCPT TO:<a@b> ORCPT", "RCPT TO:<a@b>"),
        ] {
            assert_eq!(Command::parse_strictly(invalid.as_bytes()), Err(ReplyReason::BadParameter), "{invalid}");
            assert!(Command::parse(invalid.as_bytes()).is_ok(), "{invalid}");
            assert_eq!(Command::parse_strictly(valid.as_bytes()), Command::parse(valid.as_bytes()), "{valid}");
            assert!(Command::parse(valid.as_bytes()).is_ok(), "{valid}");
        }
    }

    #[test]
    fn a_command_line_is_512_octets_and_some_have_room_for_their_parameters() {
        assert_eq!(said(&format!("NOOP {}", "x".repeat(505))), "Noop");
        assert_eq!(said(&format!("NOOP {}", "x".repeat(506))), "500 LineTooLong");
        let mail = format!("MAIL FROM:<a@b>{}SIZE=1", " ".repeat(MAX_LINE_BYTES - 2 - 15 - 6));
        assert_eq!(said(&mail), "mail a@b Some(1) SevenBit false");
        assert_eq!(said(&format!("{mail}1")), "500 LineTooLong");
        let rcpt = format!("RCPT TO:<a@b>{}", " ".repeat(MAX_COMMAND_LINE_BYTES + MAX_RCPT_PARAMETER_BYTES - 2 - 13));
        assert_eq!(said(&rcpt), "rcpt a@b");
        assert_eq!(said(&format!("{rcpt} ")), "500 LineTooLong");
        let auth = format!("AUTH PLAIN {}", "A".repeat(MAX_EXCHANGE_LINE_BYTES - 2 - 11));
        assert!(said(&auth).starts_with("auth Some(Plain)"));
        assert_eq!(said(&format!("{auth}A")), "500 LineTooLong");
    }
}
