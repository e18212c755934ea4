//! Reads the head of each frame that passes through a stream, to catch those that would make fe2o3-amqp panic or wait
//! for ever.
//!
//! ```text
//! peer ──▶ FrameValidator ──▶ engine    a frame shorter than its own header, a message in pieces without end: refused
//! peer ◀──── ErrorWatch ◀──── engine    a detach, an end, a close with an error of our own: the connection is over
//! ```
//! fe2o3-amqp 0.18.4 reports a breach of the protocol by a detach (an end, a close) with an error, and waits for the
//! answer without a limit. A peer that breaks the protocol need not answer. So the report is passed on, and the stream
//! ends after it: every waiting task gets an error.
use crate::error::{self, Error};
use amqp::Elements;
use std::collections::{HashMap, HashSet};
use std::{fmt, io};

/// Bytes of a frame that are read: its header and the beginning of its performative. A delivery tag has at most 32
/// bytes (AMQP 1.0 part 2 §2.8.7); a link is named by container and queue.
const MAX_HEAD_BYTES: usize = 512;
/// Limit of the pieces of one message. Each piece is kept until the last has come, and costs memory even if it is
/// empty. In frames of 512 bytes, the smallest that a peer may ask for (part 2 §2.7.1), this is half a gigabyte.
const MAX_PIECES: u32 = 1 << 20;
/// Limit of an error's text.
const MAX_ERROR_CHARACTERS: usize = 200;

const ATTACH: u64 = 0x12;
const TRANSFER: u64 = 0x14;
const DETACH: u64 = 0x16;
const END: u64 = 0x17;
const CLOSE: u64 = 0x18;

/// Cuts a stream into frames and shows the head of each.
#[derive(Clone, Debug)]
struct FrameScanner {
    head: [u8; MAX_HEAD_BYTES],
    head_length: usize,
    skip: u64,
}

impl Default for FrameScanner {
    fn default() -> Self {
        Self { head: [0; MAX_HEAD_BYTES], head_length: 0, skip: 0 }
    }
}

