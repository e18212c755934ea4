//! One connection as its server sees it, as state: bytes in, events and bytes out. No socket, no clock.
//!
//! ```text
//! ExpectHeader ── AMQP3 ──▶ ExpectSaslInit ── ok ──▶ ExpectHeader ── AMQP0 ──▶ ExpectOpen ── open ──▶ Opened
//!                                                                                                    │ close
//!                                                                                                    ▼
//!                                                                                                  Closed
//! ```
//! We begin nothing: sessions and links are answered on the numbers that the peer gave them. Deliveries are settled at
//! their first disposition (rcv-settle-mode first). Nothing is resumed after a detach.
use super::buffers::{EncodedMessage, OutputBuffer};
use super::codec::{DecodeError, Writer};
use super::frame::{
    self, AMQP_HEADER, Attach, DeliveryOutcome, Flow, HEADER_BYTES, Layer, LinkRole, Performative, SASL_HEADER,
    Transfer,
};
use super::sasl::{AuthOutcome, ListenerAuth};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;

/// Limit of a frame that we accept. A message of 1 MB then comes in a few frames.
const MAX_FRAME_SIZE: u32 = 256 << 10;
/// Limit of a frame that we send, even if the peer would accept a larger one: other links get their turn between
/// frames. A message of 1 MiB goes in one frame: a fe2o3-amqp at the other end reads every byte of one that comes in
/// several.
const MAX_SENT_FRAME_SIZE: u32 = (1 << 20) + (64 << 10);
/// Interval in which we want to hear something, in milliseconds. A peer that is silent for twice as long counts as
/// gone (AMQP 1.0 §2.4.5).
pub(super) const IDLE_TIMEOUT_MS: u32 = 30_000;
/// Frames that a session may have on the way to us.
const INCOMING_WINDOW: u32 = 4096;
/// Sessions of a connection, and links of a session.
const MAX_SESSIONS: usize = 64;
const MAX_LINKS: usize = 64;
/// The longest name of a link.
const MAX_LINK_NAME_BYTES: usize = 1024;

/// A link: the session's number and the link's in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkId {
    channel: u16,
    handle: u32,
}

/// An event on a connection. `T` is the type of what the caller sends.
#[derive(Debug, PartialEq)]
pub(super) enum ConnectionEvent<T> {
    /// A peer asks for a link. The answer is `accept` or `refuse`.
    Attached { link: LinkId, peer: LinkRole, address: String },
    /// A message came. Unless it was sent settled, it is answered by `settle`.
    MessageReceived { link: LinkId, delivery: u32, message: EncodedMessage, settled: bool },
    /// A message that was sent is settled.
    Settled { sent: T, outcome: DeliveryOutcome },
    /// A link has credit, or a session has room, again.
    CreditChanged,
    /// A link is no more; what was sent over it and not settled comes back.
    Detached { link: LinkId, unsettled: Vec<T> },
    /// The peer closed the connection, and was answered.
    Closed,
}

/// Reason why a connection cannot go on. The peer reads it in a close, if the connection is open already.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum ConnectionError {
    #[error("not AMQP 1.0: the connection begins with {0:02x?}")]
    Header([u8; 8]),
    #[error("the peer does not authenticate itself")]
    Unauthenticated,
    #[error("user or password is wrong")]
    Refused,
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    #[error("{0}")]
    Protocol(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    ExpectHeader { authenticated: bool },
    ExpectSaslInit,
    ExpectOpen,
    Opened,
    Closed,
}

#[derive(Debug)]
struct LinkState {
    peer: LinkRole,
    /// Messages that may still go over the link: to us or from us.
    credit: u32,
    delivery_count: u32,
    /// Set by drain: all available messages are to be sent, and the rest of the credit given back.
    draining: bool,
    /// Messages are sent settled.
    presettled: bool,
    name: String,
    /// Pieces of a message that is not complete, and its number.
    incomplete: Option<(u32, bool, EncodedMessage)>,
    accepted: bool,
}

#[derive(Debug)]
struct UnsettledDelivery<T> {
    handle: u32,
    token: T,
}

/// A message whose other frames wait for the session's window.
#[derive(Debug)]
struct BlockedTransfer {
    handle: u32,
    rest: EncodedMessage,
}

#[derive(Debug)]
struct Session<T> {
    /// Links in the order of their handles: when a session ends, its links end in that order. There are few.
    links: BTreeMap<u32, LinkState>,
    next_incoming_id: u32,
    incoming_window: u32,
    next_outgoing_id: u32,
    remote_incoming_window: u32,
    /// The next delivery's number; the peer sees its lower half.
    next_delivery: i64,
    /// Unsettled deliveries by number. A settled one is dropped, even if earlier ones are still unsettled.
    unsettled: BTreeMap<i64, UnsettledDelivery<T>>,
    blocked: Option<BlockedTransfer>,
    /// Deliveries with the same outcome that are not reported yet: the first, the last, the outcome.
    pending_disposition: Option<(u32, u32, DeliveryOutcome)>,
}

