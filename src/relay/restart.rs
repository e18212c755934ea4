//! After a restart: what a former run has left in the spool goes into the queue again, as far as it had come.
use super::envelope::{Envelope, Fate, Progress, Standing as Stand};
use super::office::Office;
use super::queue::{Arrival, Before, HopKey, Kind, MessageId, Recipients};
use super::routing::{Hop, Routed, Standing};
use net::clock;
use smtp::Path;
use spool::Left;
use std::collections::HashMap;
use std::rc::Rc;

/// Messages that a worker takes up before its sessions have a turn.
const SHARE: usize = 500;

/// Takes up a worker's share, until all is taken up.
pub(super) async fn take_up(office: Rc<Office>) {
    loop {
        let share = office.setting.share_of_backlog(SHARE);
        if share.is_empty() {
            return;
        }
        for left in share {
            match left {
                Ok(left) => resume(&office, &left),
                Err(error) => tracing::error!(%error, "a message of a former run cannot be read"),
            }
        }
        office.attend();
        net::sleep(std::time::Duration::ZERO).await;
    }
}

fn resume(office: &Rc<Office>, left: &Left) {
    let envelope = match Envelope::decode(&left.envelope) {
        Ok(envelope) => envelope,
        Err(error) => return tracing::error!(id = %left.id, %error, "its envelope cannot be read: it stays"),
    };
    let mut progress = Progress::new(envelope.recipients.len());
    for note in &left.notes {
        if let Err(error) = progress.read(note) {
            tracing::error!(id = %left.id, %error, "a note of it cannot be read: some of it may be done again");
        }
    }
    office.setting.census.recovered.add(1);
    let any = queue_again(office, left, &envelope, &progress);
    let owed = tell_again(office, left, &envelope, &progress);
    if !any && !owed {
        office.setting.spool.done(left.id);
    }
}

/// Recipients of one hop that have come equally far.
type Group = (HopKey, u32, u64, bool);

fn queue_again(office: &Rc<Office>, left: &Left, envelope: &Envelope, progress: &Progress) -> bool {
    let mut groups: HashMap<Group, (Vec<u16>, Stand)> = HashMap::new();
    let open = progress.recipients.iter().enumerate().filter(|(_, stand)| stand.fate.is_none());
    for (number, stand) in open {
        let hop = hop_of(office, envelope, number);
        let group = (hop, stand.attempts, stand.next_unix_s, stand.delay_told);
        let (numbers, _) = groups.entry(group).or_insert_with(|| (Vec::new(), stand.clone()));
        numbers.push(number as u16);
    }
    let any = !groups.is_empty();
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
    any
}

/// Whose fate the sender may not have been told of.
fn tell_again(office: &Rc<Office>, left: &Left, envelope: &Envelope, progress: &Progress) -> bool {
    let owed = progress.recipients.iter().enumerate().filter(|(_, stand)| stand.is_owed());
    let fates: Vec<(u16, Fate)> =
        owed.filter_map(|(number, stand)| Some((number as u16, stand.fate.clone()?))).collect();
    if fates.is_empty() {
        return false;
    }
    let hop = hop_of(office, envelope, usize::from(fates[0].0));
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

/// Where a recipient goes by the configuration of today. It was let in then, and is so now.
fn hop_of(office: &Office, envelope: &Envelope, number: usize) -> HopKey {
    let config = office.config();
    let sender = Path::mailbox(&envelope.sender);
    let address = Path::mailbox(&envelope.recipients[number].address);
    let routed = match (sender, address) {
        (Ok(sender), Ok(address)) => config.router.route(Standing::Friend, &sender, &address).ok(),
        _ => None,
    };
    let hop = match routed {
        Some(Routed::As(hop)) => hop,
        // Its members were put in its place when it came in; one of them may bear the alias's own name.
        Some(Routed::Instead(members)) => {
            let own = |(member, _): &(Box<str>, Hop)| member.as_bytes() == envelope.recipients[number].address;
            let at = members.iter().position(own).unwrap_or(0);
            members[at].1.clone()
        }
        None => Hop::nowhere(),
    };
    office.key(&hop)
}