impl FrameScanner {
    /// Scans the next bytes; `visit` sees the head of each frame.
    fn scan(&mut self, mut octets: &[u8], mut visit: impl FnMut(&FrameHead<'_>) -> io::Result<()>) -> io::Result<()> {
        while !octets.is_empty() {
            let skipped = self.skip.min(octets.len() as u64);
            self.skip -= skipped;
            octets = &octets[skipped as usize..];
            let count = (self.wanted()? - self.head_length).min(octets.len());
            self.head[self.head_length..self.head_length + count].copy_from_slice(&octets[..count]);
            self.head_length += count;
            octets = &octets[count..];
            // A wrong length is reported as soon as the length is there, not only when more bytes come.
            let wanted = self.wanted()?;
            if self.head_length >= 8 && self.head_length == wanted {
                self.skip = self.size()?.saturating_sub(self.head_length as u64);
                self.head_length = 0;
                if let Some(head) = FrameHead::read(&self.head[..wanted]) {
                    visit(&head)?;
                }
            }
        }
        Ok(())
    }

    /// Number of bytes of the head that are kept.
    fn wanted(&self) -> io::Result<usize> {
        if self.head_length < 4 { Ok(4) } else { self.size().map(|size| size.min(MAX_HEAD_BYTES as u64) as usize) }
    }

    fn size(&self) -> io::Result<u64> {
        let [a, b, c, d, ..] = self.head;
        // A protocol header, which has eight octets.
        if [a, b, c, d] == *b"AMQP" {
            return Ok(8);
        }
        match u32::from_be_bytes([a, b, c, d]) {
            size @ 8.. => Ok(u64::from(size)),
            size => Err(invalid_data(format!("a frame of {size} bytes, shorter than a frame header"))),
        }
    }
}

fn invalid_data(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The beginning of an AMQP frame: channel, performative, and the fields that are there.
struct FrameHead<'a> {
    channel: u16,
    /// The performative; `None` if it cannot be read.
    performative: Option<(u64, Elements<'a>)>,
}

impl<'a> FrameHead<'a> {
    /// Reads the head of a frame. `None`: a protocol header, a frame of SASL's, one without a body.
    fn read(octets: &'a [u8]) -> Option<Self> {
        let &[a, b, c, d, data_offset, 0, e, f] = octets.first_chunk()? else { return None };
        let body = octets.get(usize::from(data_offset) * 4..).unwrap_or_default();
        if [a, b, c, d] == *b"AMQP" || octets.len() <= 8 {
            return None;
        }
        Some(Self { channel: u16::from_be_bytes([e, f]), performative: Elements::parse_prefix(body) })
    }
}

/// Checks the frames of a peer. Refuses a frame that is shorter than its own header (AMQP 1.0 part 2 §2.3.1), from
/// which fe2o3-amqp 0.18.4 takes four bytes without a check and panics, and a message in more pieces than any sender
/// needs.
#[derive(Clone, Debug, Default)]
pub struct FrameValidator {
    frames: FrameScanner,
    /// Pieces of the message that is under way, by channel: a session of ours has one link.
    pieces: HashMap<u16, u32>,
    /// The handle and the name of the peer's end of a link, by channel.
    links: HashMap<u16, (u64, String)>,
    /// Links that the peer has ended: if with an error, it gets that back from us.
    ended: HashSet<String>,
}

impl FrameValidator {
    /// Checks the next bytes.
    ///
    /// # Errors
    /// `InvalidData` if there is an impossible frame, or a message in too many pieces.
    pub fn check(&mut self, octets: &[u8]) -> io::Result<()> {
        let pieces = &mut self.pieces;
        let links = &mut self.links;
        let ended = &mut self.ended;
        self.frames.scan(octets, |head| match head.performative {
            Some((TRANSFER, fields)) => count_piece(pieces, head.channel, has_more(fields)),
            Some((ATTACH, fields)) => {
                if let Some((name, handle)) = name_and_handle(fields) {
                    links.insert(head.channel, (handle, name.to_owned()));
                }
                Ok(())
            }
            Some((DETACH, mut fields)) => {
                let handle = fields.number().ok().flatten();
                let link = links.get(&head.channel).filter(|(attached, _)| Some(*attached) == handle);
                ended.extend(link.map(|(_, name)| name.clone()));
                Ok(())
            }
            Some(_) => Ok(()),
            // It cannot be read, but may be a piece.
            None => count_piece(pieces, head.channel, true),
        })
    }
}

/// Name and handle of an attach.
fn name_and_handle(mut fields: Elements<'_>) -> Option<(&str, u64)> {
    let name = fields.field().ok()??.as_text()?;
    Some((name, fields.number().ok()??))
}

/// Reports whether a transfer's message has more pieces; true if that cannot be read.
fn has_more(mut fields: Elements<'_>) -> bool {
    // handle, delivery-id, delivery-tag, message-format, settled
    fields.skip(5).and_then(|()| fields.boolean()).unwrap_or(true)
}

fn count_piece(pieces: &mut HashMap<u16, u32>, channel: u16, has_more: bool) -> io::Result<()> {
    if !has_more {
        if !pieces.is_empty() {
            pieces.remove(&channel);
        }
        return Ok(());
    }
    let count = pieces.entry(channel).or_default();
    *count += 1;
    if *count > MAX_PIECES {
        return Err(invalid_data(format!("a message in more than {MAX_PIECES} pieces")));
    }
    Ok(())
}

/// A protocol error that we reported to the peer in detach, end or close, and its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalError {
    /// The link, if it was about a link.
    pub(crate) link: Option<String>,
    /// Condition, such as `amqp:link:message-size-exceeded`.
    pub(crate) condition: String,
    pub(crate) description: String,
}

/// Watches our own output for errors of the peer that it reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorWatch {
    frames: FrameScanner,
    /// The names of links by channel.
    links: HashMap<u16, String>,
    found: Option<LocalError>,
}

impl LocalError {
    /// Reports whether the error is about a message that is too large.
    pub(crate) fn is_size_exceeded(&self) -> bool {
        self.condition == "amqp:link:message-size-exceeded"
    }

    /// Converts it into an error of this crate, with the queue if it was about one.
    pub(crate) fn to_error(&self, queue: Option<&str>) -> Error {
        let queue = queue.map(|queue| format!("{queue}: ")).unwrap_or_default();
        Error::PeerMisbehaved { why: format!("{queue}{self}") }
    }
}

impl fmt::Display for LocalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.description.as_str() {
            "" => f.write_str(&self.condition),
            description => write!(f, "{} ({})", error::one_line(description), self.condition),
        }
    }
}

impl ErrorWatch {
    /// The first reported error.
    pub(crate) fn found(&self) -> Option<&LocalError> {
        self.found.as_ref()
    }

