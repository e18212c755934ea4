//! A reason of a verdict: a sentence for the user, with a cause that determines its weight.
use crate::record::Cause;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub cause: Cause,
    pub text: String,
}

impl Reason {
    pub fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self { cause, text: text.into() }
    }
}
