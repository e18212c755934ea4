//! Checks that the parsers keep their guarantees for any input, for example that the result does not depend on how the
//! input is divided into blocks. Property tests and fuzz targets call these functions, which panic if a guarantee is
//! broken.
pub mod notice;
pub mod seven_bit;
