//! Simulates a probe without clock, network and disk, so that a week passes in seconds.
use super::account::{Account, Answer, Event, Ns};
use super::journal::{Journal, Storage};
use super::pacer::{Pace, Probe, Witness};
use crate::sink::arrivals::{Arrival, ArrivalKind};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;

const SECOND: Ns = 1_000_000_000;
const START: Ns = 1_790_000_000 * SECOND;

/// Storage in memory for a journal, so that tests can simulate full disks and restarts.
#[derive(Clone, Default)]
pub(super) struct MemoryStorage {
    pub(super) content: Rc<RefCell<Option<Vec<u8>>>>,
    /// Number of bytes that can still be written before the disk counts as full, or `None` for no limit.
    pub(super) room: Rc<Cell<Option<usize>>>,
}

impl MemoryStorage {
    fn take(&self, wanted: usize) -> (usize, io::Result<()>) {
        let Some(room) = self.room.get() else { return (wanted, Ok(())) };
        let taken = wanted.min(room);
        self.room.set(Some(room - taken));
        (taken, if taken < wanted { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) })
    }
}

impl Storage for MemoryStorage {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.content.borrow().clone())
    }

    fn replace(&mut self, content: &[u8]) -> io::Result<()> {
        self.take(content.len()).1?;
        *self.content.borrow_mut() = Some(content.to_vec());
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (taken, result) = self.take(bytes.len());
        self.content.borrow_mut().get_or_insert_default().extend_from_slice(&bytes[..taken]);
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts of what really happened to the messages of a route. The test compares the probe's counts with these.
#[derive(Debug, Default, PartialEq)]
struct Truth {
    accepted: u64,
    rejected: u64,
    delivered: u64,
    bounced: u64,
    dropped: u64,
    copies: u64,
}

/// Simulated servers. A pseudo-random number decides what happens to each message.
struct World {
    /// Answers and arrivals that are still to come, ordered by their time.
    future: BTreeMap<(Ns, u64), Happening>,
    count: u64,
    truth: HashMap<String, Truth>,
    random: u64,
}

#[derive(Clone, Copy)]
enum Happening {
    Answered(u64, Answer, Ns),
    Arrived(Arrival),
}

impl World {
    fn random(&mut self) -> u64 {
        // Use SplitMix64, so that a seed always gives the same simulation.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn later(&mut self, at: Ns, happening: Happening) {
        self.count += 1;
        self.future.insert((at, self.count), happening);
    }

    fn receive(&mut self, route: &str, number: u64, now: Ns) {
        let chance = self.random() % 1000;
        let took = SECOND / 1000 * (1 + self.random() % 400);
        let arrive =
            |kind, took| Happening::Arrived(Arrival { number, kind, delivered_ns: Some(took), announced_ns: None });
        let truth = self.truth.entry(route.to_owned()).or_default();
        // The simulated server rejects all mail in the first hour of each day.
        let is_closed = (now / SECOND) % 86_400 < 3_600;
        let (answer, arrival) = match (route, chance) {
            ("dead", _) => (Answer::Failed, None),
            (_, _) if is_closed => {
                truth.rejected += 1;
                (Answer::Rejected, None)
            }
            (_, 0..5) => {
                truth.dropped += 1;
                (Answer::Accepted, None)
            }
            (_, 5..10) => {
                truth.bounced += 1;
                (Answer::Accepted, Some((ArrivalKind::Bounced, 20 * SECOND)))
            }
            // This message takes 2,000 s, so it has already been counted as lost when it arrives.
            (_, 10..15) => {
                truth.delivered += 1;
                (Answer::Accepted, Some((ArrivalKind::Delivered, 2_000 * SECOND)))
            }
            (_, 15..20) => {
                truth.delivered += 1;
                truth.copies += 1;
                self.later(now + 3 * SECOND, arrive(ArrivalKind::Duplicate, took));
                (Answer::Accepted, Some((ArrivalKind::Delivered, took)))
            }
            // The message arrives before the server's reply. Half of these replies never reach the probe.
            (_, 20..40) => {
                truth.delivered += 1;
                let answer = if chance < 30 { Answer::Accepted } else { Answer::Unknown };
                (answer, Some((ArrivalKind::Delivered, took / 2)))
            }
            _ => {
                truth.delivered += 1;
                (Answer::Accepted, Some((ArrivalKind::Delivered, took + SECOND / 5)))
            }
        };
        self.truth.entry(route.to_owned()).or_default().accepted += u64::from(answer == Answer::Accepted);
        self.later(now + took, Happening::Answered(number, answer, took));
        if let Some((kind, after)) = arrival {
            self.later(now + after, arrive(kind, after));
        }
    }
}

fn paces(names: &[&str]) -> Vec<Pace> {
    let pace = |name: &&str| Pace {
        name: (*name).to_owned(),
        interval_ns: 10 * SECOND,
        lost_after_ns: 600 * SECOND,
        is_watched: true,
    };
    names.iter().map(pace).collect()
}

/// Sizes of the journal and the account after a simulated day. The test checks that no size grows from day to day.
#[derive(Debug, Default)]
struct Sizes {
    file: usize,
    /// Length in bytes of the probe's account as JSON. This is an estimate of the memory that the account needs.
    account: usize,
    in_flight: u64,
    missing: u64,
}

/// Simulates a probe for `days`, and returns its account. The probe is killed and started again every `lifetime`.
fn simulate(days: u64, lifetime: Ns, sizes: &mut Vec<Sizes>) -> (Account, World) {
    let names = ["relay", "postfix", "dead"];
    let storage = MemoryStorage::default();
    let mut world = World { future: BTreeMap::new(), count: 0, truth: HashMap::new(), random: 7 };
    let mut now = START;
    let end = START + days * 86_400 * SECOND;
    let mut ended: Option<Account> = None;
    while now < end {
        let mut journal = Journal::new(storage.clone());
        let recovered = journal.recover().unwrap();
        if let (Some(before), Some(recovered)) = (&ended, &recovered) {
            assert_eq!(recovered.account, *before, "a probe that is killed forgets nothing");
            assert_eq!(recovered.damaged, 0);
        }
        let account = recovered.map_or_else(|| Account::new("run".to_owned()), |recovered| recovered.account);
        let (mut probe, _) = Probe::new(account);
        assert!(probe.set_routes(paces(&names), now));
        journal.compact(&probe.account).unwrap();
        let death = (now + lifetime).min(end);
        let mut reported = now / SECOND / 86_400;
        while now < death {
            for due in probe.due(now) {
                let event = probe.created(&due);
                journal.append(&[event], &probe.account, true).unwrap();
                probe.began(&event);
                let name = probe.route(due.number).unwrap().pace.name.clone();
                world.receive(&name, due.number, now);
            }
            while let Some((at, happening)) = world.future.first_entry().map(|entry| (entry.key().0, *entry.get()))
                && at <= now
            {
                world.future.pop_first();
                let event = match happening {
                    Happening::Answered(number, answer, took) => Some(probe.answered(number, answer, took, now)),
                    Happening::Arrived(arrival) => probe.arrived(&arrival, Witness::Sink, now),
                };
                if let Some(event) = event {
                    journal.append(&[event], &probe.account, false).unwrap();
                    probe.account.apply(&event);
                }
            }
            probe.seen(&[0, 1, 2], now);
            let mut events = probe.overdue();
            events.extend(
                probe.finished_days(now).iter().map(|(route, day)| Event::Reported { route: *route, day: *day }),
            );
            journal.append(&events, &probe.account, false).unwrap();
            events.iter().for_each(|event| probe.account.apply(event));
            let today = now / SECOND / 86_400;
            if today > reported {
                reported = today;
                let in_flight = probe.account.routes.values().map(|route| route.in_flight()).sum();
                let account = serde_json::to_vec(&probe.account).unwrap().len();
                let missing = probe.account.routes.values().map(|route| route.counts.missing()).sum();
                sizes.push(Sizes { file: storage.clone().read().unwrap().unwrap().len(), account, in_flight, missing });
            }
            for route in probe.account.routes.values() {
                assert_eq!(route.counts.created, route.in_flight() + route.counts.settled(), "at {now}");
            }
            let next = world.future.first_key_value().map_or(Ns::MAX, |((at, _), _)| *at);
            now = probe.next_due_ns().unwrap_or(Ns::MAX).min(next).max(now + 1).min(now + SECOND * 60).min(death);
        }
        // Drop the replies that were under way when the probe died, because no probe receives them.
        world.future.retain(|_, happening| !matches!(happening, Happening::Answered(..)));
        ended = Some(probe.account);
    }
    (ended.unwrap(), world)
}

#[test]
fn in_a_week_the_account_is_right_and_nothing_grows() {
    let mut sizes = Vec::new();
    let (account, world) = simulate(7, Ns::MAX / 2, &mut sizes);
    for (number, route) in &account.routes {
        let counts = route.counts;
        if route.name == "dead" {
            assert_eq!(counts.failed, counts.created - route.in_flight());
            continue;
        }
        let truth = &world.truth[&route.name];
        let open = route.in_flight();
        assert!(open < 200, "route {number}: {open} in flight");
        assert_eq!(counts.rejected, truth.rejected, "{route:?}");
        assert_eq!(counts.repeated, truth.copies);
        for (what, counted, happened) in [
            ("accepted", counts.accepted, truth.accepted),
            ("delivered", counts.delivered, truth.delivered),
            ("bounced", counts.bounced, truth.bounced),
            ("lost", counts.missing(), truth.dropped),
        ] {
            assert!(counted <= happened && happened <= counted + open + 2, "{what}: {counted} of {happened}");
        }
        assert!(counts.late > 100, "{counts:?}");
    }
    assert_eq!(sizes.len(), 7);
    for size in &sizes {
        assert!(size.file < 400 << 10 && size.account < 120 << 10 && size.in_flight < 400, "{sizes:?}");
    }
    // The account keeps lost messages in case they still arrive, so allow 64 bytes for each new lost message. Apart
    // from these bytes, the account may grow by 10 %.
    let (first, last) = (&sizes[1], &sizes[6]);
    assert!(
        last.account < first.account + first.account / 10 + 64 * (last.missing - first.missing) as usize,
        "{sizes:?}"
    );
    println!("account and file after each day: {sizes:?}");
}

#[test]
fn a_probe_that_is_killed_every_few_minutes_loses_no_account() {
    let (account, world) = simulate(1, 611 * SECOND + 77, &mut Vec::new());
    for route in account.routes.values().filter(|route| route.name != "dead") {
        let (counts, truth) = (route.counts, &world.truth[&route.name]);
        assert!(counts.created > 5_000);
        assert!(counts.delivered <= truth.delivered && truth.delivered <= counts.delivered + route.in_flight() + 2);
        assert!(counts.in_doubt <= 144 + truth.dropped, "{counts:?}");
    }
}
