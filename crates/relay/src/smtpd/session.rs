//! Receives mail from clients. A session checks senders and recipients, writes the trace fields,
//! and replies to a message after the message is stored.
use crate::config::{Config, DurabilityLevel, LoggedIn};
use crate::fault_log::{CommonFault, LOG_TARGET};
use crate::message::Message;
use crate::message::envelope::{
    Client, EnvelopeRecipient, MAX_RECIPIENTS, MAX_RECIPIENTS_BYTES, MessageEnvelope, OriginalAddress, WithProtocol,
};
use crate::message::received::{self, HeaderProgress as MessageHeader, ReceivedCount, ReceivedField};
use crate::message::recipients::{RecipientGroup, RecipientList};
use crate::routing::{Access, NextHop, ResolvedRoute};
use crate::smtpd::login::SessionLogins;
use crate::smtpd::memory_budget::{AdmissionDecision, Reservation};
use crate::worker::RelayWorker;
use mailrun_net::{Answer, ClientKey, CloseReason, Handler, Handshake, LoginOutcome, Peer, clock};
use mailrun_smtp::Path;
use mailrun_smtp::address::literal;
use mailrun_smtp::command::{Hello, Mail, Recipient as Rcpt};
use mailrun_smtp::login::Auth;
use mailrun_smtp::proxy::ProxyHeader;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::xclient::{Attribute, AttributeValue, ClientAddress, Xclient};
use mailrun_spool::{Error, Id, Receipt, Stored};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a message's header. To detect mail loops, the relay must count the `Received:` fields of the whole
/// header, so it rejects a message with a longer header.
const MAX_HEADER_BYTES: usize = 1 << 20;

pub(crate) struct SmtpdSession {
    worker: Rc<RelayWorker>,
    config: Arc<Config>,
    client: Client,
    /// The client that opened the connection, or that the PROXY header named. Its address decides whether XCLIENT is
    /// allowed, even after XCLIENT has named another client.
    gateway: Client,
    /// The client's address as written in header fields, for example `[192.0.2.1]`.
    client_literal: String,
    hello: Hello,
    hello_name: Vec<u8>,
    tls: Option<Handshake>,
    /// User name from AUTH or XCLIENT. It is authenticated only if `logged_in` is `Yes`.
    user: Option<Vec<u8>>,
    logged_in: LoggedIn,
    logins: SessionLogins,
    transaction: MailTransaction,
    reservation: Rc<Reservation>,
}

struct MailTransaction {
    /// The envelope without its recipients. They are in `recipients` until the message is complete.
    envelope: MessageEnvelope,
    recipients: RecipientList,
    body: Vec<u8>,
    received_count: ReceivedCount,
    announced_size: Option<u64>,
    /// Offset in the body at which the spool will write the queue id.
    id_at: usize,
    /// Set if the memory budget had no room for the message. The rest of the message is then discarded.
    is_dropped: bool,
}

/// Initial capacity of a message body, enough for this relay's `Received:` field and a short message.
/// [`Reservation::admit`] has reserved memory for this capacity.
const INITIAL_BODY_BYTES: usize = 1 << 10;
/// Maximum initial capacity of a message body, even if SIZE announces more. Most messages fit into it, and a client
/// that announces too much makes the relay allocate only this much.
const MAX_PREALLOCATED_BYTES: u64 = 128 << 10;
/// A message body that is shorter than this doubles its capacity when it is full. The capacity of a longer body grows
/// by half, so that less of the reserved memory stays unused.
const DOUBLING_LIMIT: usize = 1 << 20;

impl MailTransaction {
    fn new() -> Self {
        let envelope = MessageEnvelope::local(b"", Vec::new());
        Self {
            envelope,
            recipients: RecipientList::default(),
            body: Vec::new(),
            id_at: 0,
            received_count: ReceivedCount::new(MAX_HEADER_BYTES),
            announced_size: None,
            is_dropped: false,
        }
    }
}

/// Stands in for the queue id in the `Received:` field that this relay adds, until the spool writes the real id.
const ID_PLACEHOLDER: [u8; Id::TEXT_BYTES] = [b'0'; Id::TEXT_BYTES];

