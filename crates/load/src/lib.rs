//! The load source and the sink: the two ends of a measurement over SMTP; and the source as a worker of a Locust master.

#![allow(missing_docs)] // no crate outside this workspace uses it: a name that says all has no sentence

pub mod locust_worker;
pub mod sink;
pub mod source;
