//! `mailrun audit explain --restart`: rebuilds the files as the power cut left them, starts the server on them, and
//! tells which messages the server delivers. Then it looks for the smallest set of changes that has to survive for a
//! message to be delivered.
//!
//! ```text
//! calls before the cut ─→ files ─ cut_to(survivors) ─→ disk ─→ server, sink ─→ which messages arrive
//!                                      ▲────────────── smallest: leave out what is not needed ┘
//! ```
use super::fault::{AuditCase, AuditFault};
use super::losses::RoundLosses;
use super::options::{AuditLength, AuditOptions};
use super::round::{DISK_BYTES, Round, RoundLoad};
use crate::directory::RunDirectory;
use crate::gather;
use crate::parties::PartyProcess;
use crate::programs::own_program;
use crate::recipe::leftovers;
use anyhow::{Context, Result, bail};
use mailrun_crashfs::{Call, Disk, FileSystem, Inode, NameChange, Profile, StoredCalls, SurvivingData, Survivors};
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::record::Role;
use mailrun_measurement::trace::RunId;
use mailrun_process::interrupt::Interrupt;
use mailrun_process::live::LiveMode;
use mailrun_text::numbers::{count, counted};
use mailrun_text::printable::printable;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of times that the server is started to find the changes that must survive for a message to be
/// delivered.
const MAX_RESTARTS: u32 = 50;
/// Restarts that a search must leave over, because two questions between the searches take one restart each.
const KEPT_RESTARTS: u32 = 2;
/// If the server does not say that its queue is empty, each restart ends when no mail has arrived for this long.
const LOST_AFTER: Duration = Duration::from_secs(5);
const MAX_LISTED: usize = 20;

/// A change that was not durable when the power was cut.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// A name change, such as a rename. The number is its index in the list of unsynced name changes.
    Name(usize),
    Data(Inode, SurvivingData),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Delivered(BTreeSet<u64>),
    /// The server did not start or ended by itself, for this reason.
    Down(String),
}

/// The files before a power cut, and everything that is needed to start the server on the files that the cut leaves.
struct Laboratory<'a> {
    losses: &'a RoundLosses,
    place: PathBuf,
    program: PathBuf,
    options: AuditOptions,
    run: RunId,
    profile: Profile,
    before: FileSystem,
    restarts: u32,
}

/// Restarts the server on the files that a power cut left. Says which messages the server delivers, and which changes
/// would have to survive so that it also delivers `message`. `cut` is the index of the power cut in `calls`, and
/// `concerned` lists the files and directories of the message.
///
/// # Errors
/// Fails if the server cannot run on this host, or if the user interrupts the search.
pub(super) fn restart(
    losses: &RoundLosses,
    place: &Path,
    calls: &StoredCalls,
    (cut, concerned): (usize, &[Inode]),
    message: u64,
) -> Result<String> {
    if let Some(obstacle) = mailrun_crashfs::obstacle() {
        bail!("the server cannot be started on the files of the log: {obstacle}");
    }
    let cut = (cut..calls.calls.len()).find(|at| matches!(calls.calls[*at].call, Call::Cut { .. }));
    let cut = cut.context("the log ends before the power was on again")?;
    let Call::Cut { survivors } = &calls.calls[cut].call else { bail!("there is no cut") };
    let mut before = None;
    calls.replay(|at, files| {
        if at == cut {
            files.set_time(calls.calls[cut].time());
            files.settle();
            before = Some(files.clone());
        }
        at < cut
    })?;
    let profile = calls.calls.iter().rev().find_map(|logged| match &logged.call {
        Call::Profile { profile } => Some(*profile),
        _ => None,
    });
    let recipe = losses.recipe.as_ref().context("losses.json does not have the recipe of the server")?.recipe()?;
    let program = own_program()?;
    recipe.check_host(&program)?;
    let _interrupt = Interrupt::watch()?;
    leftovers::adopt_orphans().context("cannot adopt the processes of the server")?;
    let options = AuditOptions {
        recipe,
        faults: vec![AuditFault::PowerCut],
        file_systems: Vec::new(),
        length: AuditLength::Rounds(1),
        seed: 1,
        messages: 1,
        lost_after: LOST_AFTER,
        thresholds: Vec::new(),
        out: None,
        live: LiveMode::Off,
        command: Vec::new(),
    };
    let mut laboratory = Laboratory {
        losses,
        place: place.join("restart"),
        program,
        options,
        run: losses.run_id.parse()?,
        profile: profile.unwrap_or_default(),
        before: before.context("the log ends before the power cut")?,
        restarts: 0,
    };
    let text = laboratory.report(survivors, message, concerned);
    let _ = fs::remove_dir_all(&laboratory.place);
    text
}

