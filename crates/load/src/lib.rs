//! The load source and the sink: the two ends of a measurement over SMTP; and the source as a worker of a Locust master.

pub mod locust_worker;
pub mod sink;
pub mod source;
