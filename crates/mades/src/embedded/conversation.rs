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
use super::frame::{self, AMQP_HEADER, Attach, Flow, HEAD, Layer, Outcome, Performative, Role, SASL_HEADER, Transfer};
use super::octets::{Malformed, Writer};
use super::rope::{Message, Rope};
use super::sasl::{Mechanisms, Verdict};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;

/// Limit of a frame that we accept. A message of 1 MB then comes in a few frames.
const LARGEST_FRAME: u32 = 256 << 10;
/// Limit of a frame that we send, even if the peer would accept a larger one: other links get their turn between
/// frames. A message of 1 MiB goes in one frame: a fe2o3-amqp at the other end reads every byte of one that comes in
/// several.
const LARGEST_SENT: u32 = (1 << 20) + (64 << 10);
/// Interval in which we want to hear something, in milliseconds. A peer that is silent for twice as long counts as
/// gone (AMQP 1.0 §2.4.5).
pub(super) const IDLE_MS: u32 = 30_000;
/// Frames that a session may have on the way to us.
const INCOMING_WINDOW: u32 = 4096;
/// Sessions of a connection, and links of a session.
const MOST_SESSIONS: usize = 64;
const MOST_LINKS: usize = 64;
/// The longest name of a link.
const LONGEST_NAME: usize = 1024;

/// A link: the session's number and the link's in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkId {
    channel: u16,
    handle: u32,
}

/// An event on a connection. `T` is the type of what the caller sends.
#[derive(Debug, PartialEq)]
pub(super) enum Event<T> {
    /// A peer asks for a link. The answer is `accept` or `refuse`.
    Attached { link: LinkId, peer: Role, address: String },
    /// A message came. Unless it was sent settled, it is answered by `settle`.
    Arrived { link: LinkId, delivery: u32, message: Message, settled: bool },
    /// A message that was sent is settled.
    Settled { sent: T, outcome: Outcome },
    /// A link has credit, or a session has room, again.
    Flowed,
    /// A link is no more; what was sent over it and not settled comes back.
    Detached { link: LinkId, unsettled: Vec<T> },
    /// The peer closed the connection, and was answered.
    Closed,
}

/// Reason why a connection cannot go on. The peer reads it in a close, if the connection is open already.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Fault {
    #[error("not AMQP 1.0: the connection begins with {0:02x?}")]
    Header([u8; 8]),
    #[error("the peer does not authenticate itself")]
    Unauthenticated,
    #[error("user or password is wrong")]
    Refused,
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Protocol(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ExpectHeader { authenticated: bool },
    ExpectSaslInit,
    ExpectOpen,
    Opened,
    Closed,
}

#[derive(Debug)]
struct Link {
    peer: Role,
    /// Messages that may still go over the link: to us or from us.
    credit: u32,
    delivery_count: u32,
    /// Set by drain: all available messages are to be sent, and the rest of the credit given back.
    draining: bool,
    /// Messages are sent settled.
    presettled: bool,
    name: String,
    /// Pieces of a message that is not complete, and its number.
    incomplete: Option<(u32, bool, Message)>,
    answered: bool,
}

#[derive(Debug)]
struct Sent<T> {
    handle: u32,
    what: T,
}

/// A message whose other frames wait for the session's window.
#[derive(Debug)]
struct Held {
    handle: u32,
    rest: Message,
}

#[derive(Debug)]
struct Session<T> {
    /// Links in the order of their handles: when a session ends, its links end in that order. There are few.
    links: BTreeMap<u32, Link>,
    next_incoming_id: u32,
    incoming_window: u32,
    next_outgoing_id: u32,
    remote_window: u32,
    /// The next delivery's number; the peer sees its lower half.
    next_delivery: i64,
    /// Unsettled deliveries by number. A settled one is dropped, even if earlier ones are still unsettled.
    unsettled: BTreeMap<i64, Sent<T>>,
    held: Option<Held>,
    /// Deliveries with the same outcome that are not reported yet: the first, the last, the outcome.
    unsaid: Option<(u32, u32, Outcome)>,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Conversation<T> {
    phase: Phase,
    mechanisms: Mechanisms,
    container: String,
    most_bytes: u64,
    /// The largest frame that the peer takes.
    frame_bytes: u32,
    idle_ms: Option<u32>,
    sessions: BTreeMap<u16, Session<T>>,
    out: Rope,
    events: VecDeque<Event<T>>,
}

impl<T> Conversation<T> {
    /// A conversation with a peer that authenticates itself by `mechanisms`; messages of more than `most_bytes` end
    /// their link.
    pub(super) fn new(mechanisms: Mechanisms, container: &str, most_bytes: u64) -> Self {
        Self {
            phase: Phase::ExpectHeader { authenticated: false },
            mechanisms,
            container: container.to_owned(),
            most_bytes,
            frame_bytes: 512,
            idle_ms: None,
            sessions: BTreeMap::new(),
            out: Rope::default(),
            events: VecDeque::new(),
        }
    }

    /// Output buffer.
    pub(super) fn out(&mut self) -> &mut Rope {
        &mut self.out
    }

    /// Reports whether links can be attached.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Opened
    }

    /// Reports whether the peer has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Interval in which the peer wants to hear something, in milliseconds.
    pub(super) fn heartbeat_ms(&self) -> Option<u32> {
        self.idle_ms
    }

