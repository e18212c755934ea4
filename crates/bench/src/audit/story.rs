//! The story of a message on the disk: the calls to the file system that concern the message, and the parts of the
//! message that were not durable when the server answered 250.
//!
//! ```text
//! find      files that ever held the trace of the message, names that have the queue id of the reply, and small
//!           files that have this id alone
//! Story     replay ─→ the calls on these ─→ at the 250: the gaps ─→ the cut: what is left ─→ calls after it
//! ```
use mailrun_crashfs::{Call, FileKind, FileSystem, Inode, LoggedCall, NameChange, ROOT, StoredCalls};
use mailrun_measurement::trace::{NAME, RunId, Trace, message_number};
use mailrun_text::numbers::counted;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

use std::io;
use std::ops::Range;
use std::time::Duration;

/// Minimum length of a queue ID in the server's reply. Shorter words of the reply may occur in file names by chance.
const MIN_ID_CHARS: usize = 6;

/// Maximum size in bytes of a file that can be the envelope of a message. A larger file is not taken for an envelope,
/// even if it contains the message's queue ID.
const MAX_ENVELOPE_BYTES: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) run: RunId,
    pub(super) message: u64,
    pub(super) reply: Option<String>,
    /// Time at which the server answered the message with 250, on the monotonic clock.
    pub(super) answered: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) text: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    pub(super) events: Vec<Event>,
    /// Queue ID that the server gave the message. It is a word of the server's reply that also occurs in the name of a
    /// file, or in a small file such as an envelope.
    pub(super) queue_id: Option<String>,
    /// Set if any file of the server ever contained the message.
    pub(super) was_written: bool,
    /// Inode numbers of all files and directories that concern the message. One file may have several of these numbers,
    /// because each power cut gives it a new number.
    pub(super) concerned: Vec<Inode>,
    /// Parts of the message that were not durable when the 250 came. `None` if no call was logged after the 250.
    pub(super) gaps: Option<Vec<Gap>>,
    /// Index in the call log of the entry that marks the power cut after the 250.
    pub(super) cut: Option<usize>,
    pub(super) cut_at: Option<Duration>,
    /// What the power cut left of each file, one line per file, such as `queue/m1 is gone`.
    pub(super) left: Vec<String>,
    /// Set if the message's files had the same content after the power cut as before it.
    pub(super) was_kept: bool,
    /// Set if the power cut changed no file that contains the text of the message. It may have changed other files of
    /// the message, such as a log whose name contains the queue ID.
    pub(super) was_text_kept: bool,
}

/// A file whose data or name was not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    path: String,
    data: Option<DataGap>,
    /// Set if the file's name was not durable, for example because no sync followed its rename.
    name: Option<LostName>,
}

/// Reason why the data of a file was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataGap {
    NeverSynced,
    /// The file was written again after its last sync.
    WrittenSince,
    /// A sync failed and dropped the data, so no later sync writes it. `is_repeated` is set if there was a later sync.
    Dropped {
        is_repeated: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LostName {
    /// Path before the rename, if the name was not durable because of a rename.
    former: Option<String>,
    path: String,
}

impl Gap {
    /// Describes what was not durable, for example `a/b: its data and its name`.
    pub(super) fn words(&self) -> String {
        let data = self.data.map(|_| "its data".to_owned());
        let name = self.name.as_ref().map(|name| match &name.former {
            Some(former) => format!("the rename of {former} to {}", name.path),
            None if name.path == self.path => "its name".to_owned(),
            None => format!("the name {}", name.path),
        });
        format!("{}: {}", self.path, mailrun_text::words::listed(&data.into_iter().chain(name).collect::<Vec<_>>()))
    }

    /// Says which fsync was missing when the server sent the 250.
    pub(super) fn sentence(&self) -> String {
        let path = &self.path;
        let directory = |name: &LostName| format!("its directory {}", directory_of(&name.path));
        let other = || match &self.name {
            None => "no other".to_owned(),
            Some(name) => format!("neither another nor one of {}", directory(name)),
        };
        match (self.data, &self.name) {
            (Some(DataGap::WrittenSince), _) => {
                format!("{path} was written after its last fsync, and there was {} before 250", other())
            }
            (Some(DataGap::Dropped { is_repeated: false }), _) => {
                format!("the fsync of {path} failed, and there was {} before 250", other())
            }
            (Some(DataGap::Dropped { is_repeated: true }), _) => format!(
                "the fsync of {path} failed. The next one did not write what the first had dropped, so it must be written \
                 again before an fsync"
            ),
            (Some(DataGap::NeverSynced), None) => format!("no fsync of {path} before 250"),
            (Some(DataGap::NeverSynced), Some(name)) => {
                format!("no fsync of {path}, and none of {}, before 250", directory(name))
            }
            (None, Some(name)) => {
                let change = match &name.former {
                    Some(former) => format!("the rename of {former} to {}", name.path),
                    None => format!("the name {}", name.path),
                };
                format!("{path} was synced, but not {change}: no fsync of {} before 250", directory(name))
            }
            (None, None) => format!("{path} was durable"),
        }
    }
}

fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("(the top one)", |(directory, _)| directory)
}

