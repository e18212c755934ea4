//! Delivery agents, which take messages from the queue and give them back with a result: Postfix's smtp(8), lmtp(8), local(8).
pub(crate) mod destinations;
pub(crate) mod handles;
pub(crate) mod maildir;
pub(crate) mod required_extensions;
pub(crate) mod resolver;
pub(crate) mod smtp;
