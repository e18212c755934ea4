//! Delivery status notifications (DSNs; RFC 3464, RFC 3461), like Postfix's bounce(8).
//!
//! | file | what it does |
//! |---|---|
//! | `generate` | decides who gets a DSN, and stores it before the original is done |
//! | `requests` | limits the number of DSNs that are written at the same time |
//! | `report` | composes a DSN |
//! | `facts` | the facts that a DSN reports |
//! | `part` | a MIME part of a DSN |
//! | `explanation` | the part that people read |
//! | `status` | the part that programs read |
//! | `returned` | the part that returns the message |
//! | `text` | makes texts of other hosts safe for a DSN |
mod explanation;
pub(crate) mod facts;
pub(crate) mod generate;
mod part;
pub(crate) mod report;
pub(crate) mod requests;
mod returned;
mod status;
mod text;

#[cfg(test)]
mod read_back;
