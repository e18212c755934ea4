//! Receives mail: checks senders and recipients, writes the message's trace, and answers once the message is kept.
use super::config::{Config, Durability, LoggedIn};
use super::envelope::{Envelope, MOST_RECIPIENTS, Original, Recipient, With};
use super::intake::{Claim, Entry};
use super::letter::Letter;
use super::login::Logins;
use super::office::{Errand, Office};
use super::received::{self, Header as MessageHeader, Hops, MOST_HOPS, Stamp};
use super::routing::{Hop, Routed, Standing};
use net::{Answer, ClientKey, Handler, Handshake, LoginOutcome, Parting, Peer, clock};
use smtp::Path;
use smtp::command::{Hello, Mail, Recipient as Rcpt};
use smtp::login::Auth;
use smtp::proxy::Header;
use smtp::reply::Reply;
use smtp::verdict::Verdict;
use smtp::xclient::{Attribute, Told, Xclient};
use spool::{Draft, Error, Receipt, Stored};
use std::fmt::Write;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The longest header that is searched for hops.
const HEADER_BYTES: usize = 1 << 20;

/// A session's side of receiving.
pub(super) struct Reception {
    office: Rc<Office>,
    config: Arc<Config>,
    /// `None` for the client of a unix-domain socket.
    client: Option<IpAddr>,
    /// The client before XCLIENT named another: it decides about the next XCLIENT.
    gateway: Option<IpAddr>,
    /// The client as header fields name it.
    client_literal: String,
    hello: Hello,
    name: Vec<u8>,
    tls: Option<Handshake>,
    /// User name that the client claims, until AUTH is over; then the user who has logged in.
    user: Option<Vec<u8>>,
    logged_in: LoggedIn,
    logins: Logins,
    transaction: Transaction,
    /// Memory for incoming mail that this session holds.
    claim: Rc<Claim>,
}

/// A message that is being received.
struct Transaction {
    envelope: Envelope,
    errands: Vec<Errand>,
    body: Vec<u8>,
    hops: Hops,
    /// SIZE, if the client gave it.
    announced: Option<u64>,
    /// Bytes that the recipients take, roughly.
    envelope_bytes: u64,
    /// There was no room for it: the rest is dropped.
    is_given_up: bool,
}

/// Bytes that a recipient takes in memory besides its texts.
const RECIPIENT_BYTES: u64 = 128;
/// Bytes that a body has at once: enough for our own `Received:` and a short message. [`Claim::enter`] covers them.
const FIRST_BYTES: usize = 1 << 10;
/// Bytes that a body has room for at once if SIZE announces more: enough for most messages, and little for a client
/// that announces what never comes.
const AHEAD_BYTES: u64 = 128 << 10;
/// From this size on a body grows by halves, so that less of its claim is unused at the end.
const DOUBLED_BYTES: usize = 1 << 20;

impl Transaction {
    fn new() -> Self {
        let envelope = Envelope::local(b"", Vec::new());
        Self {
            envelope,
            errands: Vec::new(),
            body: Vec::new(),
            hops: Hops::new(HEADER_BYTES),
            announced: None,
            envelope_bytes: 0,
            is_given_up: false,
        }
    }

    /// Adds a recipient that goes to that hop; without one it is accepted and dropped.
    fn add(&mut self, recipient: Recipient, hop: Hop) {
        let number = self.envelope.recipients.len() as u16;
        self.envelope.recipients.push(recipient);
        match self.errands.iter_mut().find(|errand| errand.hop == hop) {
            Some(errand) => errand.recipients.push(number),
            None => self.errands.push(Errand { hop, recipients: vec![number] }),
        }
    }
}

/// Identifier of a message in its own `Received:` before the spool has numbered it: the time at which it came, in
/// nanoseconds, by hexadecimal digits.
fn reception_id(unix: Duration) -> [u8; 16] {
    let nanos = unix.as_nanos() as u64;
    std::array::from_fn(|place| b"0123456789abcdef"[(nanos >> (60 - 4 * place)) as usize & 0xF])
}

