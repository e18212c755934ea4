//! A file system in memory that keeps what was synced apart from what was not, so that a power cut can take the rest.
//!
//! It knows nothing of FUSE, of clocks or of threads: [`crate::Disk`] serves it. Its models of persistence, one for each
//! [`Profile`]. Data of a file is durable after `fsync` or `fdatasync` of the file, or after a write with `O_DSYNC`:
//!
//! | profile | names are durable after | before that, a cut leaves | of data that is not durable, a cut leaves |
//! |---|---|---|---|
//! | strict | `fsync` of the directory | none, all, the first few or any of the changes; a rename as a whole or not at all | each sector of 512 bytes as it was or as any write since made it, in no order, and any length since; a sector that was all zeros may be torn within |
//! | ext4 | `fsync` of anything, 6 s | the first few changes | what it was, or all of it; sectors that existed before as any write since made them. A rename that replaces a file writes the data of the new one first (auto_da_alloc) |
//! | xfs | `fsync` of anything, 31 s | the first few changes | the same, but a rename writes no data |
//! | btrfs | `fsync` of the file or of the directory, 31 s | the first few changes | what it was, or all of it |
//!
//! Except with `strict`, data that has been dirty for 36 s is written, because the kernel writes what is older than 30 s
//! every 5 s. `sync` and `syncfs` make everything durable ([`crate::Disk::heed_sync_calls`]). A sync that fails marks its
//! pages clean, as Linux does: the next one reports success and writes nothing of them.
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of a file or directory. Numbers are never reused, so the kernel cannot confuse files that it remembers.
pub type Inode = u64;

/// The directory at the mount point.
pub const ROOT: Inode = 1;

/// Unit in which media write. A sector that held data before is written whole or not at all.
pub const SECTOR: usize = 512;

/// Time after which the kernel has written data that no sync asked for.
const WRITEBACK: Duration = Duration::from_secs(36);

/// Which unsynced changes outlive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Any that POSIX does not promise.
    #[default]
    Strict,
    /// As with ext4 and its defaults: data=ordered, delayed allocation, auto_da_alloc.
    Ext4,
    /// As with XFS.
    Xfs,
    /// As with btrfs.
    Btrfs,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 4] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Strict];

    /// Name of the profile.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Time after which changes of names are durable without a sync: the interval in which the journal or the transaction
    /// is written, and a second more.
    fn commits_after(self) -> Option<Duration> {
        match self {
            Self::Strict => None,
            Self::Ext4 => Some(Duration::from_secs(6)),
            Self::Xfs | Self::Btrfs => Some(Duration::from_secs(31)),
        }
    }

    /// The sync of a file makes all earlier changes of names durable.
    fn syncs_all_names(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs)
    }
}

/// All files, both as processes see them and as the media has them.
#[derive(Debug)]
pub struct FileSystem {
    nodes: BTreeMap<Inode, Node>,
    next: Inode,
    capacity: u64,
    /// Directory changes that have not been synced, oldest first, and when they were made.
    changes: Vec<(NameChange, SystemTime)>,
    profile: Profile,
    /// Time stamp for the next changes.
    now: SystemTime,
}

#[derive(Debug)]
struct Node {
    permissions: u16,
    owner: Owner,
    times: Times,
    /// Number of open descriptors.
    opened: u32,
    /// Number of names as processes see them.
    names: u32,
    /// Set if link(2) ever gave the file another name. Without it, a second name on the media is that of a rename whose
    /// first half did not survive.
    is_linked: bool,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File(File),
    Directory(Directory),
    /// A FIFO or a socket. The kernel handles its content.
    Special(SpecialFile),
}

/// A file without content of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFile {
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Has content.
    Regular,
    /// Contains names.
    Directory,
    /// Has neither.
    Special(SpecialFile),
}

/// The user and the group of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Number of the user.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
}

/// When a file was changed. Servers rely on this: when it starts, OpenSMTPD reads what is older than the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the content was changed, or the time set by utimes(2).
    pub modified: SystemTime,
    /// When content or attributes were changed.
    pub changed: SystemTime,
}

