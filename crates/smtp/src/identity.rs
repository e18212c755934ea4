//! What all sessions of a server share: who it is, what it offers and what it insists on.
use crate::command::LONGEST_LINE_BYTES;
use crate::extensions::Extensions;
use crate::limits::Limits;
use crate::reply::Reply;
use crate::sasl::{EXCHANGE_LINE_BYTES, Mechanisms};

/// What is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// SMTP: one answer for a message.
    #[default]
    Smtp,
    /// LMTP (RFC 2033): LHLO for EHLO, and an answer for each recipient.
    Lmtp,
}

/// What a server insists on before it does anything for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requires {
    /// TLS before all but NOOP, EHLO, STARTTLS and QUIT (RFC 3207 §4).
    pub tls: bool,
    /// TLS before AUTH, which is not offered without.
    pub tls_for_auth: bool,
    /// AUTH before MAIL, and all that follows it (RFC 4954 §6).
    pub auth: bool,
}

/// What a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What is spoken.
    pub protocol: Protocol,
    /// What EHLO lists. STARTTLS is no longer listed where TLS is on.
    pub extensions: Extensions,
    /// What it insists on.
    pub requires: Requires,
}

impl Offer {
    /// All that needs no certificate, no list of users and no trust, to everybody.
    pub fn new(limits: &Limits) -> Self {
        let extensions = Extensions::all(limits.message_bytes);
        Self { protocol: Protocol::Smtp, extensions, requires: Requires::default() }
    }
}

/// What all sessions of a server share: its limits, and the replies that bear its name.
#[derive(Clone, Debug)]
pub struct Identity {
    /// How much of anything.
    pub limits: Limits,
    /// What EHLO offers where TLS is not on.
    pub extensions: Extensions,
    /// What it offers where TLS is on.
    pub extensions_over_tls: Extensions,
    /// What is spoken.
    pub protocol: Protocol,
    /// What it insists on.
    pub requires: Requires,
    pub(crate) name: String,
    pub(crate) greeting: Reply,
    pub(crate) helo: Reply,
    ehlo: Reply,
    ehlo_over_tls: Reply,
}

impl Identity {
    /// A server of that name with those limits, offering all that [`Offer::new`] does.
    pub fn new(name: &str, limits: Limits) -> Self {
        let offer = Offer::new(&limits);
        Self::offering(name, limits, offer)
    }

    /// A server of that name with those limits and that offer.
    pub fn offering(name: &str, limits: Limits, offer: Offer) -> Self {
        let Offer { protocol, extensions: offered, requires } = offer;
        // RFC 3030 §3: BINARYMIME means nothing without CHUNKING.
        let offered = Extensions { binary_mime: offered.binary_mime && offered.chunking, ..offered };
        let over_tls = Extensions { starttls: false, ..offered.clone() };
        let hides_auth = requires.tls_for_auth || requires.tls;
        let extensions = Extensions { auth: if hides_auth { Mechanisms::NONE } else { offered.auth }, ..offered };
        let word = if protocol == Protocol::Lmtp { "LMTP" } else { "ESMTP" };
        Self {
            greeting: Reply::new(220, &format!("{name} {word} mailrun")),
            helo: Reply::new(250, name),
            ehlo: Reply::new(250, &extensions.render(name)),
            ehlo_over_tls: Reply::new(250, &over_tls.render(name)),
            name: name.to_owned(),
            limits,
            extensions,
            extensions_over_tls: over_tls,
            protocol,
            requires,
        }
    }

    /// What is offered to a client in that state.
    pub(crate) fn offers(&self, is_over_tls: bool) -> &Extensions {
        if is_over_tls { &self.extensions_over_tls } else { &self.extensions }
    }

    pub(crate) fn ehlo(&self, is_over_tls: bool) -> &Reply {
        if is_over_tls { &self.ehlo_over_tls } else { &self.ehlo }
    }

    /// The longest line that a command may have, AUTH and its long responses being a case of their own.
    pub(crate) fn line_bytes(&self) -> usize {
        if self.extensions_over_tls.auth.is_empty() { LONGEST_LINE_BYTES } else { EXCHANGE_LINE_BYTES }
    }
}