/// The connection.
#[derive(Debug)]
pub(super) struct ServerConnection<T> {
    state: ConnectionState,
    mechanisms: ListenerAuth,
    container: String,
    max_message_bytes: u64,
    /// The largest frame that the peer takes.
    peer_max_frame_size: u32,
    peer_idle_timeout_ms: Option<u32>,
    sessions: BTreeMap<u16, Session<T>>,
    output: OutputBuffer,
    events: VecDeque<ConnectionEvent<T>>,
}

impl<T> ServerConnection<T> {
    /// A conversation with a peer that authenticates itself by `mechanisms`; messages of more than `most_bytes` end
    /// their link.
    pub(super) fn new(mechanisms: ListenerAuth, container: &str, max_message_bytes: u64) -> Self {
        Self {
            state: ConnectionState::ExpectHeader { authenticated: false },
            mechanisms,
            container: container.to_owned(),
            max_message_bytes,
            peer_max_frame_size: 512,
            peer_idle_timeout_ms: None,
            sessions: BTreeMap::new(),
            output: OutputBuffer::default(),
            events: VecDeque::new(),
        }
    }

    /// Output buffer.
    pub(super) fn output(&mut self) -> &mut OutputBuffer {
        &mut self.output
    }

    /// Reports whether links can be attached.
    pub(super) fn is_open(&self) -> bool {
        self.state == ConnectionState::Opened
    }