impl Laboratory<'_> {
    fn report(&mut self, survivors: &Survivors, message: u64, concerned: &[Inode]) -> Result<String> {
        let delivered = match self.try_out(survivors)? {
            Outcome::Delivered(delivered) => delivered,
            Outcome::Down(reason) => {
                return Ok(format!("\nOn what the power cut left, the server does not run: {}\n", printable(&reason)));
            }
        };
        let lost: BTreeSet<u64> = self.losses.losses.iter().map(|loss| loss.message).collect();
        let later = lost.intersection(&delivered).copied().collect();
        let mut text =
            format!("\nStarted again on what the power cut left, the server delivers {}.\n", numbers(&delivered));
        let of_lost = counted(lost.len() as u64, "message");
        _ = writeln!(text, "Of the {of_lost} lost in this round, it delivers {}.", numbers(&later));
        if delivered.contains(&message) {
            _ = writeln!(text, "Message {message} is among them, so this power cut alone does not take it.");
            return Ok(text);
        }
        let is_there = |outcome: &Outcome| matches!(outcome, Outcome::Delivered(all) if all.contains(&message));
        let is_lost = |outcome: &Outcome| matches!(outcome, Outcome::Delivered(all) if !all.contains(&message));
        let least = self.smallest(changes(survivors), is_lost)?;
        text.push_str(&self.list(&least, &format!("Message {message} is lost even if only this survives")));
        let all = changes(&self.before.all_unsynced());
        // Find the smallest set of changes that must survive for the message to be delivered. If the changes to the
        // message's own files are enough, search only these changes. There are hundreds of other changes, and a search
        // through all of them would take many more restarts.
        let own = self.concerning(&all, concerned);
        let is_own_enough = self.is_so(&own, &is_there)?;
        if is_own_enough || self.is_so(&all, &is_there)? {
            let needed = self.smallest(if is_own_enough { own } else { all }, is_there)?;
            text.push_str(&self.list(&needed, "It is delivered if this survives"));
        } else {
            text.push_str("\nIt is not delivered even if everything survives.\n");
        }
        let order =
            if self.profile == Profile::Strict { "" } else { " Names survive in the order in which they were made." };
        _ = writeln!(text, "\nFound by {}.{order}", counted(u64::from(self.restarts), "restart"));
        Ok(text)
    }

    /// Searches for a small set of changes that is enough: if only these changes survive, `is_wanted` accepts the
    /// outcome. The search ends when no further change can be left out, or when only `KEPT_RESTARTS` of all restarts
    /// are left. Returns the smallest set that was found.
    fn smallest(&mut self, items: Vec<Change>, is_wanted: impl Fn(&Outcome) -> bool) -> Result<Smallest<Change>> {
        smallest(items, |some| {
            let may_restart = self.restarts + KEPT_RESTARTS < MAX_RESTARTS;
            may_restart.then(|| self.is_so(some, &is_wanted)).transpose()
        })
    }

    fn is_so(&mut self, items: &[Change], is_wanted: &impl Fn(&Outcome) -> bool) -> Result<bool> {
        let Some(survivors) = self.survivors(items) else { return Ok(false) };
        Ok(is_wanted(&self.try_out(&survivors)?))
    }

    /// Returns a power cut that leaves only these changes on the disk, or `None` if no power cut can do so. A name
    /// change cannot survive without all earlier name changes, except on the file system `strict`.
    fn survivors(&self, items: &[Change]) -> Option<Survivors> {
        let mut survivors = Survivors::default();
        for item in items {
            match item {
                Change::Name(at) => survivors.names.push(*at),
                Change::Data(inode, data) => survivors.files.push((*inode, data.clone())),
            }
        }
        let is_possible =
            self.profile == Profile::Strict || survivors.names.iter().copied().eq(0..survivors.names.len());
        is_possible.then_some(survivors)
    }

    /// Returns the changes on which the `concerned` files depend: the changes to their data, and all name changes up to
    /// the last that affects a path of these files.
    fn concerning(&self, all: &[Change], concerned: &[Inode]) -> Vec<Change> {
        let paths: Vec<String> = concerned.iter().flat_map(|inode| self.before.paths(*inode)).collect();
        let leads_to_them = |inode: Inode| {
            let above = self.before.paths(inode).into_iter().map(|path| path + "/");
            concerned.contains(&inode)
                || above.into_iter().any(|above| paths.iter().any(|path| path.starts_with(&above)))
        };
        let names: Vec<Inode> = self.before.unsynced_names().map(NameChange::inode).collect();
        let end = names.iter().rposition(|inode| leads_to_them(*inode)).map_or(0, |last| last + 1);
        let concerns = |change: &&Change| match change {
            Change::Name(at) => *at < end,
            Change::Data(inode, _) => concerned.contains(inode),
        };
        all.iter().filter(concerns).cloned().collect()
    }

    /// Starts the server after a power cut that only `survivors` survive, and waits for the mail that it delivers.
    fn try_out(&mut self, survivors: &Survivors) -> Result<Outcome> {
        self.restarts += 1;
        let mut files = self.before.clone();
        files.cut_to(survivors);
        let directory = RunDirectory::create(Some(&self.place), "restart", jiff::Timestamp::now())?;
        let round = Round {
            options: &self.options,
            program: &self.program,
            directory: &directory,
            case: AuditCase::new(AuditFault::PowerCut, Some(self.profile)),
            number: u64::from(self.restarts),
            load: RoundLoad::None,
            trusts_queue: self.options.recipe.knows_its_queue(),
        };
        let outcome = deliver(&round, self.run, files);
        leftovers::reap_orphans();
        let outcome = outcome?;
        let said = match &outcome {
            Outcome::Delivered(delivered) => format!("{} delivered", counted(delivered.len() as u64, "message")),
            Outcome::Down(reason) => format!("the server does not run: {reason}"),
        };
        mailrun_process::tell!("mailrun: restart {}, {}: {said}", self.restarts, kept(survivors));
        Ok(outcome)
    }

    fn list(&self, found: &Smallest<Change>, title: &str) -> String {
        let nothing = if found.items.is_empty() { " nothing" } else { "" };
        let mut text = format!("\n{title}:{nothing}\n");
        // List only the last `MAX_LISTED` changes, because these affect the message itself. Earlier changes are name
        // changes of other messages. They are in the set only because the file system keeps name changes in order.
        let earlier = found.items.len().saturating_sub(MAX_LISTED);
        if earlier > 0 {
            _ = writeln!(text, "  {} before these", counted(earlier as u64, "change"));
        }
        for item in &found.items[earlier..] {
            _ = writeln!(text, "  {}", printable(&self.words(item)));
        }
        if !found.is_proven {
            _ = writeln!(text, "This is what {} restarts have found, and more might be left out.", self.restarts);
        }
        text
    }

    fn words(&self, change: &Change) -> String {
        let below = |directory: Inode, name: &str| {
            let parent = self.before.paths(directory).into_iter().next().unwrap_or_default();
            if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
        };
        match change {
            Change::Data(inode, _) => {
                let path = self.before.paths(*inode).into_iter().next();
                format!("the data of {}", path.unwrap_or_else(|| "a file without a name".to_owned()))
            }
            Change::Name(at) => match self.before.unsynced_names().nth(*at) {
                Some(NameChange::Add { directory, name, .. }) => format!("the name {}", below(*directory, name)),
                Some(NameChange::Remove { directory, name, .. }) => {
                    format!("the removal of {}", below(*directory, name))
                }
                Some(NameChange::Rename { from, to, .. }) => {
                    format!("the rename of {} to {}", below(from.0, &from.1), below(to.0, &to.1))
                }
                None => "a change of names".to_owned(),
            },
        }
    }
}

