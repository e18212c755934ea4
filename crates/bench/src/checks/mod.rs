//! Properties that each parser must have for any input. The property tests and the fuzz targets
//! call these functions, which panic if a property does not hold.
pub mod scenario;
