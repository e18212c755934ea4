//! Delivery notifications that the source requests for its mail, with the DSN parameters of MAIL and RCPT (RFC 3461).
use super::addresses::AddressPattern;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use mailrun_measurement::trace::MessageName;
use mailrun_schedule::distribution::{RandomStream, SeededRng};
use mailrun_smtp::client::Notifications;
use mailrun_smtp::dsn::{self, Notify, Return};
use mailrun_smtp::xtext;

/// Heading of these options in the help. It is set on each option, because a heading on the struct would also apply to
/// the options that follow the struct.
const HEADING: &str = "Notifications (RFC 3461), from a server that offers DSN";

/// Notifications that the source requests. By default, it requests none. If it requests any, it sends no mail to a
/// server that does not offer DSN.
#[derive(Clone, Debug, Default, Args)]
pub struct DsnParameters {
    /// When the server should send a notification: never, or some of success,failure,delay.
    #[arg(long = "dsn-notify", value_name = "WHEN", value_parser = parse_notify, help_heading = HEADING)]
    pub notify: Option<Notify>,
    /// How much of the message a notification should return.
    #[arg(long = "dsn-ret", value_name = "PART", value_parser = parts(), help_heading = HEADING)]
    pub returns: Option<Return>,
    /// Identifier of the message in notifications: a text, or a pattern in which an n in braces is replaced by the
    /// number of the message. If TEXT is just the word trace in braces, a mailrun sink also recognises notifications
    /// that do not return the message.
    // Do not write `{n}` into this help text, because clap would turn it into a line break.
    #[arg(long = "dsn-envid", value_name = "TEXT", value_parser = parse_envelope_id, help_heading = HEADING)]
    pub envelope_id: Option<EnvelopeId>,
    /// Send ORCPT with each recipient.
    #[arg(long = "dsn-orcpt", help_heading = HEADING)]
    pub original_recipient: bool,
}

/// Pattern from which the ENVID of each message is made.
#[derive(Clone, Debug)]
pub enum EnvelopeId {
    /// The run and the number of the message, so that a mailrun sink recognises notifications about the message.
    Trace,
    Pattern(AddressPattern),
}

impl EnvelopeId {
    const TRACE: &str = "{trace}";

    fn expression(&self) -> &str {
        match self {
            Self::Trace => Self::TRACE,
            Self::Pattern(pattern) => pattern.expression(),
        }
    }
}

fn parse_notify(text: &str) -> Result<Notify, String> {
    let error = || format!("{text:?} must be never, or a list of success,failure,delay");
    Notify::parse(text.as_bytes()).ok_or_else(error)
}

fn parts() -> impl TypedValueParser<Value = Return> {
    let full = PossibleValue::new("full").help("The whole message");
    let header = PossibleValue::new("hdrs").help("The header only");
    PossibleValuesParser::new([full, header]).map(|name| if name == "full" { Return::Full } else { Return::Header })
}

pub(super) fn parse_envelope_id(typed: &str) -> Result<EnvelopeId, String> {
    if typed == EnvelopeId::TRACE { Ok(EnvelopeId::Trace) } else { parse_pattern(typed).map(EnvelopeId::Pattern) }
}

/// Parses a pattern for ENVID, in which `{n}` stands for the number of the message. Each ENVID that it can produce may
/// have at most 100 octets when it is encoded as xtext.
fn parse_pattern(typed: &str) -> Result<AddressPattern, String> {
    AddressPattern::text(typed, |text| {
        // Once decoded, an ENVID must be printable ASCII (RFC 3461 §4.4).
        let is_printable = text.iter().all(|octet| (b' '..=b'~').contains(octet));
        match dsn::envelope_id(xtext::encode(text).as_bytes()).filter(|_| is_printable) {
            Some(_) => Ok(()),
            None => {
                Err("an ENVID must have 1 to 100 printable ASCII characters; +, = and blank count as three".to_owned())
            }
        }
    })
}

impl DsnParameters {
    pub(crate) fn notifications(&self) -> Notifications {
        if self.description().is_some() { Notifications::Asked } else { Notifications::Unasked }
    }

    pub(super) fn is_constant(&self) -> bool {
        let is_literal = |id: &EnvelopeId| matches!(id, EnvelopeId::Pattern(pattern) if pattern.literal().is_some());
        self.envelope_id.as_ref().is_none_or(is_literal)
    }

