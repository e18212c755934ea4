use super::OfflineSpool;
use super::content::{LeftOut, SpooledMessage, UnreadableMessage, lossy};
use super::output::OutputDirectory;
use crate::control::protocol::RefusalRow;
use crate::message::envelope::{Confirmation, EnvelopeRecipient, MessageEnvelope, RecipientFate, RecipientProgress};
use anyhow::{Context, Result};
use jiff::Timestamp;
use mailrun_smtp::command::BodyType;
use mailrun_spool::InspectedBody;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportSummary {
    /// Number of messages, including damaged messages.
    pub messages: u64,
    /// Messages whose content or envelope is damaged. Only their readable part is exported.
    pub damaged: Vec<LeftOut>,
    pub damage: u64,
}

impl ExportSummary {
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.damage == 0
    }
}

#[derive(Serialize)]
struct EnvelopeRow {
    id: String,
    received: Option<String>,
    received_ns: u64,
    /// Sender of the message, which is empty for a DSN.
    sender: String,
    recipients: Vec<RecipientRow>,
    client_name: String,
    client_address: Option<String>,
    user: Option<String>,
    /// Protocol by which the relay received the message, as in `Received:` fields (RFC 3848).
    with: &'static str,
    smtp_utf8: bool,
    body: &'static str,
    ret: Option<&'static str>,
    envid: Option<String>,
    held: bool,
    content_is_sound: bool,
    bytes: u64,
    /// True if a progress note of the message could not be read. The message may then have been delivered to more
    /// recipients than this file says.
    has_bad_note: bool,
}

#[derive(Serialize)]
struct RecipientRow {
    address: String,
    notify: Option<String>,
    orcpt: Option<String>,
    state: &'static str,
    sender_told: bool,
    delay_told: bool,
    attempts: u32,
    /// Unix time of the next attempt in seconds. 0 means that the recipient is due at once.
    next_unix_s: u64,
    refusal: Option<RefusalRow>,
}

/// Writes all messages of the spool into a new directory.
///
/// # Errors
/// Fails if the directory exists or cannot be written.
pub fn export(original: &OfflineSpool, place: &Path) -> Result<ExportSummary> {
    let output = OutputDirectory::create(place, &original.directory)?;
    let mut exported = ExportSummary { damage: original.damage_count(), ..ExportSummary::default() };
    for content in original.messages() {
        exported.messages += 1;
        let written = match content {
            Ok(content) => write_content(output.partial_path(), &content, &mut exported),
            Err(unreadable) => write_unreadable(output.partial_path(), &unreadable, &mut exported),
        };
        written.map_err(|error| output.error(format!("{error:#}")))?;
    }
    output.finish()?;
    Ok(exported)
}

fn write_content(directory: &Path, content: &SpooledMessage, exported: &mut ExportSummary) -> Result<()> {
    let id = content.message.id.to_string();
    let octets = match &content.message.body {
        InspectedBody::Sound(octets) => octets,
        InspectedBody::Damaged(octets) => {
            exported.damaged.push(content.left_out("its content is damaged; unreadable bytes were replaced by zeros"));
            octets
        }
    };
    write(&directory.join(format!("{id}.eml")), octets)?;
    let mut json = serde_json::to_vec_pretty(&envelope_row(content, octets.len()))?;
    json.push(b'\n');
    write(&directory.join(format!("{id}.json")), &json)
}

fn write_unreadable(directory: &Path, unreadable: &UnreadableMessage, exported: &mut ExportSummary) -> Result<()> {
    exported.damaged.push(unreadable.left_out());
    match (unreadable.id, &unreadable.body) {
        (Some(id), Some(InspectedBody::Sound(octets) | InspectedBody::Damaged(octets))) => {
            write(&directory.join(format!("{id}.eml")), octets)
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, octets: &[u8]) -> Result<()> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(octets)?;
        file.sync_data()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn envelope_row(content: &SpooledMessage, bytes: usize) -> EnvelopeRow {
    let SpooledMessage { message, envelope, progress, has_bad_note } = content;
    let recipients = envelope.recipients.iter().zip(&progress.recipients);
    EnvelopeRow {
        id: message.id.to_string(),
        received: Timestamp::from_nanosecond(i128::from(message.received_ns)).ok().map(|at| at.to_string()),
        received_ns: message.received_ns,
        sender: lossy(&envelope.sender),
        recipients: recipients.map(|(recipient, progress)| recipient_row(recipient, progress)).collect(),
        client_name: lossy(&envelope.client_name),
        client_address: envelope.client.text(),
        user: envelope.user.as_deref().map(lossy),
        with: envelope.with.word(),
        smtp_utf8: envelope.smtp_utf8,
        body: body_word(envelope),
        ret: envelope.returns.map(mailrun_smtp::dsn::Return::keyword),
        envid: envelope.envelope_id.as_deref().map(lossy),
        held: progress.held,
        content_is_sound: content.sound_body().is_some(),
        bytes: bytes as u64,
        has_bad_note: *has_bad_note,
    }
}

fn recipient_row(recipient: &EnvelopeRecipient, progress: &RecipientProgress) -> RecipientRow {
    let original = recipient.original.as_ref();
    let refusal = match &progress.fate {
        Some(RecipientFate::Failed(refusal) | RecipientFate::Expired(Some(refusal))) => Some(refusal),
        _ => progress.refusal.as_ref(),
    };
    RecipientRow {
        address: lossy(&recipient.address),
        notify: recipient.notify.map(|notify| notify.render().to_string()),
        orcpt: original.map(|original| format!("{};{}", lossy(&original.kind), lossy(&original.address))),
        state: state_word(progress.fate.as_ref()),
        sender_told: progress.dsn_stored,
        delay_told: progress.delay_dsn_stored,
        attempts: progress.attempts,
        next_unix_s: progress.next_unix_s,
        refusal: refusal.map(RefusalRow::from),
    }
}

fn state_word(fate: Option<&RecipientFate>) -> &'static str {
    match fate {
        None => "waiting",
        Some(RecipientFate::Delivered | RecipientFate::Confirmed(Confirmation::Delivered)) => "delivered",
        Some(RecipientFate::Confirmed(Confirmation::Relayed)) => "relayed",
        Some(RecipientFate::Confirmed(Confirmation::Expanded)) => "expanded",
        Some(RecipientFate::Failed(_)) => "failed",
        Some(RecipientFate::Expired(_)) => "expired",
        Some(RecipientFate::Removed) => "removed",
    }
}

fn body_word(envelope: &MessageEnvelope) -> &'static str {
    match envelope.body {
        BodyType::SevenBit => "7BIT",
        BodyType::EightBitMime => "8BITMIME",
        BodyType::Binary => "BINARYMIME",
    }
}
