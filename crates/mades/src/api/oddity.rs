//! Deviations of a received message from the reference: named, counted, and no reason to fail.
use std::fmt;

/// One thing amiss. Each has few values, so that a run can count them by kind in bounded memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Oddity {
    /// A property that has to be there is not.
    Missing(&'static str),
    /// A property is of another AMQP type than it should be.
    WrongType {
        /// The property.
        property: &'static str,
        /// The type that it has.
        found: &'static str,
    },
    /// The body is in another section than it should be.
    WrongSection {
        /// The section that it should be in.
        expected: &'static str,
        /// The one that it is in.
        found: &'static str,
    },
    /// Text that is not UTF-8.
    NotText(&'static str),
    /// An event with an unknown state.
    UnknownState,
    /// A status document that cannot be read.
    BadStatusDocument,
    /// A message whose sections cannot be decoded.
    Undecodable,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(property) => write!(f, "{property} is missing"),
            Self::WrongType { property, found } => write!(f, "{property} is of type {found}"),
            Self::WrongSection { expected, found } => write!(f, "the body is {found} and not {expected}"),
            Self::NotText(what) => write!(f, "{what} is not UTF-8"),
            Self::UnknownState => f.write_str("the event's state is unknown"),
            Self::BadStatusDocument => f.write_str("the status document cannot be read"),
            Self::Undecodable => f.write_str("the message cannot be decoded"),
        }
    }
}