impl SmtpdSession {
    pub(crate) fn new(worker: &Rc<RelayWorker>, peer: Peer) -> Self {
        let ip = peer.address.ip().to_canonical();
        // Treat a client without an address as local, because it uses a Unix-domain socket.
        let client = if ip.is_unspecified() { Client::Local } else { Client::Remote(ip) };
        worker.context.counters.sessions.add(1);
        let config = worker.config();
        let session = Self {
            logins: SessionLogins::new(&worker.context, &config, client.address()),
            config,
            worker: Rc::clone(worker),
            client,
            gateway: client,
            client_literal: client_text(client),
            hello: Hello::Plain,
            hello_name: Vec::new(),
            tls: None,
            user: None,
            logged_in: LoggedIn::No,
            transaction: MailTransaction::new(),
            reservation: Reservation::new(&worker.context.memory_budget),
        };
        session.charge_client();
        session
    }

    /// Tells the memory budget for which client the session uses memory. Must be called whenever the client or its
    /// login changes.
    fn charge_client(&self) {
        match self.access() {
            // Clients without a known address cannot be told apart, so they share the budget of one client.
            Access::Untrusted => {
                let address = self.client.address().unwrap_or(Ipv4Addr::UNSPECIFIED.into());
                self.reservation.charge_untrusted(ClientKey::of(address));
            }
            Access::Trusted => self.reservation.charge_trusted(),
        }
    }

    /// Replaces the session's client by the client that a proxy has named in its PROXY header, or that an authorised
    /// client has named with XCLIENT.
    fn set_client(&mut self, client: Client) {
        self.client = client;
        self.client_literal = client_text(client);
        self.logins = SessionLogins::new(&self.worker.context, &self.config, client.address());
        self.charge_client();
    }

    fn may_use_xclient(&self) -> bool {
        match self.gateway {
            Client::Local => true,
            Client::Remote(address) => self.config.xclient.contain(address),
            Client::Unknown => false,
        }
    }

    fn access(&self) -> Access {
        self.config.networks.access(self.client, self.logged_in)
    }

    fn with_protocol(&self) -> WithProtocol {
        WithProtocol::of_client(self.hello, self.tls.is_some(), self.logged_in == LoggedIn::Yes)
    }

    fn add_received(&mut self) {
        let unix = self.worker.unix_time(clock::now());
        let tls = self.tls.as_ref();
        let stamp = ReceivedField {
            name: &self.hello_name,
            client: &self.client_literal,
            host: &self.config.hostname,
            with: self.with_protocol(),
            smtp_utf8: self.transaction.envelope.smtp_utf8,
            tls: tls.map(|tls| received::TlsParameters { version: &tls.version, cipher: &tls.cipher }),
            id: &ID_PLACEHOLDER,
            recipient: self.transaction.recipients.only_address(),
        };
        let mut dates = self.worker.date_cache.borrow_mut();
        self.transaction.body.reserve(INITIAL_BODY_BYTES);
        self.transaction.id_at = stamp.write(dates.date(unix.as_secs() as i64), &mut self.transaction.body);
    }

    /// Adds a recipient to the message, with its next hop. If the recipient is an alias, adds the members of the alias
    /// instead.
    fn add_recipient(&mut self, rcpt: &Rcpt<'_>) -> Result<(), Reply> {
        let router = &self.config.router;
        let sender = Path::checked_before(&self.transaction.envelope.sender);
        let routed = router.route(self.access(), &sender, &rcpt.path);
        // Most recipients lead to a single mailbox, so allocate a list only for an alias.
        let (direct, members) = match routed.map_err(|refusal| refusal.reply().clone())? {
            ResolvedRoute::Direct(next_hop) => {
                (Some((String::from_utf8_lossy(rcpt.path.as_bytes()).into_owned().into(), next_hop)), Vec::new())
            }
            ResolvedRoute::Alias(members) => (None, members),
        };
        let all = direct.as_ref().map_or(members.as_slice(), std::slice::from_ref);
        let list = &mut self.transaction.recipients;
        let is_new = |(address, next_hop): &&(Box<str>, NextHop)| !list.contains(router, address.as_bytes(), next_hop);
        let new_count = all.iter().filter(is_new).count();
        // The first RCPT of a transaction may exceed the configured limit of recipients, because it may name an alias
        // with more members than the limit. Otherwise, nobody could send mail to this alias.
        let limit = if list.is_empty() || new_count == 0 { MAX_RECIPIENTS } else { self.config.limits.recipients };
        let original = rcpt.original.map(|original| {
            Arc::new(OriginalAddress { kind: original.kind.to_vec(), address: original.address.to_vec() })
        });
        // Refuse a recipient that makes the envelope too long for the spool, so that the client learns it before it
        // sends the message.
        let is_too_long = list.encoded_bytes_with(all, original.as_deref()) > MAX_RECIPIENTS_BYTES;
        if list.len() + new_count > limit.min(MAX_RECIPIENTS) || is_too_long {
            return Err(Reply::fixed("452 4.5.3 Too many recipients\r\n"));
        }
        if !self.reservation.grow(list.memory_bytes_with(all, original.as_deref())) {
            return Err(memory_full_reply(&self.worker));
        }
        for (address, next_hop) in direct.into_iter().chain(members) {
            let address = address.into_string().into_bytes();
            list.add(router, EnvelopeRecipient { address, original: original.clone(), notify: rcpt.notify }, next_hop);
        }
        Ok(())
    }

