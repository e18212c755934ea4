//! Questions that a server session asks its application about a login (RFC 4954).
use crate::sasl::Mechanism;
use std::fmt;

/// A login that the application must accept or refuse.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Mechanism of AUTH that the client has chosen, such as XOAUTH2.
    pub mechanism: Mechanism,
    /// User name that the client claims. It is not verified yet.
    pub name: &'a str,
    /// Secret or digest with which the client proves its identity.
    pub proof: Proof<'a>,
}

/// Proof of identity from the client: a password, a token or a digest, depending on the mechanism.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// The password or token itself. The application accepts the login with a positive answer, which is usually 235.
    Shown(&'a [u8]),
    /// A digest. The session can check the digest only with the user's secret, which the application must pass to
    /// [`Server::answer_secret`](crate::Server::answer_secret).
    Digest,
}

impl Auth<'_> {
    /// Returns true if the mechanism uses a digest, so that `Event::Auth` asks for the secret instead of a decision.
    pub fn is_lookup(&self) -> bool {
        self.proof == Proof::Digest
    }
}

impl fmt::Debug for Auth<'_> {
    /// Leaves the secret out, so that debug output and logs cannot reveal it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({}, {:?})", self.mechanism.name(), self.name)
    }
}
