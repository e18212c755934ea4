//! Delivery status notifications (DSNs; RFC 3464, RFC 3461), like Postfix's bounce(8).
//!
//! | file | what it does |
//! |---|---|
//! | `generate` | decides who is notified, and stores the notification before the original is done |
//! | `requests` | what the writer of a notification has of its worker; how many are written at a time |
//! | `report` | composes a notification |
//! | `facts` | what a notification is written from |
//! | `part` | a MIME part of it |
//! | `explanation` | the part for people |
//! | `status` | the part for programs |
//! | `returned` | the part that returns the message |
//! | `text` | texts of others, made fit for it |
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