    /// Returns the reply that rejects a completely received message, or `None` if the message is
    /// acceptable.
    fn rejection(&self) -> Option<Reply> {
        let received_count = &self.transaction.received_count;
        if received_count.count() > self.config.limits.max_hops {
            return Some(Reply::fixed("554 5.4.6 Too many hops: this message goes in circles\r\n"));
        }
        (received_count.header() == MessageHeader::TooLarge)
            .then(|| Reply::fixed("552 5.3.4 The message's header is too long\r\n"))
    }

    /// Passes the message to the spool. The receipt is a future that is ready when the spool has stored the message.
    fn store(&mut self, transaction: MailTransaction) -> Result<(Receipt, Message, Vec<RecipientGroup>), Reply> {
        let MailTransaction { mut envelope, recipients, body: octets, id_at, .. } = transaction;
        let (recipients, groups) = recipients.into_parts();
        envelope.recipients = recipients;
        let body: Arc<[u8]> = octets.as_slice().into();
        self.reuse_buffer(octets);
        let received = self.worker.unix_time(clock::now());
        let mut message = Message { envelope: Arc::new(envelope), body, received };
        let too_long = |_| Reply::fixed("452 4.5.3 The envelope is too long\r\n");
        let new_message = message.to_spool().map_err(too_long)?;
        // Drop this reference to the body first. The spool writes the id into the body, and would have to copy the body
        // if it were shared.
        message.body = Arc::default();
        let (receipt, body) = self.worker.context.spool.store_with_id(new_message, id_at);
        message.body = body;
        Ok((receipt, message, groups))
    }
}

impl SmtpdSession {
    /// Ensures that the body has room for this many more bytes, in memory and in the reservation.
    /// Returns false if there is no room.
    fn reserve_body(&mut self, more: usize) -> bool {
        let MailTransaction { body, recipients, announced_size: announced, .. } = &mut self.transaction;
        let needed = body.len() + more;
        if needed <= body.capacity() {
            return true;
        }
        let grown = body.len() + if body.len() < DOUBLING_LIMIT { body.len() } else { body.len() / 2 };
        let announced = announced.map_or(0, |bytes| bytes.min(MAX_PREALLOCATED_BYTES) as usize + INITIAL_BODY_BYTES);
        let capacity = needed.max(grown).max(announced);
        // If the budget has no room for `capacity`, try `needed`, which is just enough for these bytes.
        let fits = |capacity: &usize| self.reservation.grow(recipients.memory_bytes() + *capacity as u64);
        let Some(capacity) = [capacity, needed].into_iter().find(fits) else { return false };
        body.reserve_exact(capacity - body.len());
        true
    }

    fn reuse_buffer(&mut self, mut octets: Vec<u8>) {
        if octets.capacity() <= INITIAL_BODY_BYTES {
            octets.clear();
            self.transaction.body = octets;
        }
    }

    /// Drops the received part of the message and releases its memory. The bytes that are still to
    /// come are discarded as well.
    fn drop_message(&mut self) {
        self.transaction.body = Vec::new();
        self.transaction.is_dropped = true;
        self.reservation.release();
    }
}

/// Returns the client's address as written in header fields. RFC 5321 §4.4 requires an address or a domain there, so a
/// client on a Unix-domain socket is written as `[127.0.0.1]`.
fn client_text(client: Client) -> String {
    match client {
        Client::Local => literal(Ipv4Addr::LOCALHOST.into()),
        Client::Remote(address) => literal(address),
        Client::Unknown => "unknown".to_owned(),
    }
}

