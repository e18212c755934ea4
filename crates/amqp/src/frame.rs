//! Cuts frames from the input, and decodes and encodes frames and performatives (AMQP 1.0 §2.3,
//! §2.7).
//!
//! ```text
//! size (4) │ doff (1) │ type (1) │ channel (2) │ performative │ payload
//! ```
use crate::codec::{DecodeError, Elements, Reader, Value, Writer};
use crate::peer_error::{PeerError, read_error};
use crate::peer_product::{self, PeerProduct};
use bytes::{Buf, Bytes, BytesMut};

pub(crate) const HEADER_BYTES: usize = 8;
/// Protocol header that each side sends before its AMQP frames (AMQP 1.0 §2.2).
pub(crate) const AMQP_HEADER: [u8; 8] = *b"AMQP\x00\x01\x00\x00";
pub(crate) const SASL_HEADER: [u8; 8] = *b"AMQP\x03\x01\x00\x00";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Amqp,
    Sasl,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) layer: Layer,
    pub(crate) channel: u16,
    /// Performative and payload of the frame. Empty in a heartbeat.
    pub(crate) body: Bytes,
}

/// Removes the first frame from the input and returns it, if it is complete. A frame that announces more than
/// `max_size` bytes is refused at once, so that a peer cannot make us buffer it.
pub(crate) fn decode(input: &mut BytesMut, max_size: usize) -> Result<Option<Frame>, DecodeError> {
    let Some(size) = input.first_chunk().map(|size| u32::from_be_bytes(*size) as usize) else { return Ok(None) };
    if size < HEADER_BYTES {
        return Err(DecodeError::Expected("a frame as long as its own header"));
    }
    if size > max_size {
        return Err(DecodeError::FrameTooLarge { size, max_size });
    }
    let Some(&[_, _, _, _, doff, kind, e, f]) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let head = usize::from(doff) * 4;
    if head < HEADER_BYTES || head > size {
        return Err(DecodeError::Expected("a frame as long as its own header"));
    }
    let layer = match kind {
        0 => Layer::Amqp,
        1 => Layer::Sasl,
        _ => return Err(DecodeError::Expected("a frame of AMQP or SASL")),
    };
    if input.len() < size {
        input.reserve(size - input.len());
        return Ok(None);
    }
    let mut body = input.split_to(size).freeze();
    body.advance(head);
    Ok(Some(Frame { layer, channel: u16::from_be_bytes([e, f]), body }))
}

/// Tells which side of a link is meant: messages pass only from the sender to the receiver (AMQP 1.0 §2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRole {
    /// This side sends messages over the link.
    Sender,
    /// This side receives messages over the link.
    Receiver,
}

impl LinkRole {
    fn read(fields: &mut Elements<'_>) -> Result<Self, DecodeError> {
        fields.boolean().map(|receives| if receives { Self::Receiver } else { Self::Sender })
    }

    fn write(self, fields: &mut Writer<'_>) {
        fields.boolean(self == Self::Receiver);
    }
}

