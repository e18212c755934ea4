//! Composes a probe's messages. Each message is small, and is marked as sent by a machine. Its trace header tells the
//! receiver which message of which run it is.
use super::options::RouteOptions;
use crate::send::{HeaderField, MessageParts, compose, set_header};
use anyhow::{Result, anyhow};
use jiff::Timestamp;
use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase, checksum};
use mailrun_measurement::{ClockId, RunId, Trace};
use memchr::memmem;
use std::time::Duration;

/// Time at which a message was due, and the clock of this time: the monotonic clock if the server is on this host, and
/// otherwise the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creation {
    pub(super) time: Duration,
    pub(super) clock: ClockId,
}

/// Composes a probe message, marked as automatic so that vacation programs and mailing lists do not
/// answer it (RFC 3834 §5).
pub(super) fn render(
    route: &RouteOptions,
    run: RunId,
    number: u64,
    created: Creation,
    now: Timestamp,
) -> Result<Vec<u8>> {
    let body = format!("Message {number} of the probe of {}. Nobody needs to read it.\n", printable_name(&route.name));
    let message = compose(&MessageParts {
        from: &route.from,
        to: std::slice::from_ref(&route.to),
        host: &route.hello,
        body: &body,
        attachments: &[],
        now,
        id: u128::from_be_bytes(run.0) ^ u128::from(number),
    })?;
    let field = |name, value: &str| HeaderField::new(name, value).map_err(|error| anyhow!(error));
    let message = set_header(&message, &field("Subject", &format!("mailrun probe: {}", printable_name(&route.name)))?);
    let message = set_header(&message, &field("Auto-Submitted", "auto-generated")?);
    let body = memmem::find(&message, b"\r\n\r\n").map_or(&message[..0], |at| &message[at + 4..]);
    let trace = Trace {
        run,
        sequence: number,
        zero: ZeroPhase::of(created.time),
        numbering: RecipientNumbering::SINGLE,
        created: created.time,
        clock: created.clock,
        checksum: checksum(body),
    };
    let mut line = vec![0; Trace::HEADER_BYTES];
    trace.write(&mut line);
    line.extend_from_slice(&message);
    Ok(line)
}

/// Replaces each character that is not printable ASCII with `?`. In a header, such characters would have to be encoded,
/// and a server might change the encoding.
fn printable_name(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::{TraceReader, TraceResult};

    #[test]
    fn a_message_has_its_trace_and_is_marked_as_automatic() {
        let route = RouteOptions { name: "Bürö\n1".to_owned(), ..RouteOptions::example() };
        let run = RunId([3; 16]);
        let created = Creation { time: Duration::from_millis(1_234), clock: ClockId(7) };
        let message = render(&route, run, 1 << 32 | 5, created, Timestamp::UNIX_EPOCH).unwrap();
        let mut reader = TraceReader::default();
        reader.receive(&message);
        let TraceResult::Intact(trace) = reader.finish() else { panic!("{}", String::from_utf8_lossy(&message)) };
        assert_eq!((trace.run, trace.sequence, trace.created), (run, 1 << 32 | 5, created.time));
        let text = String::from_utf8(message).unwrap();
        for line in ["Auto-Submitted: auto-generated", "Subject: mailrun probe: B?r??1", "To: <to@example.com>"] {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}: {text}");
        }
        assert!(text.is_ascii());
    }
}
