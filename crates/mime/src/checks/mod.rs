//! Checks of what parsers guarantee for any input, for example the same result however the input is divided into
//! blocks. Property tests and fuzz targets call these functions, which panic if a guarantee is broken.
pub mod notice;
pub mod seven_bit;
