//! After a restart: queues the messages that a former run has left in the spool, with their progress.
use super::envelope::{Envelope, Fate, Progress, Standing as Stand};
use super::office::Office;
use super::queue::{Arrival, Before, HopKey, Kind, MessageId, Recipients};
use super::redirect::{Redirect, redirect_all};
use super::routing::{Hop, Routed};
use crate::planned_panic::planned_panic;
use net::clock;
use smtp::Path;
use spool::{Cost, Damage, Left};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Messages that a worker takes up before its sessions have a turn.
const SHARE: usize = 500;

/// More lines of damage say nothing new.
const MOST_DAMAGE_LINES: usize = 200;

/// Logs the damage, its place, and its cost. Damage that costs nothing, or was logged at an earlier start, is no
/// warning.
pub(super) fn log_damage(damage: &[Damage], directory: &std::path::Path) {
    let is_new = |one: &&Damage| one.cost != Cost::Nothing && !one.is_known;
    let (new, other): (Vec<&Damage>, Vec<&Damage>) = damage.iter().partition(is_new);
    for one in other.iter().take(MOST_DAMAGE_LINES) {
        tracing::info!("the spool: {one}");
    }
    for one in new.iter().take(MOST_DAMAGE_LINES) {
        tracing::warn!("the spool: {one}");
    }
    if new.len() > MOST_DAMAGE_LINES {
        let more = new.len() - MOST_DAMAGE_LINES;
        tracing::warn!("the spool: {more} more damaged places; `mailrun spool check` names them all");
    }
    if new.iter().any(|one| one.is_alarming()) {
        let copies = directory.join("quarantine");
        tracing::warn!(copies = %copies.display(), "the spool is damaged: undamaged mail is used, the rest was copied");
    }
}

/// Takes up a worker's share, until all is taken up.
pub(super) async fn take_up(office: Rc<Office>) {
    let mut redirects = Vec::new();
    loop {
        let share = office.setting.share_of_backlog(SHARE);
        if share.is_empty() {
            return redirect_all(&office, redirects).await;
        }
        for left in share {
            match left {
                Ok(left) => resume_alone(&office, &left, &mut redirects),
                Err(error) => tracing::error!(%error, "a message of an earlier run cannot be read"),
            }
        }
        office.attend();
        net::sleep(std::time::Duration::ZERO).await;
    }
}

/// One message that makes this panic stays in the spool, and keeps no other from being taken up.
fn resume_alone(office: &Rc<Office>, left: &Left, redirects: &mut Vec<Redirect>) {
    let resumed = catch_unwind(AssertUnwindSafe(|| resume(office, left, redirects)));
    if resumed.is_err() {
        tracing::error!(id = %left.id, "a bug in mailrun: the message stays in the spool until the next start");
    }
}

fn resume(office: &Rc<Office>, left: &Left, redirects: &mut Vec<Redirect>) {
    planned_panic("restart");
    let envelope = match Envelope::decode(&left.envelope) {
        Ok(envelope) => envelope,
        Err(error) => {
            return tracing::error!(id = %left.id, %error, "its envelope cannot be read; it stays in the spool");
        }
    };
    let mut progress = Progress::new(envelope.recipients.len());
    for note in &left.notes {
        if let Err(error) = progress.read(note) {
            tracing::error!(id = %left.id, %error, "its delivery state cannot be read: some recipients may get it \
                                                    twice");
        }
    }
    office.setting.census.recovered.add(1);
    let queued = queue_again(office, left, &envelope, &progress, redirects);
    let owed = tell_again(office, left, &envelope, &progress);
    if queued == Queued::Nobody && !owed {
        office.setting.spool.done(left.id);
    }
}

/// Recipients of one hop that have come equally far.
type Group = (HopKey, u32, u64, bool);

/// Tells whether there was anybody to deliver to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queued {
    Somebody,
    Nobody,
}