impl Reception {
    pub(super) fn new(office: &Rc<Office>, peer: Peer) -> Self {
        let ip = peer.address.ip();
        let client = (!ip.is_unspecified()).then_some(ip);
        office.setting.census.sessions.add(1);
        let config = office.config();
        let reception = Self {
            logins: Logins::new(&office.setting, &config, client),
            config,
            office: Rc::clone(office),
            client,
            gateway: client,
            client_literal: received::literal(client.unwrap_or(IpAddr::from([127, 0, 0, 1]))),
            hello: Hello::Plain,
            name: Vec::new(),
            tls: None,
            user: None,
            logged_in: LoggedIn::No,
            transaction: Transaction::new(),
            claim: Claim::new(&office.setting.intake),
        };
        reception.pay();
        reception
    }

    /// Charges the session's memory to the client that it acts for now.
    fn pay(&self) {
        match self.client {
            Some(client) if self.standing() == Standing::Stranger => self.claim.of_stranger(ClientKey::of(client)),
            _ => self.claim.of_trusted(),
        }
    }

    /// Acts for another client from now on: a proxy, or an authorised client, has named it.
    fn stand_for(&mut self, client: IpAddr) {
        let client = client.to_canonical();
        self.client = Some(client);
        self.client_literal = received::literal(client);
        self.logins = Logins::new(&self.office.setting, &self.config, self.client);
        self.pay();
    }

    /// Reports whether the client may speak for others with XCLIENT.
    fn may_speak_for_others(&self) -> bool {
        self.gateway.is_none_or(|gateway| self.config.xclient.contain(gateway))
    }

    /// The rights of the client. One on a unix-domain socket is on this host, and the socket's permissions admitted it.
    fn standing(&self) -> Standing {
        self.client.map_or(Standing::Friend, |client| self.config.standing(client, self.logged_in))
    }

    fn with(&self) -> With {
        match (self.hello, self.tls.is_some(), self.logged_in) {
            (Hello::Plain, ..) => With::Smtp,
            (Hello::Extended, false, LoggedIn::No) => With::Esmtp,
            (Hello::Extended, true, LoggedIn::No) => With::Esmtps,
            (Hello::Extended, false, LoggedIn::Yes) => With::Esmtpa,
            (Hello::Extended, true, LoggedIn::Yes) => With::Esmtpsa,
            (Hello::Lmtp, false, LoggedIn::No) => With::Lmtp,
            (Hello::Lmtp, true, LoggedIn::No) => With::Lmtps,
            (Hello::Lmtp, false, LoggedIn::Yes) => With::Lmtpa,
            (Hello::Lmtp, true, LoggedIn::Yes) => With::Lmtpsa,
        }
    }

    /// Writes our own `Received:` in front of the message.
    fn stamp(&mut self) {
        let unix = self.office.unix(clock::now());
        let id = reception_id(unix);
        let alone = match self.transaction.envelope.recipients.as_slice() {
            [recipient] => Some(recipient.address.as_slice()),
            _ => None,
        };
        let tls = self.tls.as_ref();
        let stamp = Stamp {
            name: &self.name,
            client: &self.client_literal,
            host: &self.config.hostname,
            hello: self.hello,
            smtp_utf8: self.transaction.envelope.smtp_utf8,
            tls: tls.map(|tls| received::Tls { version: &tls.version, cipher: &tls.cipher }),
            authenticated: self.logged_in == LoggedIn::Yes,
            id: &id,
            recipient: alone,
        };
        let mut dates = self.office.dates.borrow_mut();
        self.transaction.body.reserve(FIRST_BYTES);
        stamp.write(dates.date(unix.as_secs() as i64), &mut self.transaction.body);
    }