/// A file that contained the message at some time, or that has the message's queue ID in its name or contents.
#[derive(Clone, Debug, Default)]
struct Holder {
    /// Bytes of the file that hold the message. `None` if the file never contained the message, but only its queue ID.
    mail: Option<Range<usize>>,
    /// Set if the file contained the explained message and also other messages.
    is_shared: bool,
    /// Set if the file was synced after its first write, even if that sync failed.
    has_been_synced: bool,
    has_last_sync_failed: bool,
}

impl Holder {
    /// Returns the bytes of the file that belong to the message. These are all bytes, unless other messages share the
    /// file.
    fn part(&self) -> Range<usize> {
        self.mail.clone().filter(|_| self.is_shared).unwrap_or(0..usize::MAX)
    }

    fn note_sync(&mut self, has_failed: bool) {
        self.has_been_synced = true;
        self.has_last_sync_failed = has_failed;
    }

    /// Returns why the data of the file is not durable, or `None` if all of it is.
    fn data_gap(&self, inode: Inode, files: &FileSystem) -> Option<DataGap> {
        match self.has_been_synced {
            _ if files.is_durable(inode, self.part()) => None,
            _ if files.is_dropped(inode, self.part()) => {
                Some(DataGap::Dropped { is_repeated: !self.has_last_sync_failed })
            }
            true => Some(DataGap::WrittenSince),
            false => Some(DataGap::NeverSynced),
        }
    }
}

/// Returns the words of a reply that may be the server's queue ID of the message.
fn possible_ids(reply: &str) -> Vec<&str> {
    let words = reply.split(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
    let words = words.map(|word| word.trim_matches(['-', '_', '.']));
    words.filter(|word| word.len() >= MIN_ID_CHARS && word.bytes().any(|byte| byte.is_ascii_digit())).collect()
}

/// Finds the trace headers with which the source marks the messages of the run. Returns the offset of each header in
/// `bytes`, and the number of its message.
fn traces(bytes: &[u8], run: RunId) -> Vec<(usize, u64)> {
    let line_bytes = Trace::HEADER_BYTES - 2;
    let found = bytes.windows(line_bytes).enumerate().filter(|(_, line)| line.starts_with(NAME));
    let parsed = found.filter_map(|(at, line)| Some((at, Trace::parse(line)?)));
    parsed.filter(|(_, trace)| trace.run == run).map(|(at, trace)| (at, message_number(trace.sequence))).collect()
}

fn has_id(bytes: &[u8], id: &str) -> bool {
    bytes.windows(id.len()).any(|word| word == id.as_bytes())
}

/// Returns true if the bytes contain the queue ID of another message: a different word with the same first half and
/// with punctuation in the same places. IDs of one server begin alike, because servers put the time or a counter into
/// them.
fn has_similar_id(bytes: &[u8], id: &str) -> bool {
    let id = id.as_bytes();
    let has_shape = |word: &[u8]| {
        word.iter().zip(id).all(|(a, b)| a == b || (a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric()))
    };
    let beginning = &id[..id.len() / 2];
    bytes.windows(id.len()).any(|word| word.starts_with(beginning) && word != id && has_shape(word))
}

struct Finder<'a> {
    asked: &'a Asked,
    ids: Vec<&'a str>,
    id: Option<&'a str>,
    holders: BTreeMap<Inode, Holder>,
    /// Files that contain at least one message of the run other than the explained message.
    with_others: BTreeSet<Inode>,
    /// For each file, the words in it that also occur in the server's reply and may be the queue ID.
    with_ids: BTreeMap<Inode, BTreeSet<&'a str>>,
    /// Files that cannot be the envelope of a single message, because they are logs, are too large, or contain the
    /// queue IDs of several messages.
    not_envelopes: BTreeSet<Inode>,
}

