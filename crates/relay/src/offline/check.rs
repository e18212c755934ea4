use super::OfflineSpool;
use super::content::LeftOut;
use mailrun_spool::{Damage, DamageKind, SegmentInfo, SegmentState};
use serde::Serialize;
use std::fmt;

/// The report of `mailrun spool check`, which is printed as text or as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpoolReport {
    pub(crate) directory: String,
    /// True if `complete` is true and the spool has no damage. An incomplete end of its log does not count as damage
    /// here, because any crash may leave one.
    pub sound: bool,
    /// True if all unfinished messages were found and are readable, so that no mail is lost. The spool may still be
    /// damaged elsewhere.
    pub(crate) complete: bool,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) messages: u64,
    /// Number of unfinished messages whose content is damaged.
    pub(crate) damaged_messages: u64,
    pub(crate) held: u64,
    pub(crate) recipients: RecipientCounts,
    /// Number of bytes at the end of the spool's log that a crash left incomplete.
    pub(crate) torn_bytes: u64,
    /// True if a client may have got a 250 for a message in the torn bytes, because
    /// `durability = "write"` does not wait for the disk.
    pub(crate) torn_was_unsynced: bool,
    pub(crate) damage: Vec<DamageRow>,
    pub(crate) unreadable: Vec<LeftOut>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SegmentRow {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RecipientCounts {
    pub(crate) to_deliver: u64,
    /// Recipients whose delivery has succeeded or failed for good, but whose DSN is still to be sent.
    pub(crate) to_tell: u64,
    pub(crate) done: u64,
}

/// A part of the spool that differs from what the relay wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DamageRow {
    pub(crate) segment: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) what: String,
    pub(crate) cost: String,
    /// True if an operator must act, because something may be lost. The incomplete end of a synced log after a crash is
    /// not alarming, because none of its messages had been answered with 250.
    pub(crate) alarming: bool,
    /// Queue ids of the lost messages, if they are known.
    pub(crate) messages: Vec<String>,
    /// Number of further messages that may be lost, whose queue ids are unknown.
    pub(crate) unnamed: u64,
}

impl From<&Damage> for DamageRow {
    fn from(damage: &Damage) -> Self {
        Self {
            segment: damage.segment.clone(),
            offset: damage.offset,
            bytes: damage.bytes,
            what: damage.kind.to_string(),
            cost: damage.cost.to_string(),
            alarming: damage.is_alarming(),
            messages: damage.messages.iter().map(ToString::to_string).collect(),
            unnamed: damage.unnamed,
        }
    }
}

pub fn check(original: &OfflineSpool) -> SpoolReport {
    let inspection = &original.inspection;
    let mut damage: Vec<DamageRow> = inspection.damage.iter().map(DamageRow::from).collect();
    damage.sort_by(|one, other| (&one.segment, one.offset).cmp(&(&other.segment, other.offset)));
    let mut report = SpoolReport {
        directory: original.directory.display().to_string(),
        sound: inspection.damage.iter().all(|damage| is_crash(damage.kind)),
        complete: original.damage_count() == 0,
        segments: inspection.segments.iter().map(segment_row).collect(),
        messages: 0,
        damaged_messages: 0,
        held: 0,
        recipients: RecipientCounts::default(),
        torn_bytes: inspection.cut_bytes,
        torn_was_unsynced: inspection.damage.iter().any(|damage| damage.kind == DamageKind::UnsyncedEnd),
        damage,
        unreadable: Vec::new(),
    };
    for content in original.messages() {
        report.messages += 1;
        let content = match content {
            Ok(content) => content,
            Err(unreadable) => {
                report.unreadable.push(unreadable.left_out());
                continue;
            }
        };
        report.damaged_messages += u64::from(content.sound_body().is_none());
        report.held += u64::from(content.progress.held);
        for progress in &content.progress.recipients {
            let count = match (&progress.fate, progress.is_dsn_due()) {
                (None, _) => &mut report.recipients.to_deliver,
                (Some(_), true) => &mut report.recipients.to_tell,
                (Some(_), false) => &mut report.recipients.done,
            };
            *count += 1;
        }
    }
    report.complete &= report.unreadable.is_empty() && report.damaged_messages == 0;
    report.sound &= report.complete;
    report
}

/// Returns true if a crash alone explains the damage.
fn is_crash(kind: DamageKind) -> bool {
    matches!(kind, DamageKind::TornEnd | DamageKind::UnsyncedEnd)
}

fn segment_row(segment: &SegmentInfo) -> SegmentRow {
    let state = match segment.state {
        SegmentState::Used { .. } => "used",
        SegmentState::Free => "free",
        SegmentState::Unfinished => "unfinished",
        SegmentState::Illegible => "illegible",
    };
    SegmentRow { name: segment.name.clone(), state, bytes: segment.bytes, messages: segment.messages }
}

impl SpoolReport {
    fn in_state(&self, state: &str) -> usize {
        self.segments.iter().filter(|segment| segment.state == state).count()
    }
}

impl fmt::Display for SpoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecipientCounts { to_deliver, to_tell, done } = self.recipients;
        let states = ["used", "free", "unfinished", "illegible"].map(|state| (self.in_state(state), state));
        let states: Vec<String> =
            states.iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}")).collect();
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let verdict = match (self.sound, self.complete) {
            (true, _) => "sound",
            (false, true) => "DAMAGED, nothing is lost",
            (false, false) => "DAMAGED",
        };
        writeln!(f, "{}: {verdict}", self.directory)?;
        writeln!(f, "segments     {} ({}), {} MiB", self.segments.len(), states.join(", "), bytes >> 20)?;
        writeln!(f, "messages     {} in the queue, {} of them held", self.messages, self.held)?;
        writeln!(f, "recipients   {to_deliver} not delivered, {to_tell} with a pending notification, {done} done")?;
        if self.torn_bytes > 0 {
            let answered = if self.torn_was_unsynced { "may have been" } else { "was not" };
            writeln!(f, "torn end     {} bytes of a message that {answered} answered 250", self.torn_bytes)?;
        }
        if self.damage.is_empty() && self.unreadable.is_empty() {
            return writeln!(f, "damage       none");
        }
        writeln!(f, "damage")?;
        for damage in &self.damage {
            writeln!(f, "  {damage}")?;
        }
        for unreadable in &self.unreadable {
            writeln!(f, "  {unreadable}")?;
        }
        if !self.sound {
            writeln!(f, "To save what is readable: mailrun spool salvage {} --out spool:NEW", self.directory)?;
        }
        Ok(())
    }
}

impl fmt::Display for DamageRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Maximum number of queue ids that the text lists for each damaged part. The JSON form lists all of them.
        const MAX_SHOWN_IDS: usize = 20;
        let Self { segment, offset, bytes, what, cost, messages, unnamed, .. } = self;
        write!(f, "{segment}, offset {offset}, {bytes} bytes: {what}; {cost}")?;
        for (number, id) in messages.iter().take(MAX_SHOWN_IDS).enumerate() {
            write!(f, "{}{id}", if number == 0 { ": " } else { ", " })?;
        }
        let more = unnamed + messages.len().saturating_sub(MAX_SHOWN_IDS) as u64;
        if more > 0 { write!(f, ", and at most {more} more") } else { Ok(()) }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id.as_deref().unwrap_or("a message"))?;
        if let Some(sender) = &self.sender {
            write!(f, " from <{sender}>")?;
        }
        for (number, recipient) in self.recipients.iter().enumerate() {
            write!(f, "{}<{recipient}>", if number == 0 { " to " } else { ", " })?;
        }
        write!(f, ": {}", self.why)
    }
}