fn changes(survivors: &Survivors) -> Vec<Change> {
    let names = survivors.names.iter().map(|at| Change::Name(*at));
    names.chain(survivors.files.iter().map(|(inode, data)| Change::Data(*inode, data.clone()))).collect()
}

fn kept(survivors: &Survivors) -> String {
    let (names, files) = (survivors.names.len(), survivors.files.len());
    format!("{} and the data of {} kept", counted(names as u64, "name"), counted(files as u64, "file"))
}

fn numbers(messages: &BTreeSet<u64>) -> String {
    let first: Vec<String> = messages.iter().take(MAX_LISTED).map(u64::to_string).collect();
    let more = if messages.len() > MAX_LISTED { ", …" } else { "" };
    match messages.len() {
        0 => "none".to_owned(),
        all => format!("{} ({}{more})", count(all as u64), first.join(", ")),
    }
}

/// Starts the server on `files`, waits until its queue is empty or no more mail arrives, and returns the messages that
/// it delivered.
fn deliver(round: &Round<'_>, run: RunId, files: FileSystem) -> Result<Outcome> {
    let prepared = round.prepare(run)?;
    let state = prepared.places.state.clone();
    let disk = Disk::mount_at(&state, DISK_BYTES, 0).with_context(|| format!("cannot mount {}", state.display()))?;
    disk.with_files(|own, _| *own = files);
    let (ground, mut supervisor) = match round.start_prepared(prepared, Some(&disk)) {
        Ok(started) => started,
        Err(error) => return Ok(Outcome::Down(format!("{error:#}"))),
    };
    if let Some(reason) = round.deliver_queue(&ground, &mut supervisor)? {
        return Ok(Outcome::Down(reason));
    }
    supervisor.stop_relay(PartyProcess::terminate)?;
    supervisor.stop_sink()?.map_or(Ok(()), Err)?;
    let sink = gather::read_party(round.directory, Role::Sink)?;
    let arrived = sink.units.unwrap_or_default().messages_without(&Ledger::default(), usize::MAX);
    let messages = arrived.into_iter().map(|(sequence, _)| mailrun_measurement::trace::message_number(sequence));
    Ok(Outcome::Delivered(messages.collect()))
}