/// Outcome of a delivery, as its receiver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver has taken responsibility for the message.
    Accepted,
    /// The receiver refuses the message, which must not be delivered again.
    Rejected,
    /// The receiver has not processed the message, so the message may be sent again.
    Released,
    /// The message may be sent again, but the receiver may count this attempt as a failure.
    Modified {
        /// Set if the attempt counts as a failed delivery.
        failed: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Performative<'a> {
    Open { max_frame_size: u32, channel_max: u16, idle_ms: Option<u32>, product: PeerProduct },
    Begin { remote_channel: Option<u16>, next_outgoing_id: u32, incoming_window: u32 },
    Attach(Attach<'a>),
    Flow(Flow),
    Transfer(Transfer<'a>),
    Disposition(DispositionFrame),
    Detach { handle: u32, closed: bool, error: Option<PeerError> },
    End { error: Option<PeerError> },
    Close { error: Option<PeerError> },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attach<'a> {
    pub(crate) name: &'a str,
    pub(crate) handle: u32,
    pub(crate) role: LinkRole,
    /// How the sender settles its messages: 0 means unsettled, 1 settled, 2 mixed (AMQP 1.0 §2.8.2).
    pub(crate) sender_settle_mode: u8,
    pub(crate) source: Option<Value<'a>>,
    pub(crate) target: Option<Value<'a>>,
    pub(crate) initial_delivery_count: u32,
    pub(crate) max_message_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) next_incoming_id: Option<u32>,
    pub(crate) incoming_window: u32,
    pub(crate) handle: Option<u32>,
    pub(crate) delivery_count: Option<u32>,
    pub(crate) link_credit: Option<u32>,
    pub(crate) drain: bool,
    pub(crate) echo: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DispositionFrame {
    /// Role that the sender of the disposition has on the link.
    pub(crate) role: LinkRole,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) settled: bool,
    pub(crate) outcome: Option<DeliveryOutcome>,
    pub(crate) error: Option<PeerError>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfer<'a> {
    pub(crate) handle: u32,
    pub(crate) delivery_id: Option<u32>,
    pub(crate) delivery_tag: Option<&'a [u8]>,
    pub(crate) message_format: Option<u32>,
    pub(crate) settled: Option<bool>,
    pub(crate) more: bool,
    pub(crate) aborted: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> Performative<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let value = reader.value()?;
        let mut fields = value.as_list().ok_or(DecodeError::Expected("a performative"))?;
        let fields = &mut fields;
        match value.descriptor() {
            Some(0x10) => read_open(fields),
            Some(0x11) => read_begin(fields),
            Some(0x12) => read_attach(fields).map(Self::Attach),
            Some(0x13) => read_flow(fields).map(Self::Flow),
            Some(0x14) => read_transfer(fields, reader.rest()).map(Self::Transfer),
            Some(0x15) => read_disposition(fields).map(Self::Disposition),
            Some(0x16) => {
                let handle = handle(fields)?;
                Ok(Self::Detach { handle, closed: fields.boolean()?, error: read_error(fields)? })
            }
            Some(0x17) => Ok(Self::End { error: read_error(fields)? }),
            Some(0x18) => Ok(Self::Close { error: read_error(fields)? }),
            _ => Err(DecodeError::Expected("a performative")),
        }
    }
}

fn uint(number: u64) -> Result<u32, DecodeError> {
    u32::try_from(number).map_err(|_| DecodeError::Expected("a number of 32 bits"))
}

fn optional_uint(fields: &mut Elements<'_>) -> Result<Option<u32>, DecodeError> {
    fields.number()?.map(uint).transpose()
}

fn handle(fields: &mut Elements<'_>) -> Result<u32, DecodeError> {
    optional_uint(fields)?.ok_or(DecodeError::Expected("a handle"))
}

fn read_open<'a>(fields: &mut Elements<'a>) -> Result<Performative<'a>, DecodeError> {
    let container = fields.field()?.and_then(|value| value.as_string()).map(peer_product::cut).unwrap_or_default();
    fields.skip(1)?; // hostname
    let max_frame_size = uint(fields.number_or(u64::from(u32::MAX))?)?;
    let channel_max = fields.number_or(u64::from(u16::MAX))?.min(u64::from(u16::MAX)) as u16;
    let idle_ms = optional_uint(fields)?;
    fields.skip(4)?; // outgoing-locales, incoming-locales, offered-capabilities, desired-capabilities
    let properties = fields.field()?.and_then(|value| value.as_map());
    let product = peer_product::read(container, properties)?;
    Ok(Performative::Open { max_frame_size, channel_max, idle_ms, product })
}

