//! The client's side of a connection, which logs in, begins sessions and attaches links.
use super::{
    AmqpConnection, ConnectionError, ConnectionEvent, ConnectionRole, ConnectionState, FrameError, LinkId, LinkState,
    MAX_LINK_NAME_BYTES, MAX_LINKS, MAX_SESSIONS, MIN_MAX_FRAME_SIZE, Session, SessionId, Violation, write_end,
};
use crate::codec::Writer;
use crate::frame::{self, AMQP_HEADER, Attach, Layer, LinkRole, SASL_HEADER};
use crate::sasl_client::{ClientLogin, LoginError, SaslClient};
use thiserror::Error;

/// Options of a client's connection. Most of them are announced to the server in the open frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Container-id, by which the server knows this client (AMQP 1.0 §2.7.1). A broker may assume that a second
    /// connection with the same container-id replaces the first.
    pub container: String,
    /// Name of the host that we want to talk to, so that a server with several virtual hosts can choose one (AMQP 1.0
    /// §2.7.1).
    pub hostname: Option<String>,
    /// Maximum size of a frame that we accept, in bytes. A smaller value than 512 counts as 512, the minimum of the
    /// protocol.
    pub max_frame_size: u32,
    /// Interval within which the peer must send a frame, even an empty one, in milliseconds.
    pub idle_timeout_ms: u32,
    /// Maximum size in bytes of a message on a server's links. A client sets the limit of each link in the
    /// `LinkRequest`. On a server and on a client, all incomplete messages together may take twice this size.
    pub max_message_bytes: u64,
}

/// A link that a client asks the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRequest<'a> {
    /// Name of the link, which must be unique among this container's links in the same direction.
    pub name: &'a str,
    /// Tells whether this client sends or receives messages on the link.
    pub role: LinkRole,
    /// Address of the node at the server, for example the name of a queue.
    pub address: &'a str,
    /// Capabilities that we request of the node, such as `queue` or `durable`.
    pub capabilities: &'a [&'a str],
    /// Set if each message is settled when it is sent, so that the receiver reports no outcome for it.
    pub settled: bool,
    /// Maximum size in bytes of a message that we accept, if we are the receiver.
    pub max_message_bytes: u64,
}

/// Reason why `begin_session` fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionRefused {
    /// The connection is not open yet, or no longer open.
    #[error("the connection is not open")]
    NotOpen,
    /// The peer allows no more than this number of sessions (channel-max in its open).
    #[error("the peer allows no more than {0} sessions on one connection")]
    PeerLimit(usize),
    /// The connection already has this number of sessions, the maximum that this crate supports.
    #[error("no more than {0} sessions on one connection are supported")]
    OwnLimit(usize),
}

impl<T> AmqpConnection<T> {
    /// Creates a connection to a server, and puts its first bytes into the output.
    pub fn client(login: ClientLogin, options: ConnectionOptions) -> Self {
        let hostname = options.hostname.as_deref().unwrap_or_default();
        let role = ConnectionRole::Client(Box::new(SaslClient::new(login, hostname)));
        let max_frame_size = options.max_frame_size.max(MIN_MAX_FRAME_SIZE);
        let mut connection = Self::new(role, ConnectionOptions { max_frame_size, ..options });
        connection.output.tail().extend_from_slice(&SASL_HEADER);
        connection
    }

    pub(super) fn read_server_header(&mut self, header: [u8; 8], authenticated: bool) -> Result<(), ConnectionError> {
        self.state = match (header, authenticated) {
            (SASL_HEADER, false) => ConnectionState::ExpectSasl,
            (AMQP_HEADER, true) => ConnectionState::ExpectOpen,
            // Some servers accept any login at first, and then reject a user without rights by asking for SASL again.
            // So treat a second SASL header as a rejected login.
            (SASL_HEADER, true) => return Err(LoginError::Rejected.into()),
            (AMQP_HEADER, false) => return Err(LoginError::NoSasl.into()),
            _ => return Err(ConnectionError::Header(header)),
        };
        Ok(())
    }

    pub(super) fn write_client_open(&mut self) {
        self.output.tail().extend_from_slice(&AMQP_HEADER);
        self.write_open();
        self.state = ConnectionState::ExpectHeader { authenticated: true };
    }

