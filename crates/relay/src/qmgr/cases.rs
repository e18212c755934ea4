//! Tests of the queue's guarantees, which the module `qmgr` lists. For example, no entry is lost.
use std::sync::Arc;
use std::time::Duration;

use super::commands::MAX_TICK_TIMERS;
use super::entry::{EntryIndex, QueueEntry};
use super::moves::SPARE_MESSAGES;
use super::*;
use crate::message::envelope::{Confirmation, DeliveryRefusal, Fact, RecipientFate};

type TestMessage = Arc<[u8]>;

const START: Duration = Duration::from_secs(100);

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn refusal(code: u16) -> DeliveryRefusal {
    DeliveryRefusal::new(code, None, "come back later", "mx.example")
}

fn arrival(id: u64, destination: u32, recipients: &[u16]) -> NewEntry<TestMessage> {
    let message: TestMessage = vec![0; 100].into();
    NewEntry {
        id: MessageId(id),
        destination: DestinationId(destination),
        recipients: RecipientNumbers::new(recipients),
        message: Some(message),
        message_bytes: 100,
        received_unix_s: START.as_secs(),
        kind: MessageKind::Mail,
        progress: EntryProgress::default(),
    }
}

fn queue(change: impl FnOnce(&mut Options)) -> MailQueue<TestMessage> {
    let mut options = Options::default();
    change(&mut options);
    MailQueue::new(options, START)
}

fn filled(messages: u64, destinations: u32, change: impl FnOnce(&mut Options)) -> MailQueue<TestMessage> {
    let mut queue = queue(change);
    (0..messages).for_each(|id| {
        (0..destinations).for_each(|destination| {
            queue.put(arrival(id * u64::from(destinations) + u64::from(destination), destination, &[0]), START)
        })
    });
    queue
}

fn opened(queue: &mut MailQueue<TestMessage>, now: Duration) -> ConnectionSlot {
    match queue.next_connection_action(now) {
        Some(ConnectionAction::Open(slot)) => slot,
        other => panic!("{other:?} instead of a new connection"),
    }
}

fn taken(queue: &mut MailQueue<TestMessage>, slot: &mut ConnectionSlot, now: Duration) -> DeliveryRequest<TestMessage> {
    match queue.take(slot, now) {
        NextRequest::Deliver(request) => request,
        other => panic!("{other:?} instead of a message"),
    }
}

fn is_waiting(request: &NextRequest<TestMessage>) -> bool {
    matches!(request, NextRequest::Wait)
}

fn ticked(queue: &mut MailQueue<TestMessage>, now: Duration) -> Vec<Actions> {
    let mut actions = Vec::new();
    while queue.deadline().is_some_and(|deadline| deadline <= now) {
        queue.tick(now, &mut actions);
    }
    actions
}

fn stats(queue: &MailQueue<TestMessage>, destination: u32) -> DestinationStats {
    queue
        .destination_stats()
        .find(|stats| stats.destination == DestinationId(destination))
        .expect("the destination has something to show")
}

#[test]
fn a_message_comes_and_goes() {
    let mut queue = filled(1, 1, |_| {});
    let mut slot = opened(&mut queue, START);
    assert_eq!(queue.next_connection_action(START), None, "one is enough");
    let request = taken(&mut queue, &mut slot, START);
    assert_eq!((request.id, request.attempts, request.message.len()), (MessageId(0), 0, 100));
    assert!(is_waiting(&queue.take(&mut slot, START)));
    let actions = queue.finish_delivery(request, DeliveryResult::Delivered, START);
    assert_eq!(actions, Actions { id: MessageId(0), facts: vec![], dsn: None, done: true });
    assert_eq!(queue.totals(), QueueTotals { connections: 1, ..QueueTotals::default() });
    // The connection is now idle. The next message must wake it once, and no other connection may be opened.
    queue.put(arrival(1, 0, &[0]), START);
    assert_eq!(queue.next_connection_action(START), Some(ConnectionAction::Wake(DestinationId(0))));
    assert_eq!(queue.next_connection_action(START), None);
    let request = taken(&mut queue, &mut slot, START);
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    queue.closed(slot, DisconnectReason::Finished, START);
    assert!(queue.is_idle(DestinationId(0), START) && queue.deadline().is_none());
}

#[test]
fn connections_are_woken_for_more_than_one_batch() {
    let mut queue = filled(1, 1, |_| {});
    let mut first = opened(&mut queue, START);
    let request = taken(&mut queue, &mut first, START);
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    queue.set_batch_size(DestinationId(0), 4);
    // If a connection takes four messages at a time, eight waiting messages need no second connection. If it takes only
    // one message at a time, they need a second connection.
    (10..18).for_each(|id| queue.put(arrival(id, 0, &[0]), START));
    assert_eq!(queue.next_connection_action(START), None);
    queue.set_batch_size(DestinationId(0), 1);
    let mut second = opened(&mut queue, START);
    queue.set_batch_size(DestinationId(0), 4);
    for slot in [&mut first, &mut second] {
        while let NextRequest::Deliver(request) = queue.take(slot, START) {
            assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
        }
    }
    assert_eq!(queue.next_connection_action(START), None, "nothing is left to do");
    (60..64).for_each(|id| queue.put(arrival(id, 0, &[0]), START));
    assert_eq!(queue.next_connection_action(START), Some(ConnectionAction::Wake(DestinationId(0))));
    assert_eq!(queue.next_connection_action(START), None, "the one that was called takes all four");
    queue.put(arrival(64, 0, &[0]), START);
    assert_eq!(queue.next_connection_action(START), Some(ConnectionAction::Wake(DestinationId(0))));
    assert_eq!(queue.next_connection_action(START), None);
    queue.closed(first, DisconnectReason::Finished, START);
    queue.closed(second, DisconnectReason::Finished, START);
}

#[test]
fn a_quitting_connection_is_replaced() {
    let mut queue = filled(1, 1, |options| options.destination_concurrency_limit = 2);
    let mut first = opened(&mut queue, START);
    let request = taken(&mut queue, &mut first, START);
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    assert!(is_waiting(&queue.take(&mut first, START)));
    queue.begin_quit(&mut first);
    assert_eq!((stats(&queue, 0).connections, stats(&queue, 0).idle), (1, 0));
    // The first connection is closing, and its peer decides how long this takes. Meanwhile, another connection must
    // deliver new mail.
    queue.put(arrival(1, 0, &[0]), START);
    let mut second = opened(&mut queue, START);
    let request = taken(&mut queue, &mut second, START);
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    // The limit is two connections, and both closing connections still count. So no third connection may be opened yet.
    queue.begin_quit(&mut second);
    queue.put(arrival(2, 0, &[0]), START);
    assert_eq!(queue.next_connection_action(START), None);
    queue.closed(first, DisconnectReason::Finished, START);
    let third = opened(&mut queue, START);
    queue.closed(second, DisconnectReason::Finished, START);
    queue.closed(third, DisconnectReason::Finished, START);
    assert_eq!(stats(&queue, 0).connections, 0);
}