    /// Returns the parameters in one line for the record, or `None` if no notifications are requested.
    pub(super) fn description(&self) -> Option<String> {
        let words = [
            self.notify.map(|notify| format!("NOTIFY={}", notify.render())),
            self.returns.map(|returns| format!("RET={}", returns.keyword())),
            self.envelope_id.as_ref().map(|id| format!("ENVID={}", id.expression())),
            self.original_recipient.then(|| "ORCPT".to_owned()),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// Appends the DSN parameters of MAIL to `text`. The parameters of MAIL begin at offset `begin`. If there are none
    /// yet, the first DSN parameter gets no blank before it. `number` counts the messages of the run. Unlike the
    /// sequence number in `message`, it has no bits that mark the stage of the load and the warm-up.
    pub(crate) fn write_mail(&self, seed: u64, number: u64, message: &MessageName, begin: usize, text: &mut Vec<u8>) {
        if let Some(returns) = self.returns {
            push_parameter("RET=", returns.keyword(), begin, text);
        }
        let mut id = Vec::new();
        match &self.envelope_id {
            None => return,
            Some(EnvelopeId::Trace) => id.extend_from_slice(&message.envelope_id()),
            Some(EnvelopeId::Pattern(pattern)) => {
                pattern.write_text(&mut SeededRng::new(seed, RandomStream::EnvelopeId, number), number, &mut id);
            }
        }
        push_parameter("ENVID=", &xtext::encode(&id), begin, text);
    }

    /// Appends the DSN parameters of RCPT to `text`, which must end with the address that begins at `recipient`.
    pub(crate) fn write_recipient(&self, recipient: usize, text: &mut Vec<u8>) {
        let begin = text.len();
        if let Some(notify) = self.notify {
            push_parameter("NOTIFY=", &notify.render(), begin, text);
        }
        if self.original_recipient {
            // If the address is too long for the parameter, send the recipient without ORCPT.
            let original = std::str::from_utf8(&text[recipient..begin]).ok().and_then(dsn::render_original_recipient);
            original.iter().for_each(|value| push_parameter("ORCPT=", value, begin, text));
        }
    }
}

/// Appends a parameter to `text`, with a blank before it unless it is the first. The first parameter begins at offset
/// `begin`.
fn push_parameter(name: &str, value: &str, begin: usize, text: &mut Vec<u8>) {
    let blank = if text.len() > begin { " " } else { "" };
    [blank, name, value].iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::RunId;
    use mailrun_measurement::trace::RecipientNumbering;
    use proptest::prelude::*;

    fn message() -> MessageName {
        MessageName { run: RunId([7; 16]), sequence: 5, numbering: RecipientNumbering::SINGLE }
    }

    #[test]
    fn an_envelope_id_can_be_that_of_the_trace() {
        let parameters = DsnParameters { envelope_id: parse_envelope_id("{trace}").ok(), ..DsnParameters::default() };
        assert_eq!((parameters.description().as_deref(), parameters.is_constant()), (Some("ENVID={trace}"), false));
        let mut text = Vec::new();
        parameters.write_mail(1, 5, &message(), 0, &mut text);
        let value = dsn::envelope_id(text.strip_prefix(b"ENVID=").unwrap()).unwrap();
        assert_eq!(MessageName::from_envelope_id(&value.decode()), Some(message()));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_gives_values_that_are_read_back(typed in "\\PC{0,30}", number in any::<u64>()) {
            if let Ok(pattern) = parse_envelope_id(&typed) {
                let parameters = DsnParameters { envelope_id: Some(pattern), ..DsnParameters::default() };
                let mut text = Vec::new();
                parameters.write_mail(1, number, &message(), 0, &mut text);
                let value = text.strip_prefix(b"ENVID=").expect("nothing else is asked for");
                prop_assert!(dsn::envelope_id(value).is_some(), "{typed}");
            }
        }
    }

    #[test]
    fn an_envelope_id_is_checked_before_the_run() {
        let text = |typed: &str, number| {
            let mut out = Vec::new();
            parse_pattern(typed).map(|pattern| {
                pattern.write_text(&mut SeededRng::new(1, RandomStream::EnvelopeId, number), number, &mut out)
            })?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        assert_eq!(text("QQ314159", 5).as_deref(), Ok("QQ314159"));
        assert_eq!(text("run {{1}} no {n}/{n}", 42).as_deref(), Ok("run {1} no 42/42"));
        assert_eq!(text("{7..7}-{n,n}", 3).as_deref(), Ok("7-n"));
        assert!(text(&"x".repeat(100), 0).is_ok());
        for (typed, expected) in [
            ("", "1 to 100"),
            (&"x".repeat(101), "1 to 100"),
            (&"=".repeat(34), "1 to 100"),
            (&("x".repeat(81) + "{n}"), "1 to 100"),
            ("ü", "1 to 100"),
            ("a\r\nb", "1 to 100"),
            ("{n", "has an unpaired"),
            ("{9..1}", "smaller value first"),
        ] {
            let error = text(typed, 0).expect_err(typed);
            assert!(error.contains(expected), "{typed}: {error}");
        }
    }

    #[test]
    fn nothing_is_asked_for_unless_something_is() {
        let nothing = DsnParameters::default();
        assert_eq!((nothing.description(), nothing.notifications()), (None, Notifications::Unasked));
        let parameters = DsnParameters { notify: Some(Notify::NEVER), original_recipient: true, ..nothing };
        assert_eq!(parameters.description().as_deref(), Some("NOTIFY=NEVER ORCPT"));
        assert_eq!((parameters.notifications(), parameters.is_constant()), (Notifications::Asked, true));
        let mut text = b"before+b@c".to_vec();
        parameters.write_recipient(6, &mut text);
        assert_eq!(text, b"before+b@cNOTIFY=NEVER ORCPT=rfc822;+2Bb@c");
    }
}
