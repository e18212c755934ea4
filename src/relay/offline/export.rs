//! A file of the message and one of its envelope, for each message: for people and scripts.
use super::content::{Content, Unreadable};
use super::output::Output;
use super::{LeftOut, Original, lossy};
use crate::relay::envelope::{Confirmation, Envelope, Fate, Recipient, Standing, With};
use crate::relay::protocol::RefusalRow;
use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Serialize;
use smtp::command::BodyType;
use spool::Body;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Counts of the export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Exported {
    /// Messages, damaged ones included.
    pub(crate) messages: u64,
    /// Messages whose content or envelope is damaged: the readable part of them is there.
    pub(crate) damaged: Vec<LeftOut>,
    /// Places of the spool that are damaged, and may have cost messages of which nothing is known.
    pub(crate) damage: u64,
}

impl Exported {
    /// Reports whether nothing was lost.
    pub(crate) fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.damage == 0
    }
}

/// An envelope, as it is written down.
#[derive(Serialize)]
struct EnvelopeRow {
    id: String,
    received: Option<String>,
    received_ns: u64,
    /// Empty for a notice.
    sender: String,
    recipients: Vec<RecipientRow>,
    client_name: String,
    client_address: Option<String>,
    /// User who had logged in.
    user: Option<String>,
    /// The protocol that it came by (RFC 3848).
    with: &'static str,
    smtp_utf8: bool,
    body: &'static str,
    ret: Option<&'static str>,
    envid: Option<String>,
    held: bool,
    /// The content in the file beside is as it was received.
    content_is_sound: bool,
    bytes: u64,
    /// A note could not be read: a recipient may be further than this says.
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
    /// 0 for at once.
    next_unix_s: u64,
    refusal: Option<RefusalRow>,
}

/// Writes all messages into a directory that is not there yet.
///
/// # Errors
/// If it is there, or cannot be written.
pub(crate) fn export(original: &Original, place: &Path) -> Result<Exported> {
    let output = Output::begin(place, &original.directory)?;
    let mut exported = Exported { damage: original.damage(), ..Exported::default() };
    for content in original.contents() {
        exported.messages += 1;
        match content {
            Ok(content) => write_content(output.path(), &content, &mut exported)?,
            Err(unreadable) => write_unreadable(output.path(), &unreadable, &mut exported)?,
        }
    }
    output.finish()?;
    Ok(exported)
}

fn write_content(directory: &Path, content: &Content, exported: &mut Exported) -> Result<()> {
    let id = content.message.id.to_string();
    let octets = match &content.message.body {
        Body::Sound(octets) => octets,
        Body::Damaged(octets) => {
            exported.damaged.push(content.left_out("its content is damaged; unreadable bytes were replaced by zeros"));
            octets
        }
    };
    write(&directory.join(format!("{id}.eml")), octets)?;
    let mut json = serde_json::to_vec_pretty(&envelope_row(content, octets.len()))?;
    json.push(b'\n');
    write(&directory.join(format!("{id}.json")), &json)
}

/// Writes the content of a message whose envelope cannot be read.
fn write_unreadable(directory: &Path, unreadable: &Unreadable, exported: &mut Exported) -> Result<()> {
    exported.damaged.push(unreadable.left_out());
    match (unreadable.id, &unreadable.body) {
        (Some(id), Some(Body::Sound(octets) | Body::Damaged(octets))) => {
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

fn envelope_row(content: &Content, bytes: usize) -> EnvelopeRow {
    let Content { message, envelope, progress, has_bad_note } = content;
    let recipients = envelope.recipients.iter().zip(&progress.recipients);
    EnvelopeRow {
        id: message.id.to_string(),
        received: Timestamp::from_nanosecond(i128::from(message.received_ns)).ok().map(|at| at.to_string()),
        received_ns: message.received_ns,
        sender: lossy(&envelope.sender),
        recipients: recipients.map(|(recipient, standing)| recipient_row(recipient, standing)).collect(),
        client_name: lossy(&envelope.client_name),
        client_address: envelope.client_address.map(|address| address.to_string()),
        user: envelope.user.as_deref().map(lossy),
        with: with_word(envelope.with),
        smtp_utf8: envelope.smtp_utf8,
        body: body_word(envelope),
        ret: envelope.returns.map(smtp::dsn::Return::keyword),
        envid: envelope.envelope_id.as_deref().map(lossy),
        held: progress.held,
        content_is_sound: content.sound_body().is_some(),
        bytes: bytes as u64,
        has_bad_note: *has_bad_note,
    }
}

fn recipient_row(recipient: &Recipient, standing: &Standing) -> RecipientRow {
    let original = recipient.original.as_ref();
    let refusal = match &standing.fate {
        Some(Fate::Failed(refusal) | Fate::Expired(Some(refusal))) => Some(refusal),
        _ => standing.refusal.as_ref(),
    };
    RecipientRow {
        address: lossy(&recipient.address),
        notify: recipient.notify.map(|notify| notify.render().to_string()),
        orcpt: original.map(|original| format!("{};{}", lossy(&original.kind), lossy(&original.address))),
        state: state_word(standing.fate.as_ref()),
        sender_told: standing.told,
        delay_told: standing.delay_told,
        attempts: standing.attempts,
        next_unix_s: standing.next_unix_s,
        refusal: refusal.map(RefusalRow::from),
    }
}

fn state_word(fate: Option<&Fate>) -> &'static str {
    match fate {
        None => "waiting",
        Some(Fate::Delivered | Fate::Confirmed(Confirmation::Delivered)) => "delivered",
        Some(Fate::Confirmed(Confirmation::Relayed)) => "relayed",
        Some(Fate::Confirmed(Confirmation::Expanded)) => "expanded",
        Some(Fate::Failed(_)) => "failed",
        Some(Fate::Expired(_)) => "expired",
        Some(Fate::Removed) => "removed",
    }
}

fn body_word(envelope: &Envelope) -> &'static str {
    match envelope.body {
        BodyType::SevenBit => "7BIT",
        BodyType::EightBitMime => "8BITMIME",
        BodyType::Binary => "BINARYMIME",
    }
}

fn with_word(with: With) -> &'static str {
    match with {
        With::Local => "local",
        With::Smtp => "SMTP",
        With::Esmtp => "ESMTP",
        With::Esmtps => "ESMTPS",
        With::Esmtpa => "ESMTPA",
        With::Esmtpsa => "ESMTPSA",
        With::Lmtp => "LMTP",
        With::Lmtps => "LMTPS",
        With::Lmtpa => "LMTPA",
        With::Lmtpsa => "LMTPSA",
    }
}