    /// Begins a session, to which links can be attached even before the peer has answered.
    ///
    /// # Errors
    /// Fails if the connection is not open, or if it has as many sessions as both sides allow.
    pub fn begin_session(&mut self) -> Result<SessionId, SessionRefused> {
        if !self.is_open() {
            return Err(SessionRefused::NotOpen);
        }
        let peer_limit = usize::from(self.peer_channel_max) + 1;
        let mut channels = 0..peer_limit.min(MAX_SESSIONS) as u16;
        let is_free = |channel: &u16| !self.sessions.contains_key(channel) && !self.ended.contains(channel);
        let channel = channels.find(is_free).ok_or({
            if peer_limit < MAX_SESSIONS {
                SessionRefused::PeerLimit(peer_limit)
            } else {
                SessionRefused::OwnLimit(MAX_SESSIONS)
            }
        })?;
        self.sessions.insert(channel, Session::new(None));
        self.write_begin(channel, None);
        Ok(SessionId(channel))
    }

    /// Reads the peer's begin frame, which answers ours. `rest` contains the next-outgoing-id and the incoming-window
    /// that the peer announces.
    pub(super) fn read_begin(&mut self, remote: u16, ours: u16, rest: (u32, u32)) -> Result<(), Violation> {
        if self.sessions.values().any(|session| session.remote_channel == Some(remote)) {
            return Err(Violation::not_allowed("a session that has begun already"));
        }
        let session = self.sessions.get_mut(&ours).filter(|session| session.remote_channel.is_none());
        let session = session.ok_or(Violation::not_allowed("an answer to no begin"))?;
        session.remote_channel = Some(remote);
        session.next_incoming_id = rest.0;
        session.remote_incoming_window = rest.1;
        Ok(())
    }

    /// Asks for a link, which is later reported as `Attached` or `Detached`. Returns `None` if the session has ended,
    /// has no room for another link, or already has a link with this name and role. Also returns `None` if the name is
    /// too long.
    pub fn attach_link(&mut self, session: SessionId, request: &LinkRequest<'_>) -> Option<LinkId> {
        let peer = match request.role {
            LinkRole::Sender => LinkRole::Receiver,
            LinkRole::Receiver => LinkRole::Sender,
        };
        let is_open = self.is_open();
        let links = &mut self.sessions.get_mut(&session.0).filter(|session| is_open && !session.end_sent)?.links;
        if request.name.len() > MAX_LINK_NAME_BYTES
            || links.values().any(|link| link.name == request.name && link.peer == peer)
        {
            return None;
        }
        let handle = (0..MAX_LINKS as u32).find(|handle| !links.contains_key(handle))?;
        let link = LinkState::new(peer, request.name, request.max_message_bytes);
        links.insert(handle, LinkState { presettled: request.settled && peer == LinkRole::Receiver, ..link });
        write_request(self.output.tail(), session.0, handle, request);
        Some(LinkId { channel: session.0, handle })
    }

    /// Reads the peer's attach that answers ours. An answer without a node announces a detach (AMQP 1.0 §2.6.3).
    pub(super) fn read_attach(&mut self, channel: u16, attach: &Attach<'_>) -> Result<(), FrameError> {
        let Some(session) = self.sessions.get_mut(&channel) else { return Ok(()) };
        if session.links.values().any(|link| link.remote_handle == Some(attach.handle)) {
            let in_use = Violation::new("amqp:session:handle-in-use", "an attach with the handle of another link");
            return Err(FrameError::Session(channel, in_use));
        }
        let is_answered =
            |link: &LinkState| link.name == attach.name && link.peer == attach.role && link.remote_handle.is_none();
        let entry = session.links.iter_mut().find(|(_, link)| is_answered(link));
        let no_attach = FrameError::Session(channel, Violation::not_allowed("an answer to no attach"));
        let (handle, link) = entry.ok_or(no_attach)?;
        link.remote_handle = Some(attach.handle);
        let node = match attach.role {
            LinkRole::Receiver => attach.target,
            LinkRole::Sender => attach.source,
        };
        if node.is_none() || link.detach_sent.is_some() {
            return Ok(());
        }
        link.accepted = true;
        match attach.role {
            LinkRole::Receiver => link.presettled |= attach.sender_settle_mode == 1,
            LinkRole::Sender => link.delivery_count = attach.initial_delivery_count,
        }
        let link = LinkId { channel, handle: *handle };
        let address = frame::address(node).unwrap_or_default().to_owned();
        let max_message_bytes = attach.max_message_bytes;
        self.events.push_back(ConnectionEvent::Attached { link, peer: attach.role, address, max_message_bytes });
        Ok(())
    }

    /// Detaches a link, which is reported as `Detached` when the peer has answered. Messages that still arrive over the
    /// link are dropped.
    pub fn detach_link(&mut self, id: LinkId) {
        self.write_dispositions();
        self.send_detach(id, None);
    }

