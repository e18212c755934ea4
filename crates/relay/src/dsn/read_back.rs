//! Tests that read DSNs with an independent parser. Every part must exist, and every field must
//! have the right value.
use super::facts::{DsnAction, DsnFacts, DsnRecipient};
use super::report::{Dsn, compose};
use super::status;
use crate::checks::bounce::check_report;
use crate::message::envelope::OriginalAddress;
use jiff::Timestamp;
use mail_parser::{MessageParser, MimeHeaders};
use mailrun_smtp::dsn::{Notify, Return};
use mailrun_smtp::reply::EnhancedStatusCode;
use proptest::prelude::*;

const ID: &str = "00000000000003e8";
const MESSAGE: &[u8] = b"From: <alice@a.example>\r\nSubject: hello\r\n\r\nDear Bob,\r\n.\r\nbye\r\n";

fn at(unix_s: i64) -> Timestamp {
    Timestamp::from_second(1_795_253_400 + unix_s).unwrap()
}

fn facts() -> DsnFacts<'static> {
    DsnFacts {
        id: ID,
        host: "relay.example",
        sender: b"alice@a.example",
        addressee: b"alice@a.example",
        envelope_id: None,
        returns: None,
        smtp_utf8: false,
        received_at: at(0),
        message: MESSAGE,
    }
}

fn failed() -> DsnRecipient<'static> {
    DsnRecipient {
        address: b"bob@b.example",
        original: None,
        notify: None,
        action: DsnAction::Failed,
        enhanced: Some(EnhancedStatusCode(5, 1, 1)),
        code: Some(550),
        text: b"5.1.1 No such user",
        remote_mta: Some("mx.b.example"),
        last_attempt: Some(at(60)),
    }
}

fn original(kind: &str, address: &str) -> OriginalAddress {
    OriginalAddress { kind: kind.into(), address: address.into() }
}

fn delayed() -> DsnRecipient<'static> {
    let action = DsnAction::Delayed { until: at(86_400) };
    let text = b"connect: Connection refused";
    DsnRecipient { address: b"carol@c.example", action, enhanced: None, code: None, text, remote_mta: None, ..failed() }
}

fn delivered() -> DsnRecipient<'static> {
    let notify = Some(Notify::SUCCESS);
    let enhanced = Some(EnhancedStatusCode(2, 1, 5));
    let code = Some(250);
    let text = b"2.1.5 Ok".as_slice();
    DsnRecipient { address: b"dave@d.example", action: DsnAction::Delivered, notify, enhanced, code, text, ..failed() }
}

const LIMIT: usize = 50_000;

fn write(facts: &DsnFacts<'_>, recipients: &[DsnRecipient<'_>]) -> Dsn {
    compose(facts, recipients, LIMIT, at(90)).expect("somebody is notified")
}

fn parts(dsn: &Dsn) -> Vec<(String, Vec<u8>)> {
    let message = MessageParser::default().parse(&dsn.message).expect("it is a message");
    let kind = message.content_type().expect("it has a type");
    assert_eq!((kind.ctype(), kind.subtype()), ("multipart", Some("report")));
    assert_eq!(kind.attribute("report-type"), Some("delivery-status"));
    let parts = message.root_part().sub_parts().expect("it has parts").iter().map(|number| {
        let part = message.part(*number).expect("it is there");
        let kind = part.content_type().expect("it has a type");
        let range = part.raw_body_offset() as usize..part.raw_end_offset() as usize;
        let octets = decoded(part.content_transfer_encoding(), &dsn.message[range]);
        (format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or_default()), octets)
    });
    parts.collect()
}