    /// Reports whether the peer has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.state == ConnectionState::Closed
    }

    /// Interval in which the peer wants to hear something, in milliseconds.
    pub(super) fn peer_idle_timeout_ms(&self) -> Option<u32> {
        self.peer_idle_timeout_ms
    }

    /// Sends a heartbeat.
    pub(super) fn send_heartbeat(&mut self) {
        if self.is_open() {
            frame::write(self.output.tail(), Layer::Amqp, 0, |_| {});
        }
    }

    /// The next event in what was read; none: more must be read.
    pub(super) fn next_event(&mut self, input: &mut BytesMut) -> Result<Option<ConnectionEvent<T>>, ConnectionError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if !self.step(input)? {
                return Ok(None);
            }
        }
    }

    /// Reads one header or one frame; false if there is none.
    fn step(&mut self, input: &mut BytesMut) -> Result<bool, ConnectionError> {
        match self.state {
            ConnectionState::Closed => Ok(false),
            ConnectionState::ExpectHeader { authenticated } => self.read_header(input, authenticated),
            _ => {
                let Some(frame) = frame::decode(input, MAX_FRAME_SIZE as usize)? else { return Ok(false) };
                self.read_frame(&frame)?;
                Ok(true)
            }
        }
    }

    fn read_header(&mut self, input: &mut BytesMut, authenticated: bool) -> Result<bool, ConnectionError> {
        let Some(&header) = input.first_chunk::<8>() else { return Ok(false) };
        input.advance(8);
        match header {
            SASL_HEADER if !authenticated => {
                self.output.tail().extend_from_slice(&SASL_HEADER);
                self.mechanisms.write_offer(self.output.tail());
                self.state = ConnectionState::ExpectSaslInit;
            }
            AMQP_HEADER if authenticated || self.mechanisms.is_optional() => {
                self.output.tail().extend_from_slice(&AMQP_HEADER);
                self.state = ConnectionState::ExpectOpen;
            }
            // A peer that skips SASL where it is required gets the header that we accept (AMQP 1.0 §2.2).
            AMQP_HEADER => {
                self.output.tail().extend_from_slice(&SASL_HEADER);
                return Err(ConnectionError::Unauthenticated);
            }
            _ => {
                self.output.tail().extend_from_slice(&SASL_HEADER);
                return Err(ConnectionError::Header(header));
            }
        }
        Ok(true)
    }

    fn read_frame(&mut self, frame: &frame::Frame) -> Result<(), ConnectionError> {
        match (self.state, frame.layer) {
            (ConnectionState::ExpectSaslInit, Layer::Sasl) => self.read_sasl(&frame.body),
            (ConnectionState::ExpectOpen | ConnectionState::Opened, Layer::Amqp) if frame.body.is_empty() => Ok(()),
            (ConnectionState::ExpectOpen, Layer::Amqp) => self.read_open(&frame.body),
            (ConnectionState::Opened, Layer::Amqp) => self.read_performative(frame.channel, &frame.body),
            _ => Err(ConnectionError::Protocol("a frame of the wrong layer")),
        }
    }

    fn read_sasl(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        let outcome = self.mechanisms.check_init(body)?;
        outcome.write(self.output.tail());
        match outcome {
            AuthOutcome::Accepted => {
                self.state = ConnectionState::ExpectHeader { authenticated: true };
                Ok(())
            }
            AuthOutcome::Refused => Err(ConnectionError::Refused),
        }
    }

    fn read_open(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        let Performative::Open { max_frame_size, idle_ms } = Performative::read(body)? else {
            return Err(ConnectionError::Protocol("the first frame is no open"));
        };
        self.peer_max_frame_size = max_frame_size.clamp(512, MAX_SENT_FRAME_SIZE);
        self.peer_idle_timeout_ms = idle_ms.filter(|idle| *idle > 0);
        let container = &self.container;
        frame::write(self.output.tail(), Layer::Amqp, 0, |out| {
            out.described_list(0x10, |fields| {
                fields.string(container);
                fields.null(); // hostname
                fields.uint(MAX_FRAME_SIZE);
                fields.ushort(MAX_SESSIONS as u16 - 1); // channel-max
                fields.uint(IDLE_TIMEOUT_MS);
            });
        });
        self.state = ConnectionState::Opened;
        Ok(())
    }

    fn read_performative(&mut self, channel: u16, body: &Bytes) -> Result<(), ConnectionError> {
        match Performative::read(body)? {
            Performative::Open { .. } => Err(ConnectionError::Protocol("a second open")),
            Performative::Begin { remote_channel: Some(_), .. } => {
                Err(ConnectionError::Protocol("an answer to no begin"))
            }
            Performative::Begin { next_outgoing_id, incoming_window, .. } => {
                self.begin(channel, next_outgoing_id, incoming_window)
            }
            Performative::End => self.end(channel),
            Performative::Close => {
                self.write_close(None);
                self.events.push_back(ConnectionEvent::Closed);
                self.state = ConnectionState::Closed;
                Ok(())
            }
            Performative::Attach(attach) => self.attach(channel, &attach),
            Performative::Detach { handle } => self.detach(LinkId { channel, handle }),
            Performative::Flow(flow) => self.flow(channel, flow),
            Performative::Transfer(transfer) => {
                let payload = body.slice_ref(transfer.payload);
                self.transfer(channel, &transfer, &payload)
            }
            Performative::Disposition { role, first, last, settled, outcome } => {
                // A sender's disposition brings no news: we settled its deliveries when they came.
                let of_ours = role == LinkRole::Receiver;
                if of_ours { self.disposition(channel, first, last, settled, outcome) } else { Ok(()) }
            }
        }
    }

    fn session(&mut self, channel: u16) -> Result<&mut Session<T>, ConnectionError> {
        self.sessions.get_mut(&channel).ok_or(ConnectionError::Protocol("a frame of a session that was not begun"))
    }

    fn begin(&mut self, channel: u16, next_incoming_id: u32, remote_window: u32) -> Result<(), ConnectionError> {
        if usize::from(channel) >= MAX_SESSIONS || self.sessions.contains_key(&channel) {
            return Err(ConnectionError::Protocol("too many sessions, or one begun twice"));
        }
        self.sessions.insert(
            channel,
            Session {
                links: BTreeMap::new(),
                next_incoming_id,
                incoming_window: INCOMING_WINDOW,
                next_outgoing_id: 0,
                remote_incoming_window: remote_window,
                next_delivery: 0,
                unsettled: BTreeMap::new(),
                blocked: None,
                pending_disposition: None,
            },
        );
        frame::write(self.output.tail(), Layer::Amqp, channel, |out| {
            out.described_list(0x11, |fields| {
                fields.ushort(channel);
                fields.uint(0); // next-outgoing-id
                fields.uint(INCOMING_WINDOW);
                fields.uint(u32::MAX >> 1); // outgoing-window
                fields.uint(MAX_LINKS as u32 - 1); // handle-max
            });
        });
        Ok(())
    }

    fn end(&mut self, channel: u16) -> Result<(), ConnectionError> {
        self.write_dispositions();
        let session = self.sessions.remove(&channel).ok_or(ConnectionError::Protocol("an end of no session"))?;
        self.events.extend(session.into_detached(channel));
        frame::write(self.output.tail(), Layer::Amqp, channel, |out| out.described_list(0x17, |_| {}));
        Ok(())
    }

    fn attach(&mut self, channel: u16, attach: &Attach<'_>) -> Result<(), ConnectionError> {
        let max_message_bytes = self.max_message_bytes;
        let session = self.session(channel)?;
        let taken = session.links.contains_key(&attach.handle)
            || session.links.values().any(|link| link.name == attach.name && link.peer == attach.role);
        if taken || attach.handle >= MAX_LINKS as u32 || attach.name.len() > MAX_LINK_NAME_BYTES {
            return Err(ConnectionError::Protocol("too many links, or one attached twice"));
        }
        let terminus = match attach.role {
            LinkRole::Receiver => attach.source,
            LinkRole::Sender => attach.target,
        };
        let address = frame::address(terminus).map(str::to_owned);
        session.links.insert(
            attach.handle,
            LinkState {
                peer: attach.role,
                credit: 0,
                delivery_count: if attach.role == LinkRole::Sender { attach.initial_delivery_count } else { 0 },
                draining: false,
                presettled: attach.role == LinkRole::Receiver && attach.sender_settle_mode == 1,
                name: attach.name.to_owned(),
                incomplete: None,
                accepted: false,
            },
        );
        write_attach(self.output.tail(), channel, attach, max_message_bytes, address.is_some());
        let link = LinkId { channel, handle: attach.handle };
        match address {
            Some(address) => self.events.push_back(ConnectionEvent::Attached { link, peer: attach.role, address }),
            None => self.refuse(
                link,
                "amqp:not-found",
                "an address is required: dynamic nodes and coordinators are not supported",
            ),
        }
        Ok(())
    }

    /// Answers an attach: the link stands.
    pub(super) fn accept(&mut self, id: LinkId) {
        if let Some(link) = self.link(id) {
            link.accepted = true;
        }
    }

    /// Answers an attach, or ends a link: detaches it, and gives the peer the reason.
    pub(super) fn refuse(&mut self, id: LinkId, condition: &str, why: &str) {
        let Some(session) = self.sessions.get_mut(&id.channel) else { return };
        if let Some(link) = session.links.get_mut(&id.handle) {
            link.accepted = false;
            link.credit = 0;
            link.incomplete = None;
            write_detach(self.output.tail(), id, Some((condition, why)));
        }
    }

    fn detach(&mut self, id: LinkId) -> Result<(), ConnectionError> {
        self.write_dispositions();
        let session = self.session(id.channel)?;
        let Some(link) = session.links.remove(&id.handle) else {
            return Err(ConnectionError::Protocol("a detach of no link"));
        };
        if session.blocked.as_ref().is_some_and(|held| held.handle == id.handle) {
            // The rest of a message for which no link waits.
            session.blocked = None;
        }
        let unsettled = session.take_unsettled(id.handle);
        if link.accepted {
            write_detach(self.output.tail(), id, None);
        }
        self.events.push_back(ConnectionEvent::Detached { link: id, unsettled });
        Ok(())
    }

    fn flow(&mut self, channel: u16, flow: Flow) -> Result<(), ConnectionError> {
        let session = self.session(channel)?;
        // A peer that has not yet received our begin counts from our first transfer (AMQP 1.0 §2.5.6).
        let seen = flow.next_incoming_id.unwrap_or(0);
        session.remote_incoming_window = remaining_credit(flow.incoming_window, seen, session.next_outgoing_id);
        if let Some(handle) = flow.handle {
            // A flow may cross a detach of ours.
            if let Some(link) = session.links.get_mut(&handle).filter(|link| link.peer == LinkRole::Receiver) {
                let seen = flow.delivery_count.unwrap_or(0);
                link.credit = remaining_credit(flow.link_credit.unwrap_or(0), seen, link.delivery_count);
                link.draining = flow.drain;
            }
        }
        if flow.echo {
            self.write_flow(channel, flow.handle);
        }
        self.resume_blocked(channel);
        self.events.push_back(ConnectionEvent::CreditChanged);
        Ok(())
    }

    fn transfer(&mut self, channel: u16, transfer: &Transfer<'_>, payload: &Bytes) -> Result<(), ConnectionError> {
        let max_message_bytes = self.max_message_bytes;
        let session = self.session(channel)?;
        if session.incoming_window == 0 {
            return Err(ConnectionError::Protocol("a transfer beyond the session's window"));
        }
        session.incoming_window -= 1;
        session.next_incoming_id = session.next_incoming_id.wrapping_add(1);
        let low = session.incoming_window < INCOMING_WINDOW / 2;
        let link = session.links.get_mut(&transfer.handle).filter(|link| link.peer == LinkRole::Sender);
        let Some(link) = link else { return Err(ConnectionError::Protocol("a transfer over no link")) };
        let id = LinkId { channel, handle: transfer.handle };
        // What still comes over a link that was refused is dropped; its sender has it unsettled.
        if link.accepted {
            match link.add_transfer(transfer, payload, max_message_bytes)? {
                TransferResult::Incomplete if self.incomplete_bytes() > max_message_bytes.saturating_mul(2) => {
                    self.refuse(id, "amqp:resource-limit-exceeded", "too many bytes of incomplete messages");
                }
                TransferResult::Incomplete => {}
                TransferResult::TooLong => {
                    let why = "the message is longer than max-message-size";
                    self.refuse(id, "amqp:link:message-size-exceeded", why);
                }
                TransferResult::Message { delivery, settled, message } => {
                    self.events.push_back(ConnectionEvent::MessageReceived { link: id, delivery, message, settled });
                }
            }
        }
        if low {
            self.session(channel)?.incoming_window = INCOMING_WINDOW;
            self.write_flow(channel, None);
        }
        Ok(())
    }

    fn disposition(
        &mut self,
        channel: u16,
        first: u32,
        last: u32,
        settled: bool,
        outcome: Option<DeliveryOutcome>,
    ) -> Result<(), ConnectionError> {
        // Settled without a state: the receiver forgets the message without confirming that it has it.
        let Some(outcome) = outcome.or(settled.then_some(DeliveryOutcome::Released)) else { return Ok(()) };
        let session = self.sessions.get_mut(&channel);
        let session = session.ok_or(ConnectionError::Protocol("a frame of a session that was not begun"))?;
        let from = session.number_of(first).max(0);
        let to = session.number_of(last);
        let mut any = false;
        while from <= to
            && let Some((&number, _)) = session.unsettled.range(from..=to).next()
        {
            let sent = session.unsettled.remove(&number).expect("it was just seen");
            self.events.push_back(ConnectionEvent::Settled { sent: sent.token, outcome });
            any = true;
        }
        if !settled && any {
            frame::write_disposition(self.output.tail(), channel, LinkRole::Sender, (first, last), outcome);
        }
        Ok(())
    }

    /// Bytes of messages that are not complete.
    pub(super) fn incomplete_bytes(&self) -> u64 {
        let links = self.sessions.values().flat_map(|session| session.links.values());
        links.filter_map(|link| link.incomplete.as_ref()).map(|(_, _, message)| message.bytes() as u64).sum()
    }

    fn link(&mut self, id: LinkId) -> Option<&mut LinkState> {
        self.sessions.get_mut(&id.channel)?.links.get_mut(&id.handle)
    }

    /// Messages that the peer may still send over a link.
    pub(super) fn credit(&mut self, id: LinkId) -> u32 {
        self.link(id).map_or(0, |link| link.credit)
    }

    /// Grants the peer credit for this many messages.
    pub(super) fn grant(&mut self, id: LinkId, credit: u32) {
        if let Some(link) = self.link(id).filter(|link| link.accepted) {
            link.credit = credit;
            self.write_flow(id.channel, Some(id.handle));
        }
    }

    /// Settles a message that came. The next write reports it, in one disposition with others.
    pub(super) fn settle(&mut self, id: LinkId, delivery: u32, outcome: DeliveryOutcome) {
        let Some(session) = self.sessions.get_mut(&id.channel) else { return };
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

    /// Writes the dispositions of what was settled since the last time. To be called before the output is written.
    pub(super) fn write_dispositions(&mut self) {
        for (channel, session) in &mut self.sessions {
            if let Some((first, last, outcome)) = session.pending_disposition.take() {
                frame::write_disposition(self.output.tail(), *channel, LinkRole::Receiver, (first, last), outcome);
            }
        }
    }

    /// Reports whether a message may go over a link now.
    pub(super) fn may_send(&self, id: LinkId) -> bool {
        self.sessions.get(&id.channel).is_some_and(|session| {
            let ready = session.blocked.is_none() && session.remote_incoming_window > 0;
            let link = session.links.get(&id.handle).filter(|link| link.accepted && link.peer == LinkRole::Receiver);
            ready && link.is_some_and(|link| link.credit > 0)
        })
    }

    /// Sends a message over a link on which `may_send` is true; `what` comes back with the settlement, or with the
    /// end of the link. If the peer wants messages settled, it comes back at once.
    pub(super) fn send(&mut self, id: LinkId, message: EncodedMessage, token: T) {
        let session = self.sessions.get_mut(&id.channel).expect("may_send found it");
        let link = session.links.get_mut(&id.handle).expect("may_send found it");
        link.credit -= 1;
        link.delivery_count = link.delivery_count.wrapping_add(1);
        let settled = link.presettled;
        let number = session.next_delivery;
        session.next_delivery += 1;
        if settled {
            self.events.push_back(ConnectionEvent::Settled { sent: token, outcome: DeliveryOutcome::Accepted });
        } else {
            session.unsettled.insert(number, UnsettledDelivery { handle: id.handle, token });
        }
        let head = Some((number as u32, settled));
        session.write_transfers((&mut self.output, self.peer_max_frame_size), id, head, message);
    }

    fn resume_blocked(&mut self, channel: u16) {
        let Some(session) = self.sessions.get_mut(&channel) else { return };
        if let Some(BlockedTransfer { handle, rest }) = session.blocked.take() {
            let id = LinkId { channel, handle };
            session.write_transfers((&mut self.output, self.peer_max_frame_size), id, None, rest);
        }
    }

    /// Gives back the credit of links that drain, after everything that there was has been sent over them.
    pub(super) fn complete_drain(&mut self, id: LinkId) {
        if let Some(link) = self.link(id).filter(|link| link.draining) {
            link.delivery_count = link.delivery_count.wrapping_add(link.credit);
            link.credit = 0;
            link.draining = false;
            self.write_flow(id.channel, Some(id.handle));
        }
    }

    fn write_flow(&mut self, channel: u16, handle: Option<u32>) {
        let Some(session) = self.sessions.get(&channel) else { return };
        let link = handle.and_then(|handle| session.links.get(&handle));
        frame::write(self.output.tail(), Layer::Amqp, channel, |out| {
            out.described_list(0x13, |fields| {
                fields.uint(session.next_incoming_id);
                fields.uint(session.incoming_window);
                fields.uint(session.next_outgoing_id);
                fields.uint(u32::MAX >> 1);
                if let (Some(handle), Some(link)) = (handle, link) {
                    fields.uint(handle);
                    fields.uint(link.delivery_count);
                    fields.uint(link.credit);
                }
            });
        });
    }

    /// Ends the connection from our side.
    pub(super) fn write_close(&mut self, error: Option<(&str, &str)>) {
        self.write_dispositions();
        if matches!(self.state, ConnectionState::Opened | ConnectionState::ExpectOpen) {
            if self.state == ConnectionState::ExpectOpen {
                let container = &self.container;
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

    /// All that was sent and not settled, when the connection is no more.
    pub(super) fn into_unsettled(self) -> Vec<T> {
        let settled = self.events.into_iter().filter_map(|event| match event {
            ConnectionEvent::Detached { unsettled, .. } => Some(unsettled),
            _ => None,
        });
        let sessions = self.sessions.into_values().flat_map(|session| session.unsettled);
        let in_sessions: Vec<T> = sessions.map(|(_, sent)| sent.token).collect();
        settled.flatten().chain(in_sessions).collect()
    }
}

/// Credit that is left of a grant: the peer had seen `seen` messages when it granted, and `sent` have been sent now.
/// A peer that takes its credit back while messages are on their way to it has granted less than zero.
fn remaining_credit(granted: u32, seen: u32, sent: u32) -> u32 {
    granted.saturating_sub(sent.wrapping_sub(seen))
}

/// Result of a transfer for its message.
enum TransferResult {
    Incomplete,
    TooLong,
    Message { delivery: u32, settled: bool, message: EncodedMessage },
}

impl LinkState {
    /// Puts the pieces of a message together.
    fn add_transfer(
        &mut self,
        transfer: &Transfer<'_>,
        payload: &Bytes,
        most: u64,
    ) -> Result<TransferResult, ConnectionError> {
        let (delivery, settled, mut message) = match self.incomplete.take() {
            Some(begun) => begun,
            None => {
                if self.credit == 0 {
                    return Err(ConnectionError::Protocol("a transfer beyond the link's credit"));
                }
                self.credit -= 1;
                self.delivery_count = self.delivery_count.wrapping_add(1);
                let delivery =
                    transfer.delivery_id.ok_or(ConnectionError::Protocol("a transfer without delivery-id"))?;
                (delivery, false, EncodedMessage::default())
            }
        };
        if transfer.aborted {
            return Ok(TransferResult::Incomplete);
        }
        let settled = settled || transfer.settled.unwrap_or(false);
        message.append(payload);
        if message.bytes() as u64 > most {
            return Ok(TransferResult::TooLong);
        }
        if transfer.more {
            self.incomplete = Some((delivery, settled, message));
            return Ok(TransferResult::Incomplete);
        }
        Ok(TransferResult::Message { delivery, settled, message })
    }
}

impl<T> Session<T> {
    /// The delivery that a peer names by the lower half of its number: the nearest to the next one.
    fn number_of(&self, id: u32) -> i64 {
        self.next_delivery + i64::from(id.wrapping_sub(self.next_delivery as u32) as i32)
    }

    /// Takes what was sent over a link and not settled, in order.
    fn take_unsettled(&mut self, handle: u32) -> Vec<T> {
        let all = std::mem::take(&mut self.unsettled).into_iter();
        let (back, others): (Vec<_>, Vec<_>) = all.partition(|(_, sent)| sent.handle == handle);
        self.unsettled = others.into_iter().collect();
        back.into_iter().map(|(_, sent)| sent.token).collect()
    }

    fn into_detached(mut self, channel: u16) -> Vec<ConnectionEvent<T>> {
        let handles: Vec<u32> = self.links.keys().copied().collect();
        let detached = handles.into_iter().map(|handle| {
            let unsettled = self.take_unsettled(handle);
            ConnectionEvent::Detached { link: LinkId { channel, handle }, unsettled }
        });
        detached.collect()
    }

    /// Writes the frames of a message that the window allows and holds back the others. `head` is what the first frame
    /// says of the delivery: its number, and whether it is settled.
    fn write_transfers(
        &mut self,
        (out, most): (&mut OutputBuffer, u32),
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
            self.remote_incoming_window -= 1;
            self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
            let room = most as usize - HEADER_BYTES - MAX_TRANSFER_BYTES;
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

/// No transfer performative of ours is longer.
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

/// Answers an attach: source and target as the peer wishes them, or none, which announces a detach (AMQP 1.0 §2.6.3).
fn write_attach(out: &mut Vec<u8>, channel: u16, attach: &Attach<'_>, max_message_bytes: u64, found: bool) {
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
                match terminus.filter(|_| found) {
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

fn write_detach(out: &mut Vec<u8>, id: LinkId, error: Option<(&str, &str)>) {
    frame::write(out, Layer::Amqp, id.channel, |out| {
        out.described_list(0x16, |fields| {
            fields.uint(id.handle);
            fields.boolean(true); // closed
            frame::write_error(fields, error);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::codec::Reader;
    use super::super::sasl::PlainCredentials;
    use super::*;
    use proptest::prelude::*;

    type TestConnection = ServerConnection<u32>;

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
        ServerConnection::new(ListenerAuth::Any, "server", 1000)
    }

    /// Feeds all of it, and grants 10 messages to each link that wants to send.
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
        let said = connection.output.remaining();
        connection.output.advance(said);
        connection
    }

    /// The descriptors of the frames that it writes, with their payloads' lengths.
    fn written_frames(connection: &mut TestConnection) -> Vec<(u64, usize)> {
        connection.write_dispositions();
        let length = connection.output.remaining();
        let mut octets = BytesMut::from(&connection.output.copy_to_bytes(length)[..]);
        let mut said = Vec::new();
        while let Some(frame) = frame::decode(&mut octets, 1 << 20).unwrap() {
            let mut reader = Reader::new(&frame.body);
            said.push((reader.value().unwrap().descriptor().unwrap(), reader.rest().len()));
        }
        assert!(octets.is_empty());
        said
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
        // Frames of 512 octets: three of them, and the window is two.
        connection.send(LINK, EncodedMessage::from(vec![7; 1000]), 42);
        let first = written_frames(&mut connection);
        assert_eq!(first.len(), 2);
        assert!(!connection.may_send(LINK), "the rest of the message is held");
        feed(&mut connection, &flow(100, 1, 5)).unwrap();
        let rest = written_frames(&mut connection);
        assert_eq!(first.iter().chain(&rest).map(|(_, length)| length).sum::<usize>(), 1000);
        let events = feed(&mut connection, &settled(0, 0, DeliveryOutcome::Accepted)).unwrap();
        assert_eq!(events, [ConnectionEvent::Settled { sent: 42, outcome: DeliveryOutcome::Accepted }]);
    }

    #[test]
    fn what_is_not_settled_comes_back_with_the_link_the_session_or_the_connection() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        let modified = DeliveryOutcome::Modified { failed: true };
        let events = feed(&mut connection, &settled(1, 1, modified)).unwrap();
        assert_eq!(events, [ConnectionEvent::Settled { sent: 1, outcome: modified }]);
        assert!(feed(&mut connection, &settled(1, u32::MAX / 2, DeliveryOutcome::Accepted)).is_ok(), "a range may lie");
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        let detach = frame_of(0, |out| out.described_list(0x16, |fields| fields.uint(1)));
        let events = feed(&mut connection, &detach).unwrap();
        assert_eq!(events, [ConnectionEvent::Detached { link: LINK, unsettled: vec![0, 1, 2] }]);
        assert_eq!(written_frames(&mut connection).last(), Some(&(0x16, 0)), "the detach is answered");
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        connection.send(LINK, EncodedMessage::from(vec![1]), 7);
        assert_eq!(connection.into_unsettled(), [7]);
    }

    #[test]
    fn credit_that_is_taken_back_while_messages_are_on_their_way_is_none() {
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| connection.send(LINK, EncodedMessage::from(vec![1]), number));
        // The peer has seen none of the three, and wants no more than one.
        feed(&mut connection, &flow(100, 1, 1)).unwrap();
        assert!(!connection.may_send(LINK));
        assert_eq!(connection.credit(LINK), 0);
        feed(&mut connection, &flow(100, 1, u32::MAX)).unwrap();
        assert_eq!(connection.credit(LINK), u32::MAX - 3);
        // The window: three frames are beyond it.
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
                assert_eq!(events, [ConnectionEvent::Settled { sent: number, outcome: DeliveryOutcome::Accepted }]);
            }
            written_frames(&mut connection);
        }
        assert_eq!(connection.sessions[&0].unsettled.len(), 1);
        // Ranges that lie: upside down, ahead of what was sent, and all the world.
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
        let heard = feed(&mut connection, &settled(u32::MAX, 0, DeliveryOutcome::Accepted)).unwrap();
        assert_eq!(heard, [1, 2].map(|sent| ConnectionEvent::Settled { sent, outcome: DeliveryOutcome::Accepted }));
        assert_eq!(connection.into_unsettled(), [0, 3]);
    }

    #[test]
    fn messages_that_never_end_are_bounded_all_together() {
        let mut connection = opened(&[]);
        for handle in 0..10 {
            feed(&mut connection, &attach(handle, LinkRole::Sender, "q")).unwrap();
        }
        written_frames(&mut connection);
        for handle in 0..10 {
            // One byte per frame is the most expensive case: only the bytes are kept, not the frames.
            let frames: Vec<u8> = (0..900).flat_map(|_| transfer(handle, handle, true, b"x")).collect();
            feed(&mut connection, &frames).unwrap();
        }
        assert!(connection.incomplete_bytes() <= 2000, "{}", connection.incomplete_bytes());
        let refused = written_frames(&mut connection).iter().filter(|(what, _)| *what == 0x16).count();
        assert_eq!(refused, 8, "two links have all that there may be");
        let pieces = |link: &LinkState| link.incomplete.as_ref().map_or(0, |(_, _, message)| message.pieces().len());
        assert!(connection.sessions[&0].links.values().all(|link| pieces(link) <= 1));
    }

    #[test]
    fn draining_gives_the_credit_back() {
        let drain = frame_of(0, |out| {
            out.described_list(0x13, |fields| {
                [0, 100, 0, 100, 1, 0, 5].iter().for_each(|number| fields.uint(*number));
                fields.null();
                fields.boolean(true);
            });
        });
        let mut connection = opened(&[attach(1, LinkRole::Receiver, "q"), drain]);
        connection.complete_drain(LINK);
        assert_eq!(written_frames(&mut connection), [(0x13, 0)]);
        assert!(!connection.may_send(LINK));
    }

    #[test]
    fn who_misbehaves_is_told_and_dropped() {
        let sender = attach(1, LinkRole::Sender, "q");
        let many = (0..11).map(|number| transfer(1, number, false, b"x")).collect::<Vec<_>>().concat();
        for (what, octets) in [
            ("another protocol", b"GET / HTTP/1.1\r\n".to_vec()),
            ("a header of another version", b"AMQP\x00\x00\x09\x01".to_vec()),
            ("no open first", [AMQP_HEADER.to_vec(), begin(5)].concat()),
            ("two opens", [open(), open()[8..].to_vec()].concat()),
            ("a session twice", [open(), begin(5), begin(5)].concat()),
            ("a link without a session", [open(), sender.clone()].concat()),
            ("a link twice", [open(), begin(5), sender.clone(), sender.clone()].concat()),
            ("a transfer over no link", [open(), begin(5), transfer(1, 0, false, b"x")].concat()),
            (
                "a transfer to a receiver",
                [open(), begin(5), attach(1, LinkRole::Receiver, "q"), transfer(1, 0, false, b"x")].concat(),
            ),
            ("more than the credit", [open(), begin(5), sender.clone(), many].concat()),
            ("a frame of SASL", [open(), vec![0, 0, 0, 8, 2, 1, 0, 0]].concat()),
            ("octets that are no performative", [open(), vec![0, 0, 0, 10, 2, 0, 0, 0, 0xff, 0xff]].concat()),
        ] {
            assert!(feed(&mut new_connection(), &octets).is_err(), "{what}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_ends_its_link_only() {
        let mut connection = opened(&[attach(1, LinkRole::Sender, "q")]);
        let long = (0..4).map(|_| transfer(1, 0, true, &[0; 400])).collect::<Vec<_>>().concat();
        assert_eq!(feed(&mut connection, &long).unwrap(), []);
        assert_eq!(written_frames(&mut connection), [(0x16, 0)]);
        assert!(connection.is_open());
    }

    #[test]
    fn a_link_to_nowhere_is_answered_and_detached() {
        let mut connection = opened(&[]);
        assert_eq!(feed(&mut connection, &attach(1, LinkRole::Sender, "")).unwrap(), []);
        assert_eq!(written_frames(&mut connection), [(0x12, 0), (0x16, 0)]);
    }

    #[test]
    fn nobody_comes_in_without_the_password() {
        let login = PlainCredentials { user: "u".to_owned(), password: crate::url::Password::new("p") };
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
        let with = || TestConnection::new(ListenerAuth::Plain(login.clone()), "server", 1000);
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
            let mut heard = Vec::new();
            let mut rest = &octets[..];
            for cut in cuts.iter().cycle() {
                let (piece, left) = rest.split_at(rest.len().min(*cut));
                input.extend_from_slice(piece);
                while let Some(event) = connection.next_event(&mut input).unwrap() {
                    if let ConnectionEvent::Attached { link, .. } = &event {
                        connection.accept(*link);
                        connection.grant(*link, 10);
                    }
                    heard.push(event);
                }
                rest = left;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(heard, whole);
        }

        #[test]
        fn no_octets_are_too_much(octets in proptest::collection::vec(any::<u8>(), 0..300), keep in 0usize..200) {
            // A good beginning, cut somewhere, and anything behind it.
            let good = [open(), begin(1000), attach(1, LinkRole::Sender, "q"), attach(2, LinkRole::Receiver, "q"), flow(9, 2, 9)].concat();
            let mut all = good[..keep.min(good.len())].to_vec();
            all.extend(octets);
            let mut connection = new_connection();
            let _ = feed(&mut connection, &all);
            prop_assert!(connection.output().remaining() < 10_000);
        }
    }
}
