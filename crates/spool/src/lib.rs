//! Keeps promises: a log of messages that survives power loss, and hands out the receipt that a 250 needs.
//!
//! One thread commits. What comes while it is at the disk is committed together, by one write and one sync: no timer, no
//! batch size to be tuned. Only what has been synced is [`Stored`], and nothing else makes one. What has been done of a
//! message is noted lazily, so that a crash may repeat work, and never loses any.
//!
//! ```
//! use spool::{Draft, Options, RealDisk, Spool};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let options = Options { segment_bytes: 1 << 16, ..Options::default() };
//! let disk = std::sync::Arc::new(RealDisk::new(directory.path())?);
//! let (spool, backlog) = Spool::open(disk, options)?;
//! assert!(backlog.is_empty());
//! let draft = Draft { received_ns: 1, envelope: b"to b@example.com".to_vec(), body: b"Hello\r\n"[..].into() };
//! let stored = spool.store(draft).wait()?; // or .await
//! assert_eq!(*spool.read(stored.id())?, *b"Hello\r\n");
//! spool.done(stored.id());
//! spool.close();
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `backlog` | what a spool that is opened still has to do |
//! | `building` | a batch while it is put together |
//! | `commit` | the commit thread |
//! | `damage` | what does not read as it was written, and what that costs |
//! | `disk` | what is asked of a disk; a real one |
//! | `error` | what can go wrong |
//! | `faulty` | a disk in memory that crashes, tears, fills up and fails, for tests |
//! | `format` | the octets: headers, batches, records |
//! | `header` | what a file is, by its header |
//! | `inbox` | where messages gather |
//! | `inspect` | a spool looked at from outside, without a change |
//! | `live` | what is not done yet, and where it stands |
//! | `log` | batches written and synced, segments begun and given up |
//! | `memory` | the spool that keeps nothing |
//! | `message` | what goes in and comes out |
//! | `options` | sizes, and what a receipt promises |
//! | `quarantine` | copies of damaged bytes |
//! | `reading` | all of a directory, read and not changed |
//! | `receipt` | a future that resolves when a message is stored |
//! | `recovery` | opening a directory |
//! | `replay` | records in their order, and the account of what is damaged |
//! | `scan` | the way through a segment's batches |
//! | `segment` | a segment in use, single records read |
//! | `spool` | the handle |
//! | `supply` | free segments |
//! | `tender` | the thread that keeps a free segment ready |
//! | `tidying` | making room |
//! | `usage` | how full it is |
mod backlog;
mod building;
mod commit;
mod damage;
mod disk;
mod error;
pub mod faulty;
mod format;
mod header;
mod inbox;
mod inspect;
mod live;
mod log;
mod memory;
mod message;
mod options;
mod quarantine;
mod reading;
mod receipt;
mod recovery;
mod replay;
mod scan;
mod segment;
mod spool;
mod supply;
mod tender;
mod tidying;
mod usage;

pub use backlog::Backlog;
pub use damage::{Cost, Damage, DamageKind};
pub use disk::{Disk, DiskFile, RealDisk, sync_names_of};
pub use error::Error;
pub use inspect::{Body, Inspection, Message, Messages, Segment, SegmentState, inspect};
pub use message::{Draft, Id, Left, Stored, StoredEnvelope};
pub use options::{Durability, OnDamage, Options};
pub use receipt::{NotesReceipt, Receipt};
#[doc(hidden)]
pub use recovery::{try_octets, with_checksums};
pub use spool::{NotesMark, Spool};
pub use usage::Usage;