fn decoded(encoding: Option<&str>, octets: &[u8]) -> Vec<u8> {
    match encoding {
        Some("7bit") => octets.to_vec(),
        Some("quoted-printable") => mail_parser::decoders::quoted_printable::quoted_printable_decode(octets).unwrap(),
        Some("base64") => mail_parser::decoders::base64::base64_decode(octets).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn fields(dsn: &Dsn) -> Vec<Vec<(String, String)>> {
    let text = String::from_utf8(parts(dsn)[1].1.clone()).unwrap().replace("\r\n ", " ");
    let groups = text.trim_end().split("\r\n\r\n").map(|group| {
        let fields = group.lines().map(|line| line.split_once(": ").unwrap_or_else(|| panic!("a field: {line:?}")));
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    });
    groups.collect()
}

fn pairs(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn explanation(dsn: &Dsn) -> String {
    String::from_utf8(parts(dsn)[0].1.clone()).unwrap()
}

#[test]
fn a_failure_is_told_with_all_its_facts() {
    let facts = DsnFacts { envelope_id: Some(b"QQ+2B314"), ..facts() };
    let original = original("rfc822", "Bob+2Bx@b.example");
    let reported = DsnRecipient { original: Some(&original), ..failed() };
    let dsn = write(&facts, &[reported]);
    assert_eq!((dsn.recipient.as_slice(), dsn.smtp_utf8), (facts.sender, false));
    assert!(dsn.message.is_ascii());
    let [message, recipient] = fields(&dsn).try_into().unwrap();
    assert_eq!(
        pairs(&message),
        [
            ("Original-Envelope-Id", "QQ+314"),
            ("Reporting-MTA", "dns; relay.example"),
            ("Arrival-Date", "Sat, 21 Nov 2026 09:30:00 +0000"),
            ("X-Mailrun-Queue-Id", ID),
        ]
    );
    assert_eq!(
        pairs(&recipient),
        [
            ("Original-Recipient", "rfc822; Bob+x@b.example"),
            ("Final-Recipient", "rfc822; bob@b.example"),
            ("Action", "failed"),
            ("Status", "5.1.1"),
            ("Remote-MTA", "dns; mx.b.example"),
            ("Diagnostic-Code", "smtp; 550 5.1.1 No such user"),
            ("Last-Attempt-Date", "Sat, 21 Nov 2026 09:31:00 +0000"),
        ]
    );
    let kinds: Vec<String> = parts(&dsn).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["text/plain", "message/delivery-status", "message/rfc822"]);
}

#[test]
fn a_message_that_cannot_be_read_does_not_come_back_and_its_sender_is_told_so() {
    for reported in [failed(), delayed(), delivered()] {
        let dsn = write(&DsnFacts { message: b"", ..facts() }, &[reported]);
        let kinds: Vec<String> = parts(&dsn).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["text/plain", "message/delivery-status"]);
        let text = explanation(&dsn).replace("\r\n", " ");
        assert!(text.contains("Your message cannot be returned") && text.contains(ID), "{text}");
    }
}

#[test]
fn the_header_is_that_of_a_machine() {
    let dsn = write(&facts(), &[failed()]);
    let message = MessageParser::default().parse(&dsn.message).unwrap();
    let address =
        |list: Option<&mail_parser::Address<'_>>| list.and_then(|list| list.first()?.address().map(str::to_owned));
    assert_eq!(address(message.to()).as_deref(), Some("alice@a.example"));
    assert_eq!(address(message.from()).as_deref(), Some("MAILER-DAEMON@relay.example"));
    assert_eq!(message.header_raw("Auto-Submitted").map(str::trim), Some("auto-replied"));
    assert_eq!(message.date().map(mail_parser::DateTime::to_timestamp), Some(at(90).as_second()));
    assert!(message.subject().unwrap().starts_with("Undelivered mail"));
    assert!(message.message_id().unwrap().contains(ID));
    assert_eq!(dsn, write(&facts(), &[failed()]), "the same facts, the same octets");
}

#[test]
fn people_read_what_happened_and_what_it_means() {
    let original = original("rfc822", "team@a.example");
    let failed = DsnRecipient { original: Some(&original), ..failed() };
    let text = explanation(&write(&facts(), &[delayed(), failed, delivered()]));
    let expected = "This is the mail system at relay.example.\r\n\
        \r\n\
        Your message, which came here on Sat, 21 Nov 2026 09:30:00 +0000, could not\r\n\
        be delivered to:\r\n\
        \r\n  \
        <bob@b.example> (you wrote to team@a.example)\r\n    \
        mx.b.example said: 550 5.1.1 No such user\r\n    \
        There is no such address. Please check how it is written.\r\n\
        \r\n\
        It will not be tried again.\r\n\
        \r\n\
        Your message, which came here on Sat, 21 Nov 2026 09:30:00 +0000, has not\r\n\
        been delivered yet to:\r\n\
        \r\n  \
        <carol@c.example>\r\n    \
        connect: Connection refused\r\n\
        \r\n\
        You need not do anything: delivery is retried until Sun, 22 Nov 2026\r\n\
        09:30:00 +0000. If it fails, you will be notified.\r\n\
        \r\n\
        Your message, which came here on Sat, 21 Nov 2026 09:30:00 +0000, was\r\n\
        delivered to:\r\n\
        \r\n  \
        <dave@d.example>\r\n    \
        mx.b.example said: 250 2.1.5 Ok\r\n\
        \r\n\
        This does not mean that it has been read.\r\n\
        \r\n\
        Below are the same in a form for programs, and your message. Whoever you ask\r\n\
        for help will need the number 00000000000003e8.";
    assert_eq!(text.trim_end(), expected);
}

#[test]
fn a_sender_is_told_what_it_asked_for() {
    let both = Notify::FAILURE.and(Notify::DELAY);
    let delay = DsnAction::Delayed { until: at(1) };
    let rows = [
        (None, DsnAction::Failed, true),
        (None, delay, true),
        (None, DsnAction::Delivered, false),
        (None, DsnAction::Relayed, false),
        (None, DsnAction::Expanded, false),
        (Some(Notify::NEVER), DsnAction::Failed, false),
        (Some(Notify::NEVER), delay, false),
        (Some(Notify::NEVER), DsnAction::Delivered, false),
        (Some(Notify::FAILURE), DsnAction::Failed, true),
        (Some(Notify::FAILURE), delay, false),
        (Some(Notify::DELAY), DsnAction::Failed, false),
        (Some(Notify::DELAY), delay, true),
        (Some(Notify::SUCCESS), DsnAction::Failed, false),
        (Some(Notify::SUCCESS), DsnAction::Delivered, true),
        (Some(Notify::SUCCESS), DsnAction::Relayed, true),
        (Some(Notify::SUCCESS), DsnAction::Expanded, true),
        (Some(both), DsnAction::Failed, true),
        (Some(both), DsnAction::Delivered, false),
        (Some(both.and(Notify::SUCCESS)), DsnAction::Delivered, true),
    ];
    for (notify, action, expected) in rows {
        let reported = [DsnRecipient { notify, action, ..failed() }];
        assert_eq!(compose(&facts(), &reported, LIMIT, at(90)).is_some(), expected, "{notify:?} {action:?}");
        assert_eq!(
            compose(&DsnFacts { sender: b"", addressee: b"", ..facts() }, &reported, LIMIT, at(90)),
            None,
            "nobody is notified"
        );
    }
    assert_eq!(compose(&facts(), &[], LIMIT, at(90)), None);
    let quiet = DsnRecipient { notify: Some(Notify::NEVER), address: b"quiet@b.example", ..failed() };
    let dsn = write(&facts(), &[quiet, failed()]);
    assert!(memchr::memmem::find(&dsn.message, b"quiet").is_none() && fields(&dsn).len() == 2);
}

#[test]
fn actions_are_told_with_their_own_status() {
    let relayed = DsnRecipient { action: DsnAction::Relayed, ..delivered() };
    let expanded = DsnRecipient { action: DsnAction::Expanded, enhanced: None, ..delivered() };
    let dsn =
        write(&facts(), &[delivered(), expanded, relayed, delayed(), DsnRecipient { enhanced: None, ..failed() }]);
    let fields = fields(&dsn);
    let value = |group: &Vec<(String, String)>, name: &str| {
        group.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value).to_owned()
    };
    let reported: Vec<(String, String)> =
        fields[1..].iter().map(|group| (value(group, "Action"), value(group, "Status"))).collect();
    let reported: Vec<(&str, &str)> =
        reported.iter().map(|(action, status)| (action.as_str(), status.as_str())).collect();
    let expected = [
        ("failed", "5.0.0"),
        ("delayed", "4.0.0"),
        ("relayed", "2.1.5"),
        ("expanded", "2.0.0"),
        ("delivered", "2.1.5"),
    ];
    assert_eq!(reported, expected);
    assert_eq!(value(&fields[2], "Will-Retry-Until"), "Sun, 22 Nov 2026 09:30:00 +0000");
    assert_eq!(value(&fields[2], "Diagnostic-Code"), "x-mailrun; connect: Connection refused");
    assert!(fields.iter().enumerate().all(|(at, group)| at == 2 || value(group, "Will-Retry-Until").is_empty()));
}