impl Finder<'_> {
    fn look_at_name(&mut self, name: &str, inode: Inode) {
        if name.to_ascii_lowercase().contains("log") {
            self.not_envelopes.insert(inode);
        }
        if let Some(id) = self.ids.iter().find(|id| name.contains(**id)) {
            self.id = Some(id);
            self.holders.entry(inode).or_default();
        }
    }

    /// Searches a part of a file for messages of the run and for the queue ID, and notes whether the file holds the
    /// message, other messages, or the ID.
    fn look_at_data(&mut self, files: &mut FileSystem, inode: Inode, part: Range<usize>) {
        let Ok(bytes) = files.read(inode, part.start as u64, part.end.saturating_sub(part.start)) else { return };
        let found = traces(bytes, self.asked.run);
        let own = found.iter().find(|(_, message)| *message == self.asked.message);
        if let Some((at, _)) = own {
            let next = found.iter().map(|(other, _)| *other).find(|other| other > at);
            let end = next.unwrap_or(bytes.len());
            let mail = part.start + at..part.start + end;
            self.holders.entry(inode).or_default().mail.get_or_insert(mail);
        }
        if found.iter().any(|(_, message)| *message != self.asked.message) {
            self.with_others.insert(inode);
        }
        for &id in &self.ids {
            if has_id(bytes, id) {
                self.with_ids.entry(inode).or_default().insert(id);
            }
            if part.start + bytes.len() > MAX_ENVELOPE_BYTES || has_similar_id(bytes, id) {
                self.not_envelopes.insert(inode);
            }
        }
    }

    /// Adds files that belong to the message because they contain its queue ID, such as an envelope whose file name is
    /// a mere number. Files of several messages, such as logs, are left out. A word that is also in the text of another
    /// message, such as the server's own name, is no queue ID.
    fn add_envelopes(&mut self) {
        let has_own_mail = |inode: &Inode| self.holders.get(inode).is_some_and(|holder| holder.mail.is_some());
        let others =
            self.with_ids.iter().filter(|&(inode, _)| self.with_others.contains(inode) && !has_own_mail(inode));
        let not_ids: BTreeSet<&str> = others.flat_map(|(_, words)| words).copied().collect();
        for (inode, words) in &self.with_ids {
            let Some(&id) = words.difference(&not_ids).next() else { continue };
            if !self.not_envelopes.contains(inode) && !self.with_others.contains(inode) {
                self.holders.entry(*inode).or_default();
                self.id.get_or_insert(id);
            }
        }
    }

    fn look_after(&mut self, call: &Call, files: &mut FileSystem) {
        match call {
            Call::Write { inode, at, bytes, .. } => {
                let at = *at as usize;
                let margin = Trace::HEADER_BYTES;
                self.look_at_data(files, *inode, at.saturating_sub(margin)..at + bytes + margin);
            }
            Call::Make { name, inode, .. } | Call::Link { name, inode, .. } => self.look_at_name(name, *inode),
            Call::Rename { to, .. } => {
                if let Ok(found) = files.look_up(to.0, &to.1) {
                    self.look_at_name(&to.1, found.inode);
                }
            }
            Call::Cut { .. } => {
                files.all_names().into_iter().for_each(|(name, inode)| self.look_at_name(&name, inode));
                for inode in files.regular_files() {
                    self.look_at_data(files, inode, 0..usize::MAX);
                }
            }
            _ => {}
        }
    }
}

/// Returns the latest time at which the server can have sent the reply that the source read at `read`. A reply that was
/// read while the power was off was sent before the cut, so this returns the time of the cut.
fn answered_at(calls: &[LoggedCall], read: Duration) -> Duration {
    let at =
        |is_wanted: fn(&Call) -> bool| calls.iter().filter(move |logged| is_wanted(&logged.call)).map(LoggedCall::at);
    let outages = at(|call| *call == Call::PowerOff).zip(at(|call| matches!(call, Call::Cut { .. })));
    outages.filter(|(off, on)| (*off..=*on).contains(&read)).map(|(off, _)| off).next().unwrap_or(read)
}

/// Replays the log of file system calls, and collects what the server did with the files of one message.
///
/// # Errors
/// Fails if a call in the log cannot be repeated on the simulated file system.
pub(super) fn tell(stored: &StoredCalls, asked: &Asked) -> io::Result<Story> {
    let answered = asked.answered.map(|read| answered_at(&stored.calls, read));
    let asked = &Asked { answered, ..asked.clone() };
    let ids = asked.reply.as_deref().map(possible_ids).unwrap_or_default();
    let mut finder = Finder {
        asked,
        ids,
        id: None,
        holders: BTreeMap::new(),
        with_others: BTreeSet::new(),
        with_ids: BTreeMap::new(),
        not_envelopes: BTreeSet::new(),
    };
    stored.replay(|at, files| {
        if let Some(logged) = at.checked_sub(1).and_then(|at| stored.calls.get(at)) {
            finder.look_after(&logged.call, files);
        }
        true
    })?;
    finder.add_envelopes();
    for (inode, holder) in &mut finder.holders {
        holder.is_shared = holder.mail.is_some() && finder.with_others.contains(inode);
    }
    let story = Story {
        queue_id: finder.id.map(str::to_owned),
        was_written: finder.holders.values().any(|holder| holder.mail.is_some()),
        concerned: finder.holders.keys().copied().collect(),
        ..Story::default()
    };
    let mut teller =
        Teller { asked, holders: finder.holders, story, is_answered: false, before_cut: None, repeated: None };
    stored.replay(|at, files| {
        match stored.calls.get(at) {
            Some(logged) => teller.look_before(at, logged, files),
            None => teller.look_at_end(files),
        }
        true
    })?;
    Ok(teller.story)
}

struct Teller<'a> {
    asked: &'a Asked,
    holders: BTreeMap<Inode, Holder>,
    story: Story,
    is_answered: bool,
    /// Content of the message's files before the power cut that followed the 250. Set only while the power is off.
    before_cut: Option<BTreeMap<String, Vec<u8>>>,
    /// If the last event is a write or a sync, the next call of the same kind is merged into it. The values are the
    /// last call, the time of the first call, the total bytes, and the number of calls.
    repeated: Option<(Repeated, Duration, u64, u64)>,
}

