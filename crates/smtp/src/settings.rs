//! Settings that all sessions of a server share: name, limits, extensions and requirements.
use crate::command::MAX_LINE_BYTES;
use crate::extensions::Extensions;
use crate::limits::Limits;
use crate::reply::Reply;
use crate::sasl::{MAX_EXCHANGE_LINE_BYTES, Mechanisms};

/// Protocol that a session speaks, SMTP or LMTP. It decides whether clients greet with EHLO or LHLO, and whether a
/// message gets one reply or one for each recipient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// SMTP (RFC 5321), in which a message gets a single reply.
    #[default]
    Smtp,
    /// LMTP (RFC 2033), in which LHLO replaces EHLO, and a message gets a reply for each recipient.
    Lmtp,
}

/// Requirements that a client must meet before the server serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requires {
    /// Require TLS before all commands except NOOP, EHLO, STARTTLS and QUIT (RFC 3207 §4).
    pub tls: bool,
    /// Offer and accept AUTH only over TLS, so that clients do not send passwords unencrypted.
    pub tls_for_auth: bool,
    /// After EHLO, require a login before all commands except EHLO, NOOP, RSET, STARTTLS, AUTH, XCLIENT and QUIT (RFC
    /// 4954 §6).
    pub auth: bool,
    /// Require valid values of the parameters ENVID, ORCPT and AUTH=, which servers only pass on. If this is not set,
    /// the server ignores invalid values, because they are no reason to refuse mail.
    pub valid_parameters: bool,
}

/// Extensions that a server offers, and requirements that its clients must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Protocol that the server speaks. [`Offer::new`] chooses SMTP.
    pub protocol: Protocol,
    /// Extensions that EHLO lists. STARTTLS is no longer listed once TLS has begun.
    pub extensions: Extensions,
    /// Requirements that clients must meet, for example a login before MAIL.
    pub requires: Requires,
}

impl Offer {
    /// Returns an offer of all extensions except STARTTLS, AUTH and XCLIENT, which need a certificate, a list of users
    /// or a trusted client. The offer has no requirements.
    pub fn new(limits: &Limits) -> Self {
        let extensions = Extensions::all(limits.message_bytes);
        Self { protocol: Protocol::Smtp, extensions, requires: Requires::default() }
    }
}

/// Settings that all sessions of a server share: limits, extensions, and the replies that contain
/// the server's name.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Limits on sizes, times and errors, which apply to each session separately.
    pub limits: Limits,
    /// Extensions that the reply to EHLO lists before TLS has begun. AUTH is missing if it requires TLS.
    pub extensions: Extensions,
    /// Extensions that the reply to EHLO lists over TLS. STARTTLS is missing, because TLS has already begun.
    pub extensions_over_tls: Extensions,
    /// Protocol that the server speaks. An SMTP server refuses LHLO, and an LMTP server refuses EHLO.
    pub protocol: Protocol,
    /// Requirements that clients must meet, for example a login before MAIL.
    pub requires: Requires,
    pub(crate) name: String,
    pub(crate) greeting: Reply,
    pub(crate) helo: Reply,
    ehlo: Reply,
    ehlo_over_tls: Reply,
}

impl ServerSettings {
    /// Creates settings with this host name, these limits, and the offer of [`Offer::new`].
    pub fn new(name: &str, limits: Limits) -> Self {
        let offer = Offer::new(&limits);
        Self::with_offer(name, limits, offer)
    }

    /// Creates settings, and renders the replies to EHLO once for all sessions. If AUTH requires
    /// TLS, EHLO lists AUTH only over TLS.
    pub fn with_offer(name: &str, limits: Limits, offer: Offer) -> Self {
        let Offer { protocol, extensions: offered, requires } = offer;
        // Binary messages can be sent only with BDAT, so BINARYMIME needs CHUNKING (RFC 3030 §3).
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

    pub(crate) fn offers(&self, is_over_tls: bool) -> &Extensions {
        if is_over_tls { &self.extensions_over_tls } else { &self.extensions }
    }

    pub(crate) fn ehlo(&self, is_over_tls: bool) -> &Reply {
        if is_over_tls { &self.ehlo_over_tls } else { &self.ehlo }
    }

    /// Maximum length of a command line in bytes. It is larger if AUTH is offered, because AUTH may
    /// carry a long response.
    pub(crate) fn line_bytes(&self) -> usize {
        if self.extensions_over_tls.auth.is_empty() { MAX_LINE_BYTES } else { MAX_EXCHANGE_LINE_BYTES }
    }
}