#[test]
fn deferred_recipients_are_retried_alone() {
    let mut queue = queue(|_| {});
    queue.put(arrival(1, 0, &[0, 1, 2, 5]), START);
    let mut slot = opened(&mut queue, START);
    let request = taken(&mut queue, &mut slot, START);
    let statuses = [
        RecipientStatus::Delivered,
        RecipientStatus::Deferred(refusal(450)),
        RecipientStatus::Failed(refusal(550)),
        RecipientStatus::Deferred(refusal(452)),
    ];
    let actions = queue.finish_delivery(request, DeliveryResult::Each(statuses.into()), START);
    let next_unix_s = queue.show(MessageId(1), START).iter().find_map(|entry| entry.next_unix_s).unwrap();
    assert!((START.as_secs() + 225..=START.as_secs() + 375).contains(&next_unix_s));
    let failed = RecipientFate::Failed(refusal(550));
    let expected = [
        Fact::Settled { recipients: vec![0], fate: RecipientFate::Delivered },
        Fact::Settled { recipients: vec![2], fate: failed.clone() },
        Fact::Deferred { recipients: vec![1], attempts: 1, next_unix_s, refusal: refusal(450) },
        Fact::Deferred { recipients: vec![5], attempts: 1, next_unix_s, refusal: refusal(452) },
    ];
    assert_eq!(actions.facts, expected);
    let Some(DsnEvent::Settled { pending, fates, attempted_unix_s }) = actions.dsn else { panic!("a DSN is owed") };
    assert_eq!((&fates[..], attempted_unix_s), (&[(2, failed)][..], Some(START.as_secs())));
    let released = queue.dsn_stored(pending);
    assert_eq!((released.facts, released.done), (vec![Fact::DsnStored { recipients: vec![2] }], false));
    // The queue has dropped the deferred message from memory. When the next attempt is due, the queue must first have
    // the message loaded from the spool. Only then may it wake the connection.
    assert!(is_waiting(&queue.take(&mut slot, START)));
    let later = seconds(next_unix_s + 2);
    assert!(ticked(&mut queue, later).is_empty());
    assert!(is_waiting(&queue.take(&mut slot, later)));
    let mut ids = Vec::new();
    queue.messages_to_read(&mut ids);
    assert_eq!((ids.as_slice(), queue.next_connection_action(later)), ([MessageId(1)].as_slice(), None));
    queue.loaded(MessageId(1), &vec![1; 100].into());
    assert_eq!(queue.next_connection_action(later), Some(ConnectionAction::Wake(DestinationId(0))));
    let request = taken(&mut queue, &mut slot, later);
    assert_eq!((request.recipients.to_vec(), request.attempts), (vec![1, 5], 1));
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, later).done);
}

#[test]
fn a_transaction_has_a_hundred_recipients_at_most() {
    let mut queue = queue(|_| {});
    queue.put(arrival(1, 0, &(0..250).collect::<Vec<_>>()), START);
    queue.put(arrival(2, 0, &[]), START);
    let mut slot = opened(&mut queue, START);
    let all = [0; 3].map(|_| taken(&mut queue, &mut slot, START));
    assert_eq!(all.each_ref().map(|it| it.recipients.len()), [100, 100, 50]);
    assert!(is_waiting(&queue.take(&mut slot, START)));
    let done = all.map(|request| queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    assert_eq!(done, [false, false, true]);
}

#[test]
fn a_message_lost_after_the_dot_is_tried_again() {
    let mut queue = filled(1, 1, |_| {});
    let mut slot = opened(&mut queue, START);
    let request = taken(&mut queue, &mut slot, START);
    let actions = queue.finish_delivery(request, DeliveryResult::Unknown, START);
    assert!(!actions.done && actions.dsn.is_none());
    assert!(matches!(actions.facts.as_slice(), [Fact::Deferred { attempts: 1, .. }]));
    assert_eq!(stats(&queue, 0).deferred, 1);
}

#[test]
fn a_hop_that_never_answers_delays_no_other() {
    // There are 8 connections. The first destination alone could use all of them, because its own limit is 20.
    let mut queue =
        filled(500, 4, |options| (options.concurrency_limit, options.destination_concurrency_limit) = (8, 20));
    let mut stuck = Vec::new();
    let mut slots = Vec::new();
    let mut delivered = [0; 4];
    for _ in 0..2_000 {
        while let Some(call) = queue.next_connection_action(START) {
            match call {
                ConnectionAction::Open(slot) if slot.destination == DestinationId(0) => stuck.push(slot),
                ConnectionAction::Open(slot) => slots.push(slot),
                other => panic!("{other:?}, but nobody rests"),
            }
        }
        // Let the first destination's connections take messages but finish none, as if its server never answered.
        for slot in &mut stuck {
            if let NextRequest::Deliver(request) = queue.take(slot, START) {
                std::mem::forget(request);
            }
        }
        for mut slot in std::mem::take(&mut slots) {
            match queue.take(&mut slot, START) {
                NextRequest::Deliver(request) => {
                    delivered[slot.destination.0 as usize] += 1;
                    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
                    slots.push(slot);
                }
                NextRequest::Wait | NextRequest::Close => queue.closed(slot, DisconnectReason::Finished, START),
            }
        }
    }
    assert_eq!(delivered, [0, 500, 500, 500]);
    assert!(stuck.len() <= 4, "{} connections are stuck: more than half", stuck.len());
}

#[test]
fn a_connection_yields_after_its_fair_share() {
    let mut queue = filled(200, 1, |options| options.concurrency_limit = 1);
    let mut slot = opened(&mut queue, START);
    queue.put(arrival(9_999, 1, &[0]), START);
    assert_eq!(queue.next_connection_action(START), None);
    let mut sent = 0;
    while let NextRequest::Deliver(request) = queue.take(&mut slot, START) {
        assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
        sent += 1;
    }
    assert_eq!(sent, 20, "a connection pays first");
    queue.closed(slot, DisconnectReason::Finished, START);
    let mut slot = opened(&mut queue, START);
    assert_eq!(slot.destination, DestinationId(1));
    let request = taken(&mut queue, &mut slot, START);
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    // The first destination still has mail, but the only permitted connection is idle at the second destination. The
    // queue must ask this connection to close, and must not ask a second time.
    assert!(is_waiting(&queue.take(&mut slot, START)));
    assert_eq!(queue.next_connection_action(START), Some(ConnectionAction::Close(DestinationId(1))));
    assert_eq!(queue.next_connection_action(START), None);
    queue.closed(slot, DisconnectReason::Finished, START);
    assert_eq!(opened(&mut queue, START).destination, DestinationId(0));
}

#[test]
fn an_unreachable_destination_backs_off_as_a_whole() {
    let mut queue = filled(100, 1, |_| {});
    let mut slots: Vec<ConnectionSlot> = std::iter::from_fn(|| match queue.next_connection_action(START) {
        Some(ConnectionAction::Open(slot)) => Some(slot),
        _ => None,
    })
    .collect();
    assert_eq!(slots.len(), 18);
    slots.drain(..).for_each(|slot| queue.closed(slot, DisconnectReason::Unreachable(refusal(421)), START));
    assert_eq!(queue.next_connection_action(START), None);
    let shut = stats(&queue, 0);
    assert_eq!((shut.ready, shut.deferred, shut.connections), (100, 0, 0));
    assert_eq!(shut.refusal.as_deref(), Some(&refusal(421)));
    // Eighteen attempts that fail together must count as one outage. The destination then waits as after a first
    // failure: five seconds, plus or minus a quarter.
    let wait = shut.backoff_until - START;
    assert!((3_750..=6_250).contains(&wait.as_millis()), "{wait:?}");
    assert_eq!(queue.totals().message_bytes, 0, "its memory is for others");
    assert!(ticked(&mut queue, shut.backoff_until).is_empty());
    // After the backoff, only one connection may try, and others may follow once it has succeeded.
    let now = shut.backoff_until;
    let mut first = opened(&mut queue, now);
    assert_eq!(queue.next_connection_action(now), None);
    assert!(is_waiting(&queue.take(&mut first, now)));
    let mut ids = Vec::new();
    queue.messages_to_read(&mut ids);
    assert!(ids.len() > 1 && ids.is_sorted());
    ids.iter().for_each(|id| queue.loaded(*id, &vec![0; 100].into()));
    let request = taken(&mut queue, &mut first, now);
    assert_eq!(request.attempts, 0, "nobody has burned an attempt");
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, now).done);
    assert_eq!(opened(&mut queue, now).destination, DestinationId(0));
}