fn read_begin<'a>(fields: &mut Elements<'a>) -> Result<Performative<'a>, DecodeError> {
    let remote_channel = optional_uint(fields)?.map(|channel| channel as u16);
    let next_outgoing_id = optional_uint(fields)?.ok_or(DecodeError::Expected("next-outgoing-id"))?;
    let incoming_window = optional_uint(fields)?.ok_or(DecodeError::Expected("incoming-window"))?;
    Ok(Performative::Begin { remote_channel, next_outgoing_id, incoming_window })
}

fn read_attach<'a>(fields: &mut Elements<'a>) -> Result<Attach<'a>, DecodeError> {
    let name = fields.field()?.and_then(|name| name.as_text()).ok_or(DecodeError::Expected("a link's name"))?;
    let handle = handle(fields)?;
    let role = LinkRole::read(fields)?;
    let sender_settle_mode = fields.number_or(2)? as u8;
    fields.skip(1)?; // rcv-settle-mode: the requested mode is ignored, because our answer always says first
    let source = fields.field()?;
    let target = fields.field()?;
    fields.skip(2)?; // unsettled, incomplete-unsettled: ignored, because links are not resumed
    let initial_delivery_count = uint(fields.number_or(0)?)?;
    let max_message_bytes = fields.number()?.filter(|limit| *limit > 0);
    Ok(Attach { name, handle, role, sender_settle_mode, source, target, initial_delivery_count, max_message_bytes })
}

fn read_flow(fields: &mut Elements<'_>) -> Result<Flow, DecodeError> {
    let next_incoming_id = optional_uint(fields)?;
    let incoming_window = optional_uint(fields)?.ok_or(DecodeError::Expected("incoming-window"))?;
    fields.skip(2)?; // next-outgoing-id, outgoing-window
    let handle = optional_uint(fields)?;
    let delivery_count = optional_uint(fields)?;
    let link_credit = optional_uint(fields)?;
    fields.skip(1)?; // available
    let drain = fields.boolean()?;
    let echo = fields.boolean()?;
    Ok(Flow { next_incoming_id, incoming_window, handle, delivery_count, link_credit, drain, echo })
}

fn read_transfer<'a>(fields: &mut Elements<'a>, payload: &'a [u8]) -> Result<Transfer<'a>, DecodeError> {
    let handle = handle(fields)?;
    let delivery_id = optional_uint(fields)?;
    let delivery_tag = fields.field()?.and_then(|tag| tag.as_binary());
    let message_format = optional_uint(fields)?;
    let settled = fields.field()?.and_then(|settled| settled.as_bool());
    let more = fields.boolean()?;
    fields.skip(3)?; // rcv-settle-mode, state, resume
    let aborted = fields.boolean()?;
    Ok(Transfer { handle, delivery_id, delivery_tag, message_format, settled, more, aborted, payload })
}

fn read_disposition(fields: &mut Elements<'_>) -> Result<DispositionFrame, DecodeError> {
    let role = LinkRole::read(fields)?;
    let first = optional_uint(fields)?.ok_or(DecodeError::Expected("the first delivery-id"))?;
    let last = optional_uint(fields)?.unwrap_or(first);
    let settled = fields.boolean()?;
    let state = fields.field()?;
    let outcome = state.map(|state| outcome(&state)).transpose()?.flatten();
    let error = match (outcome, state.and_then(|state| state.as_list())) {
        (Some(DeliveryOutcome::Rejected), Some(mut fields)) => read_error(&mut fields)?,
        _ => None,
    };
    Ok(DispositionFrame { role, first, last, settled, outcome, error })
}

/// Reads an outcome. Returns `None` for any other delivery state, such as `received`, which is not final.
fn outcome(state: &Value<'_>) -> Result<Option<DeliveryOutcome>, DecodeError> {
    Ok(Some(match state.descriptor() {
        Some(0x24) => DeliveryOutcome::Accepted,
        Some(0x25) => DeliveryOutcome::Rejected,
        Some(0x26) => DeliveryOutcome::Released,
        Some(0x27) => {
            let mut fields = state.as_list().ok_or(DecodeError::Expected("a delivery state"))?;
            DeliveryOutcome::Modified { failed: fields.boolean()? }
        }
        _ => return Ok(None),
    }))
}

