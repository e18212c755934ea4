//! Checks what each parser guarantees for any input, for example that a parsed address can be written
//! out and parsed again. Property tests and fuzz targets call these checks, which panic on failure.
pub mod endpoint;