#[test]
fn an_entry_shows_the_backoff_of_its_destination() {
    let mut queue = filled(2, 2, |_| {});
    let mut first = opened(&mut queue, START);
    let refused = taken(&mut queue, &mut first, START);
    let _ = refused.id;
    let destination = refused.destination;
    let _ = queue.finish_delivery(refused, DeliveryResult::All(RecipientStatus::Deferred(refusal(450))), START);
    queue.closed(first, DisconnectReason::Unreachable(refusal(421)), START);
    let until = stats(&queue, destination.0).backoff_until;
    let all = |queue: &MailQueue<TestMessage>, now| queue.page(0, 10, now).entries;
    for entry in all(&queue, START) {
        let code = entry.refusal.as_deref().map(|refusal| refusal.code);
        match (entry.destination == destination, entry.state) {
            (true, EntryState::Ready) => {
                assert_eq!((code, entry.is_in_backoff, entry.next_unix_s), (Some(421), true, Some(until.as_secs())));
            }
            (true, EntryState::Deferred) => assert_eq!((code, entry.is_in_backoff), (Some(450), false)),
            (false, EntryState::Ready) => {
                assert_eq!((code, entry.is_in_backoff, entry.next_unix_s), (None, false, None))
            }
            other => panic!("{other:?}"),
        }
    }
    let open = all(&queue, until);
    assert!(
        open.iter()
            .all(|entry| !entry.is_in_backoff && entry.next_unix_s.is_some() == (entry.state == EntryState::Deferred))
    );
}

#[test]
fn nothing_is_read_for_a_hop_that_could_not_be_reached_until_it_is() {
    let mut queue = filled(3, 1, |_| {});
    let slot = opened(&mut queue, START);
    queue.closed(slot, DisconnectReason::Unreachable(refusal(421)), START);
    let mut ids = Vec::new();
    let later = START + Duration::from_secs(3600);
    assert!(ticked(&mut queue, later).is_empty());
    let mut slot = opened(&mut queue, later);
    queue.messages_to_read(&mut ids);
    assert!(ids.is_empty() && queue.totals().message_bytes == 0, "{ids:?}: nobody is connected yet");
    assert!(is_waiting(&queue.take(&mut slot, later)));
    queue.messages_to_read(&mut ids);
    assert_eq!(ids, [MessageId(0), MessageId(1), MessageId(2)]);
    let message: TestMessage = vec![0; 100].into();
    ids.iter().for_each(|id| queue.loaded(*id, &message));
    assert_eq!(queue.next_connection_action(later), Some(ConnectionAction::Wake(DestinationId(0))));
    for _ in 0..3 {
        let request = taken(&mut queue, &mut slot, later);
        assert!(queue.finish_delivery(request, DeliveryResult::Delivered, later).done);
    }
    queue.closed(slot, DisconnectReason::Finished, later);
}

#[test]
fn waits_for_a_hop_grow() {
    let mut queue = filled(1, 1, |_| {});
    let mut now = START;
    for middle in [5, 10, 20, 40, 80, 160, 320, 640, 666, 666] {
        let slot = opened(&mut queue, now);
        queue.closed(slot, DisconnectReason::Unreachable(refusal(0)), now);
        let until = stats(&queue, 0).backoff_until;
        let range = seconds(middle) * 3 / 4..=seconds(middle) * 5 / 4;
        assert!(range.contains(&(until - now)), "{:?} is not in {range:?}", until - now);
        assert!(ticked(&mut queue, until - Duration::from_millis(1)).is_empty());
        assert_eq!(queue.next_connection_action(until - Duration::from_millis(1)), None);
        now = until;
        assert!(ticked(&mut queue, now).is_empty());
    }
}

#[test]
fn a_session_that_lives_goes_on_while_no_other_is_tried() {
    let mut queue = filled(100, 1, |_| {});
    let mut living = opened(&mut queue, START);
    let refused = opened(&mut queue, START);
    queue.closed(refused, DisconnectReason::Unreachable(refusal(421)), START);
    for _ in 0..30 {
        let request = taken(&mut queue, &mut living, START);
        assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
        assert_eq!(queue.next_connection_action(START), None, "a delivery is no reason to ask again at once");
    }
    let until = stats(&queue, 0).backoff_until;
    assert!(ticked(&mut queue, until).is_empty());
    assert_eq!(opened(&mut queue, until).destination, DestinationId(0));
}

