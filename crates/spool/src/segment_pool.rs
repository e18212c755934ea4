//! Makes and reuses segments, and keeps the spool within its size limit.
use super::message::Reserve;
use crate::Options;
use crate::disk::{Disk, DiskFile, with_name};
use crate::error::cause_text;
use crate::format::{BLOCK, OldestUse, SegmentHeader};
use crate::newest::{NewestFile, NewestSegment};
use crate::segment::Segment;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A segment that the log can overwrite, because it contains only zeros, or records that are no longer needed.
pub(crate) struct FreeSegment {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    pub(crate) bytes: u64,
}

/// Reason why a record could not be written. It deliberately has no `From` implementation for [`io::Error`], because a
/// full disk may count as [`Self::NoSpace`] only if a segment could not be made. After any other failed write or sync,
/// the content of the disk is unknown.
#[derive(Debug)]
pub(crate) enum LogWriteError {
    /// The spool or the disk has no room for another segment. Nothing was changed.
    NoSpace,
    Disk(io::Error),
}

impl LogWriteError {
    /// Converts an error that occurred while a segment was made. If disk space or file descriptors ran out, returns
    /// [`Self::NoSpace`], because the spool can continue: the new segment holds no records yet. Any other error becomes
    /// [`Self::Disk`].
    fn from_create(error: io::Error) -> Self {
        let is_out_of_files = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|errno| errno.raw_os_error());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ if error.raw_os_error().is_some_and(|errno| is_out_of_files.contains(&errno)) => Self::NoSpace,
            _ => Self::Disk(error),
        }
    }
}

pub(crate) struct SegmentPool {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) spool: u64,
    /// Record with which the file `newest` is overwritten at the next update. When a segment is freed, only this field
    /// changes. The file is updated later: when a new segment is first synced, before the file of a freed segment is
    /// removed, and when the log is closed.
    pub(crate) newest: NewestSegment,
    pub(crate) newest_file: NewestFile,
    pub(crate) segment_bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) free_segments: Vec<FreeSegment>,
    pub(crate) used_bytes: u64,
    pub(crate) next_file: u64,
    /// Set while the preallocator is making a segment. The commit thread then waits instead of
    /// making another one.
    pub(crate) is_preallocating: bool,
    /// Set if the preallocator failed to make a segment. It tries again only after a segment was
    /// taken or freed.
    pub(crate) has_failed: bool,
    /// Set if the preallocator failed because another process had created a file with the name of
    /// the next segment.
    pub(crate) foreign_file: Option<io::Error>,
    pub(crate) is_closed: bool,
}

/// Adapts the options to a disk with less room than the spool may use. The segments become smaller, because the two
/// reserved segments would otherwise take up most of the spool.
pub(crate) fn fit_to_disk(disk: &dyn Disk, options: Options) -> io::Result<Options> {
    let mut bytes = disk.available_bytes().unwrap_or(u64::MAX);
    for name in disk.list()?.iter().filter(|name| SegmentPool::file_number(name).is_some()) {
        let segment_bytes = disk.open(name).and_then(|file| file.bytes()).map_err(with_name(name))?;
        bytes = bytes.saturating_add(segment_bytes);
    }
    Ok(Options { segment_bytes: options.segment_bytes.min(bytes / 8), ..options }.fitted())
}

/// Maximum number of free segments that the spool keeps. If more segments than this are in use, the spool keeps at most
/// as many free segments as are in use.
const MAX_IDLE_SEGMENTS: u64 = 4;

impl SegmentPool {
    pub(crate) const PREFIX: &'static str = "segment-";

    pub(crate) fn bytes(&self) -> u64 {
        self.used_bytes + self.free_segments.iter().map(|spare| spare.bytes).sum::<u64>()
    }

    /// Returns true if the preallocator should make another segment. After a failure, the
    /// preallocator waits until a segment is taken or freed.
    pub(crate) fn needs_segment(&self) -> bool {
        self.free_segments.is_empty() && !self.has_failed && self.permits(self.segment_bytes, Reserve::Messages)
    }