#[test]
fn a_status_suits_the_action() {
    let rows = [
        (DsnAction::Failed, Some(EnhancedStatusCode(5, 2, 2)), EnhancedStatusCode(5, 2, 2)),
        (DsnAction::Failed, Some(EnhancedStatusCode(4, 2, 2)), EnhancedStatusCode(5, 0, 0)),
        (DsnAction::Failed, Some(EnhancedStatusCode(2, 0, 0)), EnhancedStatusCode(5, 0, 0)),
        (DsnAction::Delayed { until: at(0) }, Some(EnhancedStatusCode(5, 1, 1)), EnhancedStatusCode(4, 0, 0)),
        (DsnAction::Delivered, Some(EnhancedStatusCode(5, 1, 1)), EnhancedStatusCode(2, 0, 0)),
        (DsnAction::Relayed, None, EnhancedStatusCode(2, 0, 0)),
    ];
    for (action, enhanced, expected) in rows {
        assert_eq!(status::status(&DsnRecipient { action, enhanced, ..failed() }), expected);
    }
}

#[test]
fn the_message_comes_back_whole_or_its_header() {
    let header = b"From: <alice@a.example>\r\nSubject: hello\r\n".as_slice();
    let whole = "message/rfc822";
    let headers = "text/rfc822-headers";
    let binary = [MESSAGE, b"bare\nline\r\n"].concat();
    let long = [MESSAGE, &[b'x'; 999], b"\r\n"].concat();
    let rows = [
        (facts(), failed(), LIMIT, whole, MESSAGE),
        (DsnFacts { returns: Some(Return::Full), ..facts() }, failed(), MESSAGE.len(), whole, MESSAGE),
        (DsnFacts { returns: Some(Return::Full), ..facts() }, failed(), MESSAGE.len() - 1, headers, header),
        (DsnFacts { returns: Some(Return::Header), ..facts() }, failed(), LIMIT, headers, header),
        (DsnFacts { returns: Some(Return::Full), ..facts() }, delayed(), LIMIT, headers, header),
        (facts(), delivered(), LIMIT, headers, header),
        (DsnFacts { message: &binary, ..facts() }, failed(), LIMIT, headers, header),
        (DsnFacts { message: &long, ..facts() }, failed(), LIMIT, headers, header),
    ];
    for (facts, recipient, limit, kind, body) in rows {
        let dsn = compose(&facts, &[recipient], limit, at(90)).unwrap();
        let (part_kind, octets) = parts(&dsn).pop().unwrap();
        assert_eq!((part_kind.as_str(), String::from_utf8_lossy(&octets)), (kind, String::from_utf8_lossy(body)));
        let says = explanation(&dsn).replace("\r\n", " ").contains("and the header of your message.");
        assert_eq!(says, kind == headers);
    }
}