#[test]
fn age_is_checked_in_every_state() {
    let mut queue = queue(|_| {});
    let held = EntryProgress { held: true, ..EntryProgress::default() };
    let deferred =
        EntryProgress { next_unix_s: START.as_secs() + 100 * 86_400, attempts: 9, ..EntryProgress::default() };
    queue.put(arrival(1, 0, &[0]), START);
    queue.put(NewEntry { progress: held, ..arrival(2, 1, &[0]) }, START);
    queue.put(NewEntry { progress: deferred, ..arrival(3, 2, &[0]) }, START);
    queue.put(arrival(4, 3, &[0]), START);
    let mut slot = std::iter::from_fn(|| queue.next_connection_action(START)).find_map(|call| match call {
        ConnectionAction::Open(slot) if slot.destination == DestinationId(3) => Some(slot),
        _ => None,
    });
    let request = taken(&mut queue, slot.as_mut().unwrap(), START);
    let late = ticked(&mut queue, START + seconds(4 * 3_600 + 1));
    assert_eq!(late.len(), 4);
    for actions in late {
        let Some(DsnEvent::Delayed { recipients, .. }) = actions.dsn else { panic!("the sender is told") };
        // The queue must not record the DSN as sent until the DSN is stored. Otherwise, a restart in between would lose
        // the DSN.
        assert_eq!((actions.facts, recipients), (vec![], vec![(0, None)]));
        let noted = queue.delay_dsn_stored(actions.id, vec![0]).unwrap();
        assert_eq!(noted.facts, [Fact::DelayDsnStored { recipients: vec![0] }]);
    }
    assert_eq!(queue.delay_dsn_stored(MessageId(5), vec![0]), None, "there is no such message any more");
    let expired = ticked(&mut queue, START + seconds(5 * 86_400 + 1));
    let ids: Vec<u64> = expired.iter().map(|actions| actions.id.0).collect();
    assert_eq!(ids, [1, 2, 3], "the fourth is with a connection");
    for actions in expired {
        let Some(DsnEvent::Settled { pending, fates, attempted_unix_s }) = actions.dsn else {
            panic!("the sender is told")
        };
        assert_eq!((&fates[..], attempted_unix_s), (&[(0, RecipientFate::Expired(None))][..], None));
        assert!(queue.dsn_stored(pending).done);
    }
    let result = DeliveryResult::All(RecipientStatus::Deferred(refusal(450)));
    let actions = queue.finish_delivery(request, result, START + seconds(5 * 86_400 + 1));
    let Some(DsnEvent::Settled { fates, attempted_unix_s, .. }) = actions.dsn else { panic!("it is too old to wait") };
    assert_eq!(fates, [(0, RecipientFate::Expired(Some(refusal(450))))]);
    assert_eq!(attempted_unix_s, Some(START.as_secs() + 5 * 86_400 + 1));
}

fn expired_codes(fates: &[(u16, RecipientFate)]) -> Vec<(u16, u16)> {
    let codes = fates.iter().map(|(number, fate)| match fate {
        RecipientFate::Expired(Some(refusal)) => (*number, refusal.code),
        other => panic!("{other:?}"),
    });
    codes.collect()
}

fn deferred_codes(facts: Vec<Fact>) -> Vec<(Vec<u16>, u16)> {
    let codes = facts.into_iter().filter_map(|fact| match fact {
        Fact::Deferred { recipients, refusal, .. } => Some((recipients, refusal.code)),
        _ => None,
    });
    codes.collect()
}

#[test]
fn each_recipient_has_its_own_reason() {
    let mut queue = queue(|_| {});
    queue.put(arrival(1, 0, &[0, 1, 2]), START);
    let mut slot = opened(&mut queue, START);
    let request = taken(&mut queue, &mut slot, START);
    // Give no status for the third recipient, as if an LMTP session had ended too early.
    let statuses = [452, 450].map(|code| RecipientStatus::Deferred(refusal(code)));
    let actions = queue.finish_delivery(request, DeliveryResult::Each(statuses.into()), START);
    assert_eq!(actions.facts.len(), 3, "{actions:?}");
    queue.closed(slot, DisconnectReason::Finished, START);
    let late = ticked(&mut queue, START + seconds(4 * 3_600 + 1));
    let [Actions { dsn: Some(DsnEvent::Delayed { recipients, .. }), .. }] = &late[..] else { panic!("{late:?}") };
    let codes = recipients.iter().map(|(number, reason)| (*number, reason.as_ref().map(|reason| reason.code)));
    assert_eq!(codes.collect::<Vec<_>>(), [(0, Some(452)), (1, Some(450)), (2, Some(0))]);
    // A release writes the state of the recipients to the spool again, and so replaces their refusals there. It must
    // therefore repeat each recipient's last refusal.
    assert_eq!(commanded(&mut queue, OperatorCommand::Hold, 1), [Fact::Held]);
    let released = commanded(&mut queue, OperatorCommand::Release, 1);
    assert_eq!(deferred_codes(released), [(vec![0], 452), (vec![1], 450), (vec![2], 0)]);
    let expired = ticked(&mut queue, START + seconds(5 * 86_400 + 1)).remove(0);
    let Some(DsnEvent::Settled { pending, mut fates, .. }) = expired.dsn else { panic!("it is too old to wait") };
    assert_eq!(expired_codes(&fates), [(0, 452), (1, 450), (2, 0)]);
    // The DSN cannot be written, so the queue holds the failed recipients. A release must repeat their refusals.
    fates[0].1 = RecipientFate::Confirmed(Confirmation::Relayed);
    assert!(!queue.dsn_failed(pending, &fates).done);
    let released = commanded(&mut queue, OperatorCommand::Release, 1);
    assert_eq!(deferred_codes(released), [(vec![1], 450), (vec![2], 0)]);
}

#[test]
fn reasons_survive_a_restart_even_if_the_recipients_need_several_transactions() {
    let mut queue = queue(|_| {});
    let numbers: Vec<u16> = (0..250).collect();
    let refusals = numbers.iter().map(|number| refusal(400 + number)).collect();
    let progress = EntryProgress { refusals, attempts: 1, ..EntryProgress::default() };
    queue.put(NewEntry { progress, ..arrival(1, 0, &numbers) }, START);
    let expired = ticked(&mut queue, START + seconds(5 * 86_400 + 1));
    let fates = expired.into_iter().filter_map(|actions| match actions.dsn {
        Some(DsnEvent::Settled { fates, .. }) => Some(fates),
        _ => None,
    });
    let expected: Vec<(u16, u16)> = numbers.iter().map(|number| (*number, 400 + number)).collect();
    assert_eq!(expired_codes(&fates.collect::<Vec<_>>().concat()), expected);
}

#[test]
fn an_expired_message_cites_the_outage_and_not_another_message() {
    let mut queue = queue(|_| {});
    queue.put(arrival(1, 0, &[0]), START);
    let slot = opened(&mut queue, START);
    queue.closed(slot, DisconnectReason::Unreachable(refusal(421)), START);
    let progress = EntryProgress { refusals: vec![refusal(450)], ..EntryProgress::default() };
    queue.put(NewEntry { progress, ..arrival(2, 0, &[0]) }, START);
    for actions in ticked(&mut queue, START + seconds(5 * 86_400 + 1)) {
        let Some(DsnEvent::Settled { fates, .. }) = actions.dsn else { continue };
        assert_eq!(fates, [(0, RecipientFate::Expired(Some(refusal(421))))], "{:?}", actions.id);
    }
}