#[derive(Debug, Default)]
struct File {
    /// Bytes as processes read them.
    seen: Vec<u8>,
    /// Bytes that the media certainly has.
    durable: Vec<u8>,
    /// Earlier contents of each sector since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<Sector>>,
    /// Earlier lengths since the last sync, oldest first.
    lengths: Vec<usize>,
    /// When the oldest data that is not durable was written.
    dirty_since: Option<SystemTime>,
}

type Sector = [u8; SECTOR];

#[derive(Debug, Default)]
struct Directory {
    seen: BTreeMap<String, Inode>,
    durable: BTreeMap<String, Inode>,
}

/// A change of names that no sync has made durable.
#[derive(Clone, Debug)]
enum NameChange {
    Add { directory: Inode, name: String, inode: Inode },
    Remove { directory: Inode, name: String, inode: Inode },
    Rename { from: (Inode, String), to: (Inode, String), inode: Inode },
}

/// Attributes of a file or directory.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Its number.
    pub inode: Inode,
    /// Its kind.
    pub kind: FileKind,
    /// Its length; 0 if it has no content.
    pub bytes: u64,
    /// The bits of chmod(2).
    pub permissions: u16,
    /// Its user and group.
    pub owner: Owner,
    /// When it was changed.
    pub times: Times,
    /// Number of its names.
    pub names: u32,
}

/// How much unsynced data survives a power cut.
#[derive(Clone, Copy, Debug)]
enum Survival {
    Nothing,
    Everything,
    /// Any part of it, possibly later writes without earlier ones.
    Any,
    /// The same, and sectors that were zeros before may be torn.
    Torn,
    /// Any part of what replaced earlier data, and nothing of what was added.
    Overwritten,
}

impl Survival {
    fn choose(rng: &mut StdRng, profile: Profile) -> Self {
        match (profile, rng.random_range(0..6)) {
            (Profile::Strict, 0) | (Profile::Btrfs, 0..3) | (Profile::Ext4 | Profile::Xfs, 0 | 1) => Self::Nothing,
            (Profile::Strict, 1) | (Profile::Btrfs, _) | (Profile::Ext4 | Profile::Xfs, 2 | 3) => Self::Everything,
            (Profile::Strict, 2 | 3) => Self::Any,
            (Profile::Strict, _) => Self::Torn,
            (Profile::Ext4 | Profile::Xfs, _) => Self::Overwritten,
        }
    }
}

impl NameChange {
    fn concerns(&self, inode: Inode) -> bool {
        self.directories().contains(&inode)
    }

    /// The directory of the change, twice unless it is a rename to another one.
    fn directories(&self) -> [Inode; 2] {
        match self {
            Self::Add { directory, .. } | Self::Remove { directory, .. } => [*directory; 2],
            Self::Rename { from, to, .. } => [from.0, to.0],
        }
    }

    fn inode(&self) -> Inode {
        match self {
            Self::Add { inode, .. } | Self::Remove { inode, .. } | Self::Rename { inode, .. } => *inode,
        }
    }
}

impl File {
    fn sector(&self, number: usize) -> Sector {
        sector_of(&self.seen, number)
    }

    /// Records the current content of those sectors, if it is new.
    fn remember(&mut self, sectors: std::ops::Range<usize>) {
        for number in sectors {
            let now = self.sector(number);
            let before = self.versions.get(&number).and_then(|versions| versions.last().copied());
            if now != before.unwrap_or_else(|| sector_of(&self.durable, number)) {
                self.versions.entry(number).or_default().push(now);
            }
        }
    }

