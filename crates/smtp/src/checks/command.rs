//! Fuzz check that parses arbitrary bytes as an SMTP command line. An accepted MAIL or RCPT must parse to the same
//! command when it is written again. No bytes in an address or parameter may add a command to an envelope.
use crate::command::{BodyType, Command, Mail, Recipient};
use crate::dsn::{Notify, Return};
use crate::envelope::Envelope;
use crate::sasl::MAX_EXCHANGE_LINE_BYTES;

fn rendered(command: &Command<'_>) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let mut parameter = |name: &str, value: &[u8]| {
        line.extend_from_slice(name.as_bytes());
        line.extend_from_slice(value);
    };
    match command {
        Command::Mail(Mail { sender, size, body, smtp_utf8, returns, envelope_id, auth }) => {
            parameter("MAIL FROM:<", sender.as_bytes());
            parameter(">", b"");
            size.iter().for_each(|size| parameter(" SIZE=", size.to_string().as_bytes()));
            match body {
                BodyType::SevenBit => {}
                BodyType::EightBitMime => parameter(" BODY=8BITMIME", b""),
                BodyType::Binary => parameter(" BODY=BINARYMIME", b""),
            }
            smtp_utf8.then(|| parameter(" SMTPUTF8", b""));
            returns.iter().for_each(|it| parameter(" RET=", if *it == Return::Full { b"FULL" } else { b"HDRS" }));
            envelope_id.iter().for_each(|id| parameter(" ENVID=", id.as_bytes()));
            auth.iter().for_each(|auth| parameter(" AUTH=", auth.as_bytes()));
        }
        Command::Recipient(Recipient { path, notify, original }) => {
            parameter("RCPT TO:<", path.as_bytes());
            parameter(">", b"");
            notify.iter().for_each(|notify| parameter(" NOTIFY=", &noted(*notify)));
            original.iter().for_each(|original| {
                parameter(" ORCPT=", original.kind);
                parameter(";", original.address);
            });
        }
        Command::Chunk(chunk) => {
            parameter("BDAT ", chunk.bytes.to_string().as_bytes());
            chunk.last.then(|| parameter(" LAST", b""));
        }
        _ => return None,
    }
    Some(line)
}

fn noted(notify: Notify) -> Vec<u8> {
    let words = [(Notify::SUCCESS, "SUCCESS"), (Notify::FAILURE, "FAILURE"), (Notify::DELAY, "DELAY")];
    let wanted: Vec<&str> = words.iter().filter(|(when, _)| notify.wants(*when)).map(|(_, word)| *word).collect();
    if wanted.is_empty() { b"NEVER".to_vec() } else { wanted.join(",").into_bytes() }
}

pub fn check(data: &[u8]) {
    if let Ok(command) = Command::parse(data) {
        assert!(data.len() + 2 <= MAX_EXCHANGE_LINE_BYTES);
        if let Some(line) = rendered(&command) {
            assert_eq!(Command::parse(&line), Ok(command));
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut words = text.splitn(3, '\n');
    let sender = words.next().unwrap_or_default();
    let parameters = words.next().unwrap_or_default();
    let recipients = words.next().unwrap_or_default().split('\n');
    if let Ok(envelope) = Envelope::new(sender, parameters, recipients) {
        let lines = envelope.group().split_inclusive(|octet| *octet == b'\n').count();
        assert_eq!(lines, envelope.recipients() + 2, "MAIL, each RCPT, DATA");
        assert!(!envelope.group().windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n'));
    }
}
