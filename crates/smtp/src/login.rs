//! Questions that a server session asks its application about a login (RFC 4954).
use crate::sasl::Mechanism;
use std::fmt;

/// A question to the application about a client that logs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// The client's mechanism.
    pub mechanism: Mechanism,
    /// Name that the client claims.
    pub name: &'a str,
    /// The client's proof.
    pub proof: Proof<'a>,
}

/// Proofs of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// The secret itself, password or token: a positive answer, 235 by default, accepts the login.
    Shown(&'a [u8]),
    /// A digest, which the session checks: the application has to give it the secret, with
    /// [`Server::answer_secret`](crate::Server::answer_secret).
    Digest,
}

impl Auth<'_> {
    /// Reports whether the session wants the secret, rather than a verdict.
    pub fn is_lookup(&self) -> bool {
        self.proof == Proof::Digest
    }
}

impl fmt::Debug for Auth<'_> {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({}, {:?})", self.mechanism.name(), self.name)
    }
}
