//! Reasons of a verdict: a sentence, and the cause that gives it its weight.
use crate::record::Cause;

/// A sentence of the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Cause of the reason.
    pub cause: Cause,
    /// Its sentence.
    pub text: String,
}

impl Reason {
    /// Makes a reason.
    pub fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self { cause, text: text.into() }
    }
}
