//! A reason for a verdict: a sentence for the user, and a cause. The weightiest cause decides the outcome of the run.
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