/// Returns the reply for a lack of memory (RFC 3463 §3.4: mail system full).
fn memory_full_reply(worker: &RelayWorker) -> Reply {
    worker.context.counters.crowded.add(1);
    Reply::fixed("452 4.3.1 Too much incoming mail, try again later\r\n")
}

/// Returns the reply with which the relay takes responsibility for a message (RFC 5321 §6.1). `stored` proves that the
/// message is in the spool, so the reply cannot be sent too early.
fn queued_reply(stored: &Stored) -> Answer {
    let mut text = String::with_capacity(40);
    write!(text, "2.0.0 Ok: queued as {}", stored.id()).expect("a String takes any text");
    Answer::Reply(Reply::new(250, &text))
}

fn store_error_reply(worker: &RelayWorker, error: &Error) -> Answer {
    let counters = &worker.context.counters;
    let reply = match error {
        Error::Full => {
            counters.full.add(1);
            return Answer::Reply(Reply::fixed("452 4.3.1 The spool is full, try again later\r\n"));
        }
        Error::TooLarge { .. } => Reply::fixed("552 5.3.4 The message is too large\r\n"),
        _ => {
            if worker.context.fault_log.is_first(CommonFault::Store, clock::now()) {
                tracing::error!(target: LOG_TARGET, %error, "a message could not be stored");
            }
            Reply::fixed("451 4.3.0 The spool has failed, try again later\r\n")
        }
    };
    counters.refused.add(1);
    Answer::Reply(reply)
}

