//! The header line that a source adds in front of each message with `--trace`. `mailrun sink` and `smtp-sink --trace`
//! recognise the message by this line (`mailrun_measurement::trace`).
use mailrun_measurement::trace::{self, MAX_RECIPIENTS, RecipientNumbering, Trace, ZeroPhase};
use mailrun_net::clock;
use mailrun_process::outputs;
use mailrun_smtp::data;
use std::cell::Cell;
use std::time::Duration;

/// Line feed at the end of a header, and the empty line that separates the headers from the body.
const EMPTY_LINE: &[u8] = b"\n\r\n";

/// The trace header line, which is built once for a run. For each message, only its number and the time at which a
/// session took it up are filled in.
#[derive(Debug)]
pub(super) struct TraceHeaderWriter {
    line: [u8; Trace::HEADER_BYTES],
    next_sequence: Cell<u64>,
}

impl TraceHeaderWriter {
    /// Builds the trace header line for messages that consist of `head` and `rest`, both in wire format and without the
    /// end of data. The checksum of the body is computed only once, so all messages must have the same `rest`. All
    /// heads must also end with the same bytes, because the empty line before the body may begin in `head`.
    ///
    /// # Errors
    ///
    /// Fails if `head` contains an empty line. The text after the empty line would belong to the body, but `head`
    /// differs between messages, so no checksum would fit all bodies. Also fails if the system provides no random
    /// bytes.
    pub(super) fn new(head: &[u8], rest: &[u8]) -> Result<Self, String> {
        let message = [b"\r\n", head, rest].concat();
        let body = memchr::memmem::find(&message, EMPTY_LINE).map_or(message.len(), |at| at + EMPTY_LINE.len());
        if body < head.len() + 2 {
            return Err("--trace: the header must not contain an empty line".to_owned());
        }
        let trace = Trace {
            run: outputs::new_run_id().map_err(|error| error.to_string())?,
            sequence: 0,
            zero: ZeroPhase::default(),
            numbering: RecipientNumbering::TAG,
            created: Duration::ZERO,
            clock: outputs::monotonic_clock(),
            checksum: trace::checksum(&data::unstuffed(&message[body..])),
        };
        let mut line = [0; Trace::HEADER_BYTES];
        trace.write(&mut line);
        Ok(Self { line, next_sequence: Cell::new(0) })
    }

    /// Appends the trace header line of the next message to `out`. `taken_up` is the time at which a session took up
    /// the message. If it is `None`, the line contains the current time.
    pub(super) fn write(&self, taken_up: Option<Duration>, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&self.line);
        let sequence = self.next_sequence.replace(self.next_sequence.get() + 1);
        Trace::patch(&mut out[at..], ZeroPhase::default(), sequence, taken_up.unwrap_or_else(clock::now));
    }
}

/// Checks that a number at the end of the local part distinguishes all recipients of a message. `each` is the number of
/// recipients of each message.
///
/// # Errors
///
/// Fails if `each` is too large, or if the local part already ends in a digit. The error is a message for the user.
pub(super) fn check_recipients(address: &str, each: u64) -> Result<(), String> {
    let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
    match each {
        0 | 1 => Ok(()),
        _ if each > MAX_RECIPIENTS.into() => {
            Err(format!("--trace allows at most {MAX_RECIPIENTS} recipients per message, not {each}"))
        }
        _ if local.ends_with(|c: char| c.is_ascii_digit()) => Err(format!(
            "--trace: {address}: the recipient number is appended to the local part, which must not end in a digit"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::{TraceReader, TraceResult};
    use proptest::prelude::*;

    fn read(header: &TraceHeaderWriter, message: &[u8]) -> TraceResult {
        let mut out = Vec::new();
        let mut reader = TraceReader::default();
        header.write(None, &mut out);
        reader.receive(&out);
        reader.receive(&data::unstuffed(message));
        reader.finish()
    }

    #[test]
    fn every_message_is_recognised_by_its_number() {
        let header = TraceHeaderWriter::new(b"From: a\r\n\r\n", b"..x\r\n").unwrap();
        for number in 0..3 {
            let found = read(&header, b"From: b and c\r\n\r\n..x\r\n");
            assert!(matches!(found, TraceResult::Intact(trace) if trace.sequence == number), "{found:?}");
        }
        assert!(matches!(read(&header, b"From: a\r\n\r\n.x\r\n"), TraceResult::Corrupt(Some(_))));
        let other = TraceHeaderWriter::new(b"", b"").unwrap();
        assert_ne!(other.line[..46], header.line[..46], "each run has its own id");
    }

    #[test]
    fn messages_that_bring_their_header() {
        for message in ["a: b\r\n\r\nbody\r\n\r\nmore\r\n", "\r\nbody\r\n", "no empty line\r\n", ".", ""] {
            let mut stuffed = Vec::new();
            data::stuff(message.as_bytes(), &mut stuffed);
            let found = read(&TraceHeaderWriter::new(b"", &stuffed).unwrap(), &stuffed);
            assert!(matches!(found, TraceResult::Intact(_)), "{message:?}: {found:?}");
        }
    }

    #[test]
    fn an_empty_line_in_the_header_is_refused() {
        assert!(TraceHeaderWriter::new(b"Subject: a\r\n\r\nb\r\n\r\n", b"x").unwrap_err().contains("empty line"));
        assert!(TraceHeaderWriter::new(b"\r\nSubject: a\r\n\r\n", b"x").is_err());
    }

    #[test]
    fn recipients_that_cannot_be_told_apart_are_refused() {
        for (address, each) in [("a@b", 1), ("a1@b", 1), ("a@b1", 1024), ("a1", 0)] {
            assert_eq!(check_recipients(address, each), Ok(()));
        }
        for (address, each) in [("a@b", 1025), ("a1@b", 2), ("a1", 2)] {
            assert!(check_recipients(address, each).unwrap_err().starts_with("--trace"));
        }
    }

    proptest! {
        #[test]
        fn any_message_fits_its_postmark(message in "[a.\r\n]{0,40}") {
            let mut stuffed = Vec::new();
            data::stuff(message.as_bytes(), &mut stuffed);
            let found = read(&TraceHeaderWriter::new(b"", &stuffed).unwrap(), &stuffed);
            prop_assert!(matches!(found, TraceResult::Intact(_)), "{:?}", found);
        }
    }
}
