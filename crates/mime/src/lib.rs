//! Converts 8-bit messages to 7-bit if that is allowed (RFC 6152 §3), and restores the original body of a converted
//! message. Reads notifications about mail that was not delivered (RFC 3464).
//!
//! ```
//! let message = "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\
//!                Content-Transfer-Encoding: 8bit\r\n\r\nGr\u{fc}\u{df}e\r\n".as_bytes();
//! let converted = mailrun_mime::to_seven_bit(message, "relay.example")?.expect("it has 8-bit bytes");
//! assert!(mailrun_mime::is_seven_bit(&converted));
//!
//! // The far end reads the body as it was before; it begins behind the line that marks the conversion.
//! let (marker, rest) = converted.split_at(converted.iter().position(|byte| *byte == b'\n').expect("a line") + 1);
//! assert!(marker.starts_with(mailrun_mime::MARKER));
//! let mut restored = Vec::new();
//! let mut restorer = mailrun_mime::Restorer::new();
//! restorer.receive(rest, |bytes| restored.extend_from_slice(bytes));
//! restorer.finish(|bytes| restored.extend_from_slice(bytes));
//! assert!(restorer.is_valid());
//! assert_eq!(restored, "Gr\u{fc}\u{df}e\r\n".as_bytes());
//! # Ok::<(), mailrun_mime::ConversionError>(())
//! ```
//!
//! ```text
//! walk     the kind of each line: header, body, delimiter; bounded in depth, strict where readers disagree
//! convert  a message in memory, for a server without 8BITMIME
//! restore  a converted message in blocks, as it was before: the far end of a measurement checks it that way
//! notice   what a notification says about each recipient, and a field of the message that it returns
//! encode, decode   quoted-printable and base64 (RFC 2045 §6.7, §6.8)
//! ```
//! The crate uses no clock, socket or file. A message that readers could understand in different
//! ways is not converted.
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod convert;
mod decode;
mod encode;
mod field;
mod notice;
mod restore;
mod walk;

pub use convert::{is_seven_bit, to_seven_bit};
pub use decode::Decoder;
pub use encode::Encoding;
pub use notice::{Notice, NoticeAction, NoticeReader, NoticeRecipient};
pub use restore::{MARKER, Restorer};
pub use walk::ConversionError;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
