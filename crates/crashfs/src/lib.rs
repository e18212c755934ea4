//! A file system for tests of durability. A simulated power cut discards unsynced data, and operations can be made to
//! fail. The file system is kept in memory and served over FUSE.
#![allow(missing_docs)] // only crates that other programs embed document every public item
mod calls;
mod file_system;
mod mount;
mod stored_calls;
mod sync_calls;
mod types;

pub use calls::{Call, CallLog, LogTime, LoggedCall, Loss};
pub use file_system::{Attributes, FileSystem, NameChange, ROOT, SECTOR, Times};
pub use mount::{Disk, FILE_SYSTEM, Fault, Hit, Plan, obstacle, sync_calls_obstacle};
pub use stored_calls::StoredCalls;
pub use types::{FileKind, Inode, Owner, Profile, SpecialFile, SurvivingData, Survivors};