#[test]
fn a_dsn_is_never_reported_as_delayed() {
    let mut queue = queue(|options| options.schedule.notice_lifetime = seconds(86_400));
    queue.put(NewEntry { kind: MessageKind::Dsn, ..arrival(1, 0, &[0]) }, START);
    assert!(ticked(&mut queue, START + seconds(86_399)).is_empty());
    assert_eq!(ticked(&mut queue, START + seconds(86_401)).len(), 1);
}

#[test]
fn a_message_that_ends_every_session_is_deferred() {
    let mut queue = filled(2, 1, |_| {});
    for _ in 0..3 {
        let mut slot = opened(&mut queue, START);
        let request = taken(&mut queue, &mut slot, START);
        assert_eq!(request.id, MessageId(0));
        drop(queue.finish_delivery(request, DeliveryResult::Unsent, START));
        queue.destinations[0].failed_sessions = 0;
        queue.closed(slot, DisconnectReason::Finished, START);
    }
    let mut slot = opened(&mut queue, START);
    assert_eq!(taken(&mut queue, &mut slot, START).id, MessageId(1));
    assert_eq!(stats(&queue, 0).deferred, 1);
    let reason = queue.show(MessageId(0), START)[0].refusal.clone().unwrap();
    assert_eq!((reason.code, reason.text.as_str()), (0, "sessions end before the message is sent"));
}

#[test]
fn a_fault_of_the_session_is_followed_by_one_try_in_another_session() {
    let mut queue = filled(1, 1, |_| {});
    for waiting in [0, 1] {
        let mut slot = opened(&mut queue, START);
        if waiting == 1 {
            assert!(is_waiting(&queue.take(&mut slot, START)));
            queue.messages_to_read(&mut Vec::new());
            queue.loaded(MessageId(0), &vec![0; 100].into());
        }
        let request = taken(&mut queue, &mut slot, START);
        let result = DeliveryResult::SessionFault(vec![RecipientStatus::Deferred(refusal(503))]);
        let actions = queue.finish_delivery(request, result, START);
        assert!(matches!(actions.facts.as_slice(), [Fact::Deferred { attempts, .. }] if *attempts == waiting));
        queue.closed(slot, DisconnectReason::Finished, START);
        drop(ticked(&mut queue, START + seconds(1)));
        assert_eq!(stats(&queue, 0).deferred, waiting);
    }
}

#[test]
fn failed_sessions_cause_a_backoff() {
    let mut queue = filled(100, 1, |_| {});
    for round in 0..3 {
        assert_eq!(stats(&queue, 0).backoff_until, Duration::ZERO, "round {round}");
        let mut slot = opened(&mut queue, START);
        let request = taken(&mut queue, &mut slot, START);
        drop(queue.finish_delivery(request, DeliveryResult::Unsent, START));
        queue.closed(slot, DisconnectReason::Finished, START);
    }
    assert!(stats(&queue, 0).backoff_until > START);
    assert_eq!(queue.next_connection_action(START), None);
}

#[test]
fn connections_do_not_flap() {
    let mut queue = queue(|_| {});
    let mut slots: Vec<(ConnectionSlot, bool)> = Vec::new();
    let mut opened: usize = 0;
    let mut next: u64 = 0;
    // Fifty times, sixty messages arrive and are delivered. The connections must stay open in between.
    for _ in 0..50 {
        (0..60).for_each(|_| {
            next += 1;
            queue.put(arrival(next, 0, &[0]), START);
        });
        loop {
            match queue.next_connection_action(START) {
                Some(ConnectionAction::Open(slot)) => {
                    opened += 1;
                    slots.push((slot, false));
                }
                Some(ConnectionAction::Wake(_)) => {
                    let waiter = slots.iter_mut().find(|(_, waits)| *waits);
                    waiter.expect("somebody waits").1 = false;
                }
                Some(ConnectionAction::Close(_)) => panic!("nobody is in the way"),
                None if slots.iter().all(|(_, waits)| *waits) => break,
                None => {}
            }
            for (slot, waits) in slots.iter_mut().filter(|(_, waits)| !waits) {
                match queue.take(slot, START) {
                    NextRequest::Deliver(request) => {
                        drop(queue.finish_delivery(request, DeliveryResult::Delivered, START))
                    }
                    NextRequest::Wait => *waits = true,
                    NextRequest::Close => panic!("nobody is in the way"),
                }
            }
        }
    }
    assert_eq!(queue.totals().entries, 0);
    assert!(opened == slots.len() && (1..=20).contains(&opened), "{opened} opened");
}

#[test]
fn a_slow_hop_leaves_memory_to_others() {
    let mut queue = filled(0, 0, |options| options.message_bytes = 10_000);
    (0..1_000).for_each(|id| queue.put(arrival(id, 0, &[0]), START));
    assert_eq!(queue.totals().message_bytes, 5_000, "half of it, at most");
    (1_000..1_020).for_each(|id| queue.put(arrival(id, 1, &[0]), START));
    assert_eq!(queue.totals().message_bytes, 7_000, "a short backlog is all in memory");
    // Messages that were dropped from memory must be read again in the order of the log, as memory becomes free.
    let mut slot = opened(&mut queue, START);
    assert_eq!(slot.destination, DestinationId(0));
    let mut seen = Vec::new();
    let mut ids = Vec::new();
    while seen.len() < 1_000 {
        queue.messages_to_read(&mut ids);
        ids.drain(..).for_each(|id| queue.loaded(id, &vec![0; 100].into()));
        let request = taken(&mut queue, &mut slot, START);
        seen.push(request.id.0);
        assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
        assert!(queue.totals().message_bytes <= 10_000);
    }
    assert!(seen.is_sorted());
}

#[test]
fn a_destination_has_no_more_in_memory_than_its_connections_need() {
    let mut queue = filled(0, 0, |options| options.message_bytes = 1 << 30);
    let large = |id| NewEntry { message_bytes: 1 << 20, ..arrival(id, 0, &[0]) };
    (0..100).for_each(|id| queue.put(large(id), START));
    assert_eq!(queue.totals().message_bytes, 12 << 20);
}

#[test]
fn what_cannot_be_read_is_held() {
    let mut queue = queue(|_| {});
    queue.put(NewEntry { message: None, ..arrival(1, 0, &[0]) }, START);
    let mut slot = opened(&mut queue, START);
    let mut ids = Vec::new();
    queue.messages_to_read(&mut ids);
    assert_eq!(ids, [MessageId(1)]);
    assert_eq!(queue.hold_unreadable(MessageId(1), START).unwrap().facts, [Fact::Held]);
    assert!(is_waiting(&queue.take(&mut slot, START)));
    assert_eq!((stats(&queue, 0).held, queue.totals().message_bytes), (1, 0));
    assert_eq!(queue.hold_unreadable(MessageId(2), START), None);
}

