//! An AMQP connection, of a client or of a server, as a state machine. The caller passes the bytes that it reads, and
//! gets events and bytes to write. The connection uses no socket and no clock.
//!
//! ```text
//! server   ExpectHeader ── AMQP3 ──▶ ExpectSaslInit ── ok ──▶ ExpectHeader ── AMQP0 ──▶ ExpectOpen ─┐
//! client   ExpectHeader ── AMQP3 ──▶ ExpectSasl ────── ok ──▶ ExpectHeader ── AMQP0 ──▶ ExpectOpen ─┤ open
//!                                                                                                    ▼
//!                    Closed ◀── close ── CloseSent ◀── we close ───────────────────────────────── Opened
//!                       ▲                                                                            │
//!                       └────────────────────────── the peer closes ─────────────────────────────────┘
//! ```
//! | | server | client |
//! |---|---|---|
//! | begins sessions, attaches links | the peer; the answer has the peer's numbers | we, with our numbers (`connection/client.rs`) |
//! | a begin or an attach that we did not ask for | is a request | is an error |
//! | a detach of an unknown link | is an error | is ignored, because some brokers detach twice |
//! | flow, transfer, disposition, detach, end, close | the same | the same |
//!
//! The receiver settles a delivery with its first disposition (rcv-settle-mode first). A link is never resumed after a
//! detach.
//!
//! An error ends the smallest possible part of the connection:
//!
//! | it ends | by | for example |
//! |---|---|---|
//! | a link | a detach with the error | more messages than the credit, a message that is too long |
//! | a session | an end with the error | a handle that is in use or not attached, more frames than the window |
//! | the connection | a close with the error | frames that cannot be decoded, a session that was not begun |
//!
//! If we end a link or a session because of an error, the caller gets `Detached` or `Ended` at once, before the peer
//! has answered. Frames that the peer had already sent for the link or session are dropped. Among them may be as many
//! transfers as the session's window allowed when we ended the link or session. If more transfers arrive, the error
//! spreads: an ended link also ends its session (`amqp:session:errant-link`), and an ended session also ends the
//! connection.
mod client;
mod error;

use crate::buffers::{EncodedMessage, OutputBuffer};
use crate::codec::Writer;
use crate::frame::{
    self, AMQP_HEADER, Attach, DeliveryOutcome, DispositionFrame, Flow, HEADER_BYTES, Layer, LinkRole, Performative,
    SASL_HEADER, Transfer,
};
use crate::peer_error::PeerError;
use crate::peer_product::PeerProduct;
use crate::sasl::{AuthOutcome, ListenerAuth};
use crate::sasl_client::{LoginStep, SaslClient};
use bytes::{Buf, Bytes, BytesMut};
use error::FrameError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use client::{ConnectionOptions, LinkRequest, SessionRefused};
pub use error::{ConnectionError, EndError, LinkId, Scope, Violation};

/// Maximum size of a frame that we accept, in bytes. It is large enough that a message of 1 MB arrives in a few frames.
const MAX_FRAME_SIZE: u32 = 256 << 10;
/// The smallest value that a peer may set as its maximum frame size (AMQP 1.0 §2.3.1).
const MIN_MAX_FRAME_SIZE: u32 = 512;
/// Maximum size in bytes of a frame that we send, even if the peer accepts larger frames, because other links get their
/// turn only between frames. A message of 1 MiB fits into one frame. If it came in several frames, a peer with the
/// library fe2o3-amqp would need more time, because the library scans each byte of a message that arrives in parts.
const MAX_SENT_FRAME_SIZE: u32 = (1 << 20) + (64 << 10);
/// Interval within which the peer must send a frame, in milliseconds. A peer that is silent for twice this time counts
/// as gone (AMQP 1.0 §2.4.5).
pub const IDLE_TIMEOUT_MS: u32 = 30_000;
/// Number of transfer frames that a peer may send on one session before we renew the window. We renew the window as
/// soon as half of it is used up.
const INCOMING_WINDOW: u32 = 4096;
/// Maximum numbers of sessions on a connection and of links on a session. We announce these limits to the peer as
/// channel-max and handle-max.
const MAX_SESSIONS: usize = 64;
const MAX_LINKS: usize = 64;
const MAX_LINK_NAME_BYTES: usize = 1024;
/// Maximum length of a delivery-tag in bytes (AMQP 1.0 §2.8.7).
const MAX_TAG_BYTES: usize = 32;

/// Identifies a session by its channel number on our side. A client may reuse the number after `end_session`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(u16);

/// Event that `next_event` reports to the caller. `T` is the type of the tokens that the caller passes to `send`.
#[derive(Debug, PartialEq)]
pub enum ConnectionEvent<T> {
    /// The connection is open, so sessions can be begun.
    Opened,
    /// A session has ended. Earlier events have already reported each of its links as `Detached`.
    Ended {
        /// The session that has ended, which a client must still release with `end_session`.
        session: SessionId,
        /// Reason why the session ended, or `None` if neither side gave a reason.
        error: Option<EndError>,
    },
    /// On a server, the peer asks for a link, which the caller must `accept` or `refuse`. On a client, the peer has
    /// accepted a link.
    Attached {
        /// Identifies the link in later calls, such as `accept` or `detach_link`.
        link: LinkId,
        /// Tells whether the peer sends or receives messages on this link.
        peer: LinkRole,
        /// Address that the client asks for (on a server), or that the server's answer names (on a client).
        address: String,
        /// Maximum size of a message that the peer accepts, in bytes, or `None` if the peer sets no limit.
        max_message_bytes: Option<u64>,
    },
    /// A message was received, which the caller must answer with `settle` or `reject`, unless the sender has already
    /// settled it.
    MessageReceived {
        /// The link over which the message was received.
        link: LinkId,
        /// Number of the delivery in its session, which `settle` and `reject` need.
        delivery: u32,
        /// The message, as it was encoded by its sender.
        message: EncodedMessage,
        /// Set if the sender has settled the message and expects no answer.
        settled: bool,
    },
    /// The delivery of a message that we sent is complete. Either the receiver has answered, or the link's messages
    /// count as accepted as soon as they are sent.
    Settled {
        /// The token that the caller passed to `send`, by which it recognises the message.
        sent: T,
        /// Outcome that the receiver reported, for example that it accepted or rejected the message. If it settled the
        /// message without an outcome, the message counts as released.
        outcome: DeliveryOutcome,
        /// The peer's reason, if it rejected the message and gave a reason.
        error: Option<Arc<PeerError>>,
    },
    /// A flow frame has arrived. A link may have credit again, or a session may have room again, so the caller can try
    /// again to send.
    CreditChanged,
    /// The peer has sent everything that it had, and has returned its remaining credit, as `drain` asked it to.
    Drained {
        /// The link over which the peer sends no more messages until the caller grants new credit.
        link: LinkId,
    },
    /// A link has ended. For the messages in `unsettled`, the peer has not reported an outcome.
    Detached {
        /// The ended link, which the caller must not use any more.
        link: LinkId,
        /// Tokens of the unsettled messages, in the order in which they were sent.
        unsettled: Vec<T>,
        /// Tells whether only the link has ended, or its whole session.
        scope: Scope,
        /// Reason why the link ended, or `None` if neither side gave a reason.
        error: Option<EndError>,
    },
    /// The connection is closed, either by the peer or because the peer has answered our close.
    Closed {
        /// The reason that the peer gave for closing the connection, or `None` if it gave no reason.
        error: Option<PeerError>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    ExpectHeader { authenticated: bool },
    ExpectSaslInit,
    ExpectSasl,
    ExpectOpen,
    Opened,
    CloseSent,
    Closed,
}

#[derive(Debug)]
enum ConnectionRole {
    Server(ListenerAuth),
    Client(Box<SaslClient>),
}

/// State of a drain. With a drain, a receiving peer asks us to send all available messages, and then to return the
/// credit that is left (AMQP 1.0 §2.6.7). Each flow frame from the peer turns the drain on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Off,
    /// The peer has asked for a drain, and we have not returned the remaining credit yet.
    Asked,
    Answered,
}

#[derive(Debug)]
struct IncompleteDelivery {
    id: u32,
    /// Delivery-tag of the message: a buffer that begins with the tag, and the length of the tag in bytes.
    tag: ([u8; MAX_TAG_BYTES], usize),
    message_format: u32,
    settled: bool,
    message: EncodedMessage,
}

#[derive(Debug)]
struct LinkState {
    peer: LinkRole,
    credit: u32,
    /// Number of messages that a client still accepts when the credit is used up: as many as it granted last. The
    /// reason is that RabbitMQ 3 uses new credit in full, although it should subtract the messages that it sent before
    /// it read our flow frame.
    tolerance: u32,
    delivery_count: u32,
    drain: Drain,
    /// Set if each message is settled when it is sent, so that the receiver reports no outcome for it.
    presettled: bool,
    name: String,
    incomplete: Option<IncompleteDelivery>,
    /// Handle by which the peer identifies the link, or `None` until the peer has answered our attach.
    remote_handle: Option<u32>,
    /// Set while messages may pass over the link: after it was accepted, and until we detach it.
    accepted: bool,
    /// `None` until we detach the link. Then the number of transfer frames that may still arrive, because the peer may
    /// have sent them before it received our detach.
    detach_sent: Option<u32>,
    /// Set if we have told the caller that the link has ended, although the peer has not answered yet.
    is_reported: bool,
    /// Set after we have asked the peer to return unused credit, until it has done so.
    drain_sent: bool,
    max_message_bytes: u64,
}

#[derive(Debug)]
struct UnsettledDelivery<T> {
    handle: u32,
    token: T,
}

/// The unsent rest of a message, which waits until the peer renews the session's window.
#[derive(Debug)]
struct BlockedTransfer {
    handle: u32,
    rest: EncodedMessage,
}

#[derive(Debug)]
struct Session<T> {
    /// Channel by which the peer identifies the session, or `None` until the peer has answered our begin.
    remote_channel: Option<u16>,
    end_sent: bool,
    /// Set if we have told the caller that the session has ended, although the peer has not answered yet.
    is_reported: bool,
    /// Set if the caller has ended the session, so that its number can be used again.
    is_released: bool,
    /// Links of the session, by handle. If the session ends, they are reported as detached in this order.
    links: BTreeMap<u32, LinkState>,
    next_incoming_id: u32,
    incoming_window: u32,
    next_outgoing_id: u32,
    remote_incoming_window: u32,
    /// Number of the next delivery, in 64 bits, so that deliveries stay in order when the 32 bits that the peer sees
    /// start again at 0.
    next_delivery: i64,
    /// Unsettled deliveries by number. A settled delivery is removed even if earlier deliveries are still unsettled.
    unsettled: BTreeMap<i64, UnsettledDelivery<T>>,
    blocked: Option<BlockedTransfer>,
    /// Consecutive deliveries with the same outcome, which we still have to report to the peer: number of the first
    /// delivery, number of the last, and the outcome.
    pending_disposition: Option<(u32, u32, DeliveryOutcome)>,
}

/// The client's or the server's end of a connection. `T` is the type of the tokens that the caller passes to `send`.
#[derive(Debug)]
pub struct AmqpConnection<T> {
    state: ConnectionState,
    role: ConnectionRole,
    options: ConnectionOptions,
    peer_channel_max: u16,
    peer_max_frame_size: u32,
    peer_idle_timeout_ms: Option<u32>,
    peer_product: PeerProduct,
    sessions: BTreeMap<u16, Session<T>>,
    /// Channel numbers of a client's sessions that have ended, but for which the caller has not called `end_session`
    /// yet. No new session gets such a number, because the caller may still use it for the old session.
    ended: BTreeSet<u16>,
    output: OutputBuffer,
    events: VecDeque<ConnectionEvent<T>>,
}

