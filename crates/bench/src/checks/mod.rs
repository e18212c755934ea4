//! Checks that a parser copes with any input, for example that it reports an error at a line of the text. Property
//! tests and fuzz targets call these functions, which panic if a check fails.
pub mod scenario;
