use mailrun_mades::Error;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("{0}")]
    Plan(String),
    #[error(transparent)]
    Broker(#[from] Error),
    #[error("cannot write the log of messages: {0}")]
    MessageLog(#[from] io::Error),
}
