//! Checks that must hold for any input from a peer, for example that no message is lost and that the output stays
//! limited. Property tests and fuzz targets call these functions, which panic if a check fails.
pub mod amqp_client;
pub mod amqp_listener;