/// Returns the address of a source or target. Returns `None` if there is no address, for example because the node is
/// dynamic, or if the target is a coordinator.
pub(crate) fn address<'a>(terminus: Option<Value<'a>>) -> Option<&'a str> {
    let terminus = terminus.filter(|terminus| matches!(terminus.descriptor(), Some(0x28 | 0x29)))?;
    terminus.as_list()?.field().ok().flatten()?.as_text().filter(|address| !address.is_empty())
}

/// Writes a frame. The closure must write the performative, such as an open, and then the payload if there is one.
pub(crate) fn write(out: &mut Vec<u8>, layer: Layer, channel: u16, performative: impl FnOnce(&mut Writer<'_>)) {
    let start = begin(out, layer, channel);
    performative(&mut Writer::new(out));
    finish(out, start, 0);
}

/// Begins a frame, and returns its offset in `out`, which `finish` needs to fill in the size.
pub(crate) fn begin(out: &mut Vec<u8>, layer: Layer, channel: u16) -> usize {
    let start = out.len();
    let kind = if layer == Layer::Sasl { 1 } else { 0 };
    let [a, b] = channel.to_be_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, 2, kind, a, b]);
    start
}

/// Completes a frame by filling in its size. `external_bytes` is the size of the payload that is in another buffer.
pub(crate) fn finish(out: &mut [u8], start: usize, external_bytes: usize) {
    let size = (out.len() - start + external_bytes) as u32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
}

pub(crate) fn write_outcome(fields: &mut Writer<'_>, outcome: DeliveryOutcome) {
    match outcome {
        DeliveryOutcome::Accepted => fields.described_list(0x24, |_| {}),
        DeliveryOutcome::Rejected => fields.described_list(0x25, |_| {}),
        DeliveryOutcome::Released => fields.described_list(0x26, |_| {}),
        DeliveryOutcome::Modified { failed } => fields.described_list(0x27, |fields| fields.boolean(failed)),
    }
}

/// Writes an error with its condition and description, or null if there is no error.
pub(crate) fn write_error(fields: &mut Writer<'_>, error: Option<(&str, &str)>) {
    match error {
        Some((condition, description)) => fields.described_list(0x1d, |fields| {
            fields.symbol(condition);
            fields.string(description);
        }),
        None => fields.null(),
    }
}

pub(crate) fn write_rejection(out: &mut Vec<u8>, channel: u16, delivery: u32, error: (&str, &str)) {
    write(out, Layer::Amqp, channel, |out| {
        out.described_list(0x15, |fields| {
            LinkRole::Receiver.write(fields);
            fields.uint(delivery);
            fields.null(); // last: null means the same as first
            fields.boolean(true);
            fields.described_list(0x25, |fields| write_error(fields, Some(error)));
        });
    });
}

