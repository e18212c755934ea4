//! Free segments: made, used again, and never more than the spool may have.
use crate::Options;
use crate::disk::{Disk, DiskFile};
use crate::format::{BLOCK, Header, State};
use crate::segment::Segment;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A segment in which nothing counts: zeros or records of former uses throughout.
pub(crate) struct Spare {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: Header,
    pub(crate) bytes: u64,
}

/// Purposes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New messages.
    Messages,
    /// Notes, and messages that let others end: these may use one segment more.
    Notes,
    /// Messages that are moved, which makes room: these may use all.
    Moves,
}

impl Purpose {
    /// Number of segments that are reserved from it. The last one is only for moves: if anything else could use it up,
    /// one message that waits at the beginning of a full log would block all the room behind it.
    fn kept_back(self) -> u64 {
        match self {
            Self::Messages => 2,
            Self::Notes => 1,
            Self::Moves => 0,
        }
    }
}

/// Reasons why something could not be written. There is no conversion from [`io::Error`] on purpose: an error of any
/// other write or sync than those that make a segment must never pass for a lack of room.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// The spool, or the disk, has no room for one more segment: nothing else has happened.
    Room,
    /// A write or a sync has failed: the content of the disk is unknown.
    Disk(io::Error),
}

impl Shortage {
    /// Classifies the error of making a segment, which holds nothing yet: only that may fail for lack of room, or of
    /// file descriptors, without harm.
    fn of_making(error: io::Error) -> Self {
        let is_out_of_files = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|errno| errno.raw_os_error());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Room,
            _ if error.raw_os_error().is_some_and(|errno| is_out_of_files.contains(&errno)) => Self::Room,
            _ => Self::Disk(error),
        }
    }
}

pub(crate) struct Supply {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) segment_bytes: u64,
    pub(crate) most_bytes: u64,
    pub(crate) spares: Vec<Spare>,
    /// The bytes of the segments that are in use.
    pub(crate) used_bytes: u64,
    /// The number in the next file's name.
    pub(crate) next_file: u64,
    /// The tender is making a segment now.
    pub(crate) is_making: bool,
    /// The tender failed to make one: it tries again after a segment was taken or given back.
    pub(crate) has_failed: bool,
    pub(crate) is_closed: bool,
}

/// Fits the options to a disk that may have less room than the spool may use: there segments are smaller, so that the
/// two reserved ones are not most of it.
pub(crate) fn fitted_to(disk: &dyn Disk, options: Options) -> io::Result<Options> {
    let mut bytes = disk.room().unwrap_or(u64::MAX);
    for name in disk.list()?.iter().filter(|name| name.starts_with(Supply::PREFIX)) {
        bytes = bytes.saturating_add(disk.open(name)?.bytes()?);
    }
    Ok(Options { segment_bytes: options.segment_bytes.min(bytes / 8), ..options }.fitted())
}

/// Spares beyond this number are removed, unless more segments than that are in use.
const MOST_IDLE_SPARES: u64 = 4;

impl Supply {
    pub(crate) const PREFIX: &'static str = "segment-";