impl<T> AmqpConnection<T> {
    /// Creates the server's end of a connection. The client must log in as `mechanisms` demands. A message of more than
    /// `max_message_bytes` ends its link.
    pub fn server(mechanisms: ListenerAuth, container: &str, max_message_bytes: u64) -> Self {
        let options = ConnectionOptions {
            container: container.to_owned(),
            hostname: None,
            max_frame_size: MAX_FRAME_SIZE,
            idle_timeout_ms: IDLE_TIMEOUT_MS,
            max_message_bytes,
        };
        Self::new(ConnectionRole::Server(mechanisms), options)
    }

    fn new(role: ConnectionRole, options: ConnectionOptions) -> Self {
        Self {
            state: ConnectionState::ExpectHeader { authenticated: false },
            role,
            options,
            peer_channel_max: 0,
            peer_max_frame_size: MIN_MAX_FRAME_SIZE,
            peer_idle_timeout_ms: None,
            peer_product: PeerProduct::default(),
            sessions: BTreeMap::new(),
            ended: BTreeSet::new(),
            output: OutputBuffer::default(),
            events: VecDeque::new(),
        }
    }

    /// Returns the output that the caller must write to the socket. The caller must call `write_dispositions` first,
    /// which adds the outcomes of settled messages to the output.
    pub fn output(&mut self) -> &mut OutputBuffer {
        &mut self.output
    }

    /// Returns true if both sides have sent their open and neither has sent a close. Only then can links be attached.
    pub fn is_open(&self) -> bool {
        self.state == ConnectionState::Opened
    }

    /// Returns true if the connection has ended, after a close or an error. The caller must still write the remaining
    /// output to the socket.
    pub fn is_closed(&self) -> bool {
        self.state == ConnectionState::Closed
    }

    /// Returns the peer's idle timeout in milliseconds, within which we must send a frame, or `None` if there is no
    /// such limit.
    pub fn peer_idle_timeout_ms(&self) -> Option<u32> {
        self.peer_idle_timeout_ms
    }

    /// Returns the name and version of the peer's software. All fields are empty before the peer's open has arrived.
    pub fn peer_product(&self) -> &PeerProduct {
        &self.peer_product
    }

    /// Sends a heartbeat, an empty frame that keeps the peer's idle timeout from expiring. Does nothing if the
    /// connection is not open.
    pub fn send_heartbeat(&mut self) {
        if self.is_open() {
            frame::write(self.output.tail(), Layer::Amqp, 0, |_| {});
        }
    }

