//! Any bytes as a command line: what is taken as MAIL or RCPT is taken again when it is written anew, and no
//! envelope has more lines than it should.
#![no_main]
use libfuzzer_sys::fuzz_target;
use smtp::command::{BodyType, Command, Mail};
use smtp::envelope::Envelope;
use smtp::limits::{COMMAND_LINE_BYTES, MAIL_PARAMETER_BYTES};

fn rendered(command: &Command<'_>) -> Option<Vec<u8>> {
    Some(match command {
        Command::Mail(Mail { sender, size, body, smtp_utf8 }) => {
            let size = size.map_or(String::new(), |size| format!(" SIZE={size}"));
            let body = if *body == BodyType::EightBitMime { " BODY=8BITMIME" } else { "" };
            let utf8 = if *smtp_utf8 { " SMTPUTF8" } else { "" };
            [b"MAIL FROM:<", sender.as_bytes(), b">", size.as_bytes(), body.as_bytes(), utf8.as_bytes()].concat()
        }
        Command::Recipient(path) => [b"RCPT TO:<", path.as_bytes(), b">"].concat(),
        _ => return None,
    })
}

fuzz_target!(|data: &[u8]| {
    if let Ok(command) = Command::parse(data) {
        assert!(data.len() + 2 <= COMMAND_LINE_BYTES + MAIL_PARAMETER_BYTES);
        if let Some(line) = rendered(&command) {
            assert_eq!(Command::parse(&line), Ok(command));
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut words = text.splitn(3, '\n');
    let (sender, parameters) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let recipients = words.next().unwrap_or_default().split('\n');
    if let Ok(envelope) = Envelope::new(sender, parameters, recipients) {
        let lines = envelope.group().split_inclusive(|octet| *octet == b'\n').count();
        assert_eq!(lines, envelope.recipients() + 2, "MAIL, each RCPT, DATA");
        assert!(!envelope.group().windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n'));
    }
});
