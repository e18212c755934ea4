//! Checks of the parsers of addresses, corpora and lines with arbitrary input. Property tests and
//! fuzz targets call these functions, which panic if a parser misbehaves.
pub mod addresses;
pub mod corpus;
pub mod lines;