/// Tells the queue that a DSN cannot be written, and returns the actions that the queue requests in response.
fn with_failed_dsn(queue: &mut MailQueue<TestMessage>, fates: &[(u16, RecipientFate)]) -> Actions {
    let numbers: Vec<u16> = fates.iter().map(|(number, _)| *number).collect();
    let dsn = queue.restore_pending_dsn(arrival(1, 0, &numbers), fates.to_vec());
    let DsnEvent::Settled { pending, fates, .. } = dsn else { panic!("it is settled") };
    queue.dsn_failed(pending, &fates)
}

#[test]
fn failed_recipients_without_a_dsn_are_held() {
    let mut queue = queue(|_| {});
    let fates = [
        (0, RecipientFate::Expired(None)),
        (1, RecipientFate::Confirmed(Confirmation::Relayed)),
        (2, RecipientFate::Failed(refusal(550))),
    ];
    let actions = with_failed_dsn(&mut queue, &fates);
    assert_eq!((&actions.facts[..], actions.done), (&[Fact::DsnStored { recipients: vec![1] }][..], false));
    let listed = queue.show(MessageId(1), START);
    assert_eq!((listed.len(), listed[0].state, listed[0].recipients.to_vec()), (1, EntryState::Held, vec![0, 2]));
    assert!(ticked(&mut queue, START + seconds(50 * 86_400)).is_empty(), "it has no end of its own");
    let command =
        |queue: &mut MailQueue<TestMessage>, command| queue.apply_command(command, MessageId(1), START).unwrap();
    assert!(!command(&mut queue, OperatorCommand::Release).done);
    let mut ids = Vec::new();
    let _courier = opened(&mut queue, START);
    queue.messages_to_read(&mut ids);
    assert_eq!(ids, [MessageId(1)], "it is read again");
    assert!(command(&mut queue, OperatorCommand::Remove).done);
}

#[test]
fn delivered_recipients_without_a_dsn_are_done() {
    let mut queue = queue(|_| {});
    assert!(with_failed_dsn(&mut queue, &[(0, RecipientFate::Confirmed(Confirmation::Delivered))]).done);
    assert!(queue.show(MessageId(1), START).is_empty());
}

#[test]
fn commands_reach_entries_in_flight() {
    let mut queue = filled(3, 1, |_| {});
    let mut slot = opened(&mut queue, START);
    let [first, second, third] = [0; 3].map(|_| taken(&mut queue, &mut slot, START));
    let mut command = |command, id| queue.apply_command(command, MessageId(id), START).map(|actions| actions.done);
    assert_eq!((command(OperatorCommand::Hold, 0), command(OperatorCommand::Hold, 0)), (Some(false), None));
    assert_eq!((command(OperatorCommand::Remove, 1), command(OperatorCommand::Remove, 1)), (Some(false), None));
    assert_eq!((command(OperatorCommand::Hold, 2), command(OperatorCommand::Release, 2)), (Some(false), Some(false)));
    assert_eq!(command(OperatorCommand::Retry, 2), None);
    assert!(!queue.finish_delivery(first, DeliveryResult::Unsent, START).done);
    assert!(
        queue.finish_delivery(second, DeliveryResult::All(RecipientStatus::Failed(refusal(550))), START).done,
        "nobody is told"
    );
    assert!(!queue.finish_delivery(third, DeliveryResult::Unsent, START).done);
    let stats = stats(&queue, 0);
    assert_eq!((stats.ready, stats.held, stats.deferred), (1, 1, 0));
}

fn commanded(queue: &mut MailQueue<TestMessage>, command: OperatorCommand, id: u64) -> Vec<Fact> {
    queue.apply_command(command, MessageId(id), START).map_or(Vec::new(), |actions| actions.facts)
}

#[test]
fn commands_are_recorded() {
    let mut queue = filled(3, 1, |_| {});
    let mut slot = opened(&mut queue, START);
    for _ in 0..2 {
        let request = taken(&mut queue, &mut slot, START);
        drop(queue.finish_delivery(request, DeliveryResult::All(RecipientStatus::Deferred(refusal(450))), START).facts);
    }
    let _in_flight = taken(&mut queue, &mut slot, START);
    let at_once = Fact::Deferred { recipients: vec![0], attempts: 1, next_unix_s: 0, refusal: refusal(450) };
    assert_eq!(commanded(&mut queue, OperatorCommand::Retry, 0), vec![at_once.clone()]);
    assert_eq!(commanded(&mut queue, OperatorCommand::Hold, 1), [Fact::Held]);
    assert_eq!(commanded(&mut queue, OperatorCommand::Release, 1), [at_once, Fact::Released]);
    assert_eq!(commanded(&mut queue, OperatorCommand::Hold, 2), [Fact::Held]);
    let removed = Fact::Settled { recipients: vec![0], fate: RecipientFate::Removed };
    assert_eq!(commanded(&mut queue, OperatorCommand::Remove, 2), [removed], "though it is being sent");
    assert_eq!(commanded(&mut queue, OperatorCommand::Remove, 2), []);
}

#[test]
fn a_delivery_task_that_panicked_gives_its_message_back_and_does_not_count_as_an_answer() {
    let mut queue = filled(1, 1, |_| {});
    let mut slot = opened(&mut queue, START);
    let request = taken(&mut queue, &mut slot, START);
    let actions = queue.finish_delivery(request, DeliveryResult::Panicked(refusal(0)), START);
    assert!(matches!(&actions.facts[..], [Fact::Deferred { attempts: 1, .. }]), "{actions:?}");
    assert_eq!(queue.show(MessageId(0), START)[0].state, EntryState::Deferred);
}

#[test]
fn commands_reach_a_whole_destination() {
    let mut queue = filled(10, 2, |_| {});
    let ids = |destination: u64| (0..20).filter(move |id| id % 2 == destination).map(MessageId);
    let command = |queue: &mut MailQueue<TestMessage>, command, destination| {
        ids(destination).filter(|id| queue.apply_command(command, *id, START).is_some()).count()
    };
    assert_eq!(command(&mut queue, OperatorCommand::Hold, 0), 10);
    assert_eq!((stats(&queue, 0).held, stats(&queue, 1).held), (10, 0));
    assert_eq!([0, 1].map(|destination| command(&mut queue, OperatorCommand::Release, destination)), [10, 0]);
    assert_eq!(command(&mut queue, OperatorCommand::Remove, 1), 10);
    assert_eq!((queue.totals().messages, stats(&queue, 0).ready), (10, 10));
    // An operator's retry must end the backoff of a destination, so that a connection is opened at once.
    let slot = opened(&mut queue, START);
    queue.closed(slot, DisconnectReason::Unreachable(refusal(421)), START);
    assert_eq!(queue.next_connection_action(START), None);
    assert_eq!(command(&mut queue, OperatorCommand::Retry, 0), 1, "the first of them opens the destination");
    assert_eq!(opened(&mut queue, START).destination, DestinationId(0));
}