fn queue_again(
    office: &Rc<Office>,
    left: &Left,
    envelope: &Envelope,
    progress: &Progress,
    redirects: &mut Vec<Redirect>,
) -> Queued {
    let mut groups: HashMap<Group, (Vec<u16>, Stand)> = HashMap::new();
    let mut queued = Queued::Nobody;
    let open = progress.recipients.iter().enumerate().filter(|(_, stand)| stand.fate.is_none());
    for (number, stand) in open {
        queued = Queued::Somebody;
        let hop = match routed_again(office, envelope, number) {
            Routed::As(hop) => office.key(&hop),
            Routed::Instead(members) => {
                redirects.push(redirected(office, left, envelope, number as u16, members, progress.held));
                continue;
            }
        };
        let group = (hop, stand.attempts, stand.next_unix_s, stand.delay_told);
        let (numbers, _) = groups.entry(group).or_insert_with(|| (Vec::new(), stand.clone()));
        numbers.push(number as u16);
    }
    let now = clock::now();
    for ((hop, ..), (numbers, stand)) in groups {
        let before = Before {
            attempts: stand.attempts,
            next_unix_s: stand.next_unix_s,
            held: progress.held,
            late_told: stand.delay_told,
            refusal: stand.refusal,
        };
        let arrival = Arrival { recipients: Recipients::new(&numbers), before, ..arrival(left, envelope, hop) };
        office.queue.borrow_mut().put(arrival, now);
    }
    queued
}

/// A recipient whose mailbox has become an alias. It is not done until its members have their own message.
fn redirected(
    office: &Rc<Office>,
    left: &Left,
    envelope: &Envelope,
    recipient: u16,
    members: Vec<(Box<str>, Hop)>,
    is_held: bool,
) -> Redirect {
    // Nothing is sent there: in no case does the old address go to a member's server.
    let hop = office.key(&Hop::nowhere());
    // If it turns out to be unreadable, it is held like mail that cannot be delivered.
    let fates = vec![(recipient, Fate::Expired(None))];
    let notice = office.queue.borrow_mut().owe(arrival(left, envelope, hop), fates);
    Redirect { id: MessageId(left.id.0), recipient, members, is_held, notice }
}

/// Queues the notices of fates that the sender may not have been notified of. Reports whether there are any.
fn tell_again(office: &Rc<Office>, left: &Left, envelope: &Envelope, progress: &Progress) -> bool {
    let owed = progress.recipients.iter().enumerate().filter(|(_, stand)| stand.is_owed());
    let fates: Vec<(u16, Fate)> =
        owed.filter_map(|(number, stand)| Some((number as u16, stand.fate.clone()?))).collect();
    if fates.is_empty() {
        return false;
    }
    // Nothing is sent there: the entry is only listed under it.
    let hop = match routed_again(office, envelope, usize::from(fates[0].0)) {
        Routed::As(hop) => hop,
        Routed::Instead(_) => Hop::nowhere(),
    };
    let hop = office.key(&hop);
    let notice = office.queue.borrow_mut().owe(arrival(left, envelope, hop), fates);
    office.tell(MessageId(left.id.0), notice, None);
    true
}

fn arrival(left: &Left, envelope: &Envelope, hop: HopKey) -> Arrival<super::letter::Letter> {
    Arrival {
        id: MessageId(left.id.0),
        hop,
        recipients: Recipients::new(&[]),
        letter: None,
        letter_bytes: u32::try_from(left.body_bytes).unwrap_or(u32::MAX),
        received_unix_s: left.received_ns / 1_000_000_000,
        kind: if envelope.sender.is_empty() { Kind::Notice } else { Kind::Mail },
        before: Before::default(),
    }
}

/// Routes a recipient by the configuration of today. It was let in then, and still is.
fn routed_again(office: &Office, envelope: &Envelope, number: usize) -> Routed {
    let sender = Path::mailbox(&envelope.sender);
    let address = Path::mailbox(&envelope.recipients[number].address);
    let routed = match (sender, address) {
        (Ok(sender), Ok(address)) => office.config().router.route_again(&sender, &address).ok(),
        _ => None,
    };
    routed.unwrap_or_else(|| Routed::As(Hop::nowhere()))
}
