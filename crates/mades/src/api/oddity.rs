//! Deviations of a received message from the reference. A run names and counts them, but does not
//! fail because of them.
use std::fmt;

/// A deviation. Each variant has few possible values, so that a run can count deviations by kind in
/// bounded memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Oddity {
    /// A required property is missing.
    Missing(&'static str),
    WrongType {
        property: &'static str,
        found: &'static str,
    },
    /// The body is in a section of another type than expected.
    WrongSection {
        expected: &'static str,
        found: &'static str,
    },
    /// A text is not UTF-8.
    NotText(&'static str),
    UnknownState,
    BadStatusDocument,
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
        }
    }
}
