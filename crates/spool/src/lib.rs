//! A log of messages that survives a power failure. Each message gets a receipt that resolves when
//! the message is durable, and an SMTP server may answer 250 only after that.
//!
//! ```
//! use mailrun_spool::{NewMessage, Options, RealDisk, Spool};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let options = Options { segment_bytes: 1 << 16, ..Options::default() };
//! let disk = std::sync::Arc::new(RealDisk::new(directory.path())?);
//! let (spool, backlog) = Spool::open(disk, options)?;
//! assert!(backlog.is_empty());
//! let body = b"Hello\r\n"[..].into();
//! let message = NewMessage { received_ns: 1, envelope: b"to b@example.com".to_vec(), body };
//! let stored = spool.store(message).wait()?; // or .await
//! assert_eq!(*spool.read(stored.id())?, *b"Hello\r\n");
//! spool.done(stored.id());
//! spool.close();
//! # Ok(())
//! # }
//! ```
//!
//! One thread commits all messages. Messages that arrive while it is writing form the next batch, which takes one write
//! and one sync. Batches grow with the load, so there is no timer and no batch size to tune. A [`Stored`] value proves
//! that a message is durable, because only the spool can create one. Progress of a message, such as a delivery to one
//! recipient, is written with a later batch, so a crash may repeat work but never loses a message.
//!
//! | file | what it does |
//! |---|---|
//! | `backlog` | the unfinished messages of a spool that is opened |
//! | `batch_builder` | collects records into a batch for one write |
//! | `commit` | the thread that commits batches |
//! | `commit_queue` | the queue of requests to the commit thread |
//! | `compaction` | makes room by moving unfinished messages out of old segments |
//! | `damage` | the kinds of damage to a spool, and the messages that each of them costs |
//! | `disk` | the interface to a disk, and a real disk |
//! | `error` | errors, by what the caller can do about them |
//! | `faulty` | a disk in memory that crashes, tears, fills up and fails, for tests |
//! | `format` | the bytes of headers, batches and records |
//! | `header` | classifies a file by its header |
//! | `index` | the messages that are not done, and the places of their records |
//! | `inspect` | inspects a spool without changing it |
//! | `load` | reads a whole directory without changing it |
//! | `log` | writes and syncs batches, and begins and frees segments |
//! | `memory` | a spool that stores nothing on disk |
//! | `message` | messages to store, and messages that were found unfinished |
//! | `newest` | the file that names the newest segment, so that the loss of that segment is noticed |
//! | `options` | sizes, and the durability that a receipt promises |
//! | `preallocator` | the thread that keeps a free segment ready |
//! | `probe` | measures the syncs that a disk can do for a spool |
//! | `quarantine` | copies of damaged bytes |
//! | `receipt` | a future that resolves when a message is stored |
//! | `recovery` | opens a directory after a former run |
//! | `replay` | reads the records in order, and accounts for the damage |
//! | `scan` | reads the batches of a segment |
//! | `segment` | a segment in use, from which single records are read |
//! | `segment_pool` | free segments |
//! | `spool` | the handle of an open spool |
//! | `stats` | fill level and counters |
mod backlog;
mod batch_builder;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod commit;
mod commit_queue;
mod compaction;
mod damage;
mod disk;
mod error;
#[cfg(any(test, feature = "faulty"))]
pub mod faulty;
mod format;
mod header;
mod index;
mod inspect;
mod load;
mod log;
mod memory;
mod message;
mod newest;
mod options;
mod preallocator;
mod probe;
mod quarantine;
mod receipt;
mod recovery;
mod replay;
mod scan;
mod segment;
mod segment_pool;
mod spool;
mod stats;

pub use backlog::Backlog;
pub use damage::{Cost, Damage, DamageKind};
pub use disk::{Disk, DiskFile, RealDisk, sync_ancestors};
pub use error::Error;
pub use inspect::{InspectedBody, InspectedMessage, InspectedMessages, Inspection, SegmentInfo, SegmentState, inspect};
pub use message::{Id, NewMessage, RecoveredMessage, Stored, StoredEnvelope};
pub use options::{Durability, OnDamage, Options};
pub use probe::{DiskProbe, ProbeCommit};
pub use receipt::{NotesReceipt, Receipt};
pub use spool::{NotesMark, Spool};
pub use stats::SpoolStats;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
