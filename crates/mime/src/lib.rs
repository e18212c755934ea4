//! MIME, line by line: 8-bit messages made 7-bit where that is lawful (RFC 6152 §3), and made what they were again.
//!
//! ```text
//! walk     what a line is: of a header, a body, a delimiter; bounded in depth, strict where readers disagree
//! convert  a message in memory, for a server without 8BITMIME
//! restore  a converted message in blocks, as it was before: the far end of a measurement checks it so
//! encode, decode   quoted-printable and base64 (RFC 2045 §6.7, §6.8)
//! ```
//! No clock, no socket, no file. What several readers could read in several ways is not converted at all.
mod convert;
mod decode;
mod encode;
mod field;
mod restore;
mod walk;

pub use convert::{Obstacle, is_seven_bit, to_seven_bit};
pub use decode::Decoder;
pub use encode::Encoding;
pub use restore::{MARKER, Restorer};