/// A call that servers often repeat. The list of events shows repeated calls on the same file as a single event.
#[derive(Clone, Copy, Debug)]
enum Repeated {
    Write(Inode, u64),
    Sync(Inode),
}

impl Repeated {
    fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Write(inode, _), Self::Write(other, _)) | (Self::Sync(inode), Self::Sync(other)) => inode == other,
            _ => false,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Write(_, bytes) => bytes,
            Self::Sync(_) => 0,
        }
    }
}

impl Teller<'_> {
    fn event(&mut self, at: Duration, text: String) {
        self.repeated = None;
        self.story.events.push(Event { at, text });
    }

    fn look_before(&mut self, at: usize, logged: &LoggedCall, files: &mut FileSystem) {
        self.tell_what_is_left(files, &logged.call);
        let is_off = logged.call == Call::PowerOff;
        let is_after = self.asked.answered.is_some_and(|answered| logged.at() > answered);
        if !self.is_answered
            && (is_after || is_off && self.asked.answered.is_none_or(|answered| logged.at() >= answered))
        {
            self.is_answered = true;
            if let Some(answered) = self.asked.answered {
                self.event(answered, "250".to_owned());
            }
            self.story.gaps = Some(self.gaps(files));
        }
        if is_off && self.is_answered && self.story.cut.is_none() {
            (self.story.cut, self.story.cut_at) = (Some(at), Some(logged.at()));
            self.event(logged.at(), format!("the power is cut, after {} of the log", counted(at as u64, "call")));
            self.before_cut = Some(self.contents(files));
        } else {
            self.tell_call(logged, files);
        }
    }

    fn tell_call(&mut self, logged: &LoggedCall, files: &mut FileSystem) {
        let at = logged.at();
        let below = |directory: Inode, name: &str, files: &FileSystem| {
            let parent = files.paths(directory).into_iter().next().unwrap_or_default();
            if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
        };
        match &logged.call {
            // Before a server puts several messages into one file, it may fill the file with zeros. Skip these zeros,
            // because they belong to no message.
            Call::Write { inode, are_zeros: true, .. } if self.is_shared(*inode) => {}
            Call::Write { inode, at: from, bytes, .. } => self.tell_write(at, *inode, *from as usize, *bytes, files),
            Call::Make { directory, name, kind, inode, .. } if self.holders.contains_key(inode) => {
                let verb = match kind {
                    FileKind::Directory => "mkdir",
                    FileKind::Regular | FileKind::Special(_) => "create",
                };
                self.event(at, format!("{verb} {}", below(*directory, name, files)));
            }
            Call::SetLength { inode, bytes } if self.holders.contains_key(inode) && !self.is_shared(*inode) => {
                self.event(at, format!("truncate {} to {}", path_of(files, *inode), counted(*bytes, "byte")));
            }
            Call::Sync { inode } if self.holders.contains_key(inode) => {
                if files.read(*inode, 0, 1).is_ok_and(|bytes| !bytes.is_empty()) {
                    self.holders.entry(*inode).and_modify(|holder| holder.note_sync(false));
                }
                self.tell_repeated(at, Repeated::Sync(*inode), |_| format!("fsync {}", path_of(files, *inode)));
            }
            Call::FailedSync { inode, error, .. } if self.holders.contains_key(inode) => {
                self.holders.entry(*inode).and_modify(|holder| holder.note_sync(true));
                self.event(at, format!("fsync {} failed: {error}", path_of(files, *inode)));
            }
            Call::SyncDirectory { inode } => {
                let directories = files.paths(*inode);
                let holders: Vec<Inode> = self.holders.keys().copied().collect();
                let paths =
                    holders.into_iter().flat_map(|holder| [files.paths(holder), files.durable_paths(holder)].concat());
                let is_theirs = |path: String| {
                    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                    directories.iter().any(|directory| directory == parent)
                };
                if paths.into_iter().any(is_theirs) {
                    self.event(at, format!("fsync of the directory {}", named(directories.first())));
                }
            }
            Call::SyncAll if self.holders.keys().any(|inode| !files.paths(*inode).is_empty()) => {
                self.holders.values_mut().for_each(|holder| holder.note_sync(false));
                self.event(at, "sync, of everything".to_owned());
            }
            Call::Link { inode, directory, name } if self.holders.contains_key(inode) => {
                self.event(at, format!("link {} {}", path_of(files, *inode), below(*directory, name, files)));
            }
            Call::Remove { directory, name } => {
                let is_held = |found: mailrun_crashfs::Attributes| self.holders.contains_key(&found.inode);
                if files.look_up(*directory, name).is_ok_and(is_held) {
                    self.event(at, format!("unlink {}", below(*directory, name, files)));
                }
            }
            Call::Rename { from, to } => {
                let is_held = |found: mailrun_crashfs::Attributes| self.holders.contains_key(&found.inode);
                if files.look_up(from.0, &from.1).is_ok_and(is_held) {
                    let paths = (below(from.0, &from.1, files), below(to.0, &to.1, files));
                    self.event(at, format!("rename {} {}", paths.0, paths.1));
                }
            }
            Call::PowerOff if self.is_answered => self.event(at, "the power is cut again".to_owned()),
            _ => {}
        }
    }

    fn is_shared(&self, inode: Inode) -> bool {
        self.holders.get(&inode).is_some_and(|holder| holder.is_shared)
    }

    fn tell_write(&mut self, at: Duration, inode: Inode, from: usize, bytes: usize, files: &FileSystem) {
        let Some(holder) = self.holders.get(&inode) else { return };
        let part = holder.part();
        if from >= part.end || from + bytes <= part.start {
            return;
        }
        let text = |all: u64| format!("write {}: {}", path_of(files, inode), counted(all, "byte"));
        self.tell_repeated(at, Repeated::Write(inode, bytes as u64), text);
    }

    /// Adds a call to the list of events. If the last event is a call of the same kind on the same file, extends that
    /// event, and keeps the time of its first call. `text` is called with the total number of bytes of these calls and
    /// returns the event's description.
    fn tell_repeated(&mut self, at: Duration, call: Repeated, text: impl Fn(u64) -> String) {
        let last = self.repeated.take().filter(|(last, ..)| last.is_like(call));
        let (first, bytes, calls) = last.map_or((at, 0, 0), |(_, first, bytes, calls)| (first, bytes, calls));
        let (bytes, calls) = (bytes + call.bytes(), calls + 1);
        if calls > 1 {
            self.story.events.pop();
        }
        let until = format!("{:.6} s later", at.saturating_sub(first).as_secs_f64());
        let number = if calls > 1 { format!(" ({calls} calls, the last {until})") } else { String::new() };
        self.event(first, format!("{}{number}", text(bytes)));
        self.repeated = Some((call, first, bytes, calls));
    }

    fn gaps(&self, files: &FileSystem) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let regular = files.regular_files();
        for (inode, holder) in self.holders.iter().filter(|(inode, _)| regular.contains(inode)) {
            let paths = files.paths(*inode);
            let Some(path) = paths.first() else { continue };
            let data = holder.data_gap(*inode, files);
            let is_named = files.durable_paths(*inode).iter().any(|durable| paths.contains(durable));
            let name = if is_named { None } else { Some(lost_name(files, path)) };
            if data.is_some() || name.is_some() {
                gaps.push(Gap { path: path.clone(), data, name });
            }
        }
        gaps
    }

    /// Returns, for the path of each of the message's files, the part of the file that belongs to the message.
    fn contents(&self, files: &mut FileSystem) -> BTreeMap<String, Vec<u8>> {
        let mut contents = BTreeMap::new();
        for (inode, holder) in &self.holders {
            let part = holder.part();
            let Some(path) = files.paths(*inode).into_iter().next() else { continue };
            if let Ok(bytes) = files.read(*inode, part.start as u64, part.len()) {
                contents.insert(path, bytes.to_vec());
            }
        }
        contents
    }

    /// Once the power is on again, describes in `story.left` what the power cut has left of the message's files.
    fn tell_what_is_left(&mut self, files: &mut FileSystem, next: &Call) {
        // While the power is off, only three kinds of calls are logged: the cut itself, closing a file, and a sync that
        // was requested before the cut. Any other call shows that the power is on again.
        let is_on = !matches!(next, Call::Cut { .. } | Call::Close { .. } | Call::SyncAll);
        if !is_on || self.before_cut.is_none() {
            return;
        }
        let before = self.before_cut.take().unwrap_or_default();
        let after = self.contents(files);
        self.story.was_kept = !before.is_empty() && before == after;
        let (run, message) = (self.asked.run, self.asked.message);
        let has_text = |bytes: &[u8]| traces(bytes, run).iter().any(|(_, number)| *number == message);
        let mut with_text = before.iter().filter(|(_, bytes)| has_text(bytes)).peekable();
        self.story.was_text_kept =
            with_text.peek().is_some() && with_text.all(|(path, bytes)| after.get(path) == Some(bytes));
        for (path, bytes) in &before {
            self.story.left.push(match after.get(path) {
                None if exists(files, path) => format!("{path} is there, without the message"),
                None => format!("{path} is gone"),
                Some(left) if left == bytes => format!("{path} is as it was"),
                Some(left) if left.is_empty() => format!("{path} is empty"),
                Some(left) if left.len() == bytes.len() => format!("{path} has its length, but not all of its data"),
                Some(left) => format!("{path} has {} and had {}", counted(left.len() as u64, "byte"), bytes.len()),
            });
        }
        let others = after.iter().filter(|(path, _)| !before.contains_key(*path));
        self.story.left.extend(others.map(|(path, left)| {
            let is_whole = before.values().any(|bytes| bytes == left);
            let whole = if is_whole { ", with all of its data" } else { "" };
            format!("{path} is back, {}{whole}", counted(left.len() as u64, "byte"))
        }));
    }

    fn look_at_end(&mut self, files: &mut FileSystem) {
        self.tell_what_is_left(files, &Call::PowerOff);
    }
}