    /// Routes a recipient.
    fn route(&mut self, rcpt: &Rcpt<'_>) -> Result<(), Reply> {
        let sender = Path::checked_before(&self.transaction.envelope.sender);
        let routed = self.config.router.route(self.standing(), &sender, &rcpt.path);
        let routed = routed.map_err(|refusal| refusal.reply().clone())?;
        let recipient = |address: &[u8]| Recipient {
            address: address.to_vec(),
            original: rcpt
                .original
                .as_ref()
                .map(|original| Original { kind: original.kind.to_vec(), address: original.address.to_vec() }),
            notify: rcpt.notify,
        };
        match routed {
            Routed::As(hop) => self.transaction.add(recipient(rcpt.path.as_bytes()), hop),
            Routed::Instead(members) => {
                if self.transaction.envelope.recipients.len() + members.len() > MOST_RECIPIENTS {
                    return Err(Reply::fixed("452 4.5.3 Too many recipients\r\n"));
                }
                for (address, hop) in members {
                    self.transaction.add(recipient(address.as_bytes()), hop);
                }
            }
        }
        Ok(())
    }

    /// Reason why a message that has come whole is rejected.
    fn flaw(&self) -> Option<Reply> {
        let hops = &self.transaction.hops;
        if hops.is_loop() || hops.count() > self.config.limits.hops.min(MOST_HOPS) {
            return Some(Reply::fixed("554 5.4.6 Too many hops: this message goes in circles\r\n"));
        }
        (hops.header() == MessageHeader::TooLarge)
            .then(|| Reply::fixed("552 5.3.4 The message's header is too long\r\n"))
    }

    /// Hands the message to the spool; the receipt tells later whether it is kept.
    fn store(&mut self, transaction: Transaction) -> Result<(Receipt, Letter, Vec<Errand>), Reply> {
        let Transaction { envelope, errands, body: octets, .. } = transaction;
        let body: Arc<[u8]> = octets.as_slice().into();
        self.keep_room(octets);
        let too_much = |_| Reply::fixed("452 4.5.3 The envelope is too long\r\n");
        let encoded = envelope.encode().map_err(too_much)?;
        let received = self.office.unix(clock::now());
        let letter = Letter { envelope: Arc::new(envelope), body, received };
        let received_ns = u64::try_from(received.as_nanos()).unwrap_or(u64::MAX);
        let draft = Draft { received_ns, envelope: encoded, body: Arc::clone(&letter.body) };
        Ok((self.office.setting.spool.store(draft), letter, errands))
    }
}

impl Reception {
    /// Sees to it that there is room for one more recipient.
    fn has_room_for(&mut self, rcpt: &Rcpt<'_>) -> bool {
        let original = rcpt.original.as_ref().map_or(0, |original| original.address.len());
        let texts = (rcpt.path.as_bytes().len() + original) as u64;
        let bytes = self.transaction.envelope_bytes + texts + RECIPIENT_BYTES;
        let has_room = self.claim.cover(bytes);
        if has_room {
            self.transaction.envelope_bytes = bytes;
        }
        has_room
    }

    /// Makes sure that the body has room for that many more bytes, in memory and in the claim.
    fn has_room(&mut self, more: usize) -> bool {
        let Transaction { body, envelope_bytes, announced, .. } = &mut self.transaction;
        let needed = body.len() + more;
        if needed <= body.capacity() {
            return true;
        }
        let grown = body.len() + if body.len() < DOUBLED_BYTES { body.len() } else { body.len() / 2 };
        let announced = announced.map_or(0, |bytes| bytes.min(AHEAD_BYTES) as usize + FIRST_BYTES);
        let capacity = needed.max(grown).max(announced);
        // If there is no room for growing, there may be enough for these bytes.
        let fits = |capacity: &usize| self.claim.cover(*envelope_bytes + *capacity as u64);
        let Some(capacity) = [capacity, needed].into_iter().find(fits) else { return false };
        body.reserve_exact(capacity - body.len());
        true
    }

