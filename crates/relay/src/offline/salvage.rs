//! Copies the readable messages of a spool into a Maildir for people to read, or into a new spool
//! for a relay.
use super::OfflineSpool;
use super::content::{LeftOut, SpooledMessage, UnreadableMessage};
use super::output::OutputDirectory;
use crate::delivery::maildir::{self, MaildirMessage, MaildirNames};
use anyhow::Result;
use mailrun_process::reason::reason;
use mailrun_spool::{Error, InspectedBody, InspectedMessage, NewMessage, Options, RealDisk, Receipt, Spool};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of messages that are stored with one sync.
const MAX_BATCH_MESSAGES: usize = 500;
const MAX_BATCH_BYTES: usize = 32 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SalvageTarget {
    /// Write a Maildir, with one file for each message that at least one recipient has not
    /// received.
    Maildir(PathBuf),
    /// Write a new spool, with all unfinished messages and their progress.
    Spool(PathBuf),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SalvageSummary {
    pub messages: u64,
    /// Number of recipients to whom the copied messages have not been delivered yet, summed up over all messages.
    pub recipients: u64,
    /// Number of messages that were not copied into a Maildir, because all recipients have received them and only their
    /// DSN was still to be sent. If the target is a new spool, such messages are copied, so the number is 0.
    pub delivered: u64,
    /// Old and new queue id of each message in a new spool. Empty if the target is a Maildir.
    pub(crate) renamed: Vec<RenamedMessage>,
    pub left_out: Vec<LeftOut>,
    /// Queue ids of messages with an unreadable progress note, whose delivery or DSN may be repeated.
    pub with_bad_notes: Vec<String>,
    pub damage: u64,
}

impl SalvageSummary {
    pub fn is_whole(&self) -> bool {
        self.left_out.is_empty() && self.with_bad_notes.is_empty() && self.damage == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RenamedMessage {
    pub(crate) was: String,
    pub(crate) is: String,
}

/// Writes the readable messages to a target that does not exist yet.
///
/// # Errors
/// Fails if the target exists or cannot be written.
pub fn salvage(original: &OfflineSpool, target: &SalvageTarget) -> Result<SalvageSummary> {
    let salvaged = match target {
        SalvageTarget::Maildir(place) => to_maildir(original, place)?,
        SalvageTarget::Spool(place) => to_spool(original, place)?,
    };
    Ok(SalvageSummary { damage: original.damage_count(), ..salvaged })
}

/// Returns the next message whose envelope is readable and whose content is undamaged. Skips all other messages, and
/// lists them in the summary as left out.
fn next_sound(
    contents: &mut impl Iterator<Item = Result<SpooledMessage, UnreadableMessage>>,
    salvaged: &mut SalvageSummary,
) -> Option<SpooledMessage> {
    loop {
        match contents.next()? {
            Err(unreadable) => salvaged.left_out.push(unreadable.left_out()),
            Ok(content) if content.sound_body().is_none() => {
                salvaged
                    .left_out
                    .push(content.left_out("its content is damaged; `mailrun spool export` writes what is left"));
            }
            Ok(content) => {
                if content.has_bad_note {
                    salvaged.with_bad_notes.push(content.message.id.to_string());
                }
                return Some(content);
            }
        }
    }
}

fn to_maildir(original: &OfflineSpool, place: &Path) -> Result<SalvageSummary> {
    let output = OutputDirectory::create(place, &original.directory)?;
    let names = MaildirNames::new(&rustix::system::uname().nodename().to_string_lossy());
    maildir::create(output.partial_path()).map_err(|error| output.error(reason(&error)))?;
    let mut salvaged = SalvageSummary::default();
    let mut contents = original.messages();
    while let Some(content) = next_sound(&mut contents, &mut salvaged) {
        let waiting: Vec<&[u8]> = content.undelivered().collect();
        let Some((first, others)) = waiting.split_first() else {
            salvaged.delivered += 1;
            continue;
        };
        let message = with_recipients(&content, others);
        let file = MaildirMessage { sender: &content.envelope.sender, recipient: first, body: &message };
        maildir::deliver(output.partial_path(), &names, Duration::from_nanos(content.message.received_ns), &file)
            .map_err(|error| output.error(error))?;
        salvaged.messages += 1;
        salvaged.recipients += waiting.len() as u64;
    }
    output.finish()?;
    Ok(salvaged)
}

/// Returns the message with the queue id and the recipients in `others` as additional header
/// fields. Delivery to the Maildir adds the field `Delivered-To:` of the first recipient.
fn with_recipients(content: &SpooledMessage, others: &[&[u8]]) -> Vec<u8> {
    let mut message = Vec::new();
    for recipient in others {
        message.extend_from_slice(b"Delivered-To: ");
        message.extend_from_slice(recipient);
        message.extend_from_slice(b"\r\n");
    }
    message.extend_from_slice(format!("X-Mailrun-Queue-Id: {}\r\n", content.message.id).as_bytes());
    message.extend_from_slice(content.sound_body().unwrap_or_default());
    message
}

fn to_spool(original: &OfflineSpool, place: &Path) -> Result<SalvageSummary> {
    let output = OutputDirectory::create(place, &original.directory)?;
    let bytes: u64 = original.inspection.segments.iter().map(|segment| segment.bytes).sum();
    let defaults = Options::default();
    // Allow the new spool twice the size of the old one, because a part of it is reserved and cannot hold messages.
    let options = Options { max_bytes: defaults.max_bytes.max(bytes.saturating_mul(2)), ..defaults };
    let disk = RealDisk::new(output.partial_path()).map_err(|error| output.error(reason(&error)))?;
    let salvaged = Spool::open(Arc::new(disk), options).and_then(|(spool, _)| {
        let salvaged = store_all(original, &spool);
        spool.close();
        salvaged
    });
    let salvaged = salvaged.map_err(|error| match error {
        Error::Full => output.error(
            "the new spool is full, because its file system has no room for all messages; make room or choose another one",
        ),
        error => output.error(error),
    })?;
    output.finish()?;
    Ok(salvaged)
}

fn store_all(original: &OfflineSpool, spool: &Spool) -> Result<SalvageSummary, Error> {
    let mut salvaged = SalvageSummary::default();
    let mut batch = StoreBatch::default();
    let mark = spool.notes_mark();
    let mut contents = original.messages();
    while let Some(content) = next_sound(&mut contents, &mut salvaged) {
        salvaged.messages += 1;
        salvaged.recipients += content.undelivered().count() as u64;
        batch.store(spool, content);
        if batch.is_full() {
            batch.note(spool, &mut salvaged)?;
        }
    }
    batch.note(spool, &mut salvaged)?;
    // Sync the notes about deliveries as well, because without them a message would be delivered
    // again to recipients who already have it.
    spool.sync_notes(mark).wait()?;
    Ok(salvaged)
}

#[derive(Default)]
struct StoreBatch {
    messages: Vec<(Receipt, InspectedMessage)>,
    bytes: usize,
}

impl StoreBatch {
    fn store(&mut self, spool: &Spool, content: SpooledMessage) {
        let message = content.message;
        let InspectedBody::Sound(body) = &message.body else { return };
        self.bytes += body.len();
        let draft =
            NewMessage { received_ns: message.received_ns, envelope: message.envelope.clone(), body: Arc::clone(body) };
        self.messages.push((spool.store(draft), message));
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= MAX_BATCH_MESSAGES || self.bytes >= MAX_BATCH_BYTES
    }

    /// Waits until the batch is stored in the new spool, and copies the notes about the progress of its messages.
    fn note(&mut self, spool: &Spool, salvaged: &mut SalvageSummary) -> Result<(), Error> {
        for (receipt, message) in self.messages.drain(..) {
            let stored = receipt.wait()?;
            message.notes.iter().for_each(|note| spool.note(stored.id(), note));
            salvaged.renamed.push(RenamedMessage { was: message.id.to_string(), is: stored.id().to_string() });
        }
        self.bytes = 0;
        Ok(())
    }
}