    fn resize(&mut self, length: usize) {
        if length != self.seen.len() {
            let shorter = length.min(self.seen.len());
            let longer = length.max(self.seen.len());
            self.seen.resize(length, 0);
            self.lengths.push(length);
            self.remember(shorter / SECTOR..longer.div_ceil(SECTOR));
        }
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        if end > self.seen.len() {
            self.seen.resize(end, 0);
            self.lengths.push(end);
        }
        self.seen[at..end].copy_from_slice(bytes);
        self.remember(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for number in std::mem::take(&mut self.versions).into_keys() {
            let sector = self.sector(number);
            put_sector(&mut self.durable, number, &sector);
        }
        self.lengths.clear();
        self.dirty_since = None;
    }

    /// Writes old data, as the kernel does in time, and notes that there is new data from `now` on.
    fn write_back(&mut self, now: SystemTime) {
        let has_waited = |since: SystemTime| now.duration_since(since).is_ok_and(|age| age >= WRITEBACK);
        if self.dirty_since.is_some_and(has_waited) {
            self.sync();
        }
        self.dirty_since.get_or_insert(now);
    }

    /// Fails a sync: some of the data reaches the media, the rest never will.
    fn fail_sync(&mut self, rng: &mut StdRng) {
        if rng.random() {
            self.durable.resize(self.seen.len(), 0);
        }
        for number in std::mem::take(&mut self.versions).into_keys() {
            let sector = self.sector(number);
            if rng.random() {
                put_sector(&mut self.durable, number, &sector);
            }
        }
        self.lengths.clear();
        self.dirty_since = None;
    }

    fn is_clean(&self) -> bool {
        self.versions.is_empty() && self.lengths.is_empty()
    }

    /// Returns the file as a power cut leaves it. What was added to it was written as a whole or not at all unless the
    /// profile is strict, because its blocks are allocated when it is written.
    fn cut(mut self, profile: Profile, rng: &mut StdRng) -> Self {
        let survival = Survival::choose(rng, profile);
        let length = match (survival, self.lengths.last()) {
            (Survival::Nothing, _) | (_, None) => self.durable.len(),
            (Survival::Everything, Some(last)) => *last,
            (Survival::Overwritten, _) => self.durable.len(),
            _ => match rng.random_range(0..=self.lengths.len()).checked_sub(1) {
                None => self.durable.len(),
                Some(at) => self.lengths[at],
            },
        };
        self.durable.resize(length, 0);
        for (number, versions) in std::mem::take(&mut self.versions) {
            let old = sector_of(&self.durable, number);
            let chosen = match survival {
                Survival::Nothing => None,
                Survival::Everything => versions.last().copied(),
                _ => rng.random_range(0..=versions.len()).checked_sub(1).map(|at| versions[at]),
            };
            let Some(mut sector) = chosen else { continue };
            if matches!(survival, Survival::Torn) && old == [0; SECTOR] && rng.random_ratio(1, 8) {
                sector[rng.random_range(0..SECTOR)..].fill(0);
            }
            put_sector(&mut self.durable, number, &sector);
        }
        Self { seen: self.durable.clone(), durable: self.durable, ..Self::default() }
    }
}

/// Returns a sector of a file, with zeros after the file's end.
fn sector_of(bytes: &[u8], number: usize) -> Sector {
    let mut sector = [0; SECTOR];
    let from = (number * SECTOR).min(bytes.len());
    let part = &bytes[from..(from + SECTOR).min(bytes.len())];
    sector[..part.len()].copy_from_slice(part);
    sector
}

/// Writes the part of a sector that is within the file.
fn put_sector(bytes: &mut [u8], number: usize, sector: &Sector) {
    let from = (number * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    bytes[from..to].copy_from_slice(&sector[..to - from]);
}

impl FileSystem {
    /// Creates an empty file system with room for so many bytes.
    pub fn new(capacity: u64) -> Self {
        let root = Node {
            permissions: 0o755,
            owner: Owner::default(),
            times: Times { modified: UNIX_EPOCH, changed: UNIX_EPOCH },
            opened: 0,
            names: 1,
            is_linked: false,
            content: Content::Directory(Directory::default()),
        };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            capacity,
            changes: Vec::new(),
            profile: Profile::Strict,
            now: UNIX_EPOCH,
        }
    }

    /// Sets the time for later changes.
    pub fn set_time(&mut self, now: SystemTime) {
        self.now = now;
    }

    fn mark_modified(&mut self, inode: Inode) {
        let now = self.now;
        if let Ok(node) = self.node(inode) {
            node.times = Times { modified: now, changed: now };
        }
    }

    fn mark_changed(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        let now = self.now;
        let node = self.node(inode)?;
        node.times.changed = now;
        Ok(node)
    }

    /// Returns the bytes of all files that have a name or are open, and the limit.
    pub fn used_and_capacity(&self) -> (u64, u64) {
        (self.files().map(|(_, file)| file.seen.len() as u64).sum(), self.capacity)
    }

    fn files(&self) -> impl Iterator<Item = (Inode, &File)> {
        self.nodes.iter().filter_map(|(inode, node)| match &node.content {
            Content::File(file) if node.opened > 0 || node.names > 0 => Some((*inode, file)),
            _ => None,
        })
    }

    /// Reports whether the media certainly has a name for that file.
    pub fn is_durably_named(&self, inode: Inode) -> bool {
        self.directories().any(|directory| directory.durable.values().any(|named| *named == inode))
    }

    /// Reports whether the media certainly has that name for that file.
    pub fn is_durably_called(&self, inode: Inode, name: &str) -> bool {
        self.directories().any(|directory| directory.durable.get(name) == Some(&inode))
    }

    /// Reports whether a segment's header is on the media. A segment that is being made has none yet.
    pub fn has_durable_header(&self, inode: Inode) -> bool {
        const HEADERS_BYTES: usize = 8192;
        self.files()
            .any(|(other, file)| other == inode && file.durable.iter().take(HEADERS_BYTES).any(|byte| *byte != 0))
    }

    fn directories(&self) -> impl Iterator<Item = &Directory> {
        self.nodes.values().filter_map(|node| match &node.content {
            Content::Directory(directory) => Some(directory),
            Content::File(_) | Content::Special(_) => None,
        })
    }

    /// Reports whether the media has the complete content of every file that has a name there.
    pub fn is_clean(&self) -> bool {
        self.files().all(|(inode, file)| file.is_clean() || !self.is_durably_named(inode))
    }

    fn node(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::NOENT)
    }

