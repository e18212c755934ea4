//! Settings that all sessions of a server share: its name, its offer and its requirements.
use crate::command::MAX_LINE_BYTES;
use crate::extensions::Extensions;
use crate::limits::Limits;
use crate::reply::Reply;
use crate::sasl::{MAX_EXCHANGE_LINE_BYTES, Mechanisms};

/// Protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// SMTP: one reply to a message.
    #[default]
    Smtp,
    /// LMTP (RFC 2033): LHLO in place of EHLO, and a reply for each recipient.
    Lmtp,
}

/// Requirements of a server before it serves a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requires {
    /// TLS before all commands except NOOP, EHLO, STARTTLS and QUIT (RFC 3207 §4).
    pub tls: bool,
    /// TLS before AUTH, which is not offered without it.
    pub tls_for_auth: bool,
    /// AUTH before MAIL and everything after it (RFC 4954 §6).
    pub auth: bool,
}

/// Offer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Protocol to speak.
    pub protocol: Protocol,
    /// Extensions that EHLO lists. STARTTLS is not listed once TLS has begun.
    pub extensions: Extensions,
    /// Its requirements.
    pub requires: Requires,
}

impl Offer {
    /// Offers everything that needs no certificate, no list of users and no trust, to all clients.
    pub fn new(limits: &Limits) -> Self {
        let extensions = Extensions::all(limits.message_bytes);
        Self { protocol: Protocol::Smtp, extensions, requires: Requires::default() }
    }
}

/// Settings that all sessions of a server share: its limits, and the replies that contain its name.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Limits of its sessions.
    pub limits: Limits,
    /// Extensions in EHLO without TLS.
    pub extensions: Extensions,
    /// Extensions in EHLO over TLS.
    pub extensions_over_tls: Extensions,
    /// Protocol to speak.
    pub protocol: Protocol,
    /// Its requirements.
    pub requires: Requires,
    pub(crate) name: String,
    pub(crate) greeting: Reply,
    pub(crate) helo: Reply,
    ehlo: Reply,
    ehlo_over_tls: Reply,
}

impl ServerSettings {
    /// Creates a server's settings with that name, those limits, and the offer of [`Offer::new`].
    pub fn new(name: &str, limits: Limits) -> Self {
        let offer = Offer::new(&limits);
        Self::with_offer(name, limits, offer)
    }

    /// Creates a server's settings with that name, those limits and that offer.
    pub fn with_offer(name: &str, limits: Limits, offer: Offer) -> Self {
        let Offer { protocol, extensions: offered, requires } = offer;
        // RFC 3030 §3: BINARYMIME is useless without CHUNKING.
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

    /// Returns the extensions that are offered to a client in that state.
    pub(crate) fn offers(&self, is_over_tls: bool) -> &Extensions {
        if is_over_tls { &self.extensions_over_tls } else { &self.extensions }
    }

    pub(crate) fn ehlo(&self, is_over_tls: bool) -> &Reply {
        if is_over_tls { &self.ehlo_over_tls } else { &self.ehlo }
    }

    /// Longest command line. AUTH may be longer because of its responses.
    pub(crate) fn line_bytes(&self) -> usize {
        if self.extensions_over_tls.auth.is_empty() { MAX_LINE_BYTES } else { MAX_EXCHANGE_LINE_BYTES }
    }
}