#[test]
fn a_command_for_a_destination_leaves_the_message_s_other_recipients_alone() {
    let mut queue = queue(|_| {});
    (0..2).for_each(|destination| queue.put(arrival(1, u32::from(destination), &[destination]), START));
    let id = MessageId(1);
    let removed = queue.apply_command_at(OperatorCommand::Remove, id, Some(DestinationId(0)), START).unwrap();
    let settled = Fact::Settled { recipients: vec![0], fate: RecipientFate::Removed };
    assert_eq!((&removed.facts[..], removed.done), (&[settled][..], false));
    let left: Vec<DestinationId> = queue.show(id, START).iter().map(|entry| entry.destination).collect();
    assert_eq!(left, [DestinationId(1)]);
    let held = queue.apply_command_at(OperatorCommand::Hold, id, Some(DestinationId(0)), START).unwrap();
    assert_eq!((&held.facts[..], stats(&queue, 1).held), (&[Fact::Held][..], 1), "a message is held as a whole");
}

#[test]
fn a_pending_dsn_survives_a_restart() {
    let mut queue = queue(|_| {});
    let failed = vec![(3, RecipientFate::Failed(refusal(550)))];
    queue.put(arrival(1, 0, &[0]), START);
    let dsn = queue.restore_pending_dsn(arrival(1, 5, &[]), failed.clone());
    let DsnEvent::Settled { pending, fates, attempted_unix_s } = dsn else { panic!("it is settled") };
    assert_eq!((fates, attempted_unix_s), (failed, None));
    let mut slot = opened(&mut queue, START);
    let request = taken(&mut queue, &mut slot, START);
    assert!(!queue.finish_delivery(request, DeliveryResult::Delivered, START).done, "not before the DSN is stored");
    assert!(queue.dsn_stored(pending).done);
}