    /// The next message of the session finds the room of this one, if that is little.
    fn keep_room(&mut self, mut octets: Vec<u8>) {
        if octets.capacity() <= FIRST_BYTES {
            octets.clear();
            self.transaction.body = octets;
        }
    }

    /// Drops the part of the message that has come, and the part that will come.
    fn give_up(&mut self) {
        self.transaction.body = Vec::new();
        self.transaction.is_given_up = true;
        self.claim.release();
    }
}

/// The answer if too much comes in at a time (RFC 3463 §3.4: mail system full).
fn crowded(office: &Office) -> Reply {
    office.setting.census.crowded.add(1);
    Reply::fixed("452 4.3.1 Too much incoming mail, try again later\r\n")
}

/// The answer that takes responsibility (RFC 5321 §6.1): it needs the spool's proof.
fn kept(stored: &Stored) -> Answer {
    let mut text = String::with_capacity(40);
    write!(text, "2.0.0 Ok: queued as {}", stored.id()).expect("a String takes any text");
    Answer::Reply(Reply::new(250, &text))
}

/// The answer if the message is not kept.
fn not_kept(office: &Office, error: &Error) -> Answer {
    let census = &office.setting.census;
    let reply = match error {
        Error::Full => {
            census.full.add(1);
            return Answer::Reply(Reply::fixed("452 4.3.1 The spool is full, try again later\r\n"));
        }
        Error::TooLarge { .. } => Reply::fixed("552 5.3.4 The message is too large\r\n"),
        _ => {
            tracing::error!(%error, "a message could not be stored");
            Reply::fixed("451 4.3.0 The spool has failed, try again later\r\n")
        }
    };
    census.refused.add(1);
    Answer::Reply(reply)
}

impl Handler for Reception {
    /// Says in the greeting if we promise less than a sender may expect, before anything is entrusted to us.
    fn connect(&mut self, _now: Duration) -> Answer {
        let less = match self.config.spool.durability {
            Durability::Sync => return Answer::Yes,
            Durability::Write => "write",
            Durability::Memory => "memory",
        };
        Answer::Reply(Reply::new(220, &format!("{} ESMTP mailrun, durability {less}", self.config.hostname)))
    }