pub(crate) fn write_disposition(
    out: &mut Vec<u8>,
    channel: u16,
    role: LinkRole,
    range: (u32, u32),
    outcome: DeliveryOutcome,
) {
    write(out, Layer::Amqp, channel, |out| {
        out.described_list(0x15, |fields| {
            role.write(fields);
            fields.uint(range.0);
            fields.uint(range.1);
            fields.boolean(true);
            write_outcome(fields, outcome);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(write_it: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, Layer::Amqp, 3, write_it);
        out
    }

    #[test]
    fn a_frame_is_cut_however_it_comes() {
        let octets = frame(|out| out.described_list(0x18, |_| {}));
        let mut input = BytesMut::new();
        for octet in &octets[..octets.len() - 1] {
            input.extend_from_slice(&[*octet]);
            assert_eq!(decode(&mut input, 512), Ok(None));
        }
        input.extend_from_slice(&octets[octets.len() - 1..]);
        input.extend_from_slice(b"next");
        let cut_off = decode(&mut input, 512).unwrap().unwrap();
        assert_eq!((cut_off.layer, cut_off.channel, &input[..]), (Layer::Amqp, 3, &b"next"[..]));
        assert_eq!(Performative::read(&cut_off.body), Ok(Performative::Close { error: None }));
    }

    #[test]
    fn frames_that_lie_are_refused_at_once() {
        for head in [
            [0, 0, 0, 7, 2, 0, 0, 0],             // the frame is shorter than a header, 8 bytes
            [0, 0, 0, 8, 1, 0, 0, 0],             // the header states a length of 4 bytes, not 8
            [0, 0, 0, 8, 9, 0, 0, 0],             // the header is longer than the frame
            [0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0], // the frame has a length of four gigabytes
            [0, 0, 0, 8, 2, 7, 0, 0],             // the type of the frame is unknown
        ] {
            assert!(decode(&mut BytesMut::from(&head[..]), 512).is_err(), "{head:x?}");
        }
        // The decoder must reject a wrong size before it gets more bytes. The first size is too small, and the other is
        // too large.
        for size in [&[0, 0, 0, 7], &[0xff; 4]] {
            assert!(decode(&mut BytesMut::from(&size[..]), 512).is_err(), "{size:x?}");
        }
    }

    #[test]
    fn performatives_are_read() {
        let octets = frame(|out| {
            out.described_list(0x13, |fields| {
                fields.uint(5);
                fields.uint(2048);
                fields.uint(9);
                fields.uint(2048);
                fields.uint(1);
                fields.uint(7);
                fields.uint(1000);
            });
        });
        let flow = Flow {
            next_incoming_id: Some(5),
            incoming_window: 2048,
            handle: Some(1),
            delivery_count: Some(7),
            link_credit: Some(1000),
            drain: false,
            echo: false,
        };
        assert_eq!(Performative::read(&octets[HEADER_BYTES..]), Ok(Performative::Flow(flow)));
    }

    #[test]
    fn outcomes_are_read_as_they_are_written() {
        for outcome in [
            DeliveryOutcome::Accepted,
            DeliveryOutcome::Rejected,
            DeliveryOutcome::Released,
            DeliveryOutcome::Modified { failed: true },
        ] {
            let mut octets = Vec::new();
            write_disposition(&mut octets, 0, LinkRole::Receiver, (3, 300), outcome);
            let outcome = Some(outcome);
            let role = LinkRole::Receiver;
            let read = DispositionFrame { role, first: 3, last: 300, settled: true, outcome, error: None };
            assert_eq!(Performative::read(&octets[HEADER_BYTES..]), Ok(Performative::Disposition(read)));
        }
    }

    #[test]
    fn an_address_is_that_of_a_node() {
        let terminus = |descriptor, address: Option<&str>| {
            let mut octets = Vec::new();
            Writer::new(&mut octets).described_list(descriptor, |fields| match address {
                Some(address) => fields.string(address),
                None => fields.null(),
            });
            super::address(Some(Reader::new(&octets).value().unwrap())).map(str::to_owned)
        };
        assert_eq!(terminus(0x28, Some("q")).as_deref(), Some("q"));
        assert_eq!(terminus(0x29, Some("q")).as_deref(), Some("q"));
        assert_eq!((terminus(0x29, None), terminus(0x30, Some("q"))), (None, None));
        assert_eq!(super::address(None), None);
    }

    proptest! {
        #[test]
        fn any_octets_are_a_frame_or_none(octets in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut input = BytesMut::from(&octets[..]);
            while let Ok(Some(frame)) = decode(&mut input, 64) {
                let _ = Performative::read(&frame.body);
                prop_assert!(frame.body.len() <= 56);
            }
        }
    }
}
