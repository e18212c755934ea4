//! The name of a link within its connection.

/// Identifies a link: the session's number, and the link's number in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    pub(super) channel: u16,
    pub(super) handle: u32,
}
