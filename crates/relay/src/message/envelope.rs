//! Encoding of the data that the spool stores with a message's body: the envelope, and notes about
//! progress.
//!
//! ```text
//! envelope   version(1) flags with address-kind [address] sender client-name [user]
//!            [envelope-id] count recipient…
//!            flags: 1 SMTPUTF8 · 2,4 body type · 8,16 RET · 32 user · 64 ENVID
//! recipient  address flags [ORCPT kind, ORCPT address]
//!            flags: 1,2,4 NOTIFY · 8 NOTIFY was given · 16 ORCPT
//! note       version(1) fact…
//! fact       kind [count index…] [data of this kind]
//! text       length bytes
//! number     varint (LEB128) in its shortest form, also for lengths and counts
//! ```
//! The spool's checksum covers these bytes. The decoder nevertheless treats them as untrusted: it
//! rejects every form that the encoder would not write, and compares each length with the bytes
//! that are left.
use mailrun_smtp::command::{BodyType, Hello};
use mailrun_smtp::dsn::{Notify, Return};
use mailrun_smtp::reply::EnhancedStatusCode;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::Arc;

const VERSION: u8 = 1;
/// Maximum number of recipients, because the envelope and the queue number recipients with 16 bits.
pub(crate) const MAX_RECIPIENTS: usize = u16::MAX as usize;
/// Maximum length of each text in an envelope, in bytes: twice what RFC 5321 §4.5.3.1 and RFC 3461 §4 allow.
pub(crate) const MAX_TEXT_BYTES: usize = 1_024;
/// Maximum size, in bytes, of the list of recipients in an encoded envelope. The rest of the spool's limit for
/// envelopes is left for the other fields, such as the sender.
pub(crate) const MAX_RECIPIENTS_BYTES: usize =
    mailrun_spool::Options::MAX_ENVELOPE_BYTES as usize - 64 * MAX_TEXT_BYTES;
/// Maximum number of bytes of a peer's reply that are kept. It is the maximum length of a reply line (RFC 5321
/// §4.5.3.1.5).
pub(crate) const MAX_REFUSAL_BYTES: usize = 512;

/// Protocol with which a message was received: the word after `with` in its Received field (RFC
/// 3848).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum WithProtocol {
    /// The relay itself has created the message, which is a DSN.
    Local = 0,
    Smtp = 1, Esmtp = 2, Esmtps = 3, Esmtpa = 4, Esmtpsa = 5,
    Lmtp = 6, Lmtps = 7, Lmtpa = 8, Lmtpsa = 9,
}

impl WithProtocol {
    const ALL: [Self; 10] = [
        Self::Local,
        Self::Smtp,
        Self::Esmtp,
        Self::Esmtps,
        Self::Esmtpa,
        Self::Esmtpsa,
        Self::Lmtp,
        Self::Lmtps,
        Self::Lmtpa,
        Self::Lmtpsa,
    ];

    pub(crate) fn of_client(hello: Hello, is_encrypted: bool, is_logged_in: bool) -> Self {
        match (hello, is_encrypted, is_logged_in) {
            (Hello::Plain, ..) => Self::Smtp,
            (Hello::Extended, false, false) => Self::Esmtp,
            (Hello::Extended, true, false) => Self::Esmtps,
            (Hello::Extended, false, true) => Self::Esmtpa,
            (Hello::Extended, true, true) => Self::Esmtpsa,
            (Hello::Lmtp, false, false) => Self::Lmtp,
            (Hello::Lmtp, true, false) => Self::Lmtps,
            (Hello::Lmtp, false, true) => Self::Lmtpa,
            (Hello::Lmtp, true, true) => Self::Lmtpsa,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        ["local", "SMTP", "ESMTP", "ESMTPS", "ESMTPA", "ESMTPSA", "LMTP", "LMTPS", "LMTPA", "LMTPSA"][self as usize]
    }
}

/// Client from which the relay receives a message, by its address. If the client has not logged in, its address decides
/// whether the relay trusts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// The relay itself, or a trusted program that the permissions of a Unix-domain socket admitted.
    Local,
    Remote(IpAddr),
    /// A client whose address is unknown to the proxy that forwarded its connection. It is never trusted.
    Unknown,
}