impl Handler for SmtpdSession {
    /// If a power cut can lose accepted mail, names the durability in the greeting, so that the client knows the risk
    /// before it hands over a message.
    fn connect(&mut self, _now: Duration) -> Answer {
        let less = match self.config.spool.durability {
            DurabilityLevel::Sync => return Answer::Yes,
            DurabilityLevel::Write => "write",
            DurabilityLevel::Memory => "memory",
        };
        Answer::Reply(Reply::new(220, &format!("{} ESMTP mailrun, durability {less}", self.config.hostname)))
    }

    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        self.hello = hello;
        self.hello_name.clear();
        self.hello_name.extend_from_slice(name);
        Answer::Yes
    }

    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        if !self.transaction.recipients.is_empty() {
            // These recipients belong to the client's last transaction, which ended without a reset because the relay
            // rejected its first BDAT. Clear the recipients, so that they do not get the new message.
            self.reset(None);
        }
        let with = self.with_protocol();
        self.transaction.announced_size = mail.size;
        let envelope = &mut self.transaction.envelope;
        envelope.sender.extend_from_slice(mail.sender.as_bytes());
        envelope.client_name.extend_from_slice(&self.hello_name);
        (envelope.with, envelope.client) = (with, self.client);
        (envelope.smtp_utf8, envelope.body, envelope.returns) = (mail.smtp_utf8, mail.body, mail.returns);
        envelope.envelope_id = mail.envelope_id.map(|id| id.as_bytes().to_vec());
        envelope.user = self.user.clone().filter(|_| self.logged_in == LoggedIn::Yes);
        Answer::Yes
    }

    fn recipient_with(&mut self, recipient: &Rcpt<'_>) -> Answer {
        self.add_recipient(recipient).map_or_else(Answer::Reply, |()| Answer::Yes)
    }

    fn data(&mut self) -> Answer {
        // Clear the body: if an earlier DATA of this transaction was refused, it already contains a `Received:` field.
        self.transaction.body.clear();
        self.add_received();
        let MailTransaction { recipients, announced_size: announced, .. } = &self.transaction;
        let turn = match self.reservation.admit(recipients.memory_bytes(), *announced) {
            AdmissionDecision::Admitted => return Answer::Yes,
            AdmissionDecision::Refused => return Answer::Reply(memory_full_reply(&self.worker)),
            AdmissionDecision::Wait(turn) => turn,
        };
        let worker = Rc::clone(&self.worker);
        Answer::eventually(
            async move { if turn.await { Answer::Yes } else { Answer::Reply(memory_full_reply(&worker)) } },
        )
    }

    fn block(&mut self, block: &[u8]) {
        if self.transaction.is_dropped {
            return;
        }
        if !self.reserve_body(block.len()) {
            return self.drop_message();
        }
        self.transaction.received_count.feed(block);
        self.transaction.body.extend_from_slice(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        let flaw = self.rejection();
        let transaction = std::mem::replace(&mut self.transaction, MailTransaction::new());
        if transaction.is_dropped {
            return Answer::Reply(memory_full_reply(&self.worker));
        }
        let held = self.reservation.detach();
        let stored = flaw.map_or(Ok(()), Err).and_then(|()| self.store(transaction));
        let (receipt, message, groups) = match stored {
            Ok(all) => all,
            Err(reply) => {
                self.worker.context.counters.refused.add(1);
                return Answer::Reply(reply);
            }
        };
        let worker = Rc::clone(&self.worker);
        Answer::eventually(async move {
            let outcome = receipt.await;
            // The queue gets the message below and counts its memory itself, so end the session's reservation.
            drop(held);
            match outcome {
                Ok(stored) => {
                    let counters = &worker.context.counters;
                    counters.accepted.add(1);
                    counters.accepted_recipients.add(message.envelope.recipients.len() as u64);
                    counters.accepted_bytes.add(bytes);
                    worker.enqueue(&stored, &message, groups);
                    queued_reply(&stored)
                }
                Err(error) => store_error_reply(&worker, &error),
            }
        })
    }

    fn proxy_header(&mut self, header: &ProxyHeader) {
        if let ProxyHeader::Proxied { source, .. } = header {
            self.set_client(Client::Remote(source.ip().to_canonical()));
            self.gateway = self.client;
        }
    }

    fn proxy_header_missing(&mut self, why: &std::io::Error) {
        if self.worker.context.fault_log.is_first(CommonFault::ProxyHeader, clock::now()) {
            tracing::warn!(target: LOG_TARGET, client = ?self.client, %why, "a connection without a PROXY header was closed");
        }
    }

    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        if !self.may_use_xclient() {
            return Answer::Reply(Reply::fixed("550 5.7.0 This client may not use XCLIENT\r\n"));
        }
        let login = match xclient.value(Attribute::Login) {
            Some(AttributeValue::Value(login)) => Some(login.decode().into_owned()),
            Some(AttributeValue::Unavailable | AttributeValue::TemporarilyUnavailable) | None => None,
        };
        self.logged_in = if login.is_some() { LoggedIn::Yes } else { LoggedIn::No };
        self.user = login;
        match xclient.address() {
            Some(ClientAddress::Known(address)) => self.set_client(Client::Remote(address.to_canonical())),
            Some(ClientAddress::Unknown) => self.set_client(Client::Unknown),
            None => self.charge_client(),
        }
        Answer::Yes
    }

    fn tls_established(&mut self, handshake: &Handshake) {
        self.tls = Some(handshake.clone());
        // Forget the client's login, because everything that was sent before TLS must be discarded (RFC 3207 §4.2).
        (self.user, self.logged_in) = (None, LoggedIn::No);
        self.charge_client();
    }

    fn tls_failed(&mut self, why: &std::io::Error) {
        if self.worker.context.fault_log.is_first(CommonFault::Handshake, clock::now()) {
            tracing::warn!(target: LOG_TARGET, client = ?self.client, %why, "a TLS handshake with a client failed");
        }
    }

    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        self.user = Some(auth.name.as_bytes().to_vec());
        self.logins.check(auth)
    }

    fn look_up(&mut self, auth: &Auth<'_>) -> Answer {
        self.user = Some(auth.name.as_bytes().to_vec());
        self.logins.look_up(auth)
    }

    fn proof(&mut self, _auth: &Auth<'_>) -> Answer {
        self.logins.proof()
    }

    fn login_ended(&mut self, outcome: LoginOutcome) {
        self.logins.ended(outcome);
        self.logged_in = if outcome == LoginOutcome::Succeeded { LoggedIn::Yes } else { LoggedIn::No };
        self.charge_client();
    }

    fn reset(&mut self, rejection: Option<ReplyReason>) {
        if rejection.is_some() {
            self.worker.context.counters.refused.add(1);
        }
        self.transaction = MailTransaction::new();
        self.reservation.release();
    }

    fn gave_up(&mut self, why: ReplyReason) {
        self.worker.context.counters.hung_up.add(1);
        tracing::debug!(target: LOG_TARGET, client = ?self.client, ?why, "a session was closed because of the client");
    }

    fn disconnect(&mut self, _parting: CloseReason) {}
}
