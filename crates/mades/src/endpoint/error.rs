//! Errors of an endpoint.
use crate::error::Error;
use std::io;

/// Reason why a simulator cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The plan is wrong.
    #[error("{0}")]
    Plan(String),
    /// The broker cannot be used.
    #[error(transparent)]
    Broker(#[from] Error),
    /// The record cannot be written.
    #[error("cannot write the log of messages: {0}")]
    MessageLog(#[from] io::Error),
}