    /// Makes a segment in advance, so that the first messages do not have to wait for it.
    ///
    /// # Errors
    /// Fails if the host does not allow files of that size, because then no segment can be made.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        if self.needs_segment() {
            let name = self.next_name();
            let made = Self::make_file(&*self.disk, &name, self.unused_header(self.segment_bytes), &|_| ());
            match made {
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    let text = format!("cannot make {name} of {} bytes: {}", self.segment_bytes, cause_text(&error));
                    return Err(io::Error::new(error.kind(), text));
                }
                made => self.put(made),
            }
        }
        Ok(())
    }

    /// Takes over the result of making a segment in advance. A segment that was made becomes a free segment. If making
    /// it failed, the commit thread tries again when it needs a segment, and reports the error. If another process
    /// created the file first, the next write of a record fails, and the commit thread stops.
    pub(crate) fn put(&mut self, segment: io::Result<FreeSegment>) {
        match segment {
            Ok(spare) => self.free_segments.push(spare),
            Err(error) => {
                self.has_failed = true;
                self.foreign_file = Some(error).filter(|error| error.kind() == io::ErrorKind::AlreadyExists);
            }
        }
    }

    pub(crate) fn unused_header(&self, bytes: u64) -> SegmentHeader {
        SegmentHeader::unused(self.spool, bytes)
    }

    pub(crate) fn next_name(&mut self) -> String {
        self.next_file += 1;
        Self::file_name(self.next_file - 1)
    }

    /// Returns the number in a segment's file name. Files with other names do not belong to the
    /// spool.
    pub(crate) fn file_number(name: &str) -> Option<u64> {
        let digits = name.strip_prefix(Self::PREFIX)?;
        let is_ours = digits.len() >= 8 && digits.len() < 16 && digits.bytes().all(|c| c.is_ascii_hexdigit());
        is_ours.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    }

    pub(crate) fn file_name(number: u64) -> String {
        format!("{}{number:08x}", Self::PREFIX)
    }

    /// Fails if the spool has no room left beyond `reserve`, or if another process has created the next segment's file.
    pub(crate) fn check(&mut self, reserve: Reserve) -> Result<(), LogWriteError> {
        match self.foreign_file.take() {
            Some(error) => Err(LogWriteError::Disk(error)),
            // Check the free space of the whole spool even if the record fits into the current segment. In a full
            // spool, the rest of this segment may be reserved for notes or for messages that compaction moves.
            None if !self.permits(0, reserve) => Err(LogWriteError::NoSpace),
            None => Ok(()),
        }
    }

    fn permits(&self, bytes: u64, reserve: Reserve) -> bool {
        self.used_bytes + bytes + self.reserved_bytes(reserve) <= self.max_bytes
    }

    fn reserved_bytes(&self, reserve: Reserve) -> u64 {
        reserve.reserved_segments() * self.segment_bytes
    }

    /// Returns true if the disk has this much free space in addition to the reserve. Other programs
    /// may still fill the disk before the segment is made.
    fn has_disk_space(&self, bytes: u64, reserve: Reserve) -> bool {
        let spare_bytes = self.free_segments.iter().map(|spare| spare.bytes).sum::<u64>();
        let room = self.disk.available_bytes().unwrap_or(u64::MAX).saturating_add(spare_bytes);
        reserve == Reserve::Moves || room >= bytes + self.reserved_bytes(reserve)
    }

    pub(crate) fn take(&mut self, bytes: u64, reserve: Reserve) -> Result<FreeSegment, LogWriteError> {
        self.check(reserve)?;
        if !self.permits(bytes, reserve) || !self.has_disk_space(bytes, reserve) {
            return Err(LogWriteError::NoSpace);
        }
        let spare = match self.free_segments.iter().position(|spare| spare.bytes == bytes) {
            Some(at) => self.free_segments.swap_remove(at),
            None => self.make(bytes)?,
        };
        self.used_bytes += bytes;
        self.has_failed = false;
        Ok(spare)
    }

    fn make(&mut self, bytes: u64) -> Result<FreeSegment, LogWriteError> {
        // No free segment has the wanted size, so remove free segments until the new one fits.
        while self.bytes() + bytes > self.max_bytes && !self.free_segments.is_empty() {
            self.remove_free_segment().map_err(LogWriteError::Disk)?;
        }
        let name = self.next_name();
        Self::make_file(&*self.disk, &name, self.unused_header(bytes), &|_| ()).map_err(LogWriteError::from_create)
    }

    /// Creates the file of a segment. A crash meanwhile does no harm, because the segment holds no record yet. Calls
    /// `throttle` [between writes](DiskFile::preallocate), so that `throttle` can slow the writes down.
    pub(crate) fn make_file(
        disk: &dyn Disk,
        name: &str,
        header: SegmentHeader,
        throttle: &dyn Fn(Duration),
    ) -> io::Result<FreeSegment> {
        let file = disk.create(name).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                error.kind(),
                format!("{name} already exists, so another process writes to this spool; stop it before the restart"),
            ),
            _ => error,
        })?;
        let segment = Self::fill_file(disk, name, file, header, throttle);
        if segment.is_err() {
            // Remove the incomplete segment, because it only takes space. If the removal fails, the
            // next start tries again.
            _ = disk.remove(name);
        }
        segment
    }

    fn fill_file(
        disk: &dyn Disk,
        name: &str,
        file: Arc<dyn DiskFile>,
        header: SegmentHeader,
        throttle: &dyn Fn(Duration),
    ) -> io::Result<FreeSegment> {
        let bytes = header.file_bytes;
        file.preallocate(bytes, throttle)?;
        write_header(&*file, &header)?;
        file.sync_data()?;
        disk.sync_directory()?;
        Ok(FreeSegment { name: name.to_owned(), file, header, bytes })
    }

    fn max_free_segments(&self) -> u64 {
        MAX_IDLE_SEGMENTS.max(self.used_bytes / self.segment_bytes)
    }

    fn remove_free_segment(&mut self) -> io::Result<()> {
        let Some(spare) = self.free_segments.pop() else { return Ok(()) };
        self.remove(&spare.name, spare.header.generation)
    }

    pub(crate) fn record_newest(&mut self) -> io::Result<()> {
        self.newest_file.record(&self.newest)
    }

    /// Removes the file of a freed segment. Its header may be the only proof that the segment was
    /// freed, so the proof is written to the file `newest` before the removal. Otherwise a restart
    /// would report the segment as missing.
    fn remove(&mut self, name: &str, generation: u64) -> io::Result<()> {
        if generation > 0 && !self.newest_file.proves_release(generation) {
            self.record_newest()?;
        }
        self.disk.remove(name)
    }

    /// Frees a segment without unfinished messages: keeps it for reuse, or removes its file. When this returns, a power
    /// failure cannot bring the segment back. Segments must be freed in the order in which they were begun, because a
    /// restart would otherwise report a gap. `oldest` is the oldest segment that is still needed afterwards.
    pub(crate) fn retire(&mut self, segment: &Segment, next_id: u64, oldest: OldestUse) -> io::Result<()> {
        self.newest.oldest = oldest;
        self.used_bytes -= segment.bytes;
        self.has_failed = false;
        while self.free_segments.len() as u64 > self.max_free_segments() {
            self.remove_free_segment()?;
        }
        let is_odd = segment.is_damaged.load(Ordering::Relaxed) || segment.bytes != self.segment_bytes;
        let is_too_much = self.bytes() + segment.bytes > self.max_bytes;
        let header = segment.header.end(next_id, oldest);
        let end_use = || write_header(&*segment.file, &header).and_then(|()| segment.file.sync_data());
        if is_too_much || is_odd || self.free_segments.len() as u64 >= self.max_free_segments() {
            if segment.has_lost_header() {
                // A crash may undo the removal of the file. A restart would then take the segment's old records for
                // new records, so mark the segment as free before the removal. Ignore errors, because a file that is
                // too damaged to be marked must still be removed.
                _ = end_use();
            }
            self.remove(&segment.name, segment.header.generation)?;
            return self.disk.sync_directory();
        }
        end_use()?;
        let name = segment.name.clone();
        let file = Arc::clone(&segment.file);
        self.free_segments.push(FreeSegment { name, file, header, bytes: segment.bytes });
        Ok(())
    }

    /// Removes free segments of unusual sizes, which may never be needed. Then removes further free segments until
    /// there are no more than the maximum number.
    pub(crate) fn remove_odd_sizes(&mut self) -> io::Result<()> {
        let segment_bytes = self.segment_bytes;
        let odd: Vec<_> = self.free_segments.extract_if(.., |spare| spare.bytes != segment_bytes).collect();
        for spare in odd {
            self.remove(&spare.name, spare.header.generation)?;
        }
        while self.free_segments.len() as u64 > self.max_free_segments() {
            self.remove_free_segment()?;
        }
        Ok(())
    }
}

pub(crate) fn write_header(file: &dyn DiskFile, header: &SegmentHeader) -> io::Result<()> {
    let rest = [0; BLOCK as usize - crate::format::HEADER_BYTES];
    file.write_at(&mut [IoSlice::new(&header.encode()), IoSlice::new(&rest)], header.offset())
}
