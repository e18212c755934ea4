//! The load source and the sink: the two ends of a measurement over SMTP.

pub mod sink;
pub mod source;