    fn file(&mut self, inode: Inode) -> Result<&mut File, Errno> {
        match &mut self.node(inode)?.content {
            Content::File(file) => Ok(file),
            Content::Directory(_) => Err(Errno::ISDIR),
            Content::Special(_) => Err(Errno::INVAL),
        }
    }

    fn directory(&mut self, inode: Inode) -> Result<&mut Directory, Errno> {
        match &mut self.node(inode)?.content {
            Content::Directory(directory) => Ok(directory),
            Content::File(_) | Content::Special(_) => Err(Errno::NOTDIR),
        }
    }

    /// Attributes of a file.
    pub fn attributes(&self, inode: Inode) -> Result<Attributes, Errno> {
        let node = self.nodes.get(&inode).ok_or(Errno::NOENT)?;
        let (kind, bytes) = match &node.content {
            Content::File(file) => (FileKind::Regular, file.seen.len() as u64),
            Content::Directory(_) => (FileKind::Directory, 0),
            Content::Special(special) => (FileKind::Special(*special), 0),
        };
        let &Node { permissions, owner, times, names, .. } = node;
        Ok(Attributes { inode, kind, bytes, permissions, owner, times, names })
    }

    /// Attributes of the file with that name.
    pub fn look_up(&mut self, directory: Inode, name: &str) -> Result<Attributes, Errno> {
        let inode = *self.directory(directory)?.seen.get(name).ok_or(Errno::NOENT)?;
        self.attributes(inode)
    }

    /// The names in a directory, in order.
    pub fn list(&mut self, directory: Inode) -> Result<Vec<(String, Attributes)>, Errno> {
        let names = self.directory(directory)?.seen.clone();
        names.into_iter().map(|(name, inode)| Ok((name, self.attributes(inode)?))).collect()
    }

    /// Makes an empty file.
    pub fn create(&mut self, directory: Inode, name: &str, permissions: u16) -> Result<Attributes, Errno> {
        self.add(directory, name, permissions, Content::File(File::default()))
    }

    /// Makes an empty directory.
    pub fn make_directory(&mut self, directory: Inode, name: &str, permissions: u16) -> Result<Attributes, Errno> {
        self.add(directory, name, permissions, Content::Directory(Directory::default()))
    }

    /// Makes a FIFO or a socket.
    pub fn make_special(
        &mut self,
        directory: Inode,
        name: &str,
        permissions: u16,
        special: SpecialFile,
    ) -> Result<Attributes, Errno> {
        self.add(directory, name, permissions, Content::Special(special))
    }