fn exists(files: &mut FileSystem, path: &str) -> bool {
    let found = path.split('/').try_fold(ROOT, |at, name| Ok::<_, Errno>(files.look_up(at, name)?.inode));
    found.is_ok()
}

fn path_of(files: &FileSystem, inode: Inode) -> String {
    files.paths(inode).into_iter().next().unwrap_or_else(|| "a file without a name".to_owned())
}

fn named(directory: Option<&String>) -> &str {
    directory.map(String::as_str).filter(|path| !path.is_empty()).unwrap_or("at the top")
}

/// Finds the last unsynced name change that led to the file's current path. The change may concern the file itself or a
/// directory above it.
fn lost_name(files: &FileSystem, path: &str) -> LostName {
    let leads_to = |changed: &str| path == changed || path.starts_with(&format!("{changed}/"));
    let concerned = files.unsynced_names().rev().find_map(|change| {
        let changed = files.paths(change.inode()).into_iter().find(|changed| leads_to(changed))?;
        Some((change, changed))
    });
    match concerned {
        Some((NameChange::Rename { from, .. }, changed)) => {
            let parent = files.paths(from.0).into_iter().next().unwrap_or_default();
            let former = if parent.is_empty() { from.1.clone() } else { format!("{parent}/{}", from.1) };
            LostName { former: Some(former), path: changed }
        }
        Some((_, changed)) => LostName { former: None, path: changed },
        None => LostName { former: None, path: path.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_crashfs::Profile;
    use mailrun_measurement::trace::{ClockId, RecipientNumbering, ZeroPhase};

    const RUN: RunId = RunId([7; 16]);
    const REPLY: &str = "250 2.0.0 Ok: queued as 4F00A1";

    /// A simulated mail server, whose calls to the file system are a microsecond apart.
    struct Server {
        files: FileSystem,
        answered: Option<Duration>,
    }

    fn mail(message: u64) -> Vec<u8> {
        let mut header = [0; Trace::HEADER_BYTES];
        let trace = Trace {
            run: RUN,
            sequence: message,
            zero: ZeroPhase::default(),
            numbering: RecipientNumbering::SINGLE,
            created: Duration::ZERO,
            clock: ClockId(1),
            checksum: 0,
        };
        trace.write(&mut header);
        [b"Received: here\r\n", &header[..], b"\r\nbody\r\n"].concat()
    }

    fn clock() -> Duration {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Duration::from_micros(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    impl Server {
        fn new(profile: Profile) -> Self {
            let mut files = FileSystem::new(1 << 20);
            files.record_calls(usize::MAX, clock);
            files.set_profile(profile);
            for name in ["tmp", "queue"] {
                files.make_directory(ROOT, name, 0o700).unwrap();
            }
            files.sync_all();
            Self { files, answered: None }
        }

        fn directory(&mut self, name: &str) -> Inode {
            self.files.look_up(ROOT, name).unwrap().inode
        }

        fn write(&mut self, directory: &str, name: &str, bytes: &[u8]) -> Inode {
            let directory = self.directory(directory);
            let inode = self.files.create(directory, name, 0o600).unwrap().inode;
            let (first, second) = bytes.split_at(bytes.len() / 2);
            self.files.write(inode, 0, first).unwrap();
            self.files.write(inode, first.len() as u64, second).unwrap();
            inode
        }

        /// Makes the sync of a file fail, so that none of the file's data is written.
        fn fail_sync(&mut self, inode: Inode) {
            let written = mailrun_crashfs::SurvivingData::default();
            self.files.apply(&Call::FailedSync { inode, error: "EIO".to_owned(), written }).unwrap();
        }

        fn answer(&mut self) {
            self.answered = Some(clock());
        }

        /// Cuts the power so that all data without a sync is lost, and returns what `tell` says about message 3.
        fn story(mut self) -> Story {
            self.files.turn_off();
            if self.answered.is_none() {
                self.answer();
            }
            self.files.cut_to(&mailrun_crashfs::Survivors::default());
            let asked = Asked { run: RUN, message: 3, reply: Some(REPLY.to_owned()), answered: self.answered };
            let calls = self.files.take_calls().unwrap().calls().unwrap();
            tell(&StoredCalls { capacity: 1 << 20, calls }, &asked).unwrap()
        }
    }

    #[test]
    fn the_call_that_is_missing_is_named() {
        type Calls = fn(&mut Server);
        let no_sync: Calls = |server| {
            server.write("queue", "4F00A1", &mail(3));
            server.answer();
        };
        let read_late: Calls = |server| _ = server.write("queue", "4F00A1", &mail(3));
        let by_id: Calls = |server| {
            let body = server.write("queue", "D4F00A1", &mail(3));
            server.files.sync(body).unwrap();
            server.files.sync(body).unwrap();
            let queue = server.directory("queue");
            server.files.sync_directory(queue).unwrap();
            server.write("queue", "Q4F00A1", b"to: ann");
            server.answer();
        };
        let by_content: Calls = |server| {
            let envelope = server.write("tmp", "x1", b"M0001.4F00A1\nto: ann");
            server.files.sync(envelope).unwrap();
            let body = server.write("queue", "D7", &mail(3));
            server.files.sync(body).unwrap();
            let tmp = server.directory("tmp");
            server.files.rename((tmp, "x1"), (tmp, "C7")).unwrap();
            server.answer();
        };
        let in_files_of_several: Calls = |server| {
            let body = server.write("queue", "D7", &mail(3));
            server.files.sync(body).unwrap();
            server.write("queue", "mail.log", b"4F00A1 received");
            let index = server.write("queue", "index", b"4F00A1 D7 ");
            server.files.write(index, 10, b"4F00B2 D8 ").unwrap();
            let large = server.write("queue", "journal", b"4F00A1 D7 ");
            server.files.write(large, 70_000, b"more").unwrap();
            server.answer();
        };
        let with_a_word_of_others: Calls = |server| {
            let body = server.write("queue", "D7", &mail(3));
            server.files.sync(body).unwrap();
            let other = server.write("queue", "D8", &mail(5));
            server.files.write(other, 1000, b"Received: by 4F00A1").unwrap();
            server.write("queue", "name", b"4F00A1");
            server.answer();
        };
        let no_rename: Calls = |server| {
            let inode = server.write("tmp", "x1", &mail(3));
            server.files.sync(inode).unwrap();
            let places = (server.directory("tmp"), server.directory("queue"));
            server.files.rename((places.0, "x1"), (places.1, "m1")).unwrap();
            server.answer();
            server.files.sync_all();
        };
        let directory: Calls = |server| {
            let tmp = server.directory("tmp");
            let own = server.files.make_directory(tmp, "4F00A1", 0o700).unwrap().inode;
            let inode = server.files.create(own, "message", 0o600).unwrap().inode;
            server.files.write(inode, 0, &mail(3)).unwrap();
            let queue = server.directory("queue");
            server.files.rename((tmp, "4F00A1"), (queue, "4F00A1")).unwrap();
            server.answer();
        };
        let no_name: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.files.sync(inode).unwrap();
            server.answer();
        };
        let written_again: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.files.sync(inode).unwrap();
            server.files.write(inode, 20, b"again").unwrap();
            server.answer();
        };
        let late: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.answer();
            server.files.sync(inode).unwrap();
        };
        let in_a_log: Calls = |server| {
            let log = server.write("queue", "log", &mail(1));
            server.files.write(log, 1000, &mail(3)).unwrap();
            server.files.write(log, 2000, &mail(5)).unwrap();
            server.answer();
        };
        let safe: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.files.sync(inode).unwrap();
            server.answer();
        };
        let failed: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.fail_sync(inode);
            server.answer();
            server.files.sync(inode).unwrap();
        };
        let failed_and_repeated: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.fail_sync(inode);
            server.files.sync(inode).unwrap();
            server.answer();
        };
        let failed_and_written_again: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.fail_sync(inode);
            server.files.set_length(inode, 0).unwrap();
            server.files.write(inode, 0, &mail(3)).unwrap();
            server.answer();
        };
        let failed_and_mended: Calls = |server| {
            let inode = server.write("queue", "x1", &mail(3));
            server.fail_sync(inode);
            server.files.set_length(inode, 0).unwrap();
            server.files.write(inode, 0, &mail(3)).unwrap();
            server.files.sync(inode).unwrap();
            server.answer();
        };
        let synced = "queue/m1 was synced, but not the rename of tmp/x1 to queue/m1: no fsync of its \
                      directory queue before 250";
        let in_directory = "no fsync of queue/4F00A1/message, and none of its directory queue, before 250";
        for (calls, profile, expected) in [
            (no_sync, Profile::Ext4, &["no fsync of queue/4F00A1, and none of its directory queue, before 250"][..]),
            (read_late, Profile::Ext4, &["no fsync of queue/4F00A1, and none of its directory queue, before 250"]),
            (by_id, Profile::Ext4, &["no fsync of queue/Q4F00A1, and none of its directory queue, before 250"]),
            (
                by_content,
                Profile::Ext4,
                &[
                    "tmp/C7 was synced, but not the rename of tmp/x1 to tmp/C7: no fsync of its directory tmp before 250",
                ],
            ),
            (in_files_of_several, Profile::Ext4, &[]),
            (with_a_word_of_others, Profile::Ext4, &[]),
            (no_rename, Profile::Ext4, &[synced]),
            // With `strict`, a rename to another directory counts as two changes: the new name, and the removal of the
            // old name. A power cut can lose either of them.
            (
                no_rename,
                Profile::Strict,
                &["queue/m1 was synced, but not the name queue/m1: no fsync of its directory queue before 250"],
            ),
            (directory, Profile::Xfs, &[in_directory]),
            (
                no_name,
                Profile::Strict,
                &["queue/x1 was synced, but not the name queue/x1: no fsync of its directory queue before 250"],
            ),
            (
                written_again,
                Profile::Ext4,
                &["queue/x1 was written after its last fsync, and there was no other before 250"],
            ),
            (late, Profile::Ext4, &["no fsync of queue/x1, and none of its directory queue, before 250"]),
            (in_a_log, Profile::Ext4, &["no fsync of queue/log, and none of its directory queue, before 250"]),
            (safe, Profile::Ext4, &[]),
            (
                failed,
                Profile::Ext4,
                &[
                    "the fsync of queue/x1 failed, and there was neither another nor one of its directory queue before 250",
                ],
            ),
            (
                failed_and_repeated,
                Profile::Ext4,
                &[
                    "the fsync of queue/x1 failed. The next one did not write what the first had dropped, so it must be \
                   written again before an fsync",
                ],
            ),
            (
                failed_and_written_again,
                Profile::Ext4,
                &[
                    "queue/x1 was written after its last fsync, and there was neither another nor one of its directory queue \
                   before 250",
                ],
            ),
            (failed_and_mended, Profile::Ext4, &[]),
        ] {
            let mut server = Server::new(profile);
            calls(&mut server);
            let story = server.story();
            let sentences: Vec<String> = story.gaps.iter().flatten().map(Gap::sentence).collect();
            assert_eq!(sentences, expected, "{story:?}");
            assert!(story.was_written && story.cut.is_some(), "{story:?}");
            assert!(story.events.is_sorted_by_key(|event| event.at), "{story:?}");
        }
    }

    #[test]
    fn the_calls_on_a_message_are_told_in_their_order() {
        let mut server = Server::new(Profile::Ext4);
        let inode = server.write("tmp", "x1", &mail(3));
        server.write("tmp", "other", &mail(4));
        server.files.sync(inode).unwrap();
        let (tmp, queue) = (server.directory("tmp"), server.directory("queue"));
        server.files.link(inode, queue, "4F00A1").unwrap();
        server.files.remove(tmp, "x1").unwrap();
        server.files.sync_directory(queue).unwrap();
        server.answer();
        let story = server.story();
        let texts: Vec<&str> = story.events.iter().map(|event| event.text.as_str()).collect();
        let length = mail(3).len();
        let calls = story.cut.unwrap();
        assert_eq!(
            texts,
            [
                "create tmp/x1",
                &format!("write tmp/x1: {length} bytes (2 calls, the last 0.000001 s later)"),
                "fsync tmp/x1",
                "link tmp/x1 queue/4F00A1",
                "unlink tmp/x1",
                "fsync of the directory queue",
                "250",
                &format!("the power is cut, after {calls} calls of the log"),
            ]
        );
        assert!(story.events.is_sorted_by_key(|event| event.at), "{story:?}");
        assert_eq!((story.queue_id.as_deref(), story.gaps.as_deref()), (Some("4F00A1"), Some(&[][..])));
        assert!(story.was_kept && story.left == ["queue/4F00A1 is as it was"], "{story:?}");
    }

    #[test]
    fn a_lost_file_beside_a_kept_text_need_not_be_the_reason() {
        let mut server = Server::new(Profile::Ext4);
        let inode = server.write("tmp", "4F00A1-D", &mail(3));
        server.files.sync(inode).unwrap();
        server.answer();
        server.write("queue", "4F00A1", b"received");
        let story = server.story();
        assert!(story.was_text_kept && !story.was_kept, "{story:?}");
        assert_eq!(story.left, ["queue/4F00A1 is gone", "tmp/4F00A1-D is as it was"]);
    }

    #[test]
    fn a_sync_that_failed_is_told_and_proves_nothing() {
        let mut server = Server::new(Profile::Ext4);
        let inode = server.write("queue", "x1", &mail(3));
        server.fail_sync(inode);
        server.files.sync(inode).unwrap();
        server.answer();
        let story = server.story();
        let texts: Vec<&str> = story.events.iter().map(|event| event.text.as_str()).skip(2).collect();
        assert_eq!(texts[..3], ["fsync queue/x1 failed: EIO", "fsync queue/x1", "250"]);
        let words: Vec<String> = story.gaps.iter().flatten().map(Gap::words).collect();
        assert_eq!(words, ["queue/x1: its data"], "the second sync has made the name durable");
        assert_eq!(story.left, ["queue/x1 is there, without the message"]);
        assert!(!story.was_kept);
    }

    #[test]
    fn a_message_that_was_never_written_has_no_files() {
        let mut server = Server::new(Profile::Ext4);
        server.write("queue", "x1", &mail(4));
        server.answer();
        let story = server.story();
        assert!(!story.was_written && story.events.len() == 2, "{story:?}");
    }
}