    /// Ends a session. When the peer has answered, `Detached` is reported for each link, and then `Ended`. The caller
    /// must also call this after the peer or an error has ended the session, so that its number can be used again.
    pub fn end_session(&mut self, id: SessionId) {
        self.write_dispositions();
        self.ended.remove(&id.0);
        if !self.is_open() {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id.0).filter(|session| !session.is_released) else { return };
        session.is_released = true;
        if session.end_sent {
            return;
        }
        session.end_sent = true;
        session.blocked = None;
        session.links.values_mut().for_each(|link| {
            link.accepted = false;
            link.incomplete = None;
        });
        write_end(self.output.tail(), id.0, None);
    }

    /// Closes the connection, which is reported as `Closed` when the peer has answered. If the server's AMQP header has
    /// not arrived yet, the connection ends at once, without an event.
    pub fn close(&mut self, error: Option<(&str, &str)>) {
        let is_answered = self.expects_performatives() && self.state != ConnectionState::CloseSent;
        if is_answered {
            self.write_close(error);
            self.state = ConnectionState::CloseSent;
        } else if self.state != ConnectionState::CloseSent {
            self.state = ConnectionState::Closed;
        }
    }

    /// Asks the peer to send the messages that it has, as far as the link's credit allows, and then to return the
    /// remaining credit. The event `Drained` reports that the peer has done so.
    pub fn drain(&mut self, id: LinkId) {
        if let Some(link) = self.link(id).filter(|link| link.accepted && link.peer == LinkRole::Sender) {
            link.drain_sent = true;
            self.write_flow(id.channel, Some(id.handle));
        }
    }
}

fn write_request(out: &mut Vec<u8>, channel: u16, handle: u32, request: &LinkRequest<'_>) {
    frame::write(out, Layer::Amqp, channel, |out| {
        out.described_list(0x12, |fields| {
            fields.string(request.name);
            fields.uint(handle);
            fields.boolean(request.role == LinkRole::Receiver);
            fields.ubyte(if request.settled { 1 } else { 2 }); // snd-settle-mode: settled or mixed
            fields.ubyte(0); // rcv-settle-mode: first
            match request.role {
                LinkRole::Sender => {
                    fields.described_list(0x28, |source| write_node(source, request.name));
                    fields.described_list(0x29, |target| {
                        write_node(target, request.address);
                        // Fields of an AMQP list are told apart by position, so write nulls for expiry-policy, timeout,
                        // dynamic and dynamic-node-properties.
                        (0..4).for_each(|_| target.null());
                        target.symbols(request.capabilities);
                    });
                }
                LinkRole::Receiver => {
                    fields.described_list(0x28, |source| {
                        write_node(source, request.address);
                        // Fields of an AMQP list are told apart by position, so write nulls for expiry-policy, timeout,
                        // dynamic, dynamic-node-properties, distribution-mode, filter, default-outcome and outcomes.
                        (0..8).for_each(|_| source.null());
                        source.symbols(request.capabilities);
                    });
                    fields.described_list(0x29, |_| {});
                }
            }
            fields.null(); // unsettled
            fields.null(); // incomplete-unsettled
            match request.role {
                LinkRole::Sender => fields.uint(0), // initial-delivery-count
                LinkRole::Receiver => {
                    fields.null();
                    fields.ulong(request.max_message_bytes);
                }
            }
        });
    });
}

