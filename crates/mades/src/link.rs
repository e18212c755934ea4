//! Common parts of both kinds of links: the session of each, and the capabilities of its node.
use crate::error::Error;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::session::{BeginError, SessionHandle};
use fe2o3_amqp_types::primitives::Symbol;

/// Capabilities that a node must have, as go-mades-bench asks for them: "QPID broker capabilities" of older ECP.
const CAPABILITIES: [&str; 4] = ["create-on-demand", "durable", "shared", "queue"];

/// A session for one link: links have one each, so that none waits in another's line.
pub(crate) async fn session(
    connection: &mut ConnectionHandle<()>,
    buffered_frames: usize,
) -> Result<SessionHandle<()>, Error> {
    let begun = fe2o3_amqp::Session::builder().buffer_size(buffered_frames).begin(connection).await;
    begun.map_err(|error| match error {
        BeginError::ConnectionStopped(_) => Error::Lost { why: "it ended before the session began".to_owned() },
        other => Error::Closed { why: other.to_string() },
    })
}

pub(crate) fn capabilities() -> Vec<Symbol> {
    CAPABILITIES.map(Symbol::from).to_vec()
}
