//! The two ends of a measurement over SMTP: the load source and the sink. The source can also work
//! for a Locust master. A probe is a gentle load without end.

#![allow(missing_docs)] // no crate outside this workspace uses it: a name that says all has no sentence

pub mod locust_worker;
pub mod mailboxes;
pub mod probe;
pub mod send;
pub mod sink;
pub mod source;