/// Writes the first two fields of a source or target: the address, and the durability. The durability is always 2, the
/// code of `unsettled-state`.
fn write_node(terminus: &mut Writer<'_>, address: &str) {
    terminus.string(address);
    terminus.uint(2);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::EncodedMessage;
    use crate::connection::EndError;
    use crate::frame::{DeliveryOutcome, Performative};
    use crate::sasl::{ListenerAuth, Password, PlainCredentials};
    use bytes::{Buf, Bytes, BytesMut};
    use proptest::prelude::*;

    type Events = Vec<ConnectionEvent<u32>>;

    fn options() -> ConnectionOptions {
        ConnectionOptions {
            container: "client".to_owned(),
            hostname: Some("host".to_owned()),
            max_frame_size: 512,
            idle_timeout_ms: 1000,
            max_message_bytes: 100_000,
        }
    }

    fn request<'a>(name: &'a str, role: LinkRole) -> LinkRequest<'a> {
        LinkRequest { name, role, address: "q", capabilities: &["queue"], settled: false, max_message_bytes: 100_000 }
    }

    struct Pair {
        client: AmqpConnection<u32>,
        server: AmqpConnection<u32>,
        to_server: BytesMut,
        to_client: BytesMut,
    }

    impl Pair {
        fn new(login: ClientLogin, mechanisms: ListenerAuth) -> Self {
            Self {
                client: AmqpConnection::client(login, options()),
                server: AmqpConnection::server(mechanisms, "server", 100_000),
                to_server: BytesMut::new(),
                to_client: BytesMut::new(),
            }
        }

        /// Exchanges the output of client and server, at most `step` bytes at a time, until neither writes any more.
        /// Returns the events of the client and of the server. The server accepts each link and grants 10 messages.
        fn run(&mut self, step: usize) -> Result<(Events, Events), ConnectionError> {
            let mut events = Events::new();
            let mut served = Events::new();
            loop {
                let moved = carry(&mut self.client, &mut self.to_server, step)
                    + carry(&mut self.server, &mut self.to_client, step);
                while let Some(event) = self.server.next_event(&mut self.to_server)? {
                    if let ConnectionEvent::Attached { link, peer, .. } = &event {
                        self.server.accept(*link);
                        if *peer == LinkRole::Sender {
                            self.server.grant(*link, 10);
                        }
                    }
                    served.push(event);
                }
                while let Some(event) = self.client.next_event(&mut self.to_client)? {
                    events.push(event);
                }
                if moved == 0 {
                    return Ok((events, served));
                }
            }
        }
    }

    fn carry(from: &mut AmqpConnection<u32>, to: &mut BytesMut, step: usize) -> usize {
        from.write_dispositions();
        let count = from.output().remaining().min(step);
        to.extend_from_slice(&from.output().copy_to_bytes(count));
        count
    }

    fn plain(password: &str) -> ClientLogin {
        ClientLogin::Plain { user: "u".to_owned(), password: Password::new(password) }
    }

    /// Returns a pair with a session, a link over which the client sends, and a link over which it receives.
    fn opened(step: usize) -> (Pair, LinkId, LinkId) {
        let mut pair = Pair::new(ClientLogin::Anonymous, ListenerAuth::Any);
        assert_eq!(pair.run(step).unwrap().0, [ConnectionEvent::Opened]);
        let session = pair.client.begin_session().unwrap();
        let sender = pair.client.attach_link(session, &request("out", LinkRole::Sender)).unwrap();
        let receiver = pair.client.attach_link(session, &request("in", LinkRole::Receiver)).unwrap();
        let (events, served) = pair.run(step).unwrap();
        let attached = |event: &&ConnectionEvent<u32>| matches!(event, ConnectionEvent::Attached { address, .. } if address == "q");
        assert_eq!(events.iter().filter(attached).count(), 2, "{events:?}");
        assert_eq!(served.iter().filter(attached).count(), 2, "{served:?}");
        pair.client.grant(receiver, 5);
        pair.run(step).unwrap();
        (pair, sender, receiver)
    }

    fn exchange(step: usize) -> (Events, Events) {
        let (mut pair, sender, receiver) = opened(step);
        for (number, length) in [10, 3000, 511].into_iter().enumerate() {
            assert!(pair.client.may_send(sender));
            pair.client.send_parts(sender, b"head", Bytes::from(vec![number as u8; length]), number as u32);
        }
        // Use the client's link ID `receiver` for the server as well, because the server adopts the client's numbers.
        pair.server.send(receiver, EncodedMessage::from(vec![9; 1500]), 77);
        let (mut events, mut served) = pair.run(step).unwrap();
        for event in &served {
            if let ConnectionEvent::MessageReceived { link, delivery, .. } = event {
                match delivery {
                    1 => pair.server.reject(*link, *delivery, "test:no", "never"),
                    _ => pair.server.settle(*link, *delivery, DeliveryOutcome::Accepted),
                }
            }
        }
        for event in &events {
            if let ConnectionEvent::MessageReceived { link, delivery, message, settled } = event {
                assert_eq!((*link, message.bytes(), settled), (receiver, 1500, &false));
                pair.client.settle(*link, *delivery, DeliveryOutcome::Released);
            }
        }
        let more = pair.run(step).unwrap();
        events.extend(more.0);
        served.extend(more.1);
        pair.client.drain(receiver);
        pair.run(step).unwrap();
        pair.server.complete_drain(receiver);
        events.extend(pair.run(step).unwrap().0);
        pair.client.detach_link(sender);
        pair.client.end_session(SessionId(0));
        pair.client.close(None);
        let more = pair.run(step).unwrap();
        events.extend(more.0);
        served.extend(more.1);
        assert!(pair.client.is_closed() && pair.server.is_closed());
        (events, served)
    }

    /// Returns the `Settled` events, sorted because their order depends on how many bytes arrive at a time.
    fn outcomes(events: &Events) -> Vec<String> {
        let is_settled = |event: &&ConnectionEvent<u32>| matches!(event, ConnectionEvent::Settled { .. });
        let mut settled: Vec<String> = events.iter().filter(is_settled).map(|event| format!("{event:?}")).collect();
        settled.sort();
        settled
    }

    #[test]
    fn a_client_and_a_server_understand_each_other() {
        let (events, served) = exchange(usize::MAX);
        let lengths: Vec<usize> = served
            .iter()
            .filter_map(|event| match event {
                ConnectionEvent::MessageReceived { message, .. } => Some(message.bytes()),
                _ => None,
            })
            .collect();
        assert_eq!(lengths, [14, 3004, 515]);
        let settled: Vec<(u32, DeliveryOutcome, Option<String>)> = events
            .iter()
            .filter_map(|event| match event {
                ConnectionEvent::Settled { sent, outcome, error } => {
                    Some((*sent, *outcome, error.as_ref().map(ToString::to_string)))
                }
                _ => None,
            })
            .collect();
        assert_eq!(settled.len(), 3, "{events:?}");
        let reason = Some("test:no: never".to_owned());
        assert!(settled.contains(&(1, DeliveryOutcome::Rejected, reason)), "{settled:?}");
        assert!(settled.contains(&(2, DeliveryOutcome::Accepted, None)), "{settled:?}");
        let released = ConnectionEvent::Settled { sent: 77, outcome: DeliveryOutcome::Released, error: None };
        assert!(served.contains(&released), "{served:?}");
        assert!(events.iter().any(|event| matches!(event, ConnectionEvent::Drained { .. })), "{events:?}");
        assert_eq!(events.last(), Some(&ConnectionEvent::Closed { error: None }));
    }

    #[test]
    fn a_login_is_checked_by_both() {
        let server = || ListenerAuth::Plain(PlainCredentials { user: "u".to_owned(), password: Password::new("p") });
        assert_eq!(Pair::new(plain("p"), server()).run(7).unwrap().0, [ConnectionEvent::Opened]);
        assert_eq!(Pair::new(plain("x"), server()).run(7).unwrap_err(), ConnectionError::Refused);
        let error = Pair::new(ClientLogin::Anonymous, server()).run(7).unwrap_err();
        assert_eq!(error, ConnectionError::Login(LoginError::NotOffered));
    }

    /// Returns what our own server writes while a client logs in and attaches a link in each direction.
    fn recorded() -> Vec<u8> {
        let mut pair = Pair::new(ClientLogin::Anonymous, ListenerAuth::Any);
        let mut output = Vec::new();
        let mut turn = |pair: &mut Pair| {
            carry(&mut pair.client, &mut pair.to_server, usize::MAX);
            while let Some(event) = pair.server.next_event(&mut pair.to_server).unwrap() {
                if let ConnectionEvent::Attached { link, .. } = event {
                    pair.server.accept(link);
                }
            }
            let from = pair.to_client.len();
            carry(&mut pair.server, &mut pair.to_client, usize::MAX);
            output.extend_from_slice(&pair.to_client[from..]);
            while pair.client.next_event(&mut pair.to_client).unwrap().is_some() {}
        };
        (0..3).for_each(|_| turn(&mut pair));
        let session = pair.client.begin_session().unwrap();
        pair.client.attach_link(session, &request("out", LinkRole::Sender)).unwrap();
        pair.client.attach_link(session, &request("in", LinkRole::Receiver)).unwrap();
        turn(&mut pair);
        output
    }

    /// Feeds `octets` to a client, at most `cut` bytes at a time. The client begins a session and attaches two links as
    /// soon as it can. Returns the client's events or its error, and the client itself.
    fn hear(octets: &[u8], cut: usize) -> (Result<Events, ConnectionError>, AmqpConnection<u32>) {
        let mut client = AmqpConnection::client(ClientLogin::Anonymous, options());
        let mut input = BytesMut::new();
        let mut events = Events::new();
        for piece in octets.chunks(cut) {
            input.extend_from_slice(piece);
            loop {
                match client.next_event(&mut input) {
                    Ok(None) => break,
                    Err(error) => return (Err(error), client),
                    Ok(Some(event)) => {
                        if event == ConnectionEvent::Opened {
                            let session = client.begin_session().unwrap();
                            client.attach_link(session, &request("out", LinkRole::Sender)).unwrap();
                            client.attach_link(session, &request("in", LinkRole::Receiver)).unwrap();
                        }
                        events.push(event);
                    }
                }
            }
        }
        (Ok(events), client)
    }

    fn performative(channel: u16, write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut octets = Vec::new();
        frame::write(&mut octets, Layer::Amqp, channel, write);
        octets
    }

    fn answer_to_begin(channel: u16, ours: u16) -> Vec<u8> {
        performative(channel, |out| {
            out.described_list(0x11, |fields| {
                fields.ushort(ours);
                (0..3).for_each(|_| fields.uint(100));
            });
        })
    }

    fn answer_to_attach(channel: u16, handle: u32, name: &str, node: Option<&str>) -> Vec<u8> {
        performative(channel, |out| {
            out.described_list(0x12, |fields| {
                fields.string(name);
                fields.uint(handle);
                fields.boolean(true);
                fields.null();
                fields.null();
                fields.null();
                match node {
                    Some(node) => fields.described_list(0x29, |fields| fields.string(node)),
                    None => fields.null(),
                }
            });
        })
    }

    fn ended(descriptor: u8, channel: u16, handle: Option<u32>, condition: &str) -> Vec<u8> {
        performative(channel, |out| {
            out.described_list(descriptor, |fields| {
                if let Some(handle) = handle {
                    fields.uint(handle);
                    fields.boolean(true);
                }
                frame::write_error(fields, Some((condition, "says the test")));
            });
        })
    }

    /// Returns the bytes that our server sends until the connection is open, followed by the frames in `then`.
    fn after_open(then: &[Vec<u8>]) -> Vec<u8> {
        let mut pair = Pair::new(ClientLogin::Anonymous, ListenerAuth::Any);
        let mut output = Vec::new();
        for _ in 0..3 {
            carry(&mut pair.client, &mut pair.to_server, usize::MAX);
            while pair.server.next_event(&mut pair.to_server).unwrap().is_some() {}
            let from = pair.to_client.len();
            carry(&mut pair.server, &mut pair.to_client, usize::MAX);
            output.extend_from_slice(&pair.to_client[from..]);
            while pair.client.next_event(&mut pair.to_client).unwrap().is_some() {}
        }
        output.extend(then.concat());
        output
    }

    #[test]
    fn a_peer_has_numbers_of_its_own() {
        let octets = after_open(&[answer_to_begin(7, 0), answer_to_attach(7, 9, "out", Some("there"))]);
        let (events, client) = hear(&octets, 3);
        let link = LinkId { channel: 0, handle: 0 };
        let events = events.unwrap();
        let expected = ConnectionEvent::Attached {
            link,
            peer: LinkRole::Receiver,
            address: "there".to_owned(),
            max_message_bytes: None,
        };
        assert_eq!(events.last(), Some(&expected));
        assert!(!client.may_send(link), "no credit yet");
        let detached = ended(0x16, 7, Some(9), "amqp:not-found");
        let events = hear(&[octets, detached.clone(), detached].concat(), 1000).0.unwrap();
        let Some(ConnectionEvent::Detached { link: of, error: Some(error), .. }) = events.last() else {
            panic!("{events:?}");
        };
        assert_eq!((*of, error.to_string().as_str()), (link, "amqp:not-found: says the test"));
    }

    #[test]
    fn a_link_that_is_refused_ends_with_the_reason() {
        let refusal = [answer_to_begin(0, 0), answer_to_attach(0, 0, "out", None), ended(0x16, 0, Some(0), "test:no")];
        let events = hear(&after_open(&refusal), 1000).0.unwrap();
        assert!(!events.iter().any(|event| matches!(event, ConnectionEvent::Attached { .. })), "{events:?}");
        assert!(matches!(events.last(), Some(ConnectionEvent::Detached { error: Some(_), .. })), "{events:?}");
    }

    #[test]
    fn a_session_that_the_peer_has_ended_is_not_taken_for_a_later_one() {
        let octets = after_open(&[answer_to_begin(3, 0), ended(0x17, 3, None, "amqp:internal-error")]);
        let (events, mut client) = hear(&octets, 1000);
        assert!(matches!(events.unwrap().last(), Some(ConnectionEvent::Ended { .. })));
        assert_eq!(client.begin_session(), Ok(SessionId(1)));
        let length = client.output().remaining();
        client.end_session(SessionId(0));
        assert_eq!(client.output().remaining(), length, "it has ended already");
        assert_eq!(client.begin_session(), Ok(SessionId(0)));
    }

    #[test]
    fn an_end_and_a_close_say_why() {
        let octets = after_open(&[answer_to_begin(3, 0), ended(0x17, 3, None, "amqp:session:window-violation")]);
        let events = hear(&octets, 1000).0.unwrap();
        assert!(matches!(events.last(), Some(ConnectionEvent::Ended { error: Some(_), .. })), "{events:?}");
        let detached = events.iter().filter(|event| matches!(event, ConnectionEvent::Detached { error: Some(_), .. }));
        assert_eq!(detached.count(), 2, "{events:?}");
        let octets = after_open(&[ended(0x18, 0, None, "amqp:connection:forced")]);
        let (events, client) = hear(&octets, 1000);
        assert!(matches!(events.unwrap().last(), Some(ConnectionEvent::Closed { error: Some(_) })));
        assert!(client.is_closed());
    }

    /// Returns the condition of each error that the client wrote, and whether the error ends a link, a session or the
    /// connection.
    fn written_errors(client: &mut AmqpConnection<u32>) -> Vec<(&'static str, String)> {
        let count = client.output().remaining();
        let mut octets = BytesMut::from(&client.output().copy_to_bytes(count)[..]);
        let mut errors = Vec::new();
        while !octets.is_empty() {
            if octets.starts_with(b"AMQP") {
                octets.advance(8);
                continue;
            }
            let frame = frame::decode(&mut octets, 1 << 20).unwrap().unwrap();
            let Ok(performative) = Performative::read(&frame.body) else { continue };
            let (scope, error) = match performative {
                Performative::Detach { error, .. } => ("link", error),
                Performative::End { error } => ("session", error),
                Performative::Close { error } => ("connection", error),
                _ => continue,
            };
            errors.extend(error.map(|error| (scope, error.condition)));
        }
        errors
    }

    #[test]
    fn an_error_of_a_server_ends_no_more_than_it_must_and_names_its_condition() {
        let begun = answer_to_begin(0, 0);
        let out = answer_to_attach(0, 0, "out", Some("q"));
        let begin_of_its_own = performative(1, |out| {
            out.described_list(0x11, |fields| {
                fields.null();
                (0..3).for_each(|_| fields.uint(1));
            });
        });
        let no_error = performative(0, |out| out.described_list(0x18, |fields| fields.uint(7)));
        let transfer = performative(0, |out| {
            out.described_list(0x14, |fields| (0..2).for_each(|_| fields.uint(0)));
        });
        let flow = performative(0, |out| {
            out.described_list(0x13, |fields| [0, 1, 0, 1, 7].iter().for_each(|number| fields.uint(*number)));
        });
        let handle = "amqp:session:unattached-handle";
        for (what, scope, condition, then) in [
            ("a begin of its own", "connection", "amqp:not-allowed", vec![begin_of_its_own]),
            ("an answer to another begin", "connection", "amqp:not-allowed", vec![answer_to_begin(0, 5)]),
            ("two answers to a begin", "connection", "amqp:not-allowed", vec![begun.clone(), answer_to_begin(1, 0)]),
            ("a number too high", "connection", "amqp:connection:framing-error", vec![answer_to_begin(64, 0)]),
            ("an attach before its begin", "connection", "amqp:not-allowed", vec![out.clone()]),
            ("an answer to no attach", "session", "amqp:not-allowed", {
                vec![begun.clone(), answer_to_attach(0, 0, "other", Some("q"))]
            }),
            ("two answers to an attach", "session", "amqp:session:handle-in-use", {
                vec![begun.clone(), out.clone(), out.clone()]
            }),
            ("a handle that is too high", "connection", "amqp:connection:framing-error", {
                vec![begun.clone(), answer_to_attach(0, 64, "out", Some("q"))]
            }),
            ("an end of no session", "connection", "amqp:not-allowed", vec![ended(0x17, 9, None, "x")]),
            ("an error that is none", "connection", "amqp:decode-error", vec![no_error]),
            ("a transfer to a sender", "link", "amqp:not-allowed", {
                vec![begun.clone(), out.clone(), transfer.clone()]
            }),
            ("a transfer of no link", "session", handle, vec![begun.clone(), transfer]),
            ("a flow of no link", "session", handle, vec![begun.clone(), flow]),
        ] {
            let (result, mut client) = hear(&after_open(&then), 1000);
            assert_eq!(written_errors(&mut client), [(scope, condition.to_owned())], "{what}");
            assert_eq!(result.is_err(), scope == "connection", "{what}: {result:?}");
            let ended = result.unwrap_or_default().into_iter().filter_map(|event| match event {
                ConnectionEvent::Detached { scope, error: Some(EndError::Violation(error)), .. } => {
                    Some((scope.to_string(), error.condition))
                }
                _ => None,
            });
            let count = match scope {
                "link" => 1,
                "session" => 2,
                _ => 0,
            };
            assert_eq!(ended.collect::<Vec<_>>(), vec![(scope.to_owned(), condition); count], "{what}");
        }
        for header in [*b"HTTP/1.1", AMQP_HEADER] {
            assert!(hear(&header, 1000).0.is_err());
        }
        let asked_again = after_open(&[]);
        let at = asked_again.windows(8).position(|octets| octets == AMQP_HEADER).unwrap();
        let again = [&asked_again[..at], &SASL_HEADER].concat();
        assert_eq!(hear(&again, 1000).0, Err(ConnectionError::Login(LoginError::Rejected)));
        assert_eq!(hear(&AMQP_HEADER, 1000).0, Err(ConnectionError::Login(LoginError::NoSasl)));
    }

    #[test]
    fn a_message_that_is_too_long_ends_its_link_and_is_reported() {
        let (mut pair, _, receiver) = opened(usize::MAX);
        pair.client.link(receiver).unwrap().max_message_bytes = 1000;
        pair.server.send(receiver, EncodedMessage::from(vec![0; 1001]), 1);
        let (events, served) = pair.run(usize::MAX).unwrap();
        let [ConnectionEvent::Detached { link, error: Some(EndError::Violation(error)), .. }] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!((*link, error.condition), (receiver, Violation::MESSAGE_SIZE));
        let detached = served.iter().find_map(|event| match event {
            ConnectionEvent::Detached { unsettled, error, .. } => Some((unsettled.clone(), error.clone())),
            _ => None,
        });
        let (unsettled, error) = detached.unwrap();
        let expected = "amqp:link:message-size-exceeded: the message is longer than max-message-size";
        assert_eq!((unsettled, error.unwrap().to_string().as_str()), (vec![1], expected));
    }

    #[test]
    fn nothing_is_said_after_a_close() {
        let (mut pair, sender, receiver) = opened(usize::MAX);
        pair.client.close(None);
        let length = pair.client.output().remaining();
        assert!(!pair.client.may_send(sender) && pair.client.begin_session() == Err(SessionRefused::NotOpen));
        pair.client.grant(receiver, 5);
        pair.client.settle(receiver, 0, DeliveryOutcome::Accepted);
        pair.client.reject(receiver, 1, "x", "y");
        pair.client.write_dispositions();
        pair.client.detach_link(sender);
        pair.client.end_session(SessionId(0));
        pair.client.drain(receiver);
        pair.client.close(None);
        pair.client.send_heartbeat();
        assert_eq!(pair.client.output().remaining(), length);
    }

    #[test]
    fn sessions_and_links_are_bounded_on_our_side_too() {
        let (mut pair, ..) = opened(usize::MAX);
        let sessions = std::iter::from_fn(|| pair.client.begin_session().ok()).count();
        assert_eq!(sessions, MAX_SESSIONS - 1);
        assert_eq!(pair.client.begin_session(), Err(SessionRefused::OwnLimit(MAX_SESSIONS)));
        pair.client.peer_channel_max = 9;
        assert_eq!(pair.client.begin_session(), Err(SessionRefused::PeerLimit(10)));
        let names: Vec<String> = (0..100).map(|number| format!("link {number}")).collect();
        let links =
            names.iter().filter_map(|name| pair.client.attach_link(SessionId(1), &request(name, LinkRole::Sender)));
        assert_eq!(links.count(), MAX_LINKS);
        assert!(pair.client.attach_link(SessionId(2), &request("out", LinkRole::Sender)).is_some());
        assert!(pair.client.attach_link(SessionId(2), &request("out", LinkRole::Sender)).is_none(), "a name twice");
        let long = "x".repeat(MAX_LINK_NAME_BYTES + 1);
        assert!(pair.client.attach_link(SessionId(2), &request(&long, LinkRole::Sender)).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn however_it_is_cut_it_is_heard_alike(step in 1usize..700) {
            prop_assert_eq!(outcomes(&exchange(step).0), outcomes(&exchange(usize::MAX).0));
            let octets = recorded();
            let whole = hear(&octets, octets.len()).0;
            prop_assert_eq!(&hear(&octets, step).0, &whole);
            let attached = |event: &&ConnectionEvent<u32>| matches!(event, ConnectionEvent::Attached { .. });
            prop_assert_eq!(whole.unwrap().iter().filter(attached).count(), 2);
        }

        #[test]
        fn a_hostile_server_is_bounded(
            octets in proptest::collection::vec(any::<u8>(), 0..300), keep in 0usize..500, cut in 1usize..50,
        ) {
            // Feed the beginning of a valid conversation, followed by arbitrary bytes, so that later states of the
            // connection are tested as well.
            let good = recorded();
            let all = [&good[..keep.min(good.len())], &octets].concat();
            let (whole, mut client) = hear(&all, all.len().max(1));
            prop_assert!(client.output().remaining() < 10_000);
            prop_assert_eq!(&hear(&all, cut).0, &whole);
        }
    }
}
