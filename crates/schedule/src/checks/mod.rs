//! The promises that each parser keeps for any input. The property tests and the fuzz targets call
//! these functions, which panic if a guarantee is broken.
pub mod spread;
pub mod stages;