#[test]
fn a_list_is_shown_page_by_page() {
    let mut queue = filled(10, 1, |_| {});
    queue.apply_command(OperatorCommand::Remove, MessageId(4), START);
    assert_eq!(queue.page(0, 3, START).entries.len(), 3);
    let mut from = Some(0);
    let mut seen = Vec::new();
    while let Some(start) = from {
        let page = queue.page(start, 3, START);
        assert!(page.entries.len() <= 3);
        seen.extend(page.entries.iter().map(|entry| entry.id.0));
        from = page.next;
    }
    assert_eq!(seen, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    assert!(queue.show(MessageId(4), START).is_empty() && queue.show(MessageId(5), START).len() == 1);
    assert_eq!(stats(&queue, 0).oldest_unix_s, Some(START.as_secs()));
    // After a restart, an old message may enter the queue after newer messages. It must still count as the oldest.
    queue.put(NewEntry { received_unix_s: START.as_secs() - 50, ..arrival(99, 0, &[0]) }, START);
    assert_eq!(stats(&queue, 0).oldest_unix_s, Some(START.as_secs() - 50));
    queue.apply_command(OperatorCommand::Remove, MessageId(99), START);
    assert_eq!(stats(&queue, 0).oldest_unix_s, Some(START.as_secs()));
}

#[test]
fn a_million_entries_are_small_and_go_as_they_came() {
    const MILLION: u64 = 1_000_000;
    let mut queue = queue(|_| {});
    for id in 0..MILLION {
        queue.put(NewEntry { message: None, ..arrival(id, (id % 100) as u32, &[0]) }, START);
    }
    assert_eq!(
        queue.totals(),
        QueueTotals { messages: 1_000_000, entries: 1_000_000, connections: 0, message_bytes: 0 }
    );
    let table = queue.entries.slot_count() as usize * std::mem::size_of::<QueueEntry<TestMessage>>();
    // Each slot of the hash table has a key, a value and a control byte. Only seven of eight slots can be used.
    let index = queue.messages.capacity() * 8 / 7 * (std::mem::size_of::<(MessageId, EntryIndex)>() + 1);
    assert!(table + index <= 250 * MILLION as usize, "{} octets an entry", (table + index) / MILLION as usize);
    assert!(queue.apply_command(OperatorCommand::Remove, MessageId(777_777), START).is_some());
    // The delay notices of all messages become due in the same second. One tick must handle only some of them, so that
    // sessions need not wait. The deadline must then stay in the past, so that the driver soon calls `tick` again.
    let late = START + seconds(4 * 3_600 + 2);
    let mut actions = Vec::new();
    queue.tick(late, &mut actions);
    assert_eq!(actions.len(), MAX_TICK_TIMERS);
    assert!(queue.deadline().is_some_and(|deadline| deadline <= late), "there is more to do");
    let sent = deliver(&mut queue, MILLION / 50);
    assert_eq!(queue.totals().messages as u64, MILLION - 1 - sent);
}

#[test]
fn an_empty_queue_is_small_again() {
    let mut queue = queue(|_| {});
    (0..30_000).for_each(|id| queue.put(NewEntry { message: None, ..arrival(id, 0, &[0]) }, START));
    let sent = deliver(&mut queue, 10_000);
    let removed = (0..30_000).filter_map(|id| queue.apply_command(OperatorCommand::Remove, MessageId(id), START));
    assert_eq!(removed.inspect(|actions| assert!(actions.done)).count() as u64, 30_000 - sent);
    assert_eq!((queue.totals().entries, queue.entries.slot_count()), (0, 0));
    assert!(queue.messages.capacity() <= 2 * SPARE_MESSAGES);
}

fn deliver(queue: &mut MailQueue<TestMessage>, limit: u64) -> u64 {
    let mut sent = 0;
    let mut ids = Vec::new();
    let mut slots = Vec::new();
    while sent < limit {
        while let Some(call) = queue.next_connection_action(START) {
            slots.extend(if let ConnectionAction::Open(slot) = call { Some(slot) } else { None });
        }
        queue.messages_to_read(&mut ids);
        let message: TestMessage = vec![0; 100].into();
        ids.drain(..).for_each(|id| queue.loaded(id, &message));
        for slot in &mut slots {
            if let NextRequest::Deliver(request) = queue.take(slot, START) {
                assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
                sent += 1;
            }
        }
    }
    sent
}

#[test]
fn the_first_ready_message_is_always_read() {
    let mut queue = queue(|options| options.message_bytes = 150);
    queue.put(NewEntry { message: None, ..arrival(1, 0, &[0]) }, START);
    queue.put(arrival(2, 0, &[0]), START);
    let mut slot = opened(&mut queue, START);
    assert!(is_waiting(&queue.take(&mut slot, START)));
    let mut ids = Vec::new();
    queue.messages_to_read(&mut ids);
    assert_eq!((ids.as_slice(), queue.totals().message_bytes), ([MessageId(1)].as_slice(), 200));
}

#[test]
fn a_restart_does_not_hurry_the_next_try() {
    let mut queue = queue(|options| options.origin_unix = seconds(1_000));
    let before = EntryProgress { next_unix_s: 1_000 + START.as_secs() + 60, attempts: 3, ..EntryProgress::default() };
    queue.put(NewEntry { progress: before, received_unix_s: 1_050, ..arrival(1, 0, &[0]) }, START);
    assert_eq!((queue.next_connection_action(START), stats(&queue, 0).deferred), (None, 1));
    assert_eq!(queue.deadline(), Some(START + seconds(60)));
    assert!(ticked(&mut queue, START + seconds(60)).is_empty());
    let slot = opened(&mut queue, START + seconds(60));
    assert_eq!((slot.destination, stats(&queue, 0).ready), (DestinationId(0), 1));
}

#[test]
fn a_step_of_the_clock_moves_no_entry_in_the_queue() {
    let mut queue = queue(|options| options.origin_unix = seconds(1_000));
    queue.put(NewEntry { received_unix_s: 1_000 + START.as_secs(), ..arrival(1, 0, &[0]) }, START);
    // Step the clock by more than the lifetime of a message, as if the host had been suspended for six days.
    let origin = 1_000 + 6 * 86_400;
    queue.set_unix_origin(seconds(origin));
    let fresh = NewEntry { received_unix_s: origin + START.as_secs(), ..arrival(2, 0, &[0]) };
    queue.put(fresh, START);
    assert!(ticked(&mut queue, START + seconds(4 * 3_600 - 1)).is_empty(), "neither is late yet");
    assert_eq!(ticked(&mut queue, START + seconds(4 * 3_600 + 1)).len(), 2);
    let expires: Vec<u64> = queue.page(0, 10, START).entries.iter().map(|entry| entry.expires_unix_s).collect();
    assert_eq!(expires, [origin + START.as_secs() + 5 * 86_400; 2]);
}

#[test]
fn on_a_host_that_has_run_for_long_the_first_entry_waits_for_its_time() {
    let now = seconds(100 * 86_400);
    let mut queue = MailQueue::new(Options::default(), now);
    queue.put(NewEntry { received_unix_s: now.as_secs(), ..arrival(1, 0, &[0]) }, now);
    let mut actions = Vec::new();
    queue.tick(now, &mut actions);
    assert!(actions.is_empty() && queue.deadline().is_some_and(|deadline| deadline > now), "{:?}", queue.deadline());
}

fn all_opened(queue: &mut MailQueue<TestMessage>, now: Duration) -> Vec<ConnectionSlot> {
    std::iter::from_fn(|| match queue.next_connection_action(now) {
        Some(ConnectionAction::Open(slot)) => Some(slot),
        None => None,
        other => panic!("{other:?} instead of a new connection"),
    })
    .collect()
}

#[test]
fn destinations_that_never_answer_leave_connections_to_others() {
    let mut queue = queue(|options| options.concurrency_limit = 100);
    let put = |queue: &mut MailQueue<TestMessage>, destination, origin| {
        queue.set_origin(DestinationId(destination), origin);
        queue.put(arrival(u64::from(destination), destination, &[0]), START);
    };
    put(&mut queue, 0, DestinationOrigin::Domain);
    let mut good = opened(&mut queue, START);
    assert!(good.is_first_trial());
    let request = taken(&mut queue, &mut good, START);
    assert!(queue.finish_delivery(request, DeliveryResult::Delivered, START).done);
    queue.closed(good, DisconnectReason::Finished, START);
    // There are 400 silent domains, but only 100 connections. The silent domains must leave a quarter of the
    // connections free.
    (1..=400).for_each(|number| put(&mut queue, number, DestinationOrigin::Domain));
    let mut silent = all_opened(&mut queue, START);
    assert_eq!(silent.len(), 75, "a quarter is left");
    // The 25 free connections must at once go to destinations that have answered before, are configured or are local.
    queue.put(arrival(1_000, 0, &[0]), START);
    put(&mut queue, 501, DestinationOrigin::Configured);
    put(&mut queue, 502, DestinationOrigin::Local);
    let served: Vec<u32> = all_opened(&mut queue, START).into_iter().map(|slot| slot.destination.0).collect();
    assert_eq!(served, [0, 502, 501]);
    // Three of the 75 attempts end. Only two attempts can begin, because the attempt to reach 501 also counts. One must
    // go to the new domain 503, and the other to the domain that has waited longest.
    put(&mut queue, 503, DestinationOrigin::Domain);
    for slot in silent.drain(..3) {
        queue.closed(slot, DisconnectReason::Unreachable(refusal(0)), START);
    }
    let next = all_opened(&mut queue, START);
    let mut numbers: Vec<u32> = next.iter().map(|slot| slot.destination.0).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [38, 503]);
    silent.extend(next);
    // A failed attempt begins a backoff, which only `tick` ends. The loop does not call `tick`, so the queue must try
    // each silent domain exactly once.
    let mut now = START;
    let mut tried = 0;
    while !silent.is_empty() {
        now += seconds(10);
        tried += silent.len();
        assert!(silent.iter().all(ConnectionSlot::is_first_trial) || tried > 400);
        for slot in silent.drain(..) {
            queue.closed(slot, DisconnectReason::Unreachable(refusal(0)), now);
        }
        silent = if tried < 400 { all_opened(&mut queue, now) } else { Vec::new() };
    }
    // All silent domains have failed once, and their backoff is over. Retries must get at most half of the 100
    // connections, so that the new domain 600 gets a connection at once.
    now += seconds(3_600);
    ticked(&mut queue, now);
    let again = all_opened(&mut queue, now);
    assert_eq!(again.len(), 50);
    assert!(again.iter().all(|slot| !slot.is_first_trial()));
    put(&mut queue, 600, DestinationOrigin::Domain);
    assert_eq!(opened(&mut queue, now).destination, DestinationId(600));
}

#[test]
fn destinations_that_failed_have_their_turn_among_new_ones() {
    let mut queue = queue(|options| options.concurrency_limit = 100);
    let put = |queue: &mut MailQueue<TestMessage>, numbers: std::ops::Range<u32>| {
        for number in numbers {
            queue.set_origin(DestinationId(number), DestinationOrigin::Domain);
            queue.put(arrival(u64::from(number), number, &[0]), START);
        }
    };
    put(&mut queue, 0..30);
    for slot in all_opened(&mut queue, START) {
        queue.closed(slot, DisconnectReason::Unreachable(refusal(0)), START);
    }
    put(&mut queue, 100..400);
    let now = START + seconds(60);
    ticked(&mut queue, now);
    let opened = all_opened(&mut queue, now);
    assert_eq!((opened.len(), opened.iter().filter(|slot| slot.destination.0 < 100).count()), (75, 25));
    opened.into_iter().for_each(|slot| queue.closed(slot, DisconnectReason::Finished, now));
}

#[test]
fn few_connections_are_all_used() {
    for limit in 1..8 {
        let mut queue = queue(|options| options.concurrency_limit = limit);
        for number in 0..20 {
            queue.set_origin(DestinationId(number), DestinationOrigin::Configured);
            queue.put(arrival(u64::from(number), number, &[0]), START);
        }
        assert_eq!(all_opened(&mut queue, START).len() as u32, limit);
    }
}