    /// Returns the next event, or `None` if more input is needed. An error ends the connection. If the AMQP headers
    /// have already been exchanged, the output then contains a close frame with the error, for the peer.
    pub fn next_event(&mut self, input: &mut BytesMut) -> Result<Option<ConnectionEvent<T>>, ConnectionError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.step(input) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    self.write_close(Some((error.condition(), &error.to_string())));
                    return Err(error);
                }
            }
        }
    }

    /// Reads one header or one frame, whichever comes next. Returns false if the input does not contain all of it.
    fn step(&mut self, input: &mut BytesMut) -> Result<bool, ConnectionError> {
        match self.state {
            ConnectionState::Closed => Ok(false),
            ConnectionState::ExpectHeader { authenticated } => self.read_header(input, authenticated),
            _ => {
                let frame = frame::decode(input, self.options.max_frame_size as usize);
                let Some(frame) = frame.map_err(ConnectionError::Framing)? else { return Ok(false) };
                match self.read_frame(&frame) {
                    Ok(()) => {}
                    Err(FrameError::Link(link, violation)) => self.fail_link(link, violation),
                    Err(FrameError::Session(channel, violation)) => self.fail_session(channel, violation),
                    Err(FrameError::Connection(error)) => return Err(error),
                }
                Ok(true)
            }
        }
    }

    fn read_header(&mut self, input: &mut BytesMut, authenticated: bool) -> Result<bool, ConnectionError> {
        let Some(&header) = input.first_chunk::<8>() else { return Ok(false) };
        input.advance(8);
        match &self.role {
            ConnectionRole::Server(_) => self.read_client_header(header, authenticated)?,
            ConnectionRole::Client(_) => self.read_server_header(header, authenticated)?,
        }
        Ok(true)
    }

    fn read_client_header(&mut self, header: [u8; 8], authenticated: bool) -> Result<(), ConnectionError> {
        let ConnectionRole::Server(mechanisms) = &self.role else { return Ok(()) };
        let out = self.output.tail();
        match header {
            SASL_HEADER if !authenticated => {
                out.extend_from_slice(&SASL_HEADER);
                mechanisms.write_offer(out);
                self.state = ConnectionState::ExpectSaslInit;
                Ok(())
            }
            AMQP_HEADER if authenticated || mechanisms.is_optional() => {
                out.extend_from_slice(&AMQP_HEADER);
                self.state = ConnectionState::ExpectOpen;
                Ok(())
            }
            // The client skips SASL, although this server requires it. Reply with the SASL header, because a server
            // must answer a wrong header with a header that it accepts (AMQP 1.0 §2.2).
            AMQP_HEADER => {
                out.extend_from_slice(&SASL_HEADER);
                Err(ConnectionError::Unauthenticated)
            }
            _ => {
                out.extend_from_slice(&SASL_HEADER);
                Err(ConnectionError::Header(header))
            }
        }
    }

    fn read_frame(&mut self, frame: &frame::Frame) -> Result<(), FrameError> {
        match (self.state, frame.layer) {
            (ConnectionState::ExpectSaslInit | ConnectionState::ExpectSasl, Layer::Sasl) => {
                Ok(self.read_sasl(&frame.body)?)
            }
            (_, Layer::Amqp) if self.expects_performatives() && frame.body.is_empty() => Ok(()),
            (ConnectionState::ExpectOpen, Layer::Amqp) => Ok(self.read_open(&frame.body)?),
            (ConnectionState::Opened | ConnectionState::CloseSent, Layer::Amqp) => {
                self.read_performative(frame.channel, &frame.body)
            }
            _ => Err(Violation::framing("a frame of the wrong layer").into()),
        }
    }

    fn expects_performatives(&self) -> bool {
        matches!(self.state, ConnectionState::ExpectOpen | ConnectionState::Opened | ConnectionState::CloseSent)
    }

    fn read_sasl(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        let mechanisms = match &mut self.role {
            ConnectionRole::Server(mechanisms) => mechanisms,
            ConnectionRole::Client(login) => {
                if login.read(body, self.output.tail())? == LoginStep::Authenticated {
                    self.write_client_open();
                }
                return Ok(());
            }
        };
        let outcome = mechanisms.check_init(body)?;
        outcome.write(self.output.tail());
        match outcome {
            AuthOutcome::Accepted => {
                self.state = ConnectionState::ExpectHeader { authenticated: true };
                Ok(())
            }
            AuthOutcome::Refused | AuthOutcome::TimedOut => Err(ConnectionError::Refused),
        }
    }

    fn read_open(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        match Performative::read(body)? {
            Performative::Open { max_frame_size, channel_max, idle_ms, product } => {
                self.peer_product = product;
                self.peer_max_frame_size = max_frame_size.clamp(MIN_MAX_FRAME_SIZE, MAX_SENT_FRAME_SIZE);
                self.peer_channel_max = channel_max;
                self.peer_idle_timeout_ms = idle_ms.filter(|idle| *idle > 0);
            }
            // Some servers refuse a connection by sending a close as their first frame, without an open. Such a close
            // contains the reason for the refusal.
            Performative::Close { error } if matches!(self.role, ConnectionRole::Client(_)) => {
                self.read_close(error);
                return Ok(());
            }
            _ => return Err(Violation::illegal_state("the first frame is no open").into()),
        }
        match self.role {
            ConnectionRole::Server(_) => self.write_open(),
            ConnectionRole::Client(_) => self.events.push_back(ConnectionEvent::Opened),
        }
        self.state = ConnectionState::Opened;
        Ok(())
    }

    fn write_open(&mut self) {
        let options = &self.options;
        frame::write(self.output.tail(), Layer::Amqp, 0, |out| {
            out.described_list(0x10, |fields| {
                fields.string(&options.container);
                match &options.hostname {
                    Some(hostname) => fields.string(hostname),
                    None => fields.null(),
                }
                fields.uint(options.max_frame_size);
                fields.ushort(MAX_SESSIONS as u16 - 1); // channel-max
                fields.uint(options.idle_timeout_ms);
                (0..4).for_each(|_| fields.null()); // locales, capabilities
                fields.map(|entries| {
                    entries.symbol("product");
                    entries.string("mailrun");
                    entries.symbol("version");
                    entries.string(env!("CARGO_PKG_VERSION"));
                });
            });
        });
    }

    fn read_close(&mut self, error: Option<PeerError>) {
        if self.state != ConnectionState::CloseSent {
            self.write_close(None);
        }
        self.events.push_back(ConnectionEvent::Closed { error });
        self.state = ConnectionState::Closed;
    }

    /// Translates the peer's channel of a session to our channel. If we have ended the session, returns `None` for any
    /// frame except an end, and the caller must ignore that frame.
    fn local_channel(&mut self, remote: u16, performative: &Performative<'_>) -> Result<Option<u16>, ConnectionError> {
        check_channel(remote)?;
        let entry = match self.role {
            ConnectionRole::Server(_) => self.sessions.get_mut(&remote).map(|session| (remote, session)),
            ConnectionRole::Client(_) => {
                let mut sessions = self.sessions.iter_mut().map(|(channel, session)| (*channel, session));
                sessions.find(|(_, session)| session.remote_channel == Some(remote))
            }
        };
        let (channel, session) = entry.ok_or(Violation::not_allowed("a frame of a session that was not begun"))?;
        match performative {
            _ if !session.end_sent => Ok(Some(channel)),
            Performative::End { .. } => Ok(Some(channel)),
            Performative::Transfer(_) => {
                let goes_on = Violation::not_allowed("transfers of a session that we have ended go on");
                session.incoming_window = session.incoming_window.checked_sub(1).ok_or(goes_on)?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn read_performative(&mut self, remote: u16, body: &Bytes) -> Result<(), FrameError> {
        let performative = Performative::read(body)?;
        match performative {
            Performative::Close { error } => {
                self.read_close(error);
                return Ok(());
            }
            // Ignore the frame, because the peer may have sent it before it received our close.
            _ if self.state == ConnectionState::CloseSent => return Ok(()),
            Performative::Open { .. } => return Err(Violation::illegal_state("a second open").into()),
            Performative::Begin { remote_channel, next_outgoing_id, incoming_window } => {
                check_channel(remote)?;
                match (&self.role, remote_channel) {
                    (ConnectionRole::Server(_), None) => self.begin(remote, next_outgoing_id, incoming_window)?,
                    (ConnectionRole::Client(_), Some(ours)) => {
                        self.read_begin(remote, ours, (next_outgoing_id, incoming_window))?;
                    }
                    (ConnectionRole::Server(_), Some(_)) => {
                        return Err(Violation::not_allowed("an answer to no begin").into());
                    }
                    (ConnectionRole::Client(_), None) => {
                        return Err(Violation::not_allowed("a begin of a server").into());
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        match self.local_channel(remote, &performative)? {
            Some(channel) => self.read_in_session(channel, performative, body),
            None => Ok(()),
        }
    }

    fn read_in_session(
        &mut self,
        channel: u16,
        performative: Performative<'_>,
        body: &Bytes,
    ) -> Result<(), FrameError> {
        match performative {
            Performative::Open { .. } | Performative::Begin { .. } | Performative::Close { .. } => {}
            Performative::End { error } => self.end(channel, error),
            Performative::Attach(attach) => {
                check_handle(attach.handle)?;
                match self.role {
                    ConnectionRole::Server(_) => self.attach(channel, &attach)?,
                    ConnectionRole::Client(_) => self.read_attach(channel, &attach)?,
                }
            }
            Performative::Detach { handle, closed, error } => match self.local_link(channel, handle)? {
                Some(link) => self.detach(link, closed, error),
                None if matches!(self.role, ConnectionRole::Client(_)) => {}
                None => return Err(FrameError::Session(channel, Violation::unattached_handle())),
            },
            Performative::Flow(flow) => self.flow(channel, flow)?,
            Performative::Transfer(transfer) => {
                let payload = body.slice_ref(transfer.payload);
                self.transfer(channel, &transfer, &payload)?;
            }
            // Ignore dispositions from a sender, because only we, as the receiver, decide the outcome of its messages.
            Performative::Disposition(disposition) if disposition.role == LinkRole::Sender => {}
            Performative::Disposition(disposition) => self.disposition(channel, disposition),
        }
        Ok(())
    }

    /// Returns our link for the peer's handle, or `None` if we do not know the handle, for example because the link has
    /// already been detached.
    fn local_link(&self, channel: u16, remote: u32) -> Result<Option<LinkId>, Violation> {
        check_handle(remote)?;
        let Some(session) = self.sessions.get(&channel) else { return Ok(None) };
        let handle = match self.role {
            ConnectionRole::Server(_) => session.links.contains_key(&remote).then_some(remote),
            ConnectionRole::Client(_) => {
                let mut links = session.links.iter();
                links.find(|(_, link)| link.remote_handle == Some(remote)).map(|(handle, _)| *handle)
            }
        };
        Ok(handle.map(|handle| LinkId { channel, handle }))
    }

    fn begin(&mut self, channel: u16, next_incoming_id: u32, remote_window: u32) -> Result<(), Violation> {
        if self.sessions.contains_key(&channel) {
            return Err(Violation::not_allowed("a session that has begun already"));
        }
        let answered = Some((channel, next_incoming_id, remote_window));
        self.sessions.insert(channel, Session::new(answered));
        self.write_begin(channel, Some(channel));
        Ok(())
    }

    fn write_begin(&mut self, channel: u16, remote_channel: Option<u16>) {
        frame::write(self.output.tail(), Layer::Amqp, channel, |out| {
            out.described_list(0x11, |fields| {
                match remote_channel {
                    Some(remote) => fields.ushort(remote),
                    None => fields.null(),
                }
                fields.uint(0); // next-outgoing-id
                fields.uint(INCOMING_WINDOW);
                fields.uint(u32::MAX >> 1); // outgoing-window
                fields.uint(MAX_LINKS as u32 - 1); // handle-max
            });
        });
    }

    fn end(&mut self, channel: u16, error: Option<PeerError>) {
        self.write_dispositions();
        let Some(mut session) = self.sessions.remove(&channel) else { return };
        if matches!(self.role, ConnectionRole::Client(_)) && !session.is_released {
            self.ended.insert(channel);
        }
        if !session.end_sent {
            write_end(self.output.tail(), channel, None);
        }
        if !session.is_reported {
            let error = error.map(EndError::Peer);
            self.events.extend(session.take_detached(channel, error.as_ref()));
            self.events.push_back(ConnectionEvent::Ended { session: SessionId(channel), error });
        }
    }

    /// Ends a session because the peer broke a rule. Reports the end at once, because the peer may never answer.
    fn fail_session(&mut self, channel: u16, violation: Violation) {
        self.write_dispositions();
        let Some(session) = self.sessions.get_mut(&channel) else { return };
        session.end_sent = true;
        session.is_reported = true;
        session.blocked = None;
        let error = EndError::Violation(violation);
        self.events.extend(session.take_detached(channel, Some(&error)));
        self.events.push_back(ConnectionEvent::Ended { session: SessionId(channel), error: Some(error) });
        write_end(self.output.tail(), channel, Some(violation.parts()));
    }

    fn attach(&mut self, channel: u16, attach: &Attach<'_>) -> Result<(), FrameError> {
        let max_message_bytes = self.options.max_message_bytes;
        let Some(session) = self.sessions.get_mut(&channel) else { return Ok(()) };
        if session.links.contains_key(&attach.handle) {
            let in_use = Violation::new("amqp:session:handle-in-use", "an attach with the handle of another link");
            return Err(FrameError::Session(channel, in_use));
        }
        let is_same = |link: &LinkState| link.name == attach.name && link.peer == attach.role;
        let same = session.links.iter().find(|(_, link)| is_same(link) && link.detach_sent.is_none());
        // A second link with the same name and role replaces the first (AMQP 1.0 §2.6.1).
        if let Some(handle) = same.map(|(handle, _)| *handle) {
            let stolen = Violation::new("amqp:link:stolen", "the link was attached again with another handle");
            self.fail_link(LinkId { channel, handle }, stolen);
        }
        let Some(session) = self.sessions.get_mut(&channel) else { return Ok(()) };
        let terminus = match attach.role {
            LinkRole::Receiver => attach.source,
            LinkRole::Sender => attach.target,
        };
        let is_name_too_long = attach.name.len() > MAX_LINK_NAME_BYTES;
        let address = frame::address(terminus).filter(|_| !is_name_too_long).map(str::to_owned);
        let name = if is_name_too_long { "" } else { attach.name };
        session.links.insert(
            attach.handle,
            LinkState {
                delivery_count: if attach.role == LinkRole::Sender { attach.initial_delivery_count } else { 0 },
                presettled: attach.role == LinkRole::Receiver && attach.sender_settle_mode == 1,
                remote_handle: Some(attach.handle),
                ..LinkState::new(attach.role, name, max_message_bytes)
            },
        );
        write_attach(self.output.tail(), channel, attach, max_message_bytes, address.is_some());
        let link = LinkId { channel, handle: attach.handle };
        match address {
            Some(address) => {
                let max_message_bytes = attach.max_message_bytes;
                self.events.push_back(ConnectionEvent::Attached {
                    link,
                    peer: attach.role,
                    address,
                    max_message_bytes,
                });
            }
            None if is_name_too_long => self.refuse(link, "amqp:invalid-field", "the name of the link is too long"),
            None => self.refuse(
                link,
                "amqp:not-found",
                "an address is required: dynamic nodes and coordinators are not supported",
            ),
        }
        Ok(())
    }

    /// Accepts a link that the peer asks for, so that messages can pass over it. Sends nothing, because the connection
    /// answered the peer's attach as soon as it arrived.
    pub fn accept(&mut self, id: LinkId) {
        if let Some(link) = self.link(id) {
            link.accepted = true;
        }
    }

    /// Refuses a link that the peer asks for: detaches it, and tells the peer the reason.
    /// `Detached` follows when the peer has answered.
    pub fn refuse(&mut self, id: LinkId, condition: &str, reason: &str) {
        self.send_detach(id, Some((condition, reason)));
    }

    /// Detaches a link from our side and returns the link. Returns `None` if we have already detached the link, or if
    /// its session or the connection has ended.
    fn send_detach(&mut self, id: LinkId, error: Option<(&str, &str)>) -> Option<&mut LinkState> {
        if !self.is_open() {
            return None;
        }
        let session = self.sessions.get_mut(&id.channel).filter(|session| !session.end_sent)?;
        let link = session.links.get_mut(&id.handle).filter(|link| link.detach_sent.is_none())?;
        link.accepted = false;
        link.detach_sent = Some(session.incoming_window);
        link.credit = 0;
        link.incomplete = None;
        // If only a part of a message was sent over this link, drop the rest: no transfer may follow the detach.
        session.blocked.take_if(|blocked| blocked.handle == id.handle);
        write_detach(self.output.tail(), id, true, error);
        Some(link)
    }

    /// Detaches a link because the peer broke a rule. Reports the end at once, because the peer may never answer.
    fn fail_link(&mut self, id: LinkId, violation: Violation) {
        self.write_dispositions();
        let Some(link) = self.send_detach(id, Some(violation.parts())) else { return };
        link.is_reported = true;
        let unsettled = self.sessions.get_mut(&id.channel).map(|session| session.take_unsettled(id.handle));
        self.events.push_back(ConnectionEvent::Detached {
            link: id,
            unsettled: unsettled.unwrap_or_default(),
            scope: Scope::Link,
            error: Some(EndError::Violation(violation)),
        });
    }

    fn detach(&mut self, id: LinkId, closed: bool, error: Option<PeerError>) {
        self.write_dispositions();
        let Some(session) = self.sessions.get_mut(&id.channel) else { return };
        let Some(link) = session.links.remove(&id.handle) else { return };
        // If only a part of a message was sent over this link, drop the rest, because the link no longer exists.
        session.blocked.take_if(|blocked| blocked.handle == id.handle);
        let unsettled = session.take_unsettled(id.handle);
        if link.detach_sent.is_none() {
            write_detach(self.output.tail(), id, closed, None);
        }
        if !link.is_reported {
            let error = error.map(EndError::Peer);
            self.events.push_back(ConnectionEvent::Detached { link: id, unsettled, scope: Scope::Link, error });
        }
    }

    fn flow(&mut self, channel: u16, flow: Flow) -> Result<(), FrameError> {
        let id = match flow.handle {
            None => None,
            Some(handle) => {
                let id = self.local_link(channel, handle)?;
                Some(id.ok_or(FrameError::Session(channel, Violation::unattached_handle()))?)
            }
        };
        let Some(session) = self.sessions.get_mut(&channel) else { return Ok(()) };
        // If `next-incoming-id` is missing, the peer sent this flow before it received our begin. The flow's window
        // then counts from our first transfer, which has the number 0 (AMQP 1.0 §2.5.6).
        let seen = flow.next_incoming_id.unwrap_or(0);
        session.remote_incoming_window = remaining_credit(flow.incoming_window, seen, session.next_outgoing_id);
        let mut drained = None;
        // The peer may have sent this flow before it received our detach. In that case, ignore the flow's fields about
        // the link, but use its fields about the session.
        let link = id.and_then(|id| Some((id, session.links.get_mut(&id.handle)?)));
        let link = link.filter(|(_, link)| link.accepted);
        let id = link.as_ref().map(|(id, _)| *id);
        if let Some((id, link)) = link {
            match link.peer {
                LinkRole::Receiver => {
                    let seen = flow.delivery_count.unwrap_or(0);
                    link.credit = remaining_credit(flow.link_credit.unwrap_or(0), seen, link.delivery_count);
                    link.drain = if flow.drain { Drain::Asked } else { Drain::Off };
                }
                LinkRole::Sender if link.drain_sent && flow.link_credit.unwrap_or(0) == 0 => {
                    link.drain_sent = false;
                    link.credit = 0;
                    link.delivery_count = flow.delivery_count.unwrap_or(link.delivery_count);
                    drained = Some(ConnectionEvent::Drained { link: id });
                }
                LinkRole::Sender => {}
            }
        }
        if flow.echo {
            self.write_flow(channel, id.map(|id| id.handle));
        }
        self.resume_blocked(channel);
        if let Some(id) = id.filter(|id| self.credit(*id) == 0) {
            self.complete_drain(id);
        }
        self.events.push_back(drained.unwrap_or(ConnectionEvent::CreditChanged));
        Ok(())
    }

    fn transfer(&mut self, channel: u16, transfer: &Transfer<'_>, payload: &Bytes) -> Result<(), FrameError> {
        let max_incomplete_bytes = self.options.max_message_bytes.saturating_mul(2);
        let sharing = match self.role {
            ConnectionRole::Server(_) => PayloadSharing::Long,
            ConnectionRole::Client(_) => PayloadSharing::Whole,
        };
        let id = self.local_link(channel, transfer.handle)?;
        let of_session = |violation| FrameError::Session(channel, violation);
        let Some(session) = self.sessions.get_mut(&channel) else { return Ok(()) };
        let window = session.incoming_window.checked_sub(1);
        let beyond = Violation::new("amqp:session:window-violation", "a transfer beyond the session's window");
        session.incoming_window = window.ok_or(of_session(beyond))?;
        session.next_incoming_id = session.next_incoming_id.wrapping_add(1);
        let low = session.incoming_window < INCOMING_WINDOW / 2;
        let link = id.and_then(|id| Some((id, session.links.get_mut(&id.handle)?)));
        let (id, link) = link.ok_or(of_session(Violation::unattached_handle()))?;
        if let Some(underway) = &mut link.detach_sent {
            // Drop transfers that were already on their way when we detached the link. Their deliveries stay unsettled,
            // so the peer knows that we have not taken these messages.
            let goes_on = Violation::new("amqp:session:errant-link", "transfers of a link that we have detached go on");
            *underway = underway.checked_sub(1).ok_or(of_session(goes_on))?;
        } else {
            let received =
                link.add_transfer(transfer, payload, sharing).map_err(|error| FrameError::Link(id, error))?;
            if let Some((delivery, settled, message)) = received {
                self.events.push_back(ConnectionEvent::MessageReceived { link: id, delivery, message, settled });
            } else if transfer.aborted {
                // The sender aborted the message, so give back the credit that the message used up.
                let credit = link.credit.saturating_add(1);
                self.grant(id, credit);
            } else if self.incomplete_bytes() > max_incomplete_bytes {
                let reason = "too many bytes of incomplete messages";
                return Err(FrameError::Link(id, Violation::new(Violation::RESOURCE_LIMIT, reason)));
            }
        }
        if low && let Some(session) = self.sessions.get_mut(&channel) {
            session.incoming_window = INCOMING_WINDOW;
            self.write_flow(channel, None);
        }
        Ok(())
    }

    fn disposition(&mut self, channel: u16, disposition: DispositionFrame) {
        let DispositionFrame { first, last, settled, outcome, error, .. } = disposition;
        // A receiver that settles a message without an outcome forgets the message. It has not confirmed that it took
        // responsibility for the message, so count the message as released.
        let Some(outcome) = outcome.or(settled.then_some(DeliveryOutcome::Released)) else { return };
        let error = error.map(Arc::new);
        let Some(session) = self.sessions.get_mut(&channel) else { return };
        let from = session.number_of(first).max(0);
        let to = session.number_of(last);
        let mut any = false;
        while from <= to
            && let Some((&number, _)) = session.unsettled.range(from..=to).next()
        {
            let sent = session.unsettled.remove(&number).expect("it was just seen");
            let error = error.clone();
            self.events.push_back(ConnectionEvent::Settled { sent: sent.token, outcome, error });
            any = true;
        }
        // The receiver reported an outcome but did not settle. It waits until we, the sender, settle the delivery.
        if !settled && any {
            frame::write_disposition(self.output.tail(), channel, LinkRole::Sender, (first, last), outcome);
        }
    }

    /// Returns how many bytes are buffered for messages whose last frame has not arrived yet.
    pub fn incomplete_bytes(&self) -> u64 {
        let links = self.sessions.values().flat_map(|session| session.links.values());
        links.filter_map(|link| link.incomplete.as_ref()).map(|incomplete| incomplete.message.bytes() as u64).sum()
    }

    fn link(&mut self, id: LinkId) -> Option<&mut LinkState> {
        self.sessions.get_mut(&id.channel)?.links.get_mut(&id.handle)
    }

    /// Returns the number of messages that the link's sender, either we or the peer, may still send.
    pub fn credit(&mut self, id: LinkId) -> u32 {
        self.link(id).map_or(0, |link| link.credit)
    }

    /// Allows the peer to send `credit` messages over the link. This replaces what remains of an earlier credit.
    pub fn grant(&mut self, id: LinkId, credit: u32) {
        let is_client = matches!(self.role, ConnectionRole::Client(_));
        if let Some(link) = self.link(id).filter(|link| link.accepted) {
            link.credit = credit;
            link.tolerance = if is_client { credit } else { 0 };
            self.write_flow(id.channel, Some(id.handle));
        }
    }

    /// Sets the final outcome of a received message. `write_dispositions` later reports the outcome to the peer, in one
    /// frame with neighbouring deliveries that have the same outcome.
    pub fn settle(&mut self, id: LinkId, delivery: u32, outcome: DeliveryOutcome) {
        let is_open = self.is_open();
        let Some(session) = self.sessions.get_mut(&id.channel).filter(|session| is_open && !session.end_sent) else {
            return;
        };
        match &mut session.pending_disposition {
            Some((_, last, same)) if *same == outcome && last.wrapping_add(1) == delivery => *last = delivery,
            unsaid => {
                if let Some((first, last, outcome)) = unsaid.replace((delivery, delivery, outcome)) {
                    frame::write_disposition(
                        self.output.tail(),
                        id.channel,
                        LinkRole::Receiver,
                        (first, last),
                        outcome,
                    );
                }
            }
        }
    }

    /// Rejects a received message, with a condition and a description. Writes the pending outcomes of earlier messages
    /// before the rejection.
    pub fn reject(&mut self, id: LinkId, delivery: u32, condition: &str, description: &str) {
        self.write_dispositions();
        let is_open = self.is_open();
        if self.sessions.get(&id.channel).is_some_and(|session| is_open && !session.end_sent) {
            frame::write_rejection(self.output.tail(), id.channel, delivery, (condition, description));
        }
    }

    /// Writes the outcomes of messages that were settled since the last call. The caller must call this before it
    /// writes the output to the socket.
    pub fn write_dispositions(&mut self) {
        if !self.is_open() {
            return;
        }
        for (channel, session) in &mut self.sessions {
            if let Some((first, last, outcome)) = session.pending_disposition.take() {
                frame::write_disposition(self.output.tail(), *channel, LinkRole::Receiver, (first, last), outcome);
            }
        }
    }

    /// Returns true if a message can be sent over a link now: the link has credit, the session has room, and no other
    /// message of the session is partly sent.
    pub fn may_send(&self, id: LinkId) -> bool {
        self.is_open()
            && self.sessions.get(&id.channel).is_some_and(|session| {
                let ready = session.blocked.is_none() && session.remote_incoming_window > 0;
                let link =
                    session.links.get(&id.handle).filter(|link| link.accepted && link.peer == LinkRole::Receiver);
                ready && link.is_some_and(|link| link.credit > 0)
            })
    }

    /// Sends a message over a link for which `may_send` is true. `token` comes back with the settlement of the message,
    /// or with the end of the link. If the link's messages are settled when they are sent, `token` comes back at once.
    ///
    /// # Panics
    /// Panics if `may_send` is false for the link.
    pub fn send(&mut self, id: LinkId, message: EncodedMessage, token: T) {
        let (head, is_drained) = self.begin_delivery(id, token);
        let session = self.sessions.get_mut(&id.channel).expect("may_send found it");
        session.write_transfers((&mut self.output, self.peer_max_frame_size), id, Some(head), message);
        if is_drained {
            self.complete_drain(id);
        }
    }

    /// Like `send`, for a message whose first sections and payload are in separate buffers. If both fit into one frame,
    /// the message needs no buffer of its own, and a long payload is not copied.
    ///
    /// # Panics
    /// Panics if `may_send` is false for the link.
    pub fn send_parts(&mut self, id: LinkId, sections: &[u8], payload: Bytes, token: T) {
        let room = self.peer_max_frame_size as usize - HEADER_BYTES - MAX_TRANSFER_BYTES;
        if sections.len() + payload.len() > room {
            let mut message = EncodedMessage::from(sections.to_vec());
            message.push(payload);
            return self.send(id, message, token);
        }
        let (head, is_drained) = self.begin_delivery(id, token);
        let session = self.sessions.get_mut(&id.channel).expect("may_send found it");
        session.count_transfer();
        let out = self.output.tail();
        let start = frame::begin(out, Layer::Amqp, id.channel);
        write_transfer(&mut Writer::new(out), id.handle, Some(head), false);
        out.extend_from_slice(sections);
        frame::finish(out, start, payload.len());
        self.output.push_piece(payload);
        if is_drained {
            self.complete_drain(id);
        }
    }

    /// Assigns a delivery number to a message that is about to be sent, and uses up one credit of the link. Returns the
    /// number, whether the delivery is settled, and whether the caller must answer a drain because no credit is left.
    fn begin_delivery(&mut self, id: LinkId, token: T) -> ((u32, bool), bool) {
        let session = self.sessions.get_mut(&id.channel).expect("may_send found it");
        let link = session.links.get_mut(&id.handle).expect("may_send found it");
        link.credit -= 1;
        link.delivery_count = link.delivery_count.wrapping_add(1);
        let settled = link.presettled;
        let is_drained = link.credit == 0 && link.drain == Drain::Asked;
        let number = session.next_delivery;
        session.next_delivery += 1;
        if settled {
            let outcome = DeliveryOutcome::Accepted;
            self.events.push_back(ConnectionEvent::Settled { sent: token, outcome, error: None });
        } else {
            session.unsettled.insert(number, UnsettledDelivery { handle: id.handle, token });
        }
        ((number as u32, settled), is_drained)
    }

    fn resume_blocked(&mut self, channel: u16) {
        let Some(session) = self.sessions.get_mut(&channel) else { return };
        if let Some(BlockedTransfer { handle, rest }) = session.blocked.take() {
            let id = LinkId { channel, handle };
            session.write_transfers((&mut self.output, self.peer_max_frame_size), id, None, rest);
            if self.credit(id) == 0 {
                self.complete_drain(id);
            }
        }
    }

    /// Returns true if the peer has asked for its unused credit back and waits for the answer. Returns false while a
    /// message of the link is only partly sent, because the answer must come after the last frame of this message.
    pub fn is_draining(&self, id: LinkId) -> bool {
        self.sessions.get(&id.channel).is_some_and(|session| {
            let is_blocked = session.blocked.as_ref().is_some_and(|blocked| blocked.handle == id.handle);
            let link = session.links.get(&id.handle).filter(|link| link.accepted && !is_blocked);
            link.is_some_and(|link| link.drain == Drain::Asked)
        })
    }

    /// Answers the peer's drain by returning the unused credit of the link. The caller must first have sent all
    /// available messages over the link. No call is needed if these messages used up the credit, because the connection
    /// then answers the drain itself.
    pub fn complete_drain(&mut self, id: LinkId) {
        let is_draining = self.is_draining(id);
        if let Some(link) = self.link(id).filter(|_| is_draining) {
            link.delivery_count = link.delivery_count.wrapping_add(link.credit);
            link.credit = 0;
            link.drain = Drain::Answered;
            self.write_flow(id.channel, Some(id.handle));
        }
    }

    fn write_flow(&mut self, channel: u16, handle: Option<u32>) {
        let Some(session) = self.sessions.get(&channel).filter(|_| self.is_open()) else { return };
        let link = handle.and_then(|handle| session.links.get(&handle));
        frame::write(self.output.tail(), Layer::Amqp, channel, |out| {
            out.described_list(0x13, |fields| {
                // Until the peer answers our begin, we do not know the number of its next transfer, so leave
                // `next-incoming-id` null.
                match session.remote_channel {
                    Some(_) => fields.uint(session.next_incoming_id),
                    None => fields.null(),
                }
                fields.uint(session.incoming_window);
                fields.uint(session.next_outgoing_id);
                fields.uint(u32::MAX >> 1);
                if let (Some(handle), Some(link)) = (handle, link) {
                    fields.uint(handle);
                    fields.uint(link.delivery_count);
                    fields.uint(link.credit);
                    if link.drain_sent || link.drain != Drain::Off {
                        fields.null(); // available
                        fields.boolean(true);
                    }
                }
            });
        });
    }

    /// Closes the connection from our side, and tells the peer the reason, without waiting for the peer's answer.
    pub fn write_close(&mut self, error: Option<(&str, &str)>) {
        self.write_dispositions();
        if matches!(self.state, ConnectionState::Opened | ConnectionState::ExpectOpen) {
            if self.state == ConnectionState::ExpectOpen && matches!(self.role, ConnectionRole::Server(_)) {
                let container = &self.options.container;
                frame::write(self.output.tail(), Layer::Amqp, 0, |out| {
                    out.described_list(0x10, |fields| fields.string(container));
                });
            }
            frame::write(self.output.tail(), Layer::Amqp, 0, |out| {
                out.described_list(0x18, |fields| frame::write_error(fields, error));
            });
        }
        self.state = ConnectionState::Closed;
    }

    /// Ends a connection whose handshake takes too long. The peer gets a close with the reason. A client that has begun
    /// SASL cannot read a close yet, so it gets a sasl-outcome instead.
    pub fn time_out_handshake(&mut self) {
        match (&self.role, self.state) {
            (ConnectionRole::Server(_), ConnectionState::ExpectSaslInit) => {
                AuthOutcome::TimedOut.write(self.output.tail());
            }
            (ConnectionRole::Server(_), ConnectionState::ExpectHeader { .. }) => {
                self.output.tail().extend_from_slice(&AMQP_HEADER);
                self.state = ConnectionState::ExpectOpen;
            }
            // The client has already written its open frame, so the protocol allows it to send a close.
            (ConnectionRole::Client(_), ConnectionState::ExpectHeader { authenticated: true }) => {
                self.state = ConnectionState::ExpectOpen;
            }
            _ => {}
        }
        self.write_close(Some((Violation::RESOURCE_LIMIT, "the handshake took too long")));
    }

    /// Ends a connection whose peer was silent for too long (AMQP 1.0 §2.4.5). The caller measures the silence, because
    /// the connection has no clock.
    pub fn time_out_silence(&mut self) {
        self.write_close(Some((Violation::RESOURCE_LIMIT, "the peer was silent for too long")));
    }

    /// Returns the tokens of all messages that were sent and not settled. The caller needs the tokens after the end of
    /// the connection, when nobody will settle the messages any more.
    pub fn take_unsettled(&mut self) -> Vec<T> {
        let settled = std::mem::take(&mut self.events).into_iter().filter_map(|event| match event {
            ConnectionEvent::Detached { unsettled, .. } => Some(unsettled),
            _ => None,
        });
        let sessions = std::mem::take(&mut self.sessions).into_values().flat_map(|session| session.unsettled);
        let in_sessions: Vec<T> = sessions.map(|(_, sent)| sent.token).collect();
        settled.flatten().chain(in_sessions).collect()
    }
}

/// Returns how many more messages or frames we may send. The peer has received `seen` of them and allows `granted`
/// more, and we have already sent `sent`. The result is 0 if the peer has lowered its grant and we had already sent
/// more.
fn remaining_credit(granted: u32, seen: u32, sent: u32) -> u32 {
    granted.saturating_sub(sent.wrapping_sub(seen))
}

fn check_channel(remote: u16) -> Result<(), Violation> {
    let is_valid = usize::from(remote) < MAX_SESSIONS;
    is_valid.then_some(()).ok_or(Violation::framing("a channel number above channel-max"))
}

fn check_handle(remote: u32) -> Result<(), Violation> {
    ((remote as usize) < MAX_LINKS).then_some(()).ok_or(Violation::framing("a handle above handle-max"))
}

/// Decides which received payloads share the read buffer instead of being copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PayloadSharing {
    /// Copies short payloads, and shares only long ones. A server's queues keep messages for a long time, and a short
    /// payload that shares the read buffer would keep the whole buffer in memory.
    Long,
    /// Shares even a short payload if its whole message is in one frame. A client processes the message soon, so the
    /// read buffer does not stay in memory for long.
    Whole,
}

impl LinkState {
    fn new(peer: LinkRole, name: &str, max_message_bytes: u64) -> Self {
        Self {
            peer,
            credit: 0,
            tolerance: 0,
            delivery_count: 0,
            drain: Drain::Off,
            presettled: false,
            name: name.to_owned(),
            incomplete: None,
            remote_handle: None,
            accepted: false,
            detach_sent: None,
            is_reported: false,
            drain_sent: false,
            max_message_bytes,
        }
    }

    /// Adds the payload of a transfer frame to the message that the link is receiving. When the message is complete,
    /// returns its delivery number, whether it is settled, and the message.
    fn add_transfer(
        &mut self,
        transfer: &Transfer<'_>,
        payload: &Bytes,
        sharing: PayloadSharing,
    ) -> Result<Option<(u32, bool, EncodedMessage)>, Violation> {
        if self.peer == LinkRole::Receiver {
            return Err(Violation::not_allowed("a transfer from the receiver of the link"));
        }
        let mut delivery = match self.incomplete.take() {
            Some(begun) => begun.continued_by(transfer)?,
            None => {
                let allowance = if self.credit > 0 { &mut self.credit } else { &mut self.tolerance };
                let beyond = Violation::new("amqp:link:transfer-limit-exceeded", "a transfer beyond the link's credit");
                *allowance = allowance.checked_sub(1).ok_or(beyond)?;
                self.delivery_count = self.delivery_count.wrapping_add(1);
                IncompleteDelivery::begin(transfer)?
            }
        };
        if transfer.aborted {
            return Ok(None);
        }
        delivery.settled |= transfer.settled.unwrap_or(false);
        match sharing {
            PayloadSharing::Whole if delivery.message.bytes() == 0 && !transfer.more => {
                delivery.message.push(payload.clone());
            }
            PayloadSharing::Whole | PayloadSharing::Long => delivery.message.append(payload),
        }
        if delivery.message.bytes() as u64 > self.max_message_bytes {
            return Err(Violation::new(Violation::MESSAGE_SIZE, "the message is longer than max-message-size"));
        }
        if transfer.more {
            self.incomplete = Some(delivery);
            return Ok(None);
        }
        Ok(Some((delivery.id, delivery.settled, delivery.message)))
    }
}

impl IncompleteDelivery {
    fn begin(transfer: &Transfer<'_>) -> Result<Self, Violation> {
        let id = transfer.delivery_id.ok_or(Violation::invalid_field("a transfer without delivery-id"))?;
        let tag = transfer.delivery_tag.unwrap_or_default();
        let mut octets = [0; MAX_TAG_BYTES];
        let room = octets.get_mut(..tag.len()).ok_or(Violation::invalid_field("a delivery-tag that is too long"))?;
        room.copy_from_slice(tag);
        Ok(Self {
            id,
            tag: (octets, tag.len()),
            message_format: transfer.message_format.unwrap_or(0),
            settled: false,
            message: EncodedMessage::default(),
        })
    }

    /// Checks that a transfer continues this delivery and not another (AMQP 1.0 §2.7.5).
    fn continued_by(self, transfer: &Transfer<'_>) -> Result<Self, Violation> {
        let (octets, length) = &self.tag;
        if transfer.delivery_id.is_some_and(|id| id != self.id) {
            return Err(Violation::invalid_field("another delivery-id before the delivery is complete"));
        }
        if transfer.delivery_tag.is_some_and(|tag| *tag != octets[..*length]) {
            return Err(Violation::invalid_field("another delivery-tag before the delivery is complete"));
        }
        if transfer.message_format.is_some_and(|format| format != self.message_format) {
            return Err(Violation::invalid_field("another message-format before the delivery is complete"));
        }
        Ok(self)
    }
}

impl<T> Session<T> {
    /// If the peer has begun the session, `answered` contains the channel, the next-outgoing-id and the window from the
    /// peer's begin frame. If we begin the session, `answered` is `None`.
    fn new(answered: Option<(u16, u32, u32)>) -> Self {
        let (remote_channel, next_incoming_id, remote_incoming_window) =
            answered.map_or((None, 0, 0), |(channel, next, window)| (Some(channel), next, window));
        Self {
            remote_channel,
            end_sent: false,
            is_reported: false,
            is_released: false,
            links: BTreeMap::new(),
            next_incoming_id,
            incoming_window: INCOMING_WINDOW,
            next_outgoing_id: 0,
            remote_incoming_window,
            next_delivery: 0,
            unsettled: BTreeMap::new(),
            blocked: None,
            pending_disposition: None,
        }
    }

    /// Counts a sent frame against the peer's window, the number of frames that the peer is ready to receive.
    fn count_transfer(&mut self) {
        self.remote_incoming_window -= 1;
        self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
    }

    /// Extends a delivery number of 32 bits, as the peer sends it, to 64 bits. Of all numbers that end in these 32
    /// bits, returns the one that is nearest to the number of the next delivery.
    fn number_of(&self, id: u32) -> i64 {
        self.next_delivery + i64::from(id.wrapping_sub(self.next_delivery as u32) as i32)
    }

    fn take_unsettled(&mut self, handle: u32) -> Vec<T> {
        let all = std::mem::take(&mut self.unsettled).into_iter();
        let (back, others): (Vec<_>, Vec<_>) = all.partition(|(_, sent)| sent.handle == handle);
        self.unsettled = others.into_iter().collect();
        back.into_iter().map(|(_, sent)| sent.token).collect()
    }

    /// Removes all links, and returns the `Detached` events of links whose end has not been reported.
    fn take_detached(&mut self, channel: u16, error: Option<&EndError>) -> Vec<ConnectionEvent<T>> {
        let links = std::mem::take(&mut self.links).into_iter().filter(|(_, link)| !link.is_reported);
        let detached = links.map(|(handle, _)| ConnectionEvent::Detached {
            link: LinkId { channel, handle },
            unsettled: self.take_unsettled(handle),
            scope: Scope::Session,
            error: error.cloned(),
        });
        detached.collect()
    }

    /// Writes as many frames of a message as the window allows, and keeps the rest until the peer renews the window.
    /// Only the first frame of the message needs `head`: the delivery's number, and whether the delivery is settled.
    fn write_transfers(
        &mut self,
        (out, max_frame_bytes): (&mut OutputBuffer, u32),
        id: LinkId,
        head: Option<(u32, bool)>,
        mut rest: EncodedMessage,
    ) {
        let mut head = head;
        loop {
            if self.remote_incoming_window == 0 {
                self.blocked = Some(BlockedTransfer { handle: id.handle, rest });
                return;
            }
            self.count_transfer();
            let room = max_frame_bytes as usize - HEADER_BYTES - MAX_TRANSFER_BYTES;
            let part = if rest.bytes() > room { rest.cut(room) } else { std::mem::take(&mut rest) };
            let more = rest.bytes() > 0;
            let start = frame::begin(out.tail(), Layer::Amqp, id.channel);
            write_transfer(&mut Writer::new(out.tail()), id.handle, head.take(), more);
            frame::finish(out.tail(), start, part.bytes());
            out.push(part);
            if !more {
                return;
            }
        }
    }
}

/// Maximum size of a transfer performative that we write, in bytes. A frame needs this much space in addition to its
/// header and its part of the message.
const MAX_TRANSFER_BYTES: usize = 64;

fn write_transfer(out: &mut Writer<'_>, handle: u32, head: Option<(u32, bool)>, more: bool) {
    out.described_list(0x14, |fields| {
        fields.uint(handle);
        match head {
            Some((delivery, settled)) => {
                fields.uint(delivery);
                fields.binary(&delivery.to_be_bytes());
                fields.uint(0); // message-format
                fields.boolean(settled);
            }
            None => (0..4).for_each(|_| fields.null()),
        }
        fields.boolean(more);
    });
}

/// Writes the attach with which a server answers a client's attach. Repeats the source and target that the peer
/// requested, or leaves them out to announce that a detach follows (AMQP 1.0 §2.6.3).
fn write_attach(out: &mut Vec<u8>, channel: u16, attach: &Attach<'_>, max_message_bytes: u64, is_found: bool) {
    let ours = match attach.role {
        LinkRole::Sender => LinkRole::Receiver,
        LinkRole::Receiver => LinkRole::Sender,
    };
    frame::write(out, Layer::Amqp, channel, |out| {
        out.described_list(0x12, |fields| {
            fields.string(attach.name);
            fields.uint(attach.handle);
            fields.boolean(ours == LinkRole::Receiver);
            fields.ubyte(attach.sender_settle_mode.min(2));
            fields.ubyte(0); // rcv-settle-mode: first
            for terminus in [attach.source, attach.target] {
                match terminus.filter(|_| is_found) {
                    Some(terminus) => fields.raw(terminus.octets()),
                    None => fields.null(),
                }
            }
            fields.null(); // unsettled
            fields.null(); // incomplete-unsettled
            match ours {
                LinkRole::Sender => fields.uint(0), // initial-delivery-count
                LinkRole::Receiver => fields.null(),
            }
            fields.ulong(max_message_bytes);
        });
    });
}

fn write_detach(out: &mut Vec<u8>, id: LinkId, closed: bool, error: Option<(&str, &str)>) {
    frame::write(out, Layer::Amqp, id.channel, |out| {
        out.described_list(0x16, |fields| {
            fields.uint(id.handle);
            fields.boolean(closed);
            frame::write_error(fields, error);
        });
    });
}

fn write_end(out: &mut Vec<u8>, channel: u16, error: Option<(&str, &str)>) {
    frame::write(out, Layer::Amqp, channel, |out| {
        out.described_list(0x17, |fields| frame::write_error(fields, error));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Reader;
    use crate::sasl::PlainCredentials;
    use proptest::prelude::*;

    type TestConnection = AmqpConnection<u32>;

    fn frame_of(channel: u16, write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut octets = Vec::new();
        frame::write(&mut octets, Layer::Amqp, channel, write);
        octets
    }

    fn open() -> Vec<u8> {
        let mut octets = AMQP_HEADER.to_vec();
        octets.extend(frame_of(0, |out| {
            out.described_list(0x10, |fields| {
                fields.string("peer");
                fields.null();
                fields.uint(512);
            });
        }));
        octets
    }

    fn begin(window: u32) -> Vec<u8> {
        frame_of(0, |out| {
            out.described_list(0x11, |fields| {
                fields.null();
                fields.uint(0);
                fields.uint(window);
                fields.uint(window);
            });
        })
    }

    fn attach(handle: u32, role: LinkRole, address: &str) -> Vec<u8> {
        frame_of(0, |out| {
            out.described_list(0x12, |fields| {
                fields.string(&format!("link {handle}"));
                fields.uint(handle);
                fields.boolean(role == LinkRole::Receiver);
                fields.null();
                fields.null();
                for terminus in [0x28, 0x29] {
                    fields.described_list(terminus, |fields| fields.string(address));
                }
                fields.null();
                fields.null();
                fields.uint(0);
            });
        })
    }

    fn flow(window: u32, handle: u32, credit: u32) -> Vec<u8> {
        frame_of(0, |out| {
            out.described_list(0x13, |fields| {
                [0, window, 0, 100, handle, 0, credit].iter().for_each(|number| fields.uint(*number));
            });
        })
    }

    fn transfer(handle: u32, delivery: u32, more: bool, payload: &[u8]) -> Vec<u8> {
        let mut octets = Vec::new();
        let start = frame::begin(&mut octets, Layer::Amqp, 0);
        write_transfer(&mut Writer::new(&mut octets), handle, Some((delivery, false)), more);
        octets.extend_from_slice(payload);
        frame::finish(&mut octets, start, 0);
        octets
    }

    fn settled(first: u32, last: u32, outcome: DeliveryOutcome) -> Vec<u8> {
        let mut octets = Vec::new();
        frame::write_disposition(&mut octets, 0, LinkRole::Receiver, (first, last), outcome);
        octets
    }

    fn new_connection() -> TestConnection {
        AmqpConnection::server(ListenerAuth::Any, "server", 1000)
    }

    /// Feeds bytes to the connection, accepts each link, and grants senders 10 messages. Returns the events.
    fn feed(connection: &mut TestConnection, octets: &[u8]) -> Result<Vec<ConnectionEvent<u32>>, ConnectionError> {
        let mut input = BytesMut::from(octets);
        let mut events = Vec::new();
        while let Some(event) = connection.next_event(&mut input)? {
            if let ConnectionEvent::Attached { link, peer, .. } = &event {
                connection.accept(*link);
                if *peer == LinkRole::Sender {
                    connection.grant(*link, 10);
                }
            }
            events.push(event);
        }
        Ok(events)
    }

    fn opened(then: &[Vec<u8>]) -> TestConnection {
        let mut connection = new_connection();
        feed(&mut connection, &[open(), begin(1000), then.concat()].concat()).unwrap();
        let length = connection.output.remaining();
        connection.output.advance(length);
        connection
    }

    /// Returns the descriptor and the payload length of each frame that was written.
    fn written_frames(connection: &mut TestConnection) -> Vec<(u64, usize)> {
        connection.write_dispositions();
        let length = connection.output.remaining();
        let mut octets = BytesMut::from(&connection.output.copy_to_bytes(length)[..]);
        let mut frames = Vec::new();
        while let Some(frame) = frame::decode(&mut octets, 1 << 20).unwrap() {
            let mut reader = Reader::new(&frame.body);
            frames.push((reader.value().unwrap().descriptor().unwrap(), reader.rest().len()));
        }
        assert!(octets.is_empty());
        frames
    }

    const LINK: LinkId = LinkId { channel: 0, handle: 1 };

    #[test]
    fn a_message_comes_in_pieces_and_is_settled_with_others_in_one_breath() {
        let mut connection = opened(&[attach(1, LinkRole::Sender, "q")]);
        let octets = [transfer(1, 0, true, b"ab"), transfer(1, 0, false, b"cd"), transfer(1, 1, false, b"ef")].concat();
        let events = feed(&mut connection, &octets).unwrap();
        let arrived = |delivery, text: &[u8]| {
            let message = EncodedMessage::from(Bytes::copy_from_slice(text));
            ConnectionEvent::MessageReceived { link: LINK, delivery, message, settled: false }
        };
        assert_eq!(events, [arrived(0, b"abcd"), arrived(1, b"ef")]);
        assert_eq!(connection.credit(LINK), 8);
        connection.settle(LINK, 0, DeliveryOutcome::Accepted);
        connection.settle(LINK, 1, DeliveryOutcome::Accepted);
        assert_eq!(written_frames(&mut connection), [(0x15, 0)]);
    }

    #[test]
    fn nothing_is_sent_beyond_credit_and_window_and_what_was_held_goes_on() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q")]);
        assert!(!connection.may_send(LINK), "no credit");
        feed(&mut connection, &flow(2, 1, 5)).unwrap();
        assert!(connection.may_send(LINK));
        // The message needs three frames of 512 bytes, but the peer's window has room for only two, so the third must
        // wait.
        connection.send(LINK, EncodedMessage::from(vec![7; 1000]), 42);
        let first = written_frames(&mut connection);
        assert_eq!(first.len(), 2);
        assert!(!connection.may_send(LINK), "the rest of the message is held");
        feed(&mut connection, &flow(100, 1, 5)).unwrap();
        let rest = written_frames(&mut connection);
        assert_eq!(first.iter().chain(&rest).map(|(_, length)| length).sum::<usize>(), 1000);
        let events = feed(&mut connection, &settled(0, 0, DeliveryOutcome::Accepted)).unwrap();
        assert_eq!(events, [ConnectionEvent::Settled { sent: 42, outcome: DeliveryOutcome::Accepted, error: None }]);
    }

    #[test]
    fn what_is_not_settled_comes_back_with_the_link_the_session_or_the_connection() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        let modified = DeliveryOutcome::Modified { failed: true };
        let events = feed(&mut connection, &settled(1, 1, modified)).unwrap();
        assert_eq!(events, [ConnectionEvent::Settled { sent: 1, outcome: modified, error: None }]);
        assert!(feed(&mut connection, &settled(1, u32::MAX / 2, DeliveryOutcome::Accepted)).is_ok(), "a range may lie");
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        let detach = frame_of(0, |out| out.described_list(0x16, |fields| fields.uint(1)));
        let events = feed(&mut connection, &detach).unwrap();
        let unsettled = vec![0, 1, 2];
        assert_eq!(events, [ConnectionEvent::Detached { link: LINK, unsettled, scope: Scope::Link, error: None }]);
        assert_eq!(written_frames(&mut connection).last(), Some(&(0x16, 0)), "the detach is answered");
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        connection.send(LINK, EncodedMessage::from(vec![1]), 7);
        assert_eq!(connection.take_unsettled(), [7]);
    }

    #[test]
    fn credit_that_is_taken_back_while_messages_are_on_their_way_is_none() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        // The peer sent this flow before it received our three messages. Its credit of 1 therefore covers only the
        // first of them, and we have no credit left.
        feed(&mut connection, &flow(100, 1, 1)).unwrap();
        assert!(!connection.may_send(LINK));
        assert_eq!(connection.credit(LINK), 0);
        feed(&mut connection, &flow(100, 1, u32::MAX)).unwrap();
        assert_eq!(connection.credit(LINK), u32::MAX - 3);
        // The peer reduces its window to two frames, but three frames are already on their way. So nothing more may be
        // sent.
        feed(&mut connection, &flow(2, 1, 10)).unwrap();
        assert!(!connection.may_send(LINK));
    }

    #[test]
    fn one_that_is_never_settled_costs_no_more_for_those_behind_it() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(u32::MAX, 1, u32::MAX)]);
        for number in 0..10_000 {
            connection.send(LINK, EncodedMessage::from(vec![1]), number);
            if number > 0 {
                let events = feed(&mut connection, &settled(number, number, DeliveryOutcome::Accepted)).unwrap();
                assert_eq!(
                    events,
                    [ConnectionEvent::Settled { sent: number, outcome: DeliveryOutcome::Accepted, error: None }]
                );
            }
            written_frames(&mut connection);
        }
        assert_eq!(connection.sessions[&0].unsettled.len(), 1);
        // Message 0 must stay unsettled, because all three ranges are invalid. The range 5..0 is reversed, and
        // 10,000..10,005 begins after the last delivery. The last range would wrap around and contain all 32-bit
        // numbers.
        for (first, last) in [(5, 0), (10_000, 10_005), (u32::MAX, u32::MAX - 1)] {
            assert_eq!(
                feed(&mut connection, &settled(first, last, DeliveryOutcome::Accepted)).unwrap(),
                [],
                "{first}..{last}"
            );
        }
        assert_eq!(feed(&mut connection, &settled(u32::MAX - 7, 70_000, DeliveryOutcome::Accepted)).unwrap().len(), 1);
    }

    #[test]
    fn numbers_go_on_after_the_last_of_32_bits() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(u32::MAX, 1, u32::MAX)]);
        connection.sessions.get_mut(&0).unwrap().next_delivery = i64::from(u32::MAX) - 1;
        (0..4).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        let events = feed(&mut connection, &settled(u32::MAX, 0, DeliveryOutcome::Accepted)).unwrap();
        assert_eq!(
            events,
            [1, 2].map(|sent| ConnectionEvent::Settled { sent, outcome: DeliveryOutcome::Accepted, error: None })
        );
        assert_eq!(connection.take_unsettled(), [0, 3]);
    }

    #[test]
    fn messages_that_never_end_are_bounded_all_together() {
        let mut connection = opened(&[]);
        for handle in 0..10 {
            feed(&mut connection, &attach(handle, LinkRole::Sender, "q")).unwrap();
        }
        written_frames(&mut connection);
        for handle in 0..10 {
            // Each frame has one byte of payload after a longer header. The connection must keep only the payload in
            // memory.
            let frames: Vec<u8> = (0..900).flat_map(|_| transfer(handle, handle, true, b"x")).collect();
            feed(&mut connection, &frames).unwrap();
        }
        assert!(connection.incomplete_bytes() <= 2000, "{}", connection.incomplete_bytes());
        let refused = written_frames(&mut connection).iter().filter(|(what, _)| *what == 0x16).count();
        assert_eq!(refused, 8, "two links have all that there may be");
        let pieces =
            |link: &LinkState| link.incomplete.as_ref().map_or(0, |incomplete| incomplete.message.pieces().len());
        assert!(connection.sessions[&0].links.values().all(|link| pieces(link) <= 1));
    }

    /// Returns a flow frame that asks for a drain of link 1, from a receiver that has not seen any message.
    fn drain(window: u32, credit: u32) -> Vec<u8> {
        frame_of(0, |out| {
            out.described_list(0x13, |fields| {
                [0, window, 0, 100, 1, 0, credit].iter().for_each(|number| fields.uint(*number));
                fields.null();
                fields.boolean(true);
            });
        })
    }

    fn written_bodies(connection: &mut TestConnection) -> Vec<Bytes> {
        connection.write_dispositions();
        let length = connection.output.remaining();
        let mut octets = BytesMut::from(&connection.output.copy_to_bytes(length)[..]);
        std::iter::from_fn(|| frame::decode(&mut octets, 1 << 20).unwrap()).map(|frame| frame.body).collect()
    }

    /// Returns the delivery-count of each flow that answers a drain. Panics if a message follows the last answer.
    fn written_drains(connection: &mut TestConnection) -> Vec<u32> {
        let bodies = written_bodies(connection);
        let drained = bodies.iter().filter_map(|body| match Performative::read(body).unwrap() {
            Performative::Flow(flow) if flow.drain && flow.link_credit == Some(0) => flow.delivery_count,
            _ => None,
        });
        let drained: Vec<u32> = drained.collect();
        let is_transfer = bodies.last().is_some_and(|body| body[2] == 0x14);
        assert!(drained.is_empty() || !is_transfer, "a transfer after the answer");
        drained
    }

    #[test]
    fn a_drain_is_answered_when_the_queue_is_empty_or_the_credit_used_up() {
        let message = || EncodedMessage::from(vec![7; 1000]);
        let begun = || opened(&[attach(1, LinkRole::Receiver, "q")]);
        // The sender uses only one of its five credits. `complete_drain` must return the other four.
        let mut connection = begun();
        feed(&mut connection, &drain(100, 5)).unwrap();
        assert!(connection.is_draining(LINK));
        connection.send(LINK, message(), 1);
        assert_eq!(written_drains(&mut connection), []);
        connection.complete_drain(LINK);
        assert_eq!(written_drains(&mut connection), [5]);
        connection.complete_drain(LINK);
        assert_eq!(written_drains(&mut connection), [], "once is enough");
        assert!(!connection.may_send(LINK) && !connection.is_draining(LINK));
        // The two messages use up the credit of 2, so the connection answers the drain without `complete_drain`.
        let mut connection = begun();
        feed(&mut connection, &drain(100, 2)).unwrap();
        (1..3).for_each(|number| connection.send(LINK, message(), number));
        assert_eq!(written_drains(&mut connection), [2]);
        // If no credit is left, the sender must answer each drain at once.
        for credit in [0, 1] {
            let mut connection = begun();
            feed(&mut connection, &flow(100, 1, credit)).unwrap();
            (0..credit).for_each(|number| connection.send_parts(LINK, b"a", Bytes::from_static(b"b"), number));
            written_frames(&mut connection);
            for _ in 0..2 {
                feed(&mut connection, &drain(100, credit)).unwrap();
                assert_eq!(written_drains(&mut connection), [credit], "each is answered");
            }
            feed(&mut connection, &flow(100, 1, credit + 1)).unwrap();
            assert!(connection.may_send(LINK), "credit ends the drain");
        }
        // The session's window admits only two frames, so the end of the message waits for a larger window. The answer
        // to the drain must follow the end of the message.
        let mut connection = begun();
        feed(&mut connection, &drain(2, 1)).unwrap();
        connection.send(LINK, message(), 1);
        connection.complete_drain(LINK);
        assert_eq!(written_drains(&mut connection), []);
        feed(&mut connection, &drain(100, 1)).unwrap();
        assert_eq!(written_drains(&mut connection), [1]);
    }

    #[test]
    fn a_detach_is_answered_as_it_is_meant() {
        for closed in [false, true] {
            let mut connection = opened(&[attach(1, LinkRole::Sender, "q")]);
            written_frames(&mut connection);
            let mut detach = Vec::new();
            write_detach(&mut detach, LINK, closed, None);
            feed(&mut connection, &detach).unwrap();
            let bodies = written_bodies(&mut connection);
            let answered = Performative::read(&bodies[0]).unwrap();
            assert_eq!(answered, Performative::Detach { handle: 1, closed, error: None });
        }
    }

    /// Returns the condition of each error that the connection wrote, and whether the error ends a link, a session or
    /// the connection.
    fn written_errors(connection: &mut TestConnection) -> Vec<(&'static str, String)> {
        let bodies = written_bodies(connection);
        let ended = bodies.iter().filter_map(|body| match Performative::read(body).unwrap() {
            Performative::Detach { closed: true, error, .. } => Some(("link", error?.condition)),
            Performative::End { error } => Some(("session", error?.condition)),
            Performative::Close { error } => Some(("connection", error?.condition)),
            _ => None,
        });
        ended.collect()
    }

    fn transfer_of(handle: u32, id: Option<u32>, tag: Option<&[u8]>, format: Option<u32>, more: bool) -> Vec<u8> {
        frame_of(0, |out| {
            out.described_list(0x14, |fields| {
                fields.uint(handle);
                match id {
                    Some(id) => fields.uint(id),
                    None => fields.null(),
                }
                match tag {
                    Some(tag) => fields.binary(tag),
                    None => fields.null(),
                }
                match format {
                    Some(format) => fields.uint(format),
                    None => fields.null(),
                }
                fields.boolean(false);
                fields.boolean(more);
            });
        })
    }

    #[test]
    fn an_error_ends_no_more_than_it_must_and_names_its_condition() {
        let sender = || attach(1, LinkRole::Sender, "q");
        let receiver = || attach(2, LinkRole::Receiver, "q");
        let begun = |more: bool| transfer_of(1, Some(0), Some(b"t"), Some(1), more);
        let many = |count: u32| (0..count).flat_map(|number| transfer(1, number, false, b"x")).collect::<Vec<u8>>();
        let link = "amqp:invalid-field";
        for (what, scope, condition, octets) in [
            ("more than the credit", "link", "amqp:link:transfer-limit-exceeded", [sender(), many(11)].concat()),
            ("too long", "link", "amqp:link:message-size-exceeded", {
                let long = (0..4).flat_map(|_| transfer(1, 0, true, &[0; 400])).collect();
                [sender(), long].concat()
            }),
            ("of a receiver", "link", "amqp:not-allowed", [receiver(), transfer(2, 0, false, b"x")].concat()),
            ("no delivery-id", "link", link, [sender(), transfer_of(1, None, None, None, false)].concat()),
            ("a long tag", "link", link, [sender(), transfer_of(1, Some(0), Some(&[0; 33]), None, false)].concat()),
            ("another delivery-id", "link", link, {
                [sender(), begun(true), transfer_of(1, Some(1), None, None, false)].concat()
            }),
            ("another tag", "link", link, {
                [sender(), begun(true), transfer_of(1, None, Some(b"u"), None, false)].concat()
            }),
            ("another message-format", "link", link, {
                [sender(), begun(true), transfer_of(1, None, None, Some(2), false)].concat()
            }),
            ("a link twice", "link", "amqp:link:stolen", {
                let again = frame_of(0, |out| {
                    out.described_list(0x12, |fields| {
                        fields.string("link 1");
                        fields.uint(2);
                        fields.boolean(false);
                        (0..3).for_each(|_| fields.null());
                        fields.described_list(0x29, |fields| fields.string("q"));
                    });
                });
                [sender(), again].concat()
            }),
            ("a long name", "link", "amqp:invalid-field", {
                frame_of(0, |out| {
                    out.described_list(0x12, |fields| {
                        fields.string(&"x".repeat(MAX_LINK_NAME_BYTES + 1));
                        fields.uint(2);
                        fields.boolean(false);
                        (0..3).for_each(|_| fields.null());
                        fields.described_list(0x29, |fields| fields.string("q"));
                    });
                })
            }),
            ("a handle in use", "session", "amqp:session:handle-in-use", [sender(), sender()].concat()),
            ("a transfer of no link", "session", "amqp:session:unattached-handle", transfer(1, 0, false, b"x")),
            ("a flow of no link", "session", "amqp:session:unattached-handle", flow(100, 1, 5)),
            ("a detach of no link", "session", "amqp:session:unattached-handle", {
                let mut octets = Vec::new();
                write_detach(&mut octets, LINK, true, None);
                octets
            }),
            ("a handle above handle-max", "connection", "amqp:connection:framing-error", {
                attach(MAX_LINKS as u32, LinkRole::Sender, "q")
            }),
            ("a channel above channel-max", "connection", "amqp:connection:framing-error", {
                frame_of(MAX_SESSIONS as u16, |out| out.described_list(0x17, |_| {}))
            }),
            ("no such session", "connection", "amqp:not-allowed", {
                frame_of(1, |out| out.described_list(0x17, |_| {}))
            }),
            ("a session twice", "connection", "amqp:not-allowed", begin(5)),
            ("two opens", "connection", "amqp:illegal-state", open()[8..].to_vec()),
            ("no performative", "connection", "amqp:decode-error", vec![0, 0, 0, 10, 2, 0, 0, 0, 0xff, 0xff]),
            ("2 GiB", "connection", "amqp:connection:framing-error", vec![0x80, 0, 0, 0, 2, 0, 0, 0]),
            ("a frame of SASL", "connection", "amqp:connection:framing-error", vec![0, 0, 0, 8, 2, 1, 0, 0]),
        ] {
            let mut connection = opened(&[]);
            let result = feed(&mut connection, &octets);
            assert_eq!(written_errors(&mut connection), [(scope, condition.to_owned())], "{what}");
            assert_eq!(result.is_err(), scope == "connection", "{what}: {result:?}");
            assert_eq!(connection.is_open(), scope != "connection", "{what}");
            let ended = result.unwrap_or_default().into_iter().filter_map(|event| match event {
                ConnectionEvent::Ended { error, .. } => Some(("session", error)),
                ConnectionEvent::Detached { scope: Scope::Link, error, .. } => Some(("link", error)),
                _ => None,
            });
            let is_refused = what == "a long name";
            let expected = if scope == "connection" || is_refused { vec![] } else { vec![(scope, condition)] };
            let ended: Vec<_> = ended.collect();
            let ended = ended.iter().map(|(scope, error)| match error {
                Some(EndError::Violation(violation)) => (*scope, violation.condition),
                other => panic!("{what}: {other:?}"),
            });
            assert_eq!(ended.collect::<Vec<_>>(), expected, "{what}");
        }
        // The second transfer of this message repeats the fields of the first transfer, and the third transfer omits
        // them. Both are allowed, so the message must arrive.
        let mut connection = opened(&[sender()]);
        let pieces = [begun(true), begun(true), transfer_of(1, None, None, None, false)].concat();
        assert_eq!(feed(&mut connection, &pieces).unwrap().len(), 1);
        assert_eq!(written_errors(&mut connection), []);
    }

    #[test]
    fn an_error_leaves_the_other_links_and_sessions_alone() {
        let begin_second = frame_of(1, |out| {
            out.described_list(0x11, |fields| {
                fields.null();
                (0..3).for_each(|_| fields.uint(100));
            });
        });
        let links = [attach(1, LinkRole::Sender, "q"), attach(2, LinkRole::Receiver, "q"), flow(100, 2, 5)];
        let mut connection = opened(&[&links[..], &[begin_second]].concat());
        let receiver = LinkId { channel: 0, handle: 2 };
        connection.send(receiver, EncodedMessage::from(vec![1]), 7);
        let of_none = transfer_of(1, None, None, None, false);
        let error = || Some(EndError::Violation(Violation::invalid_field("a transfer without delivery-id")));
        let detached = ConnectionEvent::Detached { link: LINK, unsettled: vec![], scope: Scope::Link, error: error() };
        assert_eq!(feed(&mut connection, &of_none).unwrap(), [detached]);
        // Transfers that the peer sent before it received the detach must be dropped, and the peer's answer to the
        // detach must cause no event.
        assert_eq!(feed(&mut connection, &transfer(1, 3, false, b"x")).unwrap(), []);
        let mut detach = Vec::new();
        write_detach(&mut detach, LINK, true, None);
        assert_eq!(feed(&mut connection, &detach).unwrap(), []);
        assert!(connection.may_send(receiver), "the other link stays");
        // Both sides have now detached `LINK`, so another transfer over it is a protocol error. This error ends the
        // session, including the link `receiver`.
        let events = feed(&mut connection, &transfer(1, 4, false, b"x")).unwrap();
        let [ConnectionEvent::Detached { link, unsettled, scope, .. }, ConnectionEvent::Ended { session, .. }] =
            &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!((*link, &unsettled[..], *scope, *session), (receiver, &[7][..], Scope::Session, SessionId(0)));
        written_frames(&mut connection);
        // Until the peer has ended the session as well, its frames for the session must be dropped without an answer.
        let late = [
            transfer(1, 5, false, b"x"),
            flow(9, 2, 9),
            drain(9, 0),
            frame_of(0, |out| out.described_list(0x17, |_| {})),
        ];
        assert_eq!(feed(&mut connection, &late.concat()).unwrap(), []);
        assert_eq!(written_frames(&mut connection), []);
        assert!(connection.is_open() && connection.sessions.len() == 1);
    }

    #[test]
    fn a_peer_that_goes_on_after_an_error_ends_its_session_and_then_its_connection() {
        let mut connection = opened(&[attach(1, LinkRole::Sender, "q")]);
        let one = transfer(1, 0, false, b"x");
        let mut errors = Vec::new();
        let mut frames = 0;
        while feed(&mut connection, &one).is_ok() {
            errors.extend(written_errors(&mut connection));
            frames += 1;
            assert!(frames < 20_000, "it is heard for ever: {errors:?}");
        }
        errors.extend(written_errors(&mut connection));
        let expected = [
            ("link", "amqp:link:transfer-limit-exceeded"),
            ("session", "amqp:session:errant-link"),
            ("connection", "amqp:not-allowed"),
        ];
        assert_eq!(errors, expected.map(|(scope, condition)| (scope, condition.to_owned())));
    }

    #[test]
    fn the_rest_of_a_message_is_not_sent_after_the_end_of_its_link() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(2, 1, 5)]);
        connection.send(LINK, EncodedMessage::from(vec![7; 1500]), 3);
        assert_eq!(written_frames(&mut connection).len(), 2, "the window allows no more");
        let events = feed(&mut connection, &transfer(1, 0, false, b"x")).unwrap();
        assert!(
            matches!(&events[..], [ConnectionEvent::Detached { unsettled, .. }] if *unsettled == [3]),
            "{events:?}"
        );
        feed(&mut connection, &flow(100, 1, 5)).unwrap();
        assert_eq!(written_frames(&mut connection), [(0x16, 0)]);
    }

    #[test]
    fn a_window_that_is_not_kept_ends_its_session() {
        let mut connection = opened(&[attach(1, LinkRole::Sender, "q")]);
        connection.sessions.get_mut(&0).unwrap().incoming_window = 0;
        feed(&mut connection, &transfer(1, 0, false, b"x")).unwrap();
        let expected = [("session", "amqp:session:window-violation".to_owned())];
        assert_eq!(written_errors(&mut connection), expected);
    }

    #[test]
    fn an_aborted_message_gives_its_credit_back() {
        let mut connection = opened(&[attach(1, LinkRole::Sender, "q")]);
        let aborted = frame_of(0, |out| {
            out.described_list(0x14, |fields| {
                fields.uint(1);
                (0..4).for_each(|_| fields.null());
                fields.boolean(false);
                (0..3).for_each(|_| fields.null());
                fields.boolean(true);
            });
        });
        assert_eq!(feed(&mut connection, &[transfer(1, 0, true, b"x"), aborted].concat()).unwrap(), []);
        assert_eq!((connection.credit(LINK), connection.incomplete_bytes()), (10, 0));
    }

    #[test]
    fn who_misbehaves_before_the_connection_is_open_is_dropped() {
        for (what, octets) in [
            ("another protocol", b"GET / HTTP/1.1\r\n".to_vec()),
            ("a header of another version", b"AMQP\x00\x00\x09\x01".to_vec()),
            ("no open first", [AMQP_HEADER.to_vec(), begin(5)].concat()),
        ] {
            assert!(feed(&mut new_connection(), &octets).is_err(), "{what}");
        }
    }

    #[test]
    fn a_handshake_that_takes_too_long_ends_with_the_reason() {
        let expected = [("connection", "amqp:resource-limit-exceeded".to_owned())];
        for (octets, header) in [(&[][..], 8), (b"AMQP", 8), (&AMQP_HEADER[..], 8)] {
            let mut connection = new_connection();
            feed(&mut connection, octets).unwrap();
            connection.time_out_handshake();
            connection.output.advance(header);
            assert_eq!(written_errors(&mut connection), expected, "{octets:?}");
            assert!(connection.is_closed());
        }
        let mut connection = new_connection();
        feed(&mut connection, &SASL_HEADER).unwrap();
        let offered = connection.output.remaining();
        connection.output.advance(offered);
        connection.time_out_handshake();
        let outcome = &written_bodies(&mut connection)[0];
        let outcome = Reader::new(outcome).value().unwrap();
        assert_eq!(outcome.descriptor(), Some(0x44));
        assert_eq!(outcome.as_list().unwrap().number(), Ok(Some(4)), "the peer cannot be authenticated now");
    }

    #[test]
    fn a_link_to_nowhere_is_answered_and_detached() {
        let mut connection = opened(&[]);
        assert_eq!(feed(&mut connection, &attach(1, LinkRole::Sender, "")).unwrap(), []);
        assert_eq!(written_frames(&mut connection), [(0x12, 0), (0x16, 0)]);
    }

    #[test]
    fn nobody_comes_in_without_the_password() {
        let login = PlainCredentials { user: "u".to_owned(), password: crate::Password::new("p") };
        let init = |response: &[u8]| {
            let mut octets = SASL_HEADER.to_vec();
            frame::write(&mut octets, Layer::Sasl, 0, |out| {
                out.described_list(0x41, |fields| {
                    fields.symbol("PLAIN");
                    fields.binary(response);
                });
            });
            octets
        };
        let with = || TestConnection::server(ListenerAuth::Plain(login.clone()), "server", 1000);
        assert_eq!(feed(&mut with(), &open()), Err(ConnectionError::Unauthenticated));
        assert_eq!(feed(&mut with(), &init(b"\0u\0x")), Err(ConnectionError::Refused));
        let mut connection = with();
        feed(&mut connection, &[init(b"\0u\0p"), open()].concat()).unwrap();
        assert!(connection.is_open());
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_is_heard_alike(cuts in proptest::collection::vec(1usize..40, 1..200)) {
            let octets = [
                open(), begin(1000), attach(1, LinkRole::Sender, "q"), transfer(1, 0, true, b"ab"),
                transfer(1, 0, false, b"cd"), frame_of(0, |out| out.described_list(0x18, |_| {})),
            ].concat();
            let whole = feed(&mut new_connection(), &octets).unwrap();
            let mut connection = new_connection();
            let mut input = BytesMut::new();
            let mut events = Vec::new();
            let mut rest = &octets[..];
            for cut in cuts.iter().cycle() {
                let (piece, left) = rest.split_at(rest.len().min(*cut));
                input.extend_from_slice(piece);
                while let Some(event) = connection.next_event(&mut input).unwrap() {
                    if let ConnectionEvent::Attached { link, .. } = &event {
                        connection.accept(*link);
                        connection.grant(*link, 10);
                    }
                    events.push(event);
                }
                rest = left;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(events, whole);
        }

        #[test]
        fn no_octets_are_too_much(
            octets in proptest::collection::vec(any::<u8>(), 1..300), keep in 0usize..200,
        ) {
            // Feed the beginning of a valid conversation, followed by arbitrary bytes, so that later states of the
            // connection are tested as well.
            let good = [open(), begin(1000), attach(1, LinkRole::Sender, "q"), attach(2, LinkRole::Receiver, "q"), flow(9, 2, 9)].concat();
            let mut all = good[..keep.min(good.len())].to_vec();
            all.extend(octets);
            crate::checks::amqp_listener::check(&all);
        }
    }
}