    fn add(&mut self, directory: Inode, name: &str, permissions: u16, content: Content) -> Result<Attributes, Errno> {
        let inode = self.next;
        let names = &mut self.directory(directory)?.seen;
        if names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        names.insert(name.to_owned(), inode);
        self.next += 1;
        let times = Times { modified: self.now, changed: self.now };
        let owner = Owner::default();
        let node = Node { permissions, owner, times, opened: 0, names: 1, is_linked: false, content };
        self.nodes.insert(inode, node);
        self.mark_modified(directory);
        self.note(NameChange::Add { directory, name: name.to_owned(), inode });
        self.attributes(inode)
    }

    /// Removes a file's name, or an empty directory.
    pub fn remove(&mut self, directory: Inode, name: &str) -> Result<(), Errno> {
        let inode = self.look_up(directory, name)?.inode;
        if self.directory(inode).is_ok_and(|removed| !removed.seen.is_empty()) {
            return Err(Errno::NOTEMPTY);
        }
        self.directory(directory)?.seen.remove(name);
        self.lose_name(inode);
        self.mark_modified(directory);
        self.note(NameChange::Remove { directory, name: name.to_owned(), inode });
        Ok(())
    }

    fn note(&mut self, change: NameChange) {
        self.changes.push((change, self.now));
    }

    fn lose_name(&mut self, inode: Inode) {
        if let Ok(node) = self.node(inode) {
            node.names = node.names.saturating_sub(1);
        }
    }

    /// Gives a file another name, as link(2) does.
    pub fn link(&mut self, inode: Inode, directory: Inode, name: &str) -> Result<Attributes, Errno> {
        if self.directory(inode).is_ok() {
            return Err(Errno::PERM);
        }
        if self.directory(directory)?.seen.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let node = self.mark_changed(inode)?;
        node.names += 1;
        node.is_linked = true;
        self.directory(directory)?.seen.insert(name.to_owned(), inode);
        self.mark_modified(directory);
        self.note(NameChange::Add { directory, name: name.to_owned(), inode });
        self.attributes(inode)
    }

    /// Renames a file or directory. An existing file with the new name is replaced. Nothing changes if both are names
    /// of one file (rename(2)).
    pub fn rename(&mut self, from: (Inode, &str), to: (Inode, &str)) -> Result<(), Errno> {
        let inode = self.look_up(from.0, from.1)?.inode;
        let replaced = self.directory(to.0)?.seen.insert(to.1.to_owned(), inode);
        if from != to && replaced == Some(inode) {
            return Ok(());
        }
        if from != to {
            self.directory(from.0)?.seen.remove(from.1);
            replaced.into_iter().for_each(|other| self.lose_name(other));
        }
        if replaced.is_some() && self.profile == Profile::Ext4 {
            // Its data is written before the journal can have the rename.
            self.file(inode).into_iter().for_each(File::sync);
        }
        self.mark_modified(from.0);
        self.mark_modified(to.0);
        self.mark_changed(inode)?;
        let owned = |place: (Inode, &str)| (place.0, place.1.to_owned());
        self.note(NameChange::Rename { from: owned(from), to: owned(to), inode });
        Ok(())
    }

    /// Counts another open descriptor.
    pub fn open(&mut self, inode: Inode) -> Result<(), Errno> {
        self.node(inode)?.opened += 1;
        Ok(())
    }

    /// Counts one open descriptor less.
    pub fn close(&mut self, inode: Inode) {
        if let Ok(node) = self.node(inode) {
            node.opened = node.opened.saturating_sub(1);
        }
    }

    /// Changes the bits of chmod(2).
    pub fn set_permissions(&mut self, inode: Inode, permissions: u16) -> Result<(), Errno> {
        self.mark_changed(inode)?.permissions = permissions;
        Ok(())
    }

    /// Sets user and group of a file.
    pub fn set_owner(&mut self, inode: Inode, owner: Owner) -> Result<(), Errno> {
        self.mark_changed(inode)?.owner = owner;
        Ok(())
    }

    /// Sets when the content was changed, like utimes(2).
    pub fn set_modified(&mut self, inode: Inode, modified: SystemTime) -> Result<(), Errno> {
        self.mark_changed(inode)?.times.modified = modified;
        Ok(())
    }