    /// The bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.used_bytes + self.spares.iter().map(|spare| spare.bytes).sum::<u64>()
    }

    /// Reports whether one more segment should be made ready.
    pub(crate) fn wants_spare(&self) -> bool {
        self.spares.is_empty() && !self.has_failed && self.permits(self.segment_bytes, Purpose::Messages)
    }

    /// Makes a segment for the first messages, which would have to wait for it.
    pub(crate) fn prepare(&mut self) {
        if self.wants_spare() {
            let name = self.next_name();
            self.keep(Self::make_file(&*self.disk, &name, self.segment_bytes, &|_| ()));
        }
    }

    /// Takes in a segment that was made ahead. If making it failed, the commit thread will try itself when it needs
    /// one, and report the error.
    pub(crate) fn keep(&mut self, made: io::Result<Spare>) {
        match made {
            Ok(spare) => self.spares.push(spare),
            Err(_) => self.has_failed = true,
        }
    }

    pub(crate) fn next_name(&mut self) -> String {
        self.next_file += 1;
        format!("{}{:08x}", Self::PREFIX, self.next_file - 1)
    }

    /// Reports whether a segment of that size may be taken; 0: whether the segment in use may be written to.
    pub(crate) fn permits(&self, bytes: u64, purpose: Purpose) -> bool {
        self.used_bytes + bytes + self.kept_back(purpose) <= self.most_bytes
    }

    fn kept_back(&self, purpose: Purpose) -> u64 {
        purpose.kept_back() * self.segment_bytes
    }

    /// Reports whether the disk has that much, and the reserve besides. Others may use it up: that cannot be prevented.
    fn has_disk_for(&self, bytes: u64, purpose: Purpose) -> bool {
        let spare = self.spares.iter().map(|spare| spare.bytes).sum::<u64>();
        let room = self.disk.room().unwrap_or(u64::MAX).saturating_add(spare);
        purpose == Purpose::Moves || room >= bytes + self.kept_back(purpose)
    }

    /// Takes or makes a segment of exactly that size.
    pub(crate) fn take(&mut self, bytes: u64, purpose: Purpose) -> Result<Spare, Shortage> {
        if !self.permits(bytes, purpose) || !self.has_disk_for(bytes, purpose) {
            return Err(Shortage::Room);
        }
        let spare = match self.spares.iter().position(|spare| spare.bytes == bytes) {
            Some(at) => self.spares.swap_remove(at),
            None => self.make(bytes)?,
        };
        self.used_bytes += bytes;
        self.has_failed = false;
        Ok(spare)
    }

    fn make(&mut self, bytes: u64) -> Result<Spare, Shortage> {
        // It turns out to have the wrong size.
        while self.bytes() + bytes > self.most_bytes && !self.spares.is_empty() {
            self.drop_spare().map_err(Shortage::Disk)?;
        }
        let name = self.next_name();
        Self::make_file(&*self.disk, &name, bytes, &|_| ()).map_err(Shortage::of_making)
    }

    /// Makes a segment, which needs no record before it is complete; `rest` is called [in the midst of
    /// it](DiskFile::preallocate).
    pub(crate) fn make_file(disk: &dyn Disk, name: &str, bytes: u64, rest: &dyn Fn(Duration)) -> io::Result<Spare> {
        let made = Self::fill_file(disk, name, bytes, rest);
        if made.is_err() {
            // A part of a segment is of no use, least of all on a full disk. If it stays, it is found when the spool is
            // opened.
            _ = disk.remove(name);
        }
        made
    }

    fn fill_file(disk: &dyn Disk, name: &str, bytes: u64, rest: &dyn Fn(Duration)) -> io::Result<Spare> {
        let file = disk.create(name)?;
        file.preallocate(bytes, rest)?;
        let header = Header { state: State::Free, turn: 0, use_number: 0, salt: 0, next_id: 0, previous_end: 0 };
        write_header(&*file, &header)?;
        file.sync_data()?;
        disk.sync_directory()?;
        Ok(Spare { name: name.to_owned(), file, header, bytes })
    }

    fn most_spares(&self) -> u64 {
        MOST_IDLE_SPARES.max(self.used_bytes / self.segment_bytes)
    }

    fn drop_spare(&mut self) -> io::Result<()> {
        self.spares.pop().map_or(Ok(()), |spare| self.disk.remove(&spare.name))
    }

    /// Ends the use of a segment, durably when this returns. It must be called in the order in which they were begun,
    /// or a restart would find a gap.
    pub(crate) fn retire(&mut self, segment: &Segment, next_id: u64) -> io::Result<()> {
        self.used_bytes -= segment.bytes;
        self.has_failed = false;
        while self.spares.len() as u64 > self.most_spares() {
            self.drop_spare()?;
        }
        let is_odd = segment.is_damaged.load(Ordering::Relaxed) || segment.bytes != self.segment_bytes;
        let is_too_much = self.bytes() + segment.bytes > self.most_bytes;
        if is_too_much || is_odd || self.spares.len() as u64 >= self.most_spares() {
            self.disk.remove(&segment.name)?;
            return self.disk.sync_directory();
        }
        let header = segment.header.end(next_id);
        write_header(&*segment.file, &header)?;
        segment.file.sync_data()?;
        let name = segment.name.clone();
        let file = Arc::clone(&segment.file);
        self.spares.push(Spare { name, file, header, bytes: segment.bytes });
        Ok(())
    }

    /// Removes spares that may never be of use: those of another size.
    pub(crate) fn drop_odd_ones(&mut self) -> io::Result<()> {
        let segment_bytes = self.segment_bytes;
        for spare in self.spares.extract_if(.., |spare| spare.bytes != segment_bytes) {
            self.disk.remove(&spare.name)?;
        }
        while self.spares.len() as u64 > self.most_spares() {
            self.drop_spare()?;
        }
        Ok(())
    }
}

/// Writes it to its place, and the rest of the block as zeros.
pub(crate) fn write_header(file: &dyn DiskFile, header: &Header) -> io::Result<()> {
    let rest = [0; BLOCK as usize - crate::format::HEADER_BYTES];
    file.write_at(&mut [IoSlice::new(&header.written()), IoSlice::new(&rest)], header.at())
}
