//! MIME, line by line: converts 8-bit messages to 7-bit where that is allowed (RFC 6152 §3), and restores them.
//!
//! ```text
//! walk     the kind of each line: header, body, delimiter; bounded in depth, strict where readers disagree
//! convert  a message in memory, for a server without 8BITMIME
//! restore  a converted message in blocks, as it was before: the far end of a measurement checks it that way
//! encode, decode   quoted-printable and base64 (RFC 2045 §6.7, §6.8)
//! ```
//! No clock, no socket, no file. A message that several readers could read in different ways is not converted at all.
mod convert;
mod decode;
mod encode;
mod field;
mod restore;
mod walk;

pub use convert::{ConversionError, is_seven_bit, to_seven_bit};
pub use decode::Decoder;
pub use encode::Encoding;
pub use restore::{MARKER, Restorer};