#[test]
fn utf8_is_used_where_it_is_needed_and_understood() {
    let header = "Subject: grüße\r\n\r\nbody\r\n".as_bytes();
    let umlaut = "jörg@b.example".as_bytes();
    let ascii = b"bob@b.example".as_slice();
    // The first four columns are the input: SMTPUTF8, sender, recipient and message. The last four columns are the
    // expected result: whether the DSN needs SMTPUTF8, the types of its second and third part, and the recipient.
    let plain = "message/delivery-status";
    let global = "message/global-delivery-status";
    let rows = [
        (true, b"a@b".as_slice(), ascii, MESSAGE, false, plain, "message/rfc822", "rfc822; bob@b.example"),
        (true, b"a@b", umlaut, MESSAGE, false, global, "message/global", "utf-8; jörg@b.example"),
        (true, b"a@b", ascii, header, false, global, "message/global", "rfc822; bob@b.example"),
        (true, "ä@b".as_bytes(), ascii, MESSAGE, true, global, "message/global", "rfc822; bob@b.example"),
        (false, b"a@b", umlaut, MESSAGE, false, plain, "message/rfc822", "utf-8; j\\x{F6}rg@b.example"),
        (false, b"a@b", ascii, header, false, plain, "text/rfc822-headers", "rfc822; bob@b.example"),
        (true, b"a@b", umlaut, b"Subject: \xe4\r\n\r\n", false, global, "text/rfc822-headers", "utf-8; jörg@b.example"),
    ];
    for (smtp_utf8, sender, address, message, needed, status, returned, written) in rows {
        let facts = DsnFacts { smtp_utf8, sender, addressee: sender, message, ..facts() };
        let dsn = write(&facts, &[DsnRecipient { address, ..failed() }]);
        let parts = parts(&dsn);
        assert_eq!((dsn.smtp_utf8, parts[1].0.as_str(), parts[2].0.as_str()), (needed, status, returned), "{facts:?}");
        assert!(pairs(&fields(&dsn)[1]).contains(&("Final-Recipient", written)), "{:?}", fields(&dsn));
        assert_eq!(dsn.message.is_ascii(), !needed, "{}", dsn.message.escape_ascii());
        assert!(!String::from_utf8_lossy(&dsn.message).contains("Content-Transfer-Encoding: 8bit"));
        let returned = &parts[2].1;
        assert!(message.starts_with(returned), "{}", returned.escape_ascii());
    }
}