impl Client {
    pub(crate) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Remote(address) => Some(address),
            Self::Local | Self::Unknown => None,
        }
    }

    /// Returns the address as a text for reports: `unknown` if it is not known, and `None` for a local client.
    pub(crate) fn text(self) -> Option<String> {
        match self {
            Self::Local => None,
            Self::Remote(address) => Some(address.to_string()),
            Self::Unknown => Some("unknown".to_owned()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageEnvelope {
    /// The sender's address without brackets, which is empty for a DSN.
    pub(crate) sender: Vec<u8>,
    pub(crate) with: WithProtocol,
    /// Name that the client gave in HELO, EHLO or LHLO.
    pub(crate) client_name: Vec<u8>,
    pub(crate) client: Client,
    pub(crate) user: Option<Vec<u8>>,
    pub(crate) smtp_utf8: bool,
    pub(crate) body: BodyType,
    pub(crate) returns: Option<Return>,
    /// The sender's ENVID as received, which is still encoded as xtext.
    pub(crate) envelope_id: Option<Vec<u8>>,
    pub(crate) recipients: Vec<EnvelopeRecipient>,
}

impl MessageEnvelope {
    /// Returns the envelope of a message that the relay itself creates, such as a DSN. All fields
    /// about a client are empty.
    pub(crate) fn local(sender: &[u8], recipients: Vec<EnvelopeRecipient>) -> Self {
        Self {
            sender: sender.to_vec(),
            with: WithProtocol::Local,
            client_name: Vec::new(),
            client: Client::Local,
            user: None,
            smtp_utf8: false,
            body: BodyType::default(),
            returns: None,
            envelope_id: None,
            recipients,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvelopeRecipient {
    /// The recipient's address without brackets.
    pub(crate) address: Vec<u8>,
    pub(crate) original: Option<Arc<OriginalAddress>>,
    /// NOTIFY parameter of RCPT, or `None` if the sender did not give it. Without it, the relay
    /// reports failures and may report delays (RFC 3461 §4.1).
    pub(crate) notify: Option<Notify>,
}

/// ORCPT parameter of RCPT: the recipient as the original sender named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OriginalAddress {
    pub(crate) kind: Vec<u8>,
    /// Address as received: xtext, or one of the forms of RFC 6533 §3.
    pub(crate) address: Vec<u8>,
}

impl OriginalAddress {
    pub(crate) fn memory_bytes(&self) -> usize {
        const FIXED_BYTES: usize = size_of::<OriginalAddress>() + 80;
        FIXED_BYTES + self.kind.len() + self.address.len()
    }
}

/// A refusal by a server or by this relay itself, or the reason why there was no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryRefusal {
    /// Code of the reply, or 0 if there was no reply. The relay gives its own refusals the code that a
    /// server would send, so that [`DeliveryRefusal::is_permanent`] applies to them as well.
    pub(crate) code: u16,
    pub(crate) enhanced: Option<EnhancedStatusCode>,
    /// Text of the reply, or the relay's own description of the failure.
    pub(crate) text: String,
    /// Host that replied, or an empty text if the relay itself wrote `text`.
    pub(crate) by: String,
}

impl DeliveryRefusal {
    /// Creates a refusal, and cuts texts that are longer than [`MAX_REFUSAL_BYTES`].
    pub(crate) fn new(code: u16, enhanced: Option<EnhancedStatusCode>, text: &str, by: &str) -> Self {
        Self { code, enhanced, text: truncated(text), by: truncated(by) }
    }

    /// Returns the code of the server's reply, or `None` if the refusal is the relay's own. Only this code may be shown
    /// to people and programs as the reply of a server.
    pub(crate) fn reply_code(&self) -> Option<u16> {
        (self.code > 0 && !self.by.is_empty()).then_some(self.code)
    }

    /// Returns true if the code is a 5xx that refuses the message and not only the session, so that a retry is useless.
    pub(crate) fn is_permanent(&self) -> bool {
        mailrun_smtp::reply::is_permanent(self.code)
    }
}

/// Cuts a text at the end of a character, so that at most [`MAX_REFUSAL_BYTES`] remain.
fn truncated(text: &str) -> String {
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    let length = ends.take_while(|end| *end <= MAX_REFUSAL_BYTES).last().unwrap_or(0);
    text[..length].to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecipientFate {
    /// The message was delivered or passed on, and no DSN is due.
    Delivered,
    /// The message was delivered, and the sender asked for a DSN (NOTIFY=SUCCESS).
    Confirmed(Confirmation),
    Failed(DeliveryRefusal),
    /// The relay gave up the message because of its age. Contains the last refusal, if there was one.
    Expired(Option<DeliveryRefusal>),
    /// An operator removed the message, and nobody gets a DSN about it.
    Removed,
}

/// Value of the field Action in a DSN that reports success (RFC 3464 §2.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    Delivered,
    Relayed,
    Expanded,
}

/// A change in the progress of a message, stored in the spool so that no work is repeated after a restart. Recipients
/// are identified by their numbers in the envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// The relay no longer tries to deliver to these recipients. The sender may still have to be notified of their
    /// fate.
    Settled {
        recipients: Vec<u16>,
        fate: RecipientFate,
    },
    DsnStored {
        recipients: Vec<u16>,
    },
    Deferred {
        recipients: Vec<u16>,
        attempts: u32,
        next_unix_s: u64,
        refusal: DeliveryRefusal,
    },
    DelayDsnStored {
        recipients: Vec<u16>,
    },
    Held,
    Released,
}

impl RecipientFate {
    /// Returns true if delivery has failed. A removal by an operator does not count as a failure.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Expired(_))
    }

    /// Returns true if the sender gets a DSN about this fate, unless NOTIFY excludes it.
    pub(crate) fn needs_dsn(&self) -> bool {
        match self {
            Self::Delivered | Self::Removed => false,
            Self::Confirmed(_) | Self::Failed(_) | Self::Expired(_) => true,
        }
    }
}

/// Error of the decoder if the bytes are not a valid envelope or note of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}")]
pub(crate) struct MalformedEnvelope {
    pub(crate) what: &'static str,
    pub(crate) offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_RECIPIENTS} recipients, or a text of more than {MAX_TEXT_BYTES} bytes")]
pub(crate) struct EnvelopeTooLarge;

impl MessageEnvelope {
    /// Returns an upper bound of the memory, in bytes, that the recipients in this envelope take. The other fields are
    /// not counted.
    pub(crate) fn memory_bytes(&self) -> usize {
        const RECIPIENT_BYTES: usize = size_of::<EnvelopeRecipient>() + 32;
        let mut bytes = 0;
        let mut last = None;
        for EnvelopeRecipient { address, original, .. } in &self.recipients {
            bytes += RECIPIENT_BYTES + address.len();
            if let Some(original) =
                original.as_deref().filter(|original| !last.is_some_and(|last| ptr::eq(last, *original)))
            {
                bytes += original.memory_bytes();
                last = Some(original);
            }
        }
        bytes
    }

    /// Encodes the envelope for the spool. Fails if the envelope exceeds the limits of the format, so that every result
    /// can be decoded.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, EnvelopeTooLarge> {
        let mut out = EnvelopeWriter { octets: Vec::with_capacity(64 + self.recipients.len() * 32), fits: true };
        out.octets.extend([VERSION, self.flags(), self.with as u8]);
        out.client(self.client);
        out.text(&self.sender);
        out.text(&self.client_name);
        [&self.user, &self.envelope_id].into_iter().flatten().for_each(|text| out.text(text));
        out.count(self.recipients.len());
        self.recipients.iter().for_each(|recipient| recipient.encode(&mut out));
        out.finish()
    }

    fn flags(&self) -> u8 {
        let body = match self.body {
            BodyType::SevenBit => 0,
            BodyType::EightBitMime => 2,
            BodyType::Binary => 4,
        };
        let returns = match self.returns {
            None => 0,
            Some(Return::Full) => 8,
            Some(Return::Header) => 16,
        };
        let user = if self.user.is_some() { 32 } else { 0 };
        let envelope_id = if self.envelope_id.is_some() { 64 } else { 0 };
        u8::from(self.smtp_utf8) | body | returns | user | envelope_id
    }

    pub(crate) fn decode(octets: &[u8]) -> Result<Self, MalformedEnvelope> {
        let mut from = EnvelopeReader { octets, at: 0 };
        from.version()?;
        let flags = from.octet()?;
        let body = body_of(flags);
        let returns = returns_of(flags);
        let (Some(body), Some(returns), 0) = (body, returns, flags & 128) else { return Err(from.malformed("flags")) };
        let with = usize::from(from.octet()?);
        let with = *WithProtocol::ALL.get(with).ok_or_else(|| from.malformed("with"))?;
        let client = from.client()?;
        let sender = from.text()?;
        let client_name = from.text()?;
        let user = if flags & 32 != 0 { Some(from.text()?) } else { None };
        let envelope_id = if flags & 64 != 0 { Some(from.text()?) } else { None };
        let mut recipients: Vec<EnvelopeRecipient> = Vec::new();
        for _ in 0..from.count()? {
            let mut recipient = EnvelopeRecipient::decode(&mut from)?;
            // Let successive recipients with the same original address, such as members of an alias, share one copy to
            // save memory.
            if let Some(last) = recipients.last().filter(|last| last.original == recipient.original) {
                recipient.original = last.original.clone();
            }
            recipients.push(recipient);
        }
        from.finish()?;
        let smtp_utf8 = flags & 1 != 0;
        Ok(Self { sender, with, client_name, client, user, smtp_utf8, body, returns, envelope_id, recipients })
    }
}

fn body_of(flags: u8) -> Option<BodyType> {
    match flags & 6 {
        0 => Some(BodyType::SevenBit),
        2 => Some(BodyType::EightBitMime),
        4 => Some(BodyType::Binary),
        _ => None,
    }
}

/// Decodes RET from an envelope's flags: `None` if they are invalid, and `Some(None)` if RET was not given.
fn returns_of(flags: u8) -> Option<Option<Return>> {
    match flags & 24 {
        0 => Some(None),
        8 => Some(Some(Return::Full)),
        16 => Some(Some(Return::Header)),
        _ => None,
    }
}

const NOTIFY: [(u8, Notify); 3] = [(1, Notify::SUCCESS), (2, Notify::FAILURE), (4, Notify::DELAY)];

impl EnvelopeRecipient {
    fn encode(&self, out: &mut EnvelopeWriter) {
        out.text(&self.address);
        let notify = self.notify.map_or(0, |notify| {
            NOTIFY.iter().filter(|(_, what)| notify.wants(*what)).fold(8, |flags, (bit, _)| flags | bit)
        });
        out.octets.push(notify | if self.original.is_some() { 16 } else { 0 });
        if let Some(original) = &self.original {
            out.text(&original.kind);
            out.text(&original.address);
        }
    }

    fn decode(from: &mut EnvelopeReader<'_>) -> Result<Self, MalformedEnvelope> {
        let address = from.text()?;
        let flags = from.octet()?;
        if flags >= 32 || (flags & 8 == 0 && flags & 7 != 0) {
            return Err(from.malformed("flags of a recipient"));
        }
        let wanted = NOTIFY.iter().filter(|(bit, _)| flags & bit != 0);
        let notify = (flags & 8 != 0).then(|| wanted.fold(Notify::NEVER, |sum, (_, what)| sum.and(*what)));
        let original =
            if flags & 16 != 0 { Some(OriginalAddress { kind: from.text()?, address: from.text()? }) } else { None };
        Ok(Self { address, original: original.map(Arc::new), notify })
    }
}

pub(crate) fn encode_note(facts: &[Fact]) -> Result<Vec<u8>, EnvelopeTooLarge> {
    let mut out = EnvelopeWriter { octets: vec![VERSION], fits: true };
    facts.iter().for_each(|fact| fact.encode(&mut out));
    out.finish()
}

pub(crate) fn decode_note(octets: &[u8]) -> Result<Vec<Fact>, MalformedEnvelope> {
    let mut from = EnvelopeReader { octets, at: 0 };
    from.version()?;
    let mut facts = Vec::new();
    while from.at < octets.len() {
        facts.push(Fact::decode(&mut from)?);
    }
    Ok(facts)
}

impl Fact {
    fn encode(&self, out: &mut EnvelopeWriter) {
        match self {
            Self::Settled { recipients, fate } => {
                out.octets.push(1);
                out.numbers(recipients);
                fate.encode(out);
            }
            Self::DsnStored { recipients } => {
                out.octets.push(2);
                out.numbers(recipients);
            }
            Self::Deferred { recipients, attempts, next_unix_s, refusal } => {
                out.octets.push(3);
                out.numbers(recipients);
                out.number(u64::from(*attempts));
                out.number(*next_unix_s);
                refusal.encode(out);
            }
            Self::DelayDsnStored { recipients } => {
                out.octets.push(4);
                out.numbers(recipients);
            }
            Self::Held => out.octets.push(5),
            Self::Released => out.octets.push(6),
        }
    }

    fn decode(from: &mut EnvelopeReader<'_>) -> Result<Self, MalformedEnvelope> {
        match from.octet()? {
            1 => Ok(Self::Settled { recipients: from.numbers()?, fate: RecipientFate::decode(from)? }),
            2 => Ok(Self::DsnStored { recipients: from.numbers()? }),
            3 => Ok(Self::Deferred {
                recipients: from.numbers()?,
                attempts: from.small("attempts")?,
                next_unix_s: from.number()?,
                refusal: DeliveryRefusal::decode(from)?,
            }),
            4 => Ok(Self::DelayDsnStored { recipients: from.numbers()? }),
            5 => Ok(Self::Held),
            6 => Ok(Self::Released),
            _ => Err(from.malformed("kind of fact")),
        }
    }
}

impl RecipientFate {
    fn encode(&self, out: &mut EnvelopeWriter) {
        let kind = match self {
            Self::Delivered => 0,
            Self::Confirmed(Confirmation::Delivered) => 1,
            Self::Confirmed(Confirmation::Relayed) => 2,
            Self::Confirmed(Confirmation::Expanded) => 3,
            Self::Failed(_) => 4,
            Self::Expired(None) => 5,
            Self::Expired(Some(_)) => 6,
            Self::Removed => 7,
        };
        out.octets.push(kind);
        if let Self::Failed(refusal) | Self::Expired(Some(refusal)) = self {
            refusal.encode(out);
        }
    }

    fn decode(from: &mut EnvelopeReader<'_>) -> Result<Self, MalformedEnvelope> {
        match from.octet()? {
            0 => Ok(Self::Delivered),
            1 => Ok(Self::Confirmed(Confirmation::Delivered)),
            2 => Ok(Self::Confirmed(Confirmation::Relayed)),
            3 => Ok(Self::Confirmed(Confirmation::Expanded)),
            4 => DeliveryRefusal::decode(from).map(Self::Failed),
            5 => Ok(Self::Expired(None)),
            6 => DeliveryRefusal::decode(from).map(|refusal| Self::Expired(Some(refusal))),
            7 => Ok(Self::Removed),
            _ => Err(from.malformed("fate")),
        }
    }
}

impl DeliveryRefusal {
    fn encode(&self, out: &mut EnvelopeWriter) {
        out.number(u64::from(self.code));
        // Encode a missing enhanced code as class 0, which no real code has (RFC 3463 §2).
        let EnhancedStatusCode(class, subject, detail) = self.enhanced.unwrap_or(EnhancedStatusCode(0, 0, 0));
        out.octets.push(class);
        if class != 0 {
            out.number(u64::from(subject));
            out.number(u64::from(detail));
        }
        out.text(self.text.as_bytes());
        out.text(self.by.as_bytes());
    }

    fn decode(from: &mut EnvelopeReader<'_>) -> Result<Self, MalformedEnvelope> {
        let code = from.small("code")?;
        let enhanced = match from.octet()? {
            0 => None,
            class => Some(EnhancedStatusCode(class, from.small("subject")?, from.small("detail")?)),
        };
        Ok(Self { code, enhanced, text: from.string()?, by: from.string()? })
    }
}

/// Progress of a message for each of its recipients, computed from the notes that the spool keeps about the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageProgress {
    pub(crate) recipients: Vec<RecipientProgress>,
    pub(crate) held: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecipientProgress {
    /// Final outcome for the recipient, such as a delivery. `None` while the message is still to be delivered.
    pub(crate) fate: Option<RecipientFate>,
    pub(crate) dsn_stored: bool,
    pub(crate) delay_dsn_stored: bool,
    pub(crate) attempts: u32,
    /// Unix time of the next attempt in seconds. 0 means that the recipient is due at once.
    pub(crate) next_unix_s: u64,
    pub(crate) refusal: Option<DeliveryRefusal>,
}

impl RecipientProgress {
    /// Returns true if the sender may have to be notified of the recipient's fate, and the spool
    /// has no DSN about it yet.
    pub(crate) fn is_dsn_due(&self) -> bool {
        !self.dsn_stored && self.fate.as_ref().is_some_and(RecipientFate::needs_dsn)
    }
}

impl MessageProgress {
    pub(crate) fn new(recipients: usize) -> Self {
        Self { recipients: vec![RecipientProgress::default(); recipients], held: false }
    }

    pub(crate) fn apply_note(&mut self, note: &[u8]) -> Result<(), MalformedEnvelope> {
        for fact in decode_note(note)? {
            self.apply(fact)?;
        }
        Ok(())
    }

    fn apply(&mut self, fact: Fact) -> Result<(), MalformedEnvelope> {
        match fact {
            Fact::Settled { recipients, fate } => self.each(&recipients, |it| it.fate = Some(fate.clone())),
            Fact::DsnStored { recipients } => self.each(&recipients, |it| it.dsn_stored = true),
            Fact::DelayDsnStored { recipients } => self.each(&recipients, |it| it.delay_dsn_stored = true),
            Fact::Deferred { recipients, attempts, next_unix_s, refusal } => self.each(&recipients, |it| {
                (it.attempts, it.next_unix_s, it.refusal) = (attempts, next_unix_s, Some(refusal.clone()));
            }),
            Fact::Held | Fact::Released => {
                self.held = fact == Fact::Held;
                Ok(())
            }
        }
    }

    fn each(
        &mut self,
        recipients: &[u16],
        mut learn: impl FnMut(&mut RecipientProgress),
    ) -> Result<(), MalformedEnvelope> {
        for &number in recipients {
            let unknown =
                MalformedEnvelope { what: "a recipient that is not in the envelope", offset: usize::from(number) };
            learn(self.recipients.get_mut(usize::from(number)).ok_or(unknown)?);
        }
        Ok(())
    }
}

struct EnvelopeWriter {
    octets: Vec<u8>,
    fits: bool,
}

impl EnvelopeWriter {
    fn number(&mut self, mut number: u64) {
        while number >= 128 {
            self.octets.push(number as u8 | 128);
            number >>= 7;
        }
        self.octets.push(number as u8);
    }

    fn text(&mut self, text: &[u8]) {
        self.fits &= text.len() <= MAX_TEXT_BYTES;
        self.number(text.len() as u64);
        self.octets.extend_from_slice(text);
    }

    fn count(&mut self, count: usize) {
        self.fits &= count <= MAX_RECIPIENTS;
        self.number(count as u64);
    }

    fn numbers(&mut self, numbers: &[u16]) {
        self.count(numbers.len());
        numbers.iter().for_each(|number| self.number(u64::from(*number)));
    }

    fn client(&mut self, client: Client) {
        match client {
            Client::Local => self.octets.push(0),
            Client::Unknown => self.octets.push(1),
            Client::Remote(IpAddr::V4(address)) => {
                self.octets.push(4);
                self.octets.extend(address.octets());
            }
            Client::Remote(IpAddr::V6(address)) => {
                self.octets.push(6);
                self.octets.extend(address.octets());
            }
        }
    }

    fn finish(self) -> Result<Vec<u8>, EnvelopeTooLarge> {
        if self.fits { Ok(self.octets) } else { Err(EnvelopeTooLarge) }
    }
}

struct EnvelopeReader<'a> {
    octets: &'a [u8],
    at: usize,
}

