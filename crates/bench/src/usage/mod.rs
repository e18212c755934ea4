mod cgroup;
mod disk;
mod disk_usage;
mod memory;
pub(super) mod tree;

pub(super) use cgroup::ControlGroup;
pub(super) use disk::DiskCounter;
pub(super) use disk_usage::{DiskUsage, ensure_free, free_bytes, used_bytes};
pub(super) use memory::MemoryCurve;
#[cfg(test)]
pub(super) use memory::curve;
