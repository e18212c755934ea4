//! Property tests and fuzz targets call the functions of these modules. Each function passes arbitrary bytes to a
//! parser or to the listener, and panics if a result violates an invariant, such as a limit.
pub mod mades_letter;
pub mod mades_listener;
pub mod mades_plan;
