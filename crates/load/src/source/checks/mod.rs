//! Checks what each parser must guarantee for any input. The property tests and the fuzz targets
//! call these functions, which panic if a guarantee is broken.
pub mod addresses;
pub mod corpus;
pub mod lines;
