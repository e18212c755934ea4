//! Rendered commands, replies and EHLO keywords must parse to the same values.
use mailrun_smtp::command::{Command, Mail};
use mailrun_smtp::envelope::Envelope;
use mailrun_smtp::extensions::Extensions;
use mailrun_smtp::reply::{Reply, ReplyReader};
use mailrun_smtp::{Path, address, checks};
use proptest::prelude::*;

/// Generates short and long mailboxes, mostly by the grammar of RFC 5321 §4.1.2. Some contain UTF-8, and some are
/// invalid.
fn mailbox() -> impl Strategy<Value = String> {
    let atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~é-]{1,12}(\\.[a-z0-9ü]{1,9}){0,7}";
    let quoted = "\"([ !#-\\[\\]-~é]|\\\\[ -~]){0,62}\"";
    let domain = "[a-zA-Z0-9é](\\.[a-z0-9_é-]{1,30}){0,9}";
    let literal = "\\[(127\\.0\\.0\\.1|IPv6:::1|x:[!-~]{1,9})\\]";
    let local = prop_oneof![4 => atom, 2 => quoted];
    let host = prop_oneof![4 => domain, 1 => literal];
    prop_oneof![
        8 => (local, host).prop_map(|(local, host)| format!("{local}@{host}")),
        1 => Just("Postmaster".to_owned()),
        1 => "[ -~\r\n\0é]{0,20}",
    ]
}

fn parameters() -> impl Strategy<Value = String> {
    proptest::sample::subsequence(vec!["SIZE=400", "BODY=8BITMIME", "SMTPUTF8"], 0..=3)
        .prop_map(|words| words.join(" "))
}

fn line(wire: &[u8]) -> &[u8] {
    let line = wire.strip_suffix(b"\r\n").expect("a command ends in CRLF");
    assert!(!line.contains(&b'\r') && !line.contains(&b'\n'), "a command is one line");
    line
}

proptest! {
    #[test]
    fn an_envelope_is_read_back_as_it_was_meant(
        sender in prop_oneof![Just(String::new()), mailbox()],
        recipients in proptest::collection::vec(mailbox(), 1..4),
        parameters in parameters(),
    ) {
        let envelope = Envelope::new(&sender, &parameters, recipients.iter().map(String::as_str));
        let good = |mailbox: &String| Path::mailbox(mailbox.as_bytes()).is_ok_and(|path| !path.is_null());
        let all_good = (sender.is_empty() || good(&sender)) && recipients.iter().all(good);
        prop_assert_eq!(envelope.is_ok(), all_good);
        let Ok(envelope) = envelope else { return Ok(()) };
        let Ok(Command::Mail(Mail { sender: path, size, smtp_utf8, .. })) = Command::parse(line(envelope.mail())) else {
            return Err(TestCaseError::fail(format!("{envelope:?}")));
        };
        prop_assert_eq!(path.as_bytes(), sender.as_bytes());
        prop_assert_eq!(size, parameters.contains("SIZE").then_some(400));
        prop_assert_eq!(smtp_utf8, parameters.contains("SMTPUTF8"));
        for (number, recipient) in recipients.iter().enumerate() {
            let command = Command::parse(line(envelope.recipient(number)));
            prop_assert!(matches!(command, Ok(Command::Recipient(read)) if read.path.as_bytes() == recipient.as_bytes()));
        }
        prop_assert_eq!(Command::parse(line(envelope.data())), Ok(Command::Data));
    }

    #[test]
    fn a_path_is_its_parts(mailbox in mailbox()) {
        checks::address::check(mailbox.as_bytes());
    }

    #[test]
    fn a_reply_is_read_back_as_one_reply(text in "[ -~é\r\n\0]{0,80}", choice: u8) {
        checks::reply::check(&[text.as_bytes(), &[choice]].concat());
    }

    #[test]
    fn what_ehlo_offers_is_read_back(message_bytes in any::<u64>(), name in "[a-z.]{1,20}") {
        let offered = Extensions::all(message_bytes);
        let reply = Reply::new(250, &offered.render(&name));
        let mut reader = ReplyReader::default();
        let mut input = reply.wire();
        let received = reader.next(&mut input).unwrap().expect("it is whole");
        prop_assert_eq!(Extensions::parse(received.lines()), offered);
    }
}

#[test]
fn the_longest_mailbox_makes_a_command_a_server_takes() {
    let sender = format!("{}@{}", "l".repeat(64), "d.".repeat(94) + "d");
    assert_eq!(sender.len(), address_limit());
    let envelope = Envelope::new(&sender, "SIZE=18446744073709551615 BODY=8BITMIME SMTPUTF8", ["b@c"]).unwrap();
    assert!(matches!(Command::parse(line(envelope.mail())), Ok(Command::Mail(_))));
    assert_eq!(Envelope::new(&format!("{sender}d"), "", ["b@c"]), Err(address::PathError::TooLong));
}

/// Returns the maximum length of a path in bytes, without its brackets.
fn address_limit() -> usize {
    mailrun_smtp::limits::MAX_PATH_BYTES - 2
}
