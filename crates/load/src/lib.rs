//! The two ends of a measurement over SMTP: the load source and the sink. The source can also work
//! for a Locust master. A probe sends a gentle load that never ends.

#![allow(missing_docs)] // only crates that other programs embed document every public item

pub mod locust_worker;
pub mod mailboxes;
pub mod probe;
pub mod send;
pub mod sink;
pub mod source;