    /// Makes the disk larger or smaller. Existing data is kept.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    /// Reads bytes as processes see them. Returns fewer at the end of the file.
    pub fn read(&mut self, inode: Inode, at: u64, bytes: usize) -> Result<&[u8], Errno> {
        let seen = &self.file(inode)?.seen;
        let from = seen.len().min(at as usize);
        Ok(&seen[from..seen.len().min(from + bytes)])
    }

    /// Writes bytes. They are not durable until the next sync.
    pub fn write(&mut self, inode: Inode, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.check_room(inode, at + bytes.len() as u64)?;
        self.write_back(inode)?;
        self.file(inode)?.write(bytes, at as usize);
        self.mark_modified(inode);
        Ok(())
    }

    /// Sets the length of a file: cuts it, or extends it with zeros.
    pub fn set_length(&mut self, inode: Inode, bytes: u64) -> Result<(), Errno> {
        self.check_room(inode, bytes)?;
        self.write_back(inode)?;
        self.file(inode)?.resize(bytes as usize);
        self.mark_modified(inode);
        Ok(())
    }

    /// Extends a file to at least that length.
    pub fn allocate(&mut self, inode: Inode, bytes: u64) -> Result<(), Errno> {
        let longest = self.attributes(inode)?.bytes.max(bytes);
        self.set_length(inode, longest)
    }

    fn check_room(&mut self, inode: Inode, end: u64) -> Result<(), Errno> {
        let grows_by = end.saturating_sub(self.file(inode)?.seen.len() as u64);
        let (used, capacity) = self.used_and_capacity();
        if grows_by > 0 && used + grows_by > capacity { Err(Errno::NOSPC) } else { Ok(()) }
    }

    /// Writes what the kernel would have written by now.
    fn write_back(&mut self, inode: Inode) -> Result<(), Errno> {
        let now = self.now;
        if self.profile != Profile::Strict {
            self.file(inode)?.write_back(now);
        }
        Ok(())
    }