impl<'a> EnvelopeReader<'a> {
    fn malformed(&self, what: &'static str) -> MalformedEnvelope {
        MalformedEnvelope { what, offset: self.at }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedEnvelope> {
        let octets = self.octets[self.at..].get(..length).ok_or_else(|| self.malformed("a sudden end"))?;
        self.at += length;
        Ok(octets)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], MalformedEnvelope> {
        let octets = self.take(LENGTH)?;
        Ok(octets.try_into().expect("`take` gives as many as it was asked for"))
    }

    fn octet(&mut self) -> Result<u8, MalformedEnvelope> {
        self.array().map(|[octet]| octet)
    }

    fn version(&mut self) -> Result<(), MalformedEnvelope> {
        if self.octet()? == VERSION { Ok(()) } else { Err(self.malformed("an unknown version")) }
    }

    /// Reads a varint, which must be in its shortest form.
    fn number(&mut self) -> Result<u64, MalformedEnvelope> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let octet = self.octet()?;
            let part = u64::from(octet & 127);
            let last = octet < 128;
            if (part << shift) >> shift != part || (last && part == 0 && shift > 0) {
                return Err(self.malformed("a number that is not in its shortest form"));
            }
            number |= part << shift;
            if last {
                return Ok(number);
            }
        }
        Err(self.malformed("an endless number"))
    }

    fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, MalformedEnvelope> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.malformed(what))
    }

    fn text(&mut self) -> Result<Vec<u8>, MalformedEnvelope> {
        let length: usize = self.small("a length")?;
        if length > MAX_TEXT_BYTES {
            return Err(self.malformed("a long text"));
        }
        self.take(length).map(<[u8]>::to_vec)
    }

    fn string(&mut self) -> Result<String, MalformedEnvelope> {
        String::from_utf8(self.text()?).map_err(|_| self.malformed("a text that is not UTF-8"))
    }

    fn count(&mut self) -> Result<usize, MalformedEnvelope> {
        let count = self.small("a count")?;
        if count > MAX_RECIPIENTS { Err(self.malformed("too many recipients")) } else { Ok(count) }
    }

    fn numbers(&mut self) -> Result<Vec<u16>, MalformedEnvelope> {
        (0..self.count()?).map(|_| self.small("number of a recipient")).collect()
    }

    fn client(&mut self) -> Result<Client, MalformedEnvelope> {
        match self.octet()? {
            0 => Ok(Client::Local),
            1 => Ok(Client::Unknown),
            4 => Ok(Client::Remote(IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)))),
            6 => Ok(Client::Remote(IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)))),
            _ => Err(self.malformed("kind of address")),
        }
    }

    fn finish(self) -> Result<(), MalformedEnvelope> {
        if self.at == self.octets.len() { Ok(()) } else { Err(self.malformed("extra bytes after the end")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> MessageEnvelope {
        MessageEnvelope {
            sender: b"a@example.com".to_vec(),
            with: WithProtocol::Esmtpsa,
            client_name: b"mx.example.com".to_vec(),
            client: Client::Remote("2001:db8::1".parse().unwrap()),
            user: Some(b"ann".to_vec()),
            smtp_utf8: true,
            body: BodyType::EightBitMime,
            returns: Some(Return::Header),
            envelope_id: Some(b"QQ+2B1".to_vec()),
            recipients: vec![
                EnvelopeRecipient { address: b"b@example.org".to_vec(), original: None, notify: None },
                EnvelopeRecipient {
                    address: b"c@example.org".to_vec(),
                    original: Some(Arc::new(OriginalAddress {
                        kind: b"rfc822".to_vec(),
                        address: b"c+2Bd@e".to_vec(),
                    })),
                    notify: Some(Notify::SUCCESS.and(Notify::DELAY)),
                },
            ],
        }
    }

    fn refusal() -> DeliveryRefusal {
        DeliveryRefusal::new(550, Some(EnhancedStatusCode(5, 1, 1)), "no such user", "mx.example.org")
    }

    #[test]
    fn an_envelope_is_as_long_as_the_format_says() {
        let dsn = MessageEnvelope {
            sender: Vec::new(),
            with: WithProtocol::Local,
            client_name: Vec::new(),
            client: Client::Local,
            user: None,
            smtp_utf8: false,
            body: BodyType::SevenBit,
            returns: None,
            envelope_id: None,
            recipients: vec![EnvelopeRecipient {
                address: b"a@b".to_vec(),
                original: None,
                notify: Some(Notify::NEVER),
            }],
        };
        assert_eq!(dsn.encode().unwrap(), [1, 0, 0, 0, 0, 0, 1, 3, b'a', b'@', b'b', 8]);
        assert_eq!(MessageEnvelope::decode(&dsn.encode().unwrap()), Ok(dsn));
        assert_eq!(MessageEnvelope::decode(&sample().encode().unwrap()), Ok(sample()));
    }

    #[test]
    fn what_is_no_envelope_says_where() {
        let rows: [(&[u8], &str, usize); 14] = [
            (&[], "a sudden end", 0),
            (&[2, 0], "an unknown version", 1),
            (&[1, 6], "flags", 2),
            (&[1, 24], "flags", 2),
            (&[1, 128], "flags", 2),
            (&[1, 0, 10], "with", 3),
            (&[1, 0, 1, 5], "kind of address", 4),
            (&[1, 0, 1, 4, 127, 0], "a sudden end", 4),
            (&[1, 0, 1, 0, 0x81, 0x10], "a long text", 6),
            (&[1, 0, 1, 0, 0x80, 0], "a number that is not in its shortest form", 6),
            (
                &[1, 0, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
                "a number that is not in its shortest form",
                14,
            ),
            (&[1, 0, 1, 0, 0, 0, 0x80, 0x80, 4], "too many recipients", 9),
            (&[1, 0, 1, 0, 0, 0, 1, 0, 7], "flags of a recipient", 9),
            (&[1, 0, 1, 0, 0, 0, 0, 9], "extra bytes after the end", 7),
        ];
        for (octets, what, offset) in rows {
            assert_eq!(MessageEnvelope::decode(octets), Err(MalformedEnvelope { what, offset }), "{octets:?}");
        }
        let whole = sample().encode().unwrap();
        for length in 0..whole.len() {
            assert!(MessageEnvelope::decode(&whole[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn nothing_is_written_that_could_not_be_read() {
        let long = MessageEnvelope { sender: vec![b'x'; MAX_TEXT_BYTES], ..sample() };
        assert_eq!(MessageEnvelope::decode(&long.encode().unwrap()), Ok(long));
        let longer = MessageEnvelope { sender: vec![b'x'; MAX_TEXT_BYTES + 1], ..sample() };
        assert_eq!(longer.encode(), Err(EnvelopeTooLarge));
        let one = EnvelopeRecipient { address: Vec::new(), original: None, notify: None };
        let many = MessageEnvelope { recipients: vec![one.clone(); MAX_RECIPIENTS], ..sample() };
        assert_eq!(MessageEnvelope::decode(&many.encode().unwrap()), Ok(many));
        let more = MessageEnvelope { recipients: vec![one; MAX_RECIPIENTS + 1], ..sample() };
        assert_eq!(more.encode(), Err(EnvelopeTooLarge));
        let wordy = DeliveryRefusal::new(550, None, &"ä".repeat(1_000), "");
        assert_eq!((wordy.text.len(), wordy.text.chars().all(|c| c == 'ä')), (512, true));
    }

    #[test]
    fn only_a_host_s_refusal_has_the_code_of_a_reply() {
        for (code, by, expected) in [(550, "mx.example", Some(550)), (550, "", None), (0, "mx.example", None)] {
            assert_eq!(DeliveryRefusal::new(code, None, "no", by).reply_code(), expected, "{code} {by:?}");
        }
    }

    #[test]
    fn notes_add_up() {
        let all = [
            Fact::Deferred { recipients: vec![0, 1, 2], attempts: 1, next_unix_s: 1_800_000_000, refusal: refusal() },
            Fact::Settled { recipients: vec![0], fate: RecipientFate::Delivered },
            Fact::Settled { recipients: vec![2], fate: RecipientFate::Failed(refusal()) },
            Fact::Held,
            Fact::DelayDsnStored { recipients: vec![1] },
        ];
        let mut progress = MessageProgress::new(3);
        for fact in all {
            progress.apply_note(&encode_note(&[fact]).unwrap()).unwrap();
        }
        assert!(progress.held);
        let [first, second, third] = progress.recipients.as_slice() else { panic!("there are three") };
        assert_eq!((first.fate.as_ref(), first.is_dsn_due()), (Some(&RecipientFate::Delivered), false));
        assert_eq!((second.attempts, second.next_unix_s, second.delay_dsn_stored), (1, 1_800_000_000, true));
        assert_eq!((second.fate.as_ref(), second.refusal.as_ref()), (None, Some(&refusal())));
        assert!(third.is_dsn_due());
        progress.apply_note(&encode_note(&[Fact::DsnStored { recipients: vec![2] }, Fact::Released]).unwrap()).unwrap();
        assert!(!progress.recipients[2].is_dsn_due() && !progress.held);
        let unknown = encode_note(&[Fact::DsnStored { recipients: vec![3] }]).unwrap();
        assert!(progress.apply_note(&unknown).is_err(), "there is no fourth");
        assert!(decode_note(&[1, 7]).is_err() && decode_note(&[]).is_err() && decode_note(&[1]) == Ok(vec![]));
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..40)
    }

    fn any_refusal() -> impl Strategy<Value = DeliveryRefusal> {
        let enhanced =
            prop::option::of((1..6_u8, any::<u16>(), any::<u16>()).prop_map(|(a, b, c)| EnhancedStatusCode(a, b, c)));
        (any::<u16>(), enhanced, ".{0,40}", ".{0,20}")
            .prop_map(|(code, enhanced, text, by)| DeliveryRefusal::new(code, enhanced, &text, &by))
    }

    fn any_fate() -> impl Strategy<Value = RecipientFate> {
        prop_oneof![
            Just(RecipientFate::Delivered),
            Just(RecipientFate::Removed),
            Just(RecipientFate::Confirmed(Confirmation::Delivered)),
            Just(RecipientFate::Confirmed(Confirmation::Relayed)),
            Just(RecipientFate::Confirmed(Confirmation::Expanded)),
            any_refusal().prop_map(RecipientFate::Failed),
            prop::option::of(any_refusal()).prop_map(RecipientFate::Expired),
        ]
    }

    fn any_fact() -> impl Strategy<Value = Fact> {
        let numbers = || prop::collection::vec(any::<u16>(), 0..20);
        prop_oneof![
            (numbers(), any_fate()).prop_map(|(recipients, fate)| Fact::Settled { recipients, fate }),
            numbers().prop_map(|recipients| Fact::DsnStored { recipients }),
            numbers().prop_map(|recipients| Fact::DelayDsnStored { recipients }),
            (numbers(), any::<u32>(), any::<u64>(), any_refusal()).prop_map(
                |(recipients, attempts, next_unix_s, refusal)| Fact::Deferred {
                    recipients,
                    attempts,
                    next_unix_s,
                    refusal
                }
            ),
            Just(Fact::Held),
            Just(Fact::Released),
        ]
    }

    fn any_recipient() -> impl Strategy<Value = EnvelopeRecipient> {
        let original =
            prop::option::of((text(), text()).prop_map(|(kind, address)| Arc::new(OriginalAddress { kind, address })));
        let notify = prop::option::of(0..8_u8).prop_map(|bits| {
            bits.map(|bits| {
                NOTIFY.iter().filter(|(bit, _)| bits & bit != 0).fold(Notify::NEVER, |sum, it| sum.and(it.1))
            })
        });
        (text(), original, notify).prop_map(|(address, original, notify)| EnvelopeRecipient {
            address,
            original,
            notify,
        })
    }

    prop_compose! {
        fn any_envelope()(
            (sender, client_name) in (text(), text()),
            (user, envelope_id) in (prop::option::of(text()), prop::option::of(text())),
            with in prop::sample::select(&WithProtocol::ALL[..]),
            client in prop_oneof![
                Just(Client::Local),
                Just(Client::Unknown),
                any::<IpAddr>().prop_map(Client::Remote),
            ],
            smtp_utf8: bool,
            body in prop::sample::select(&[BodyType::SevenBit, BodyType::EightBitMime, BodyType::Binary][..]),
            returns in prop::sample::select(&[None, Some(Return::Full), Some(Return::Header)][..]),
            recipients in prop::collection::vec(any_recipient(), 0..8),
        ) -> MessageEnvelope {
            MessageEnvelope { sender, with, client_name, client, user, smtp_utf8, body, returns, envelope_id, recipients }
        }
    }

    proptest! {
        #[test]
        fn any_envelope_is_read_as_it_was_written(envelope in any_envelope()) {
            prop_assert_eq!(MessageEnvelope::decode(&envelope.encode().unwrap()), Ok(envelope));
        }

        #[test]
        fn any_note_is_read_as_it_was_written(facts in prop::collection::vec(any_fact(), 0..6)) {
            prop_assert_eq!(decode_note(&encode_note(&facts).unwrap()), Ok(facts));
        }

        #[test]
        fn what_is_taken_of_hostile_octets_is_written_the_same(
            envelope in any_envelope(), facts in prop::collection::vec(any_fact(), 0..6),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let flipped = |mut octets: Vec<u8>| {
                flips.iter().for_each(|(at, octet)| *at.get_mut(&mut octets) = *octet);
                octets
            };
            crate::checks::envelope::check(&flipped(envelope.encode().unwrap()));
            crate::checks::envelope::check(&flipped(encode_note(&facts).unwrap()));
        }
    }
}
