//! Functions that feed arbitrary input to the parsers of addresses, corpora and lines, and panic if
//! a parser misbehaves. Property tests and fuzz targets call them.
pub mod addresses;
pub mod corpus;
pub mod lines;
