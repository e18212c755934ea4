//! Functions for property tests and fuzz targets that check the parsers of this crate. Each function passes arbitrary
//! bytes to the parsers of a Locust master's messages, and panics if a result violates an invariant, such as a limit.
pub mod locust_master;