#[derive(Debug, PartialEq, Eq)]
struct Smallest<T> {
    items: Vec<T>,
    /// Set if the search has shown that every item is needed. Not set if no more trials were allowed before that.
    is_proven: bool,
}

/// Leaves out items as long as `is_enough` returns true for the remaining items. Tries to leave out large parts of the
/// list first, and then smaller parts (delta debugging). `is_enough` returns `None` once no more trials are allowed.
fn smallest<T: Clone>(
    mut items: Vec<T>,
    mut is_enough: impl FnMut(&[T]) -> Result<Option<bool>>,
) -> Result<Smallest<T>> {
    let mut parts = 1;
    while !items.is_empty() {
        let length = items.len().div_ceil(parts);
        let mut smaller = None;
        // First try to leave out the changes at the end of the list. All file-system profiles except `strict` keep name
        // changes in order. With them, no power cut can lose an early name change and keep a later name change.
        for from in (0..items.len()).step_by(length).collect::<Vec<_>>().into_iter().rev() {
            let to = (from + length).min(items.len());
            let rest = [&items[..from], &items[to..]].concat();
            match is_enough(&rest)? {
                None => return Ok(Smallest { items, is_proven: false }),
                Some(true) => {
                    smaller = Some(rest);
                    break;
                }
                Some(false) => {}
            }
        }
        match smaller {
            Some(rest) => {
                items = rest;
                parts = parts.saturating_sub(1).max(1);
            }
            None if length == 1 => break,
            None => parts = (parts * 2).min(items.len()),
        }
    }
    Ok(Smallest { items, is_proven: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_more_can_be_left_out_of_the_smallest_set() {
        let all = || (0..40).collect::<Vec<u32>>();
        for needed in [&[][..], &[7], &[0, 39], &[3, 4, 5, 20], &[39]] {
            let mut asked = 0;
            let found = smallest(all(), |some| {
                asked += 1;
                Ok(Some(needed.iter().all(|item| some.contains(item))))
            });
            assert_eq!(found.unwrap(), Smallest { items: needed.to_vec(), is_proven: true });
            assert!(asked <= 50, "{asked} for {needed:?}");
        }
        // The numbers stand for name changes. A power cut keeps a name change only together with all earlier name
        // changes. So accept only sets that start at 0 and have no gap.
        let is_prefix = |some: &[u32]| some.iter().copied().eq(0..some.len() as u32);
        let found = smallest(all(), |some| Ok(Some(is_prefix(some) && some.contains(&12))));
        assert_eq!(found.unwrap().items, (0..13).collect::<Vec<_>>());
        let mut left = 3;
        let found = smallest(all(), |some| {
            left -= 1;
            Ok((left > 0).then(|| some.contains(&1)))
        });
        let found = found.unwrap();
        assert!(!found.is_proven && found.items.contains(&1), "{found:?}");
    }
}