#[test]
fn eight_bits_come_back_in_seven() {
    let head = "From: <alice@a.example>\r\nSubject: hello\r\n";
    let message = format!("{head}\r\nviele schöne Grüße\r\n");
    let facts = DsnFacts { message: message.as_bytes(), ..facts() };
    let text = b"550 Der Empf\xc3\xa4nger ist unbekannt, das Postfach gibt es nicht";
    let dsn = write(&facts, &[DsnRecipient { text, ..failed() }]);
    assert!(dsn.message.is_ascii() && !dsn.smtp_utf8);
    assert!(explanation(&dsn).contains("Empfänger"), "{}", explanation(&dsn));
    let returned = parts(&dsn).pop().unwrap();
    assert_eq!(returned.0, "message/rfc822");
    let inner = MessageParser::default().parse(&returned.1).unwrap();
    assert_eq!(inner.body_text(0).as_deref(), Some("viele schöne Grüße\r\n"));
    // Changing a signed message would break its signature, so only its header is returned.
    let signed = format!("DKIM-Signature: v=1\r\n{message}");
    let dsn = write(&DsnFacts { message: signed.as_bytes(), ..facts }, &[failed()]);
    let returned = parts(&dsn).pop().unwrap();
    assert_eq!(returned, ("text/rfc822-headers".to_owned(), format!("DKIM-Signature: v=1\r\n{head}").into_bytes()));
    // A header that is not ASCII is returned alone and encoded, so that the DSN is ASCII.
    let umlaut = "Subject: grüße\r\n\r\nx\r\n";
    let dsn = write(&DsnFacts { message: umlaut.as_bytes(), ..facts }, &[failed()]);
    assert!(dsn.message.is_ascii());
    let returned = parts(&dsn).pop().unwrap();
    assert_eq!(returned, ("text/rfc822-headers".to_owned(), "Subject: grüße\r\n".as_bytes().to_vec()));
}

#[test]
fn somebody_else_is_told_whose_message_it_was() {
    let dsn = write(&DsnFacts { addressee: b"postmaster@relay.example", ..facts() }, &[failed()]);
    assert_eq!(dsn.recipient, b"postmaster@relay.example");
    let message = MessageParser::default().parse(&dsn.message).unwrap();
    assert_eq!(message.subject(), Some("Undelivered mail: a message could not be delivered"));
    assert_eq!(message.to().unwrap().first().unwrap().address(), Some("postmaster@relay.example"));
    let text = explanation(&dsn).replace("\r\n", " ");
    assert!(
        text.contains("A message from <alice@a.example>, which came here on")
            && !text.to_lowercase().contains("your message"),
        "{text}"
    );
    let double = write(&DsnFacts { sender: b"", addressee: b"postmaster@relay.example", ..facts() }, &[failed()]);
    assert!(explanation(&double).contains("A notification, which came here on"), "{}", explanation(&double));
}

