//! Finds the mail of a measurement run that is still in the queue of a stopped relay. A message of the run is
//! recognised by a trace in its content, which contains the ID of the run and the number of the message. The run counts
//! each recipient of a message as one unit.
use crate::message::envelope::{MessageEnvelope, MessageProgress};
use anyhow::{Result, anyhow};
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::trace::RecipientId;
use mailrun_measurement::{RunId, TraceReader, TraceResult};
use mailrun_spool::{RealDisk, RecoveredMessage, Spool};
use std::path::Path;
use std::sync::Arc;

/// Returns the units (recipients of messages) of the run that the relay would still try to deliver.
///
/// # Errors
/// Fails if another process has the spool open, or if the spool cannot be read.
pub fn units(directory: &Path, run: RunId) -> Result<Ledger> {
    let cannot = |error: &dyn std::fmt::Display| anyhow!("cannot read the spool {}: {error}", directory.display());
    let disk = RealDisk::new(directory).map_err(|error| cannot(&error))?;
    let (spool, backlog) =
        Spool::open(Arc::new(disk), mailrun_spool::Options::default()).map_err(|error| cannot(&error))?;
    let mut units = Ledger::default();
    let mut reader = TraceReader::default();
    for message in backlog {
        let message = message.map_err(|error| cannot(&error))?;
        reader.receive(&spool.read(message.id).map_err(|error| cannot(&error))?);
        let (TraceResult::Intact(trace) | TraceResult::Converted(trace) | TraceResult::Corrupt(Some(trace))) =
            reader.finish()
        else {
            continue;
        };
        if trace.run == run {
            let open = open_recipients(&message)?;
            open.into_iter().for_each(|recipient| _ = units.mark(trace.sequence, trace.numbering.number(recipient)));
        }
    }
    spool.close();
    Ok(units)
}

/// Returns the recipients of a message who have neither received it nor failed for good.
fn open_recipients(message: &RecoveredMessage) -> Result<Vec<RecipientId>> {
    let unreadable = |error: &dyn std::fmt::Display| anyhow!("message {} cannot be read: {error}", message.id);
    let envelope = MessageEnvelope::decode(&message.envelope).map_err(|error| unreadable(&error))?;
    let mut progress = MessageProgress::new(envelope.recipients.len());
    for note in &message.notes {
        progress.apply_note(note).map_err(|error| unreadable(&error))?;
    }
    let progress = envelope.recipients.iter().zip(&progress.recipients);
    let open = progress.filter(|(_, progress)| progress.fate.is_none());
    Ok(open.map(|(recipient, _)| RecipientId::new(&recipient.address)).collect())
}
