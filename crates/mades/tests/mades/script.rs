//! A scripted peer. It sends prepared parts, for example a handshake, a link and a delivery. Each part is sent when the
//! client asks for it.
use fe2o3_amqp_types::definitions::{self, AmqpError, ReceiverSettleMode, Role, SenderSettleMode};
use fe2o3_amqp_types::messaging::{Source, Target, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Begin, Detach, End, Flow, Open, Transfer};
use fe2o3_amqp_types::sasl::{SaslCode, SaslMechanisms, SaslOutcome};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn frame(kind: u8, performative: &impl Serialize, payload: &[u8]) -> Vec<u8> {
    let body = serde_amqp::to_vec(performative).unwrap();
    let size = (8 + body.len() + payload.len()) as u32;
    [&size.to_be_bytes()[..], &[2, kind, 0, 0], &body, payload].concat()
}

fn open() -> Vec<u8> {
    open_with(None)
}

fn open_with(idle_ms: Option<u32>) -> Vec<u8> {
    let open = Open {
        container_id: "script".to_owned(),
        hostname: None,
        max_frame_size: 65536.into(),
        channel_max: 9.into(),
        idle_time_out: idle_ms,
        outgoing_locales: None,
        incoming_locales: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    frame(0, &open, &[])
}

/// Returns the bytes that a broker sends until the connection is open: its part of the SASL login, the AMQP header and
/// the open frame.
pub(crate) fn handshake() -> Vec<u8> {
    handshake_with(None)
}

/// Returns the same bytes as `handshake`, but the open frame announces the idle timeout `idle_ms`, in milliseconds.
pub(crate) fn handshake_with(idle_ms: Option<u32>) -> Vec<u8> {
    let outcome = SaslOutcome { code: SaslCode::Ok, additional_data: None };
    [
        b"AMQP\x03\x01\x00\x00".to_vec(),
        frame(1, &SaslMechanisms::default(), &[]),
        frame(1, &outcome, &[]),
        b"AMQP\x00\x01\x00\x00".to_vec(),
        open_with(idle_ms),
    ]
    .concat()
}

/// Returns the bytes that a client without SASL sends until it has a session.
pub(crate) fn client() -> Vec<u8> {
    [b"AMQP\x00\x01\x00\x00".to_vec(), open(), session(None)].concat()
}

pub(crate) fn begin() -> Vec<u8> {
    session(Some(0))
}

/// Returns a frame that begins a new session, or answers the client's session on the channel `remote_channel`.
pub(crate) fn session(remote_channel: Option<u16>) -> Vec<u8> {
    let begin = Begin {
        remote_channel,
        next_outgoing_id: 0,
        incoming_window: 1_000_000,
        outgoing_window: 1000,
        handle_max: 9.into(),
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    frame(0, &begin, &[])
}

/// Returns a frame that answers the attach of a link. Without a node, the answer refuses the link.
pub(crate) fn attach(name: &str, role: Role, node: Option<&str>) -> Vec<u8> {
    let address = node.unwrap_or_default();
    let source = Source::builder().address(address).build();
    let target = Target::builder().address(address).build();
    let is_sender = role == Role::Sender;
    let attach = Attach {
        name: name.to_owned(),
        handle: 0.into(),
        role,
        snd_settle_mode: SenderSettleMode::Mixed,
        rcv_settle_mode: ReceiverSettleMode::First,
        source: (node.is_some() || !is_sender).then(|| Box::new(source)),
        target: (node.is_some() || is_sender).then(|| Box::new(TargetArchetype::Target(target))),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: is_sender.then_some(0),
        max_message_size: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    frame(0, &attach, &[])
}

pub(crate) fn detach(condition: AmqpError) -> Vec<u8> {
    let error = definitions::Error::new(condition, "says the script".to_owned(), None);
    frame(0, &Detach { handle: 0.into(), closed: true, error: Some(error) }, &[])
}

pub(crate) fn end(condition: AmqpError) -> Vec<u8> {
    let error = definitions::Error::new(condition, "says the script".to_owned(), None);
    frame(0, &End { error: Some(error) }, &[])
}

/// Returns a frame that detaches a link. The caller must pass a handle that no link has, to test an invalid frame.
pub(crate) fn detach_of(handle: u32) -> Vec<u8> {
    let error = definitions::Error::new(AmqpError::NotAllowed, "says the script".to_owned(), None);
    frame(0, &Detach { handle: handle.into(), closed: true, error: Some(error) }, &[])
}

/// Returns a frame that gives credit to the link, and asks the receiver of the frame to answer with a flow frame.
pub(crate) fn flow(credit: u32) -> Vec<u8> {
    flow_with(credit, false)
}

/// Returns a frame that gives credit to the link, and asks the receiver of the frame to use up or return all credit.
pub(crate) fn drain(credit: u32) -> Vec<u8> {
    flow_with(credit, true)
}

fn flow_with(credit: u32, drain: bool) -> Vec<u8> {
    let flow = Flow {
        next_incoming_id: Some(0),
        incoming_window: 1_000_000,
        next_outgoing_id: 0,
        outgoing_window: 1000,
        handle: Some(0.into()),
        delivery_count: Some(0),
        link_credit: Some(credit),
        available: None,
        drain,
        echo: !drain,
        properties: None,
    };
    frame(0, &flow, &[])
}

pub(crate) fn transfer(number: u32, payload: &[u8]) -> Vec<u8> {
    piece(number, payload, false)
}

/// Returns a transfer frame without the delivery id that the first frame of a delivery must have.
pub(crate) fn anonymous(payload: &[u8]) -> Vec<u8> {
    let transfer = Transfer { delivery_id: None, delivery_tag: None, ..whole(0) };
    frame(0, &transfer, payload)
}

/// Returns a transfer frame with a piece of a delivery. `more` says whether another piece follows.
pub(crate) fn piece(number: u32, payload: &[u8], more: bool) -> Vec<u8> {
    frame(0, &Transfer { more, ..whole(number) }, payload)
}

fn whole(number: u32) -> Transfer {
    Transfer {
        handle: 0.into(),
        delivery_id: Some(number),
        delivery_tag: Some(number.to_be_bytes().to_vec().into()),
        message_format: Some(0),
        settled: Some(false),
        more: false,
        rcv_settle_mode: None,
        state: None,
        resume: false,
        aborted: false,
        batchable: false,
    }
}

/// What a scripted peer does after it has sent its last part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    HangUp,
    Stay,
}

/// Codes of the AMQP performatives that the script answers with a performative of the same kind.
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;

/// Reads the frames of a client, however TCP has split them.
#[derive(Default)]
struct HeardFrames {
    bytes: Vec<u8>,
    begins: usize,
    attaches: usize,
}

impl HeardFrames {
    /// Reads once, and counts the begin and attach frames that are then complete. Returns false at the end of the
    /// stream.
    async fn read(&mut self, stream: &mut TcpStream) -> bool {
        if !matches!(stream.read_buf(&mut self.bytes).await, Ok(1..)) {
            return false;
        }
        while let Some(length) = first_length(&self.bytes).filter(|length| *length <= self.bytes.len()) {
            match performative(&self.bytes) {
                Some(BEGIN) => self.begins += 1,
                Some(ATTACH) => self.attaches += 1,
                _ => {}
            }
            self.bytes.drain(..length);
        }
        true
    }

    /// Waits until the client has asked for the bytes in `part`. If the part begins with a begin or attach frame, the
    /// client asks for it with a frame of the same kind. Otherwise any new input counts as a question. Returns false if
    /// the client disconnects instead.
    async fn wait_for_question(&mut self, part: &[u8], stream: &mut TcpStream) -> bool {
        let code = performative(part);
        loop {
            let count = match code {
                Some(BEGIN) => &mut self.begins,
                Some(ATTACH) => &mut self.attaches,
                _ => return self.read(stream).await,
            };
            if *count > 0 {
                *count -= 1;
                return true;
            }
            if !self.read(stream).await {
                return false;
            }
        }
    }
}

/// Returns the length of the first protocol header or frame, or `None` before its first four bytes have arrived.
fn first_length(bytes: &[u8]) -> Option<usize> {
    let size: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some(if &size == b"AMQP" { 8 } else { (u32::from_be_bytes(size) as usize).max(8) })
}

fn performative(bytes: &[u8]) -> Option<u8> {
    match bytes.get(4..11)? {
        [_, 0, _, _, 0, 0x53, code] => Some(*code),
        _ => None,
    }
}

/// Starts a peer that sends each part when the client has asked for it. Returns the port of the
/// peer.
pub(crate) async fn say(parts: Vec<Vec<u8>>, then: Then) -> u16 {
    say_and(parts, move |mut stream| async move {
        // With `Then::Stay`, the peer reads until the client disconnects.
        let mut buffer = [0; 4096];
        while then == Then::Stay && matches!(stream.read(&mut buffer).await, Ok(1..)) {}
    })
    .await
}

/// Starts a peer as `say` does, but runs `then` after the peer has sent its last part. Returns the port of the peer.
pub(crate) async fn say_and<F, Done>(parts: Vec<Vec<u8>>, then: F) -> u16
where
    F: Fn(TcpStream) -> Done + Clone + Send + 'static,
    Done: Future<Output = ()> + Send + 'static,
{
    let (listener, port) = crate::peer::listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let parts = parts.clone();
            let then = then.clone();
            tokio::spawn(async move {
                let mut frames = HeardFrames::default();
                for part in &parts {
                    if !frames.wait_for_question(part, &mut stream).await || stream.write_all(part).await.is_err() {
                        return;
                    }
                }
                then(stream).await;
            });
        }
    });
    port
}
