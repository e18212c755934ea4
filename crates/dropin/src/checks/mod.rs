//! What each parser promises about any input. The property tests and the fuzz targets call these functions, which panic if
//! a promise is broken.
pub mod dump_name;
pub mod go_flags;
pub mod go_reply;
pub mod go_subject;
pub mod host_port;
pub mod source_reply;