#[test]
fn an_original_recipient_of_utf8_keeps_its_encoding() {
    let original = original("utf-8", "j\\x{F6}rg@b.example");
    let reported = DsnRecipient { original: Some(&original), ..failed() };
    let fields = fields(&write(&facts(), &[reported]));
    assert!(pairs(&fields[1]).contains(&("Original-Recipient", "utf-8; j\\x{F6}rg@b.example")), "{fields:?}");
}

#[test]
fn a_message_with_the_boundary_gets_another() {
    let first = "=_00000000000003e8_00000000";
    let numbers: String =
        (0..50).filter(|number| *number != 37).map(|number| format!("--=_{ID}_{number:08x}\r\n")).collect();
    let forged = format!("A: b\r\n\r\n{numbers}--{first}--\r\n--=_{ID}_zzzzzzzz --=_{ID}_");
    let facts = DsnFacts { message: forged.as_bytes(), ..facts() };
    let dsn = write(&facts, &[failed()]);
    let parts = parts(&dsn);
    assert_eq!((parts.len(), parts[2].1.as_slice()), (3, forged.as_bytes()));
    let text = String::from_utf8_lossy(&dsn.message);
    assert_eq!(text.matches(&format!("--=_{ID}_{:08x}\r\n", 37)).count(), 3);
    let plain = write(&self::facts(), &[failed()]);
    assert!(String::from_utf8_lossy(&plain.message).contains(first), "from the id alone, where it is free");
}

#[test]
fn a_next_hop_cannot_write_a_report() {
    let text = b"no\r\nAction: delivered\r\n\r\nFinal-Recipient: rfc822; x@y\r\n--=_00000000000003e8_00000000--\0";
    let reported = DsnRecipient { text, remote_mta: Some("mx\r\nAction: x"), ..failed() };
    let dsn = write(&facts(), &[reported]);
    let fields = fields(&dsn);
    assert_eq!(fields.len(), 2);
    assert_eq!(fields[1].iter().filter(|(name, _)| name == "Action" || name == "Final-Recipient").count(), 2);
    assert_eq!(parts(&dsn).len(), 3);
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\0".to_vec()),
        Just(b"--=_00000000000003e8_00000000".to_vec()),
        Just(b"Action: delivered\r\n\r\n".to_vec()),
        Just("ä".as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..8),
        proptest::collection::vec(b'a'..=b'z', 0..1500),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_makes_a_sound_report(
        texts in proptest::collection::vec(any_text(), 1..5),
        message in any_text(),
        (sender, address) in (any_text(), any_text()),
        (envelope_id, kind, original) in (any_text(), any_text(), any_text()),
        (code, smtp_utf8, remote) in (proptest::option::of(200..600_u16), any::<bool>(), ".{0,300}"),
    ) {
        let sender = [b"x".as_slice(), &sender].concat();
        let original = OriginalAddress { kind, address: original };
        let facts = DsnFacts {
            sender: &sender, addressee: &sender, envelope_id: Some(&envelope_id), smtp_utf8, message: &message, ..facts()
        };
        let reported: Vec<DsnRecipient<'_>> = texts
            .iter()
            .map(|text| DsnRecipient {
                text, code, address: &address, original: Some(&original), remote_mta: Some(&remote), ..failed()
            })
            .collect();
        let dsn = write(&facts, &reported);
        check_report(&dsn, if message.is_empty() { 2 } else { 3 }, reported.len());
        prop_assert_eq!(dsn.smtp_utf8, !sender.is_ascii());
        let parts = parts(&dsn);
        prop_assert_eq!(parts.len(), if message.is_empty() { 2 } else { 3 });
        let groups = fields(&dsn);
        prop_assert_eq!(groups.len(), 1 + reported.len());
        for group in &groups[1..] {
            let actions: Vec<&str> = group.iter().filter(|(name, _)| name == "Action").map(|(_, value)| value.as_str()).collect();
            prop_assert_eq!(actions, ["failed"]);
        }
    }
}