    /// Reads our next output, after all input that `validator` has checked; returns the first reported error.
    pub(crate) fn observe(&mut self, octets: &[u8], validator: &FrameValidator) -> Option<&LocalError> {
        let links = &mut self.links;
        let found = &mut self.found;
        let scanned = self.frames.scan(octets, |head| {
            let Some((code, fields)) = head.performative else { return Ok(()) };
            match code {
                ATTACH => {
                    let name = name_and_handle(fields).map(|(name, _)| name.to_owned());
                    links.insert(head.channel, name.unwrap_or_default());
                }
                DETACH => {
                    let link = links.get(&head.channel);
                    // A link that the peer has ended with an error is ended on our side with the same one.
                    if !link.is_some_and(|name| validator.ended.contains(name)) {
                        *found = found.take().or(error_of(fields, 2).map(|error| error.into_local_error(link)));
                    }
                }
                END | CLOSE => *found = found.take().or(error_of(fields, 0).map(|error| error.into_local_error(None))),
                _ => {}
            }
            Ok(())
        });
        // Frames that we write have a correct length.
        debug_assert!(scanned.is_ok());
        self.found.as_ref()
    }
}

/// The fields of an error, some of which may be absent.
struct ErrorFields<'a>(Elements<'a>);

/// The error among a performative's fields, after `preceding` others; `None` if it is null or left out.
fn error_of(mut fields: Elements<'_>, preceding: u32) -> Option<ErrorFields<'_>> {
    fields.skip(preceding).ok()?;
    fields.rest().and_then(Elements::parse_prefix).map(|(_, fields)| ErrorFields(fields))
}

impl ErrorFields<'_> {
    fn into_local_error(mut self, link: Option<&String>) -> LocalError {
        let mut text = || -> String {
            let value = self.0.field().ok().flatten();
            value.and_then(|value| value.as_text()).unwrap_or_default().chars().take(MAX_ERROR_CHARACTERS).collect()
        };
        LocalError { link: link.cloned(), condition: text(), description: text() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::Writer;
    use proptest::prelude::*;

    /// A frame on that channel with that performative, and a payload behind it.
    fn frame(channel: u16, code: u8, payload: &[u8], fields: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut octets = vec![0, 0, 0, 0, 2, 0, (channel >> 8) as u8, channel as u8];
        Writer::new(&mut octets).described_list(code, fields);
        octets.extend_from_slice(payload);
        let size = octets.len() as u32;
        octets[..4].copy_from_slice(&size.to_be_bytes());
        octets
    }

    /// A piece of a message; in the last, `more` is absent or false.
    fn piece(channel: u16, has_more: Option<bool>) -> Vec<u8> {
        frame(channel, TRANSFER as u8, b"octets", |fields| {
            fields.uint(0);
            if let Some(has_more) = has_more {
                (0..4).for_each(|_| fields.null());
                fields.boolean(has_more);
            }
        })
    }

    fn error(fields: &mut Writer<'_>, condition: &str, description: &str) {
        fields.described_list(0x1d, |error| {
            error.symbol(condition);
            error.string(description);
        });
    }

    /// The end of a link, with an error or without.
    fn detach(channel: u16, condition: Option<&str>) -> Vec<u8> {
        frame(channel, DETACH as u8, &[], |fields| {
            fields.uint(0);
            fields.boolean(true);
            if let Some(condition) = condition {
                error(fields, condition, "why");
            }
        })
    }

    fn attach(channel: u16, name: &str) -> Vec<u8> {
        frame(channel, ATTACH as u8, &[], |fields| {
            fields.string(name);
            fields.uint(0);
        })
    }

    #[test]
    fn a_message_in_more_pieces_than_anybody_needs_is_refused_and_many_messages_are_not() {
        let mut validator = FrameValidator::default();
        let more = piece(3, Some(true)).repeat(1 << 16);
        for _ in 0..MAX_PIECES >> 16 {
            validator.check(&more).unwrap();
            // Another link's messages come between.
            validator.check(&[piece(4, Some(true)), piece(4, Some(false)), piece(5, None)].concat()).unwrap();
        }
        assert_eq!(validator.pieces.len(), 1);
        let mut other = validator.clone();
        other.check(&[piece(3, None), piece(3, Some(true))].concat()).unwrap();
        assert_eq!(
            validator.check(&piece(3, Some(true))).unwrap_err().to_string(),
            "a message in more than 1048576 pieces"
        );
    }

    #[test]
    fn what_cannot_be_read_counts_as_a_piece_that_is_not_the_last() {
        let mut validator = FrameValidator::default();
        // A performative of no list, a transfer that ends in mid-field, and one whose tag is longer than is looked at.
        let long_tag = frame(1, TRANSFER as u8, &[], |fields| {
            fields.uint(0);
            fields.null();
            fields.binary(&[7; 1000]);
            (0..3).for_each(|_| fields.null());
        });
        let cut = [&[0, 0, 0, 14, 2, 0, 0, 1][..], &[0, 0x53, 0x14, 0xc0, 9, 6]].concat();
        validator.check(&[&[0, 0, 0, 10, 2, 0, 0, 1, 1, 2][..], &cut, &long_tag].concat()).unwrap();
        assert_eq!(validator.pieces.get(&1), Some(&3));
        // A heartbeat, a header and SASL are none.
        validator
            .check(&[&[0, 0, 0, 8, 2, 0, 0, 2][..], b"AMQP\0\x01\0\0", &[0, 0, 0, 9, 2, 1, 0, 2, 7]].concat())
            .unwrap();
        assert_eq!(validator.pieces.get(&2), None);
    }

    #[test]
    fn a_complaint_of_ours_is_found_with_its_link_and_one_that_goes_back_is_none() {
        let mut error_watch = ErrorWatch::default();
        let mut validator = FrameValidator::default();
        let said = [
            attach(2, "container:q:1"),
            attach(3, "container:q:2"),
            detach(2, None),
            frame(2, END as u8, &[], |_| {}),
            piece(2, None),
        ]
        .concat();
        assert_eq!(error_watch.observe(&said, &validator), None);
        // The peer ends a link with an error, and it is ended on our side with the same.
        validator.check(&[attach(9, "container:q:2"), detach(9, Some("amqp:resource-locked"))].concat()).unwrap();
        assert_eq!(error_watch.observe(&detach(3, Some("amqp:resource-locked")), &validator), None);
        // Ending a link that does not exist does not undo the error.
        validator.check(&detach(8, Some("amqp:link:message-size-exceeded"))).unwrap();
        let found = error_watch.observe(&detach(2, Some("amqp:link:message-size-exceeded")), &validator).unwrap();
        assert_eq!(found.link.as_deref(), Some("container:q:1"));
        assert!(found.is_size_exceeded());
        assert_eq!(found.to_string(), "why (amqp:link:message-size-exceeded)");
        // It stays the first.
        let later = error_watch.observe(&detach(2, Some("amqp:not-allowed")), &validator).unwrap();
        assert!(later.is_size_exceeded());
        for code in [END, CLOSE] {
            let said = frame(0, code as u8, &[], |fields| error(fields, "amqp:illegal-state", ""));
            let mut error_watch = ErrorWatch::default();
            let found = error_watch.observe(&said, &validator).unwrap();
            assert_eq!((found.link.as_deref(), found.to_string().as_str()), (None, "amqp:illegal-state"));
        }
    }

    proptest! {
        #[test]
        fn the_guard_says_the_same_however_octets_are_cut(
            sizes in proptest::collection::vec(0..40_u32, 0..6),
            cut in 1..9_usize,
        ) {
            let mut octets = b"AMQP\0\x01\0\0".to_vec();
            for size in &sizes {
                octets.extend_from_slice(&size.to_be_bytes());
                octets.resize(octets.len() + (*size as usize).saturating_sub(4), b'A');
            }
            let whole = FrameValidator::default().check(&octets).is_ok();
            let mut validator = FrameValidator::default();
            let pieces = octets.chunks(cut).all(|piece| validator.check(piece).is_ok());
            prop_assert_eq!(whole, pieces);
            prop_assert_eq!(whole, sizes.iter().all(|size| *size >= 8));
        }

        #[test]
        fn pieces_and_complaints_are_the_same_however_octets_are_cut(
            frames in proptest::collection::vec((0..3_u16, 0..5_usize), 0..20),
            cut in 1..30_usize,
        ) {
            let frame = |(channel, kind): &(u16, usize)| match kind {
                0 => piece(*channel, Some(true)),
                1 => piece(*channel, None),
                2 => detach(*channel, None),
                3 => detach(*channel, Some("amqp:not-allowed")),
                _ => attach(*channel, &format!("link {channel}")),
            };
            let octets: Vec<u8> = frames.iter().flat_map(frame).collect();
            let mut whole = FrameValidator::default();
            let mut cut_up = FrameValidator::default();
            whole.check(&octets).unwrap();
            octets.chunks(cut).for_each(|octets| cut_up.check(octets).unwrap());
            prop_assert_eq!((&whole.pieces, &whole.links, &whole.ended), (&cut_up.pieces, &cut_up.links, &cut_up.ended));
            let mut error_watch = ErrorWatch::default();
            let mut cut_plaints = ErrorWatch::default();
            error_watch.observe(&octets, &FrameValidator::default());
            octets.chunks(cut).for_each(|octets| drop(cut_plaints.observe(octets, &FrameValidator::default()).cloned()));
            prop_assert_eq!(error_watch.found(), cut_plaints.found());
        }
    }
}
