//! A file system that forgets: in memory, served over FUSE. What was not synced may be gone after a power cut, and its
//! operations can be made to fail.
mod file_system;
mod mount;

pub use file_system::{Attributes, FileKind, FileSystem, Inode, Owner, ROOT, SECTOR, SpecialFile, Times};
pub use mount::{Disk, FILE_SYSTEM, Fault, Hit, Plan, obstacle};