    fn hello(&mut self, hello: Hello, name: &[u8]) -> Answer {
        self.hello = hello;
        self.name.clear();
        self.name.extend_from_slice(name);
        Answer::Yes
    }

    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        if !self.transaction.errands.is_empty() {
            // Its first BDAT was rejected: nothing has ended the transaction since.
            self.reset(None);
        }
        let with = self.with();
        self.transaction.announced = mail.size;
        let envelope = &mut self.transaction.envelope;
        envelope.sender.extend_from_slice(mail.sender.as_bytes());
        envelope.client_name.extend_from_slice(&self.name);
        (envelope.with, envelope.client_address) = (with, self.client);
        (envelope.smtp_utf8, envelope.body, envelope.returns) = (mail.smtp_utf8, mail.body, mail.returns);
        envelope.envelope_id = mail.envelope_id.map(|id| id.as_bytes().to_vec());
        envelope.user = self.user.clone().filter(|_| self.logged_in == LoggedIn::Yes);
        Answer::Yes
    }

    fn recipient_with(&mut self, recipient: &Rcpt<'_>) -> Answer {
        if self.transaction.envelope.recipients.len() >= MOST_RECIPIENTS {
            return Answer::Reply(Reply::fixed("452 4.5.3 Too many recipients\r\n"));
        }
        if !self.has_room_for(recipient) {
            return Answer::Reply(crowded(&self.office));
        }
        self.route(recipient).map_or_else(Answer::Reply, |()| Answer::Yes)
    }

    fn data(&mut self) -> Answer {
        // DATA may come again after it was refused.
        self.transaction.body.clear();
        self.stamp();
        let Transaction { envelope_bytes, announced, .. } = self.transaction;
        let turn = match self.claim.enter(envelope_bytes, announced) {
            Entry::In => return Answer::Yes,
            Entry::Refused => return Answer::Reply(crowded(&self.office)),
            Entry::Wait(turn) => turn,
        };
        let office = Rc::clone(&self.office);
        Answer::eventually(async move { if turn.await { Answer::Yes } else { Answer::Reply(crowded(&office)) } })
    }

    fn block(&mut self, block: &[u8]) {
        if self.transaction.is_given_up {
            return;
        }
        if !self.has_room(block.len()) {
            return self.give_up();
        }
        self.transaction.hops.feed(block);
        self.transaction.body.extend_from_slice(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        let flaw = self.flaw();
        let transaction = std::mem::replace(&mut self.transaction, Transaction::new());
        if transaction.is_given_up {
            return Answer::Reply(crowded(&self.office));
        }
        let held = self.claim.hand_over();
        if let Some(reply) = flaw {
            self.office.setting.census.refused.add(1);
            return Answer::Reply(reply);
        }
        let (receipt, letter, errands) = match self.store(transaction) {
            Ok(all) => all,
            Err(reply) => return Answer::Reply(reply),
        };
        let office = Rc::clone(&self.office);
        Answer::eventually(async move {
            let outcome = receipt.await;
            // From here on the queue counts it.
            drop(held);
            match outcome {
                Ok(stored) => {
                    let census = &office.setting.census;
                    census.accepted.add(1);
                    census.accepted_recipients.add(letter.envelope.recipients.len() as u64);
                    census.accepted_bytes.add(bytes);
                    office.accept(&stored, &letter, errands);
                    kept(&stored)
                }
                Err(error) => not_kept(&office, &error),
            }
        })
    }

    fn proxied(&mut self, header: &Header) {
        if let Header::Proxied { source, .. } = header {
            self.stand_for(source.ip());
            self.gateway = self.client;
        }
    }

    fn not_proxied(&mut self, why: &std::io::Error) {
        tracing::warn!(client = ?self.client, %why, "a connection without a PROXY header was closed");
    }

    fn xclient(&mut self, xclient: &Xclient<'_>) -> Answer {
        if !self.may_speak_for_others() {
            return Answer::Reply(Reply::fixed("550 5.7.0 This client may not use XCLIENT\r\n"));
        }
        let login = match xclient.told(Attribute::Login) {
            Some(Told::Value(login)) => Some(login.decode().into_owned()),
            Some(Told::Unavailable | Told::TemporarilyUnavailable) | None => None,
        };
        self.logged_in = if login.is_some() { LoggedIn::Yes } else { LoggedIn::No };
        self.user = login;
        match xclient.address() {
            Some(address) => self.stand_for(address),
            None => self.pay(),
        }
        Answer::Yes
    }

    fn encrypted(&mut self, handshake: &Handshake) {
        self.tls = Some(handshake.clone());
        // Data from before TLS does not count (RFC 3207 §4.2).
        (self.user, self.logged_in) = (None, LoggedIn::No);
        self.pay();
    }

    fn not_encrypted(&mut self, why: &std::io::Error) {
        tracing::warn!(client = ?self.client, %why, "a TLS handshake with a client failed");
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
        self.logged_in = if outcome == LoginOutcome::Proved { LoggedIn::Yes } else { LoggedIn::No };
        self.pay();
    }

    fn reset(&mut self, _why: Option<Verdict>) {
        self.transaction = Transaction::new();
        self.claim.release();
    }

    fn gave_up(&mut self, why: Verdict) {
        self.office.setting.census.hung_up.add(1);
        tracing::debug!(client = ?self.client, ?why, "a session was closed because of the client");
    }

    fn disconnect(&mut self, _parting: Parting) {}
}