    /// Sends a heartbeat.
    pub(super) fn beat(&mut self) {
        if self.is_open() {
            frame::write(self.out.tail(), Layer::Amqp, 0, |_| {});
        }
    }

    /// The next event in what was read; none: more must be read.
    pub(super) fn next_event(&mut self, input: &mut BytesMut) -> Result<Option<Event<T>>, Fault> {
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
    fn step(&mut self, input: &mut BytesMut) -> Result<bool, Fault> {
        match self.phase {
            Phase::Closed => Ok(false),
            Phase::ExpectHeader { authenticated } => self.read_header(input, authenticated),
            _ => {
                let Some(frame) = frame::cut(input, LARGEST_FRAME as usize)? else { return Ok(false) };
                self.read_frame(&frame)?;
                Ok(true)
            }
        }
    }

    fn read_header(&mut self, input: &mut BytesMut, authenticated: bool) -> Result<bool, Fault> {
        let Some(&header) = input.first_chunk::<8>() else { return Ok(false) };
        input.advance(8);
        match header {
            SASL_HEADER if !authenticated => {
                self.out.tail().extend_from_slice(&SASL_HEADER);
                self.mechanisms.write_offer(self.out.tail());
                self.phase = Phase::ExpectSaslInit;
            }
            AMQP_HEADER if authenticated || self.mechanisms.are_optional() => {
                self.out.tail().extend_from_slice(&AMQP_HEADER);
                self.phase = Phase::ExpectOpen;
            }
            // A peer that skips SASL where it is required gets the header that we accept (AMQP 1.0 §2.2).
            AMQP_HEADER => {
                self.out.tail().extend_from_slice(&SASL_HEADER);
                return Err(Fault::Unauthenticated);
            }
            _ => {
                self.out.tail().extend_from_slice(&SASL_HEADER);
                return Err(Fault::Header(header));
            }
        }
        Ok(true)
    }

    fn read_frame(&mut self, frame: &frame::Frame) -> Result<(), Fault> {
        match (self.phase, frame.layer) {
            (Phase::ExpectSaslInit, Layer::Sasl) => self.read_sasl(&frame.body),
            (Phase::ExpectOpen | Phase::Opened, Layer::Amqp) if frame.body.is_empty() => Ok(()),
            (Phase::ExpectOpen, Layer::Amqp) => self.read_open(&frame.body),
            (Phase::Opened, Layer::Amqp) => self.read_performative(frame.channel, &frame.body),
            _ => Err(Fault::Protocol("a frame of the wrong layer")),
        }
    }

    fn read_sasl(&mut self, body: &[u8]) -> Result<(), Fault> {
        let verdict = self.mechanisms.judge(body)?;
        verdict.write(self.out.tail());
        match verdict {
            Verdict::Welcome => {
                self.phase = Phase::ExpectHeader { authenticated: true };
                Ok(())
            }
            Verdict::Refused => Err(Fault::Refused),
        }
    }

    fn read_open(&mut self, body: &[u8]) -> Result<(), Fault> {
        let Performative::Open { max_frame_size, idle_ms } = Performative::read(body)? else {
            return Err(Fault::Protocol("the first frame is no open"));
        };
        self.frame_bytes = max_frame_size.clamp(512, LARGEST_SENT);
        self.idle_ms = idle_ms.filter(|idle| *idle > 0);
        let container = &self.container;
        frame::write(self.out.tail(), Layer::Amqp, 0, |out| {
            out.described_list(0x10, |fields| {
                fields.string(container);
                fields.null(); // hostname
                fields.uint(LARGEST_FRAME);
                fields.ushort(MOST_SESSIONS as u16 - 1); // channel-max
                fields.uint(IDLE_MS);
            });
        });
        self.phase = Phase::Opened;
        Ok(())
    }

    fn read_performative(&mut self, channel: u16, body: &Bytes) -> Result<(), Fault> {
        match Performative::read(body)? {
            Performative::Open { .. } => Err(Fault::Protocol("a second open")),
            Performative::Begin { remote_channel: Some(_), .. } => Err(Fault::Protocol("an answer to no begin")),
            Performative::Begin { next_outgoing_id, incoming_window, .. } => {
                self.begin(channel, next_outgoing_id, incoming_window)
            }
            Performative::End => self.end(channel),
            Performative::Close => {
                self.say_close(None);
                self.events.push_back(Event::Closed);
                self.phase = Phase::Closed;
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
                let of_ours = role == Role::Receiver;
                if of_ours { self.disposition(channel, first, last, settled, outcome) } else { Ok(()) }
            }
        }
    }

    fn session(&mut self, channel: u16) -> Result<&mut Session<T>, Fault> {
        self.sessions.get_mut(&channel).ok_or(Fault::Protocol("a frame of a session that was not begun"))
    }

    fn begin(&mut self, channel: u16, next_incoming_id: u32, remote_window: u32) -> Result<(), Fault> {
        if usize::from(channel) >= MOST_SESSIONS || self.sessions.contains_key(&channel) {
            return Err(Fault::Protocol("too many sessions, or one begun twice"));
        }
        self.sessions.insert(
            channel,
            Session {
                links: BTreeMap::new(),
                next_incoming_id,
                incoming_window: INCOMING_WINDOW,
                next_outgoing_id: 0,
                remote_window,
                next_delivery: 0,
                unsettled: BTreeMap::new(),
                held: None,
                unsaid: None,
            },
        );
        frame::write(self.out.tail(), Layer::Amqp, channel, |out| {
            out.described_list(0x11, |fields| {
                fields.ushort(channel);
                fields.uint(0); // next-outgoing-id
                fields.uint(INCOMING_WINDOW);
                fields.uint(u32::MAX >> 1); // outgoing-window
                fields.uint(MOST_LINKS as u32 - 1); // handle-max
            });
        });
        Ok(())
    }

    fn end(&mut self, channel: u16) -> Result<(), Fault> {
        self.say_settled();
        let session = self.sessions.remove(&channel).ok_or(Fault::Protocol("an end of no session"))?;
        self.events.extend(session.into_detached(channel));
        frame::write(self.out.tail(), Layer::Amqp, channel, |out| out.described_list(0x17, |_| {}));
        Ok(())
    }

    fn attach(&mut self, channel: u16, attach: &Attach<'_>) -> Result<(), Fault> {
        let most_bytes = self.most_bytes;
        let session = self.session(channel)?;
        let taken = session.links.contains_key(&attach.handle)
            || session.links.values().any(|link| link.name == attach.name && link.peer == attach.role);
        if taken || attach.handle >= MOST_LINKS as u32 || attach.name.len() > LONGEST_NAME {
            return Err(Fault::Protocol("too many links, or one attached twice"));
        }
        let terminus = match attach.role {
            Role::Receiver => attach.source,
            Role::Sender => attach.target,
        };
        let address = frame::address(terminus).map(str::to_owned);
        session.links.insert(
            attach.handle,
            Link {
                peer: attach.role,
                credit: 0,
                delivery_count: if attach.role == Role::Sender { attach.initial_delivery_count } else { 0 },
                draining: false,
                presettled: attach.role == Role::Receiver && attach.sender_settles == 1,
                name: attach.name.to_owned(),
                incomplete: None,
                answered: false,
            },
        );
        write_attach(self.out.tail(), channel, attach, most_bytes, address.is_some());
        let link = LinkId { channel, handle: attach.handle };
        match address {
            Some(address) => self.events.push_back(Event::Attached { link, peer: attach.role, address }),
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
            link.answered = true;
        }
    }

    /// Answers an attach, or ends a link: detaches it, and gives the peer the reason.
    pub(super) fn refuse(&mut self, id: LinkId, condition: &str, why: &str) {
        let Some(session) = self.sessions.get_mut(&id.channel) else { return };
        if let Some(link) = session.links.get_mut(&id.handle) {
            link.answered = false;
            link.credit = 0;
            link.incomplete = None;
            write_detach(self.out.tail(), id, Some((condition, why)));
        }
    }

    fn detach(&mut self, id: LinkId) -> Result<(), Fault> {
        self.say_settled();
        let session = self.session(id.channel)?;
        let Some(link) = session.links.remove(&id.handle) else {
            return Err(Fault::Protocol("a detach of no link"));
        };
        if session.held.as_ref().is_some_and(|held| held.handle == id.handle) {
            // The rest of a message for which no link waits.
            session.held = None;
        }
        let unsettled = session.take_back(id.handle);
        if link.answered {
            write_detach(self.out.tail(), id, None);
        }
        self.events.push_back(Event::Detached { link: id, unsettled });
        Ok(())
    }

    fn flow(&mut self, channel: u16, flow: Flow) -> Result<(), Fault> {
        let session = self.session(channel)?;
        // A peer that has not yet received our begin counts from our first transfer (AMQP 1.0 §2.5.6).
        let seen = flow.next_incoming_id.unwrap_or(0);
        session.remote_window = left_of(flow.incoming_window, seen, session.next_outgoing_id);
        if let Some(handle) = flow.handle {
            // A flow may cross a detach of ours.
            if let Some(link) = session.links.get_mut(&handle).filter(|link| link.peer == Role::Receiver) {
                let seen = flow.delivery_count.unwrap_or(0);
                link.credit = left_of(flow.link_credit.unwrap_or(0), seen, link.delivery_count);
                link.draining = flow.drain;
            }
        }
        if flow.echo {
            self.say_flow(channel, flow.handle);
        }
        self.send_held(channel);
        self.events.push_back(Event::Flowed);
        Ok(())
    }

    fn transfer(&mut self, channel: u16, transfer: &Transfer<'_>, payload: &Bytes) -> Result<(), Fault> {
        let most_bytes = self.most_bytes;
        let session = self.session(channel)?;
        if session.incoming_window == 0 {
            return Err(Fault::Protocol("a transfer beyond the session's window"));
        }
        session.incoming_window -= 1;
        session.next_incoming_id = session.next_incoming_id.wrapping_add(1);
        let low = session.incoming_window < INCOMING_WINDOW / 2;
        let link = session.links.get_mut(&transfer.handle).filter(|link| link.peer == Role::Sender);
        let Some(link) = link else { return Err(Fault::Protocol("a transfer over no link")) };
        let id = LinkId { channel, handle: transfer.handle };
        // What still comes over a link that was refused is dropped; its sender has it unsettled.
        if link.answered {
            match link.gather(transfer, payload, most_bytes)? {
                Gathered::Nothing if self.incomplete_bytes() > most_bytes.saturating_mul(2) => {
                    self.refuse(id, "amqp:resource-limit-exceeded", "too many bytes of incomplete messages");
                }
                Gathered::Nothing => {}
                Gathered::TooLong => {
                    let why = "the message is longer than max-message-size";
                    self.refuse(id, "amqp:link:message-size-exceeded", why);
                }
                Gathered::Message { delivery, settled, message } => {
                    self.events.push_back(Event::Arrived { link: id, delivery, message, settled });
                }
            }
        }
        if low {
            self.session(channel)?.incoming_window = INCOMING_WINDOW;
            self.say_flow(channel, None);
        }
        Ok(())
    }

    fn disposition(
        &mut self,
        channel: u16,
        first: u32,
        last: u32,
        settled: bool,
        outcome: Option<Outcome>,
    ) -> Result<(), Fault> {
        // Settled without a state: the receiver forgets the message without confirming that it has it.
        let Some(outcome) = outcome.or(settled.then_some(Outcome::Released)) else { return Ok(()) };
        let session = self.sessions.get_mut(&channel);
        let session = session.ok_or(Fault::Protocol("a frame of a session that was not begun"))?;
        let (from, to) = (session.number_of(first).max(0), session.number_of(last));
        let mut any = false;
        while from <= to
            && let Some((&number, _)) = session.unsettled.range(from..=to).next()
        {
            let sent = session.unsettled.remove(&number).expect("it was just seen");
            self.events.push_back(Event::Settled { sent: sent.what, outcome });
            any = true;
        }
        if !settled && any {
            frame::write_disposition(self.out.tail(), channel, Role::Sender, (first, last), outcome);
        }
        Ok(())
    }

    /// Bytes of messages that are not complete.
    pub(super) fn incomplete_bytes(&self) -> u64 {
        let links = self.sessions.values().flat_map(|session| session.links.values());
        links.filter_map(|link| link.incomplete.as_ref()).map(|(_, _, message)| message.bytes() as u64).sum()
    }

    fn link(&mut self, id: LinkId) -> Option<&mut Link> {
        self.sessions.get_mut(&id.channel)?.links.get_mut(&id.handle)
    }

    /// Messages that the peer may still send over a link.
    pub(super) fn credit(&mut self, id: LinkId) -> u32 {
        self.link(id).map_or(0, |link| link.credit)
    }

    /// Grants the peer credit for this many messages.
    pub(super) fn grant(&mut self, id: LinkId, credit: u32) {
        if let Some(link) = self.link(id).filter(|link| link.answered) {
            link.credit = credit;
            self.say_flow(id.channel, Some(id.handle));
        }
    }

    /// Settles a message that came. The next write reports it, in one disposition with others.
    pub(super) fn settle(&mut self, id: LinkId, delivery: u32, outcome: Outcome) {
        let Some(session) = self.sessions.get_mut(&id.channel) else { return };
        match &mut session.unsaid {
            Some((_, last, same)) if *same == outcome && last.wrapping_add(1) == delivery => *last = delivery,
            unsaid => {
                if let Some((first, last, outcome)) = unsaid.replace((delivery, delivery, outcome)) {
                    frame::write_disposition(self.out.tail(), id.channel, Role::Receiver, (first, last), outcome);
                }
            }
        }
    }

    /// Writes the dispositions of what was settled since the last time. To be called before the output is written.
    pub(super) fn say_settled(&mut self) {
        for (channel, session) in &mut self.sessions {
            if let Some((first, last, outcome)) = session.unsaid.take() {
                frame::write_disposition(self.out.tail(), *channel, Role::Receiver, (first, last), outcome);
            }
        }
    }

    /// Reports whether a message may go over a link now.
    pub(super) fn may_send(&self, id: LinkId) -> bool {
        self.sessions.get(&id.channel).is_some_and(|session| {
            let ready = session.held.is_none() && session.remote_window > 0;
            let link = session.links.get(&id.handle).filter(|link| link.answered && link.peer == Role::Receiver);
            ready && link.is_some_and(|link| link.credit > 0)
        })
    }

    /// Sends a message over a link on which `may_send` is true; `what` comes back with the settlement, or with the
    /// end of the link. If the peer wants messages settled, it comes back at once.
    pub(super) fn send(&mut self, id: LinkId, message: Message, what: T) {
        let session = self.sessions.get_mut(&id.channel).expect("may_send found it");
        let link = session.links.get_mut(&id.handle).expect("may_send found it");
        link.credit -= 1;
        link.delivery_count = link.delivery_count.wrapping_add(1);
        let settled = link.presettled;
        let number = session.next_delivery;
        session.next_delivery += 1;
        if settled {
            self.events.push_back(Event::Settled { sent: what, outcome: Outcome::Accepted });
        } else {
            session.unsettled.insert(number, Sent { handle: id.handle, what });
        }
        let head = Some((number as u32, settled));
        session.write_transfers((&mut self.out, self.frame_bytes), id, head, message);
    }

    fn send_held(&mut self, channel: u16) {
        let Some(session) = self.sessions.get_mut(&channel) else { return };
        if let Some(Held { handle, rest }) = session.held.take() {
            let id = LinkId { channel, handle };
            session.write_transfers((&mut self.out, self.frame_bytes), id, None, rest);
        }
    }

    /// Gives back the credit of links that drain, after everything that there was has been sent over them.
    pub(super) fn drained(&mut self, id: LinkId) {
        if let Some(link) = self.link(id).filter(|link| link.draining) {
            link.delivery_count = link.delivery_count.wrapping_add(link.credit);
            link.credit = 0;
            link.draining = false;
            self.say_flow(id.channel, Some(id.handle));
        }
    }

    fn say_flow(&mut self, channel: u16, handle: Option<u32>) {
        let Some(session) = self.sessions.get(&channel) else { return };
        let link = handle.and_then(|handle| session.links.get(&handle));
        frame::write(self.out.tail(), Layer::Amqp, channel, |out| {
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
    pub(super) fn say_close(&mut self, error: Option<(&str, &str)>) {
        self.say_settled();
        if matches!(self.phase, Phase::Opened | Phase::ExpectOpen) {
            if self.phase == Phase::ExpectOpen {
                let container = &self.container;
                frame::write(self.out.tail(), Layer::Amqp, 0, |out| {
                    out.described_list(0x10, |fields| fields.string(container));
                });
            }
            frame::write(self.out.tail(), Layer::Amqp, 0, |out| {
                out.described_list(0x18, |fields| frame::write_error(fields, error));
            });
        }
        self.phase = Phase::Closed;
    }

    /// All that was sent and not settled, when the connection is no more.
    pub(super) fn into_unsettled(self) -> Vec<T> {
        let settled = self.events.into_iter().filter_map(|event| match event {
            Event::Detached { unsettled, .. } => Some(unsettled),
            _ => None,
        });
        let sessions = self.sessions.into_values().flat_map(|session| session.unsettled);
        let in_sessions: Vec<T> = sessions.map(|(_, sent)| sent.what).collect();
        settled.flatten().chain(in_sessions).collect()
    }
}

/// Credit that is left of a grant: the peer had seen `seen` messages when it granted, and `sent` have been sent now.
/// A peer that takes its credit back while messages are on their way to it has granted less than zero.
fn left_of(granted: u32, seen: u32, sent: u32) -> u32 {
    granted.saturating_sub(sent.wrapping_sub(seen))
}

/// Result of a transfer for its message.
enum Gathered {
    Nothing,
    TooLong,
    Message { delivery: u32, settled: bool, message: Message },
}

impl Link {
    /// Puts the pieces of a message together.
    fn gather(&mut self, transfer: &Transfer<'_>, payload: &Bytes, most: u64) -> Result<Gathered, Fault> {
        let (delivery, settled, mut message) = match self.incomplete.take() {
            Some(begun) => begun,
            None => {
                if self.credit == 0 {
                    return Err(Fault::Protocol("a transfer beyond the link's credit"));
                }
                self.credit -= 1;
                self.delivery_count = self.delivery_count.wrapping_add(1);
                let delivery = transfer.delivery_id.ok_or(Fault::Protocol("a transfer without delivery-id"))?;
                (delivery, false, Message::default())
            }
        };
        if transfer.aborted {
            return Ok(Gathered::Nothing);
        }
        let settled = settled || transfer.settled.unwrap_or(false);
        message.append(payload);
        if message.bytes() as u64 > most {
            return Ok(Gathered::TooLong);
        }
        if transfer.more {
            self.incomplete = Some((delivery, settled, message));
            return Ok(Gathered::Nothing);
        }
        Ok(Gathered::Message { delivery, settled, message })
    }
}

impl<T> Session<T> {
    /// The delivery that a peer names by the lower half of its number: the nearest to the next one.
    fn number_of(&self, id: u32) -> i64 {
        self.next_delivery + i64::from(id.wrapping_sub(self.next_delivery as u32) as i32)
    }

    /// Takes what was sent over a link and not settled, in order.
    fn take_back(&mut self, handle: u32) -> Vec<T> {
        let all = std::mem::take(&mut self.unsettled).into_iter();
        let (back, others): (Vec<_>, Vec<_>) = all.partition(|(_, sent)| sent.handle == handle);
        self.unsettled = others.into_iter().collect();
        back.into_iter().map(|(_, sent)| sent.what).collect()
    }

    fn into_detached(mut self, channel: u16) -> Vec<Event<T>> {
        let handles: Vec<u32> = self.links.keys().copied().collect();
        let detached = handles.into_iter().map(|handle| {
            let unsettled = self.take_back(handle);
            Event::Detached { link: LinkId { channel, handle }, unsettled }
        });
        detached.collect()
    }

    /// Writes a message's frames as far as the window goes; the rest is held. `head`: number and settled, in the first.
    fn write_transfers(
        &mut self,
        (out, most): (&mut Rope, u32),
        id: LinkId,
        head: Option<(u32, bool)>,
        mut rest: Message,
    ) {
        let mut head = head;
        loop {
            if self.remote_window == 0 {
                self.held = Some(Held { handle: id.handle, rest });
                return;
            }
            self.remote_window -= 1;
            self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
            let room = most as usize - HEAD - TRANSFER_ROOM;
            let part = if rest.bytes() > room { rest.cut(room) } else { std::mem::take(&mut rest) };
            let more = rest.bytes() > 0;
            let start = frame::open(out.tail(), Layer::Amqp, id.channel);
            write_transfer(&mut Writer::new(out.tail()), id.handle, head.take(), more);
            frame::close(out.tail(), start, part.bytes());
            out.push(part);
            if !more {
                return;
            }
        }
    }
}

/// No transfer performative of ours is longer.
const TRANSFER_ROOM: usize = 64;

fn write_transfer(out: &mut Writer<'_>, handle: u32, head: Option<(u32, bool)>, more: bool) {
    out.described_list(0x14, |fields| {
        fields.uint(handle);
        match head {
            Some((delivery, settled)) => {
                fields.uint(delivery);
                fields.binary(&delivery.to_be_bytes());
                fields.uint(0); // message-format
                fields.truth(settled);
            }
            None => (0..4).for_each(|_| fields.null()),
        }
        fields.truth(more);
    });
}

/// Answers an attach: source and target as the peer wishes them, or none, which announces a detach (AMQP 1.0 §2.6.3).
fn write_attach(out: &mut Vec<u8>, channel: u16, attach: &Attach<'_>, most_bytes: u64, found: bool) {
    let ours = match attach.role {
        Role::Sender => Role::Receiver,
        Role::Receiver => Role::Sender,
    };
    frame::write(out, Layer::Amqp, channel, |out| {
        out.described_list(0x12, |fields| {
            fields.string(attach.name);
            fields.uint(attach.handle);
            fields.truth(ours == Role::Receiver);
            fields.ubyte(attach.sender_settles.min(2));
            fields.ubyte(0); // rcv-settle-mode: first
            for terminus in [attach.source, attach.target] {
                match terminus.filter(|_| found) {
                    Some(terminus) => fields.copied(terminus.octets()),
                    None => fields.null(),
                }
            }
            fields.null(); // unsettled
            fields.null(); // incomplete-unsettled
            match ours {
                Role::Sender => fields.uint(0), // initial-delivery-count
                Role::Receiver => fields.null(),
            }
            fields.ulong(most_bytes);
        });
    });
}

fn write_detach(out: &mut Vec<u8>, id: LinkId, error: Option<(&str, &str)>) {
    frame::write(out, Layer::Amqp, id.channel, |out| {
        out.described_list(0x16, |fields| {
            fields.uint(id.handle);
            fields.truth(true); // closed
            frame::write_error(fields, error);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::octets::Reader;
    use super::super::sasl::Login;
    use super::*;
    use proptest::prelude::*;

    type Talk = Conversation<u32>;

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

    fn attach(handle: u32, role: Role, address: &str) -> Vec<u8> {
        frame_of(0, |out| {
            out.described_list(0x12, |fields| {
                fields.string(&format!("link {handle}"));
                fields.uint(handle);
                fields.truth(role == Role::Receiver);
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
        let start = frame::open(&mut octets, Layer::Amqp, 0);
        write_transfer(&mut Writer::new(&mut octets), handle, Some((delivery, false)), more);
        octets.extend_from_slice(payload);
        frame::close(&mut octets, start, 0);
        octets
    }

    fn settled(first: u32, last: u32, outcome: Outcome) -> Vec<u8> {
        let mut octets = Vec::new();
        frame::write_disposition(&mut octets, 0, Role::Receiver, (first, last), outcome);
        octets
    }

    fn talk() -> Talk {
        Conversation::new(Mechanisms::Anybody, "server", 1000)
    }

    /// Feeds all of it, and grants 10 messages to each link that wants to send.
    fn hear(talk: &mut Talk, octets: &[u8]) -> Result<Vec<Event<u32>>, Fault> {
        let (mut input, mut events) = (BytesMut::from(octets), Vec::new());
        while let Some(event) = talk.next_event(&mut input)? {
            if let Event::Attached { link, peer, .. } = &event {
                talk.accept(*link);
                if *peer == Role::Sender {
                    talk.grant(*link, 10);
                }
            }
            events.push(event);
        }
        Ok(events)
    }

    fn opened(then: &[Vec<u8>]) -> Talk {
        let mut talk = talk();
        hear(&mut talk, &[open(), begin(1000), then.concat()].concat()).unwrap();
        let said = talk.out.remaining();
        talk.out.advance(said);
        talk
    }

    /// The descriptors of the frames that it writes, with their payloads' lengths.
    fn said(talk: &mut Talk) -> Vec<(u64, usize)> {
        talk.say_settled();
        let length = talk.out.remaining();
        let mut octets = BytesMut::from(&talk.out.copy_to_bytes(length)[..]);
        let mut said = Vec::new();
        while let Some(frame) = frame::cut(&mut octets, 1 << 20).unwrap() {
            let mut reader = Reader::new(&frame.body);
            said.push((reader.value().unwrap().descriptor().unwrap(), reader.rest().len()));
        }
        assert!(octets.is_empty());
        said
    }

    const LINK: LinkId = LinkId { channel: 0, handle: 1 };

    #[test]
    fn a_message_comes_in_pieces_and_is_settled_with_others_in_one_breath() {
        let mut talk = opened(&[attach(1, Role::Sender, "q")]);
        let octets = [transfer(1, 0, true, b"ab"), transfer(1, 0, false, b"cd"), transfer(1, 1, false, b"ef")].concat();
        let events = hear(&mut talk, &octets).unwrap();
        let arrived = |delivery, text: &[u8]| {
            let message = Message::from(Bytes::copy_from_slice(text));
            Event::Arrived { link: LINK, delivery, message, settled: false }
        };
        assert_eq!(events, [arrived(0, b"abcd"), arrived(1, b"ef")]);
        assert_eq!(talk.credit(LINK), 8);
        talk.settle(LINK, 0, Outcome::Accepted);
        talk.settle(LINK, 1, Outcome::Accepted);
        assert_eq!(said(&mut talk), [(0x15, 0)]);
    }

    #[test]
    fn nothing_is_sent_beyond_credit_and_window_and_what_was_held_goes_on() {
        let mut talk = opened(&[attach(1, Role::Receiver, "q")]);
        assert!(!talk.may_send(LINK), "no credit");
        hear(&mut talk, &flow(2, 1, 5)).unwrap();
        assert!(talk.may_send(LINK));
        // Frames of 512 octets: three of them, and the window is two.
        talk.send(LINK, Message::from(vec![7; 1000]), 42);
        let first = said(&mut talk);
        assert_eq!(first.len(), 2);
        assert!(!talk.may_send(LINK), "the rest of the message is held");
        hear(&mut talk, &flow(100, 1, 5)).unwrap();
        let rest = said(&mut talk);
        assert_eq!(first.iter().chain(&rest).map(|(_, length)| length).sum::<usize>(), 1000);
        let events = hear(&mut talk, &settled(0, 0, Outcome::Accepted)).unwrap();
        assert_eq!(events, [Event::Settled { sent: 42, outcome: Outcome::Accepted }]);
    }

    #[test]
    fn what_is_not_settled_comes_back_with_the_link_the_session_or_the_connection() {
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| talk.send(LINK, Message::from(vec![1]), number));
        let modified = Outcome::Modified { failed: true };
        let events = hear(&mut talk, &settled(1, 1, modified)).unwrap();
        assert_eq!(events, [Event::Settled { sent: 1, outcome: modified }]);
        assert!(hear(&mut talk, &settled(1, u32::MAX / 2, Outcome::Accepted)).is_ok(), "a range may lie");
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| talk.send(LINK, Message::from(vec![1]), number));
        let detach = frame_of(0, |out| out.described_list(0x16, |fields| fields.uint(1)));
        let events = hear(&mut talk, &detach).unwrap();
        assert_eq!(events, [Event::Detached { link: LINK, unsettled: vec![0, 1, 2] }]);
        assert_eq!(said(&mut talk).last(), Some(&(0x16, 0)), "the detach is answered");
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), flow(100, 1, 5)]);
        talk.send(LINK, Message::from(vec![1]), 7);
        assert_eq!(talk.into_unsettled(), [7]);
    }

    #[test]
    fn credit_that_is_taken_back_while_messages_are_on_their_way_is_none() {
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), flow(100, 1, 5)]);
        (0..3).for_each(|number| talk.send(LINK, Message::from(vec![1]), number));
        // The peer has seen none of the three, and wants no more than one.
        hear(&mut talk, &flow(100, 1, 1)).unwrap();
        assert!(!talk.may_send(LINK));
        assert_eq!(talk.credit(LINK), 0);
        hear(&mut talk, &flow(100, 1, u32::MAX)).unwrap();
        assert_eq!(talk.credit(LINK), u32::MAX - 3);
        // The window: three frames are beyond it.
        hear(&mut talk, &flow(2, 1, 10)).unwrap();
        assert!(!talk.may_send(LINK));
    }

    #[test]
    fn one_that_is_never_settled_costs_no_more_for_those_behind_it() {
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), flow(u32::MAX, 1, u32::MAX)]);
        for number in 0..10_000 {
            talk.send(LINK, Message::from(vec![1]), number);
            if number > 0 {
                let events = hear(&mut talk, &settled(number, number, Outcome::Accepted)).unwrap();
                assert_eq!(events, [Event::Settled { sent: number, outcome: Outcome::Accepted }]);
            }
            said(&mut talk);
        }
        assert_eq!(talk.sessions[&0].unsettled.len(), 1);
        // Ranges that lie: upside down, ahead of what was sent, and all the world.
        for (first, last) in [(5, 0), (10_000, 10_005), (u32::MAX, u32::MAX - 1)] {
            assert_eq!(hear(&mut talk, &settled(first, last, Outcome::Accepted)).unwrap(), [], "{first}..{last}");
        }
        assert_eq!(hear(&mut talk, &settled(u32::MAX - 7, 70_000, Outcome::Accepted)).unwrap().len(), 1);
    }

    #[test]
    fn numbers_go_on_after_the_last_of_32_bits() {
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), flow(u32::MAX, 1, u32::MAX)]);
        talk.sessions.get_mut(&0).unwrap().next_delivery = i64::from(u32::MAX) - 1;
        (0..4).for_each(|number| talk.send(LINK, Message::from(vec![1]), number));
        let heard = hear(&mut talk, &settled(u32::MAX, 0, Outcome::Accepted)).unwrap();
        assert_eq!(heard, [1, 2].map(|sent| Event::Settled { sent, outcome: Outcome::Accepted }));
        assert_eq!(talk.into_unsettled(), [0, 3]);
    }

    #[test]
    fn messages_that_never_end_are_bounded_all_together() {
        let mut talk = opened(&[]);
        for handle in 0..10 {
            hear(&mut talk, &attach(handle, Role::Sender, "q")).unwrap();
        }
        said(&mut talk);
        for handle in 0..10 {
            // One byte per frame is the most expensive case: only the bytes are kept, not the frames.
            let frames: Vec<u8> = (0..900).flat_map(|_| transfer(handle, handle, true, b"x")).collect();
            hear(&mut talk, &frames).unwrap();
        }
        assert!(talk.incomplete_bytes() <= 2000, "{}", talk.incomplete_bytes());
        let refused = said(&mut talk).iter().filter(|(what, _)| *what == 0x16).count();
        assert_eq!(refused, 8, "two links have all that there may be");
        let pieces = |link: &Link| link.incomplete.as_ref().map_or(0, |(_, _, message)| message.pieces().len());
        assert!(talk.sessions[&0].links.values().all(|link| pieces(link) <= 1));
    }

    #[test]
    fn draining_gives_the_credit_back() {
        let drain = frame_of(0, |out| {
            out.described_list(0x13, |fields| {
                [0, 100, 0, 100, 1, 0, 5].iter().for_each(|number| fields.uint(*number));
                fields.null();
                fields.truth(true);
            });
        });
        let mut talk = opened(&[attach(1, Role::Receiver, "q"), drain]);
        talk.drained(LINK);
        assert_eq!(said(&mut talk), [(0x13, 0)]);
        assert!(!talk.may_send(LINK));
    }

    #[test]
    fn who_misbehaves_is_told_and_dropped() {
        let sender = attach(1, Role::Sender, "q");
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
                [open(), begin(5), attach(1, Role::Receiver, "q"), transfer(1, 0, false, b"x")].concat(),
            ),
            ("more than the credit", [open(), begin(5), sender.clone(), many].concat()),
            ("a frame of SASL", [open(), vec![0, 0, 0, 8, 2, 1, 0, 0]].concat()),
            ("octets that are no performative", [open(), vec![0, 0, 0, 10, 2, 0, 0, 0, 0xff, 0xff]].concat()),
        ] {
            assert!(hear(&mut talk(), &octets).is_err(), "{what}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_ends_its_link_only() {
        let mut talk = opened(&[attach(1, Role::Sender, "q")]);
        let long = (0..4).map(|_| transfer(1, 0, true, &[0; 400])).collect::<Vec<_>>().concat();
        assert_eq!(hear(&mut talk, &long).unwrap(), []);
        assert_eq!(said(&mut talk), [(0x16, 0)]);
        assert!(talk.is_open());
    }

    #[test]
    fn a_link_to_nowhere_is_answered_and_detached() {
        let mut talk = opened(&[]);
        assert_eq!(hear(&mut talk, &attach(1, Role::Sender, "")).unwrap(), []);
        assert_eq!(said(&mut talk), [(0x12, 0), (0x16, 0)]);
    }

    #[test]
    fn nobody_comes_in_without_the_password() {
        let login = Login { user: "u".to_owned(), password: crate::url::Secret::new("p") };
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
        let with = || Talk::new(Mechanisms::Plain(login.clone()), "server", 1000);
        assert_eq!(hear(&mut with(), &open()), Err(Fault::Unauthenticated));
        assert_eq!(hear(&mut with(), &init(b"\0u\0x")), Err(Fault::Refused));
        let mut talk = with();
        hear(&mut talk, &[init(b"\0u\0p"), open()].concat()).unwrap();
        assert!(talk.is_open());
    }

    proptest! {
        #[test]
        fn however_it_is_cut_it_is_heard_alike(cuts in proptest::collection::vec(1usize..40, 1..200)) {
            let octets = [
                open(), begin(1000), attach(1, Role::Sender, "q"), transfer(1, 0, true, b"ab"),
                transfer(1, 0, false, b"cd"), frame_of(0, |out| out.described_list(0x18, |_| {})),
            ].concat();
            let whole = hear(&mut talk(), &octets).unwrap();
            let (mut talk, mut input, mut heard, mut rest) = (talk(), BytesMut::new(), Vec::new(), &octets[..]);
            for cut in cuts.iter().cycle() {
                let (piece, left) = rest.split_at(rest.len().min(*cut));
                input.extend_from_slice(piece);
                while let Some(event) = talk.next_event(&mut input).unwrap() {
                    if let Event::Attached { link, .. } = &event {
                        talk.accept(*link);
                        talk.grant(*link, 10);
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
            let good = [open(), begin(1000), attach(1, Role::Sender, "q"), attach(2, Role::Receiver, "q"), flow(9, 2, 9)].concat();
            let mut all = good[..keep.min(good.len())].to_vec();
            all.extend(octets);
            let mut talk = talk();
            let _ = hear(&mut talk, &all);
            prop_assert!(talk.out().remaining() < 10_000);
        }
    }
}
