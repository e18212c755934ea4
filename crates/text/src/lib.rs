//! Parses quantities that people write in options and files, and formats numbers, sentences and tables
//! that people read on terminals and in files.
//!
//! ```text
//! quantities    parsers of counts, sizes, times, rates and shares
//! words         numbers and lists in sentences
//! numbers       figures with their units
//! printable     texts of peers, made safe to print
//! wrap          lines between words
//! spark         a series of figures as a line of bars
//! table         tables for terminals and Markdown
//! metrics_text  the text formats of Prometheus and OpenMetrics
//! ```
#![allow(missing_docs)] // only crates that other programs embed document every public item

#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod metrics_text;
pub mod numbers;
pub mod printable;
pub mod quantities;
pub mod spark;
pub mod table;
pub mod words;
pub mod wrap;
