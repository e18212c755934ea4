//! A file system that forgets. It is kept in memory and served over FUSE. Unsynced data may be lost in a power cut, and
//! operations can be made to fail.
#![allow(missing_docs)] // only crates that other programs embed document every public item
mod file_system;
mod mount;
mod sync_calls;

pub use file_system::{Attributes, FileKind, FileSystem, Inode, Owner, Profile, ROOT, SECTOR, SpecialFile, Times};
pub use mount::{Disk, FILE_SYSTEM, Fault, Hit, Plan, obstacle, sync_calls_obstacle};