    /// Behaves like this file system from now on.
    pub fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
    }

    /// Makes the written data of a file and its length durable.
    pub fn sync(&mut self, inode: Inode) -> Result<(), Errno> {
        self.file(inode)?.sync();
        match self.profile {
            Profile::Ext4 | Profile::Xfs => self.make_all_names_durable(),
            Profile::Btrfs => self.make_own_names_durable(inode),
            Profile::Strict => {}
        }
        Ok(())
    }

    /// Makes the changes of a file's names durable, and those of the directories that lead to it.
    fn make_own_names_durable(&mut self, inode: Inode) {
        let mut own = BTreeSet::from([inode]);
        // A directory is made before the names in it.
        for (change, _) in self.changes.iter().rev() {
            if own.contains(&change.inode()) {
                own.extend(change.directories());
            }
        }
        self.make_names_durable(|change| own.contains(&change.inode()));
    }

    fn make_names_durable(&mut self, are_durable: impl Fn(&NameChange) -> bool) {
        for (change, _) in self.changes.extract_if(.., |(change, _)| are_durable(change)).collect::<Vec<_>>() {
            self.make_durable(change);
        }
        self.forget_unused();
    }

    fn make_all_names_durable(&mut self) {
        self.make_names_durable(|_| true);
    }

    /// Fails a sync of a file or a directory.
    pub fn fail_sync(&mut self, inode: Inode, rng: &mut StdRng) {
        if let Ok(file) = self.file(inode) {
            file.fail_sync(rng);
        }
    }

    /// Makes the names in a directory durable.
    pub fn sync_directory(&mut self, inode: Inode) -> Result<(), Errno> {
        self.directory(inode)?;
        let syncs_all = self.profile.syncs_all_names();
        self.make_names_durable(|change| syncs_all || change.concerns(inode));
        Ok(())
    }

    fn make_durable(&mut self, change: NameChange) {
        match change {
            NameChange::Add { directory, name, inode } => _ = self.durable_names(directory).insert(name, inode),
            NameChange::Remove { directory, name, inode } => self.remove_durable(directory, &name, inode),
            NameChange::Rename { from, to, inode } => {
                self.remove_durable(from.0, &from.1, inode);
                self.durable_names(to.0).insert(to.1, inode);
            }
        }
    }

    fn durable_names(&mut self, directory: Inode) -> &mut BTreeMap<String, Inode> {
        &mut self.directory(directory).expect("a directory with changes is kept").durable
    }

    /// Removes a name, unless another file has it by now.
    fn remove_durable(&mut self, directory: Inode, name: &str, inode: Inode) {
        let names = self.durable_names(directory);
        if names.get(name) == Some(&inode) {
            names.remove(name);
        }
    }

    /// Drops files that nobody has open and that have no name, either for processes or on the media.
    fn forget_unused(&mut self) {
        let mut used = BTreeSet::from([ROOT]);
        for directory in self.directories() {
            used.extend(directory.seen.values().chain(directory.durable.values()));
        }
        for (change, _) in &self.changes {
            used.insert(change.inode());
            used.extend(change.directories());
        }
        self.nodes.retain(|inode, node| node.opened > 0 || used.contains(inode));
    }

    /// Makes everything durable, as happens in time.
    pub fn sync_all(&mut self) {
        for node in self.nodes.values_mut() {
            if let Content::File(file) = &mut node.content {
                file.sync();
            }
        }
        self.make_all_names_durable();
    }

    /// Cuts the power and restores it. Chance decides which unsynced data remains.
    pub fn cut(&mut self, rng: &mut StdRng) {
        let changes = std::mem::take(&mut self.changes);
        let survival = if self.profile == Profile::Strict { rng.random_range(0..4) } else { 2 };
        let now = self.now;
        let is_committed = |at: SystemTime| {
            let age = now.duration_since(at).unwrap_or_default();
            self.profile.commits_after().is_some_and(|limit| age >= limit)
        };
        let committed = changes.partition_point(|(_, at)| is_committed(*at));
        let first = rng.random_range(committed..=changes.len());
        for (at, (change, _)) in changes.into_iter().enumerate() {
            let survives = match survival {
                0 => false,
                1 => true,
                2 => at < first,
                _ => rng.random(),
            };
            if survives {
                self.make_durable(change);
            }
        }
        if self.profile != Profile::Strict {
            for node in self.nodes.values_mut() {
                if let Content::File(file) = &mut node.content {
                    file.write_back(now);
                }
            }
        }
        let mut old = std::mem::take(&mut self.nodes);
        if let Some(root) = old.remove(&ROOT) {
            let root = self.revive(root, &mut old, &mut BTreeMap::new(), rng);
            self.nodes.insert(ROOT, root);
        }
    }

    /// Restores a node as the media has it. The content of a directory gets new numbers. `linked` has the new numbers of
    /// files with several names.
    fn revive(
        &mut self,
        node: Node,
        old: &mut BTreeMap<Inode, Node>,
        linked: &mut BTreeMap<Inode, Inode>,
        rng: &mut StdRng,
    ) -> Node {
        let content = match node.content {
            Content::File(file) => Content::File(file.cut(self.profile, rng)),
            Content::Special(special) => Content::Special(special),
            Content::Directory(directory) => {
                let mut names = BTreeMap::new();
                for (name, inode) in directory.durable {
                    if let Some(new) = linked.get(&inode) {
                        self.nodes.get_mut(new).into_iter().for_each(|node| node.names += 1);
                        names.insert(name, *new);
                        continue;
                    }
                    // A rename that did not survive would have given this name, so the older file keeps it.
                    let Some(below) = old.remove(&inode) else { continue };
                    let below = self.revive(below, old, linked, rng);
                    let new = self.next;
                    self.next += 1;
                    if below.is_linked {
                        linked.insert(inode, new);
                    }
                    self.nodes.insert(new, below);
                    names.insert(name, new);
                }
                Content::Directory(Directory { seen: names.clone(), durable: names })
            }
        };
        Node { opened: 0, names: 1, content, ..node }
    }

    /// Flips one bit of a file, both for processes and on the media.
    pub fn flip_bit(&mut self, inode: Inode, at: u64, rng: &mut StdRng) -> Result<(), Errno> {
        let bit = 1 << (rng.next_u32() % 8);
        let file = self.file(inode)?;
        for bytes in [&mut file.seen, &mut file.durable] {
            if let Some(byte) = bytes.get_mut(at as usize) {
                *byte ^= bit;
            }
        }
        Ok(())
    }
}
