//! The account of a probe: how many messages it has sent, and what became of each. The account is computed from events
//! that the journal keeps on disk, so a probe that was killed recovers it.
//!
//! Apart from [`unix_ns`], which the probe's threads call, nothing here reads a clock. A test can therefore simulate
//! weeks in seconds.
//!
//! Every message that is no longer in flight has exactly one fate, so the counts add up:
//!
//! ```text
//! created = in flight + rejected + failed + in doubt + delivered + bounced + lost − late + unwatched
//! ```
use crate::sink::arrivals::{Arrival, ArrivalKind};
use mailrun_measurement::Latencies;
use mailrun_measurement::buckets::Buckets;
use mailrun_net::clock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A Unix time in nanoseconds, or a duration in nanoseconds.
pub(crate) type Ns = u64;

const DAY_NS: Ns = 86_400 * 1_000_000_000;
/// Position of the lowest bit of the route's number in a message number. The 32 bits below it count the messages of the
/// route.
const ROUTE_SHIFT: u32 = 32;
/// Maximum number of routes, including removed routes. With more routes, message numbers would not fit into the trace
/// header of a message.
pub(super) const MAX_ROUTES: u16 = 1 << 10;
/// Maximum number of overdue messages that a route remembers in case they still arrive. If there are more, the oldest
/// are forgotten.
const MAX_MISSING: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Accepted,
    Rejected,
    /// The session failed before the message was handed over.
    Failed,
    /// The session or the probe ended while it waited for the answer, so the server may have accepted the message.
    Unknown,
}

/// An event that changes the probe's counts or its list of messages in flight. The journal records all these events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A message is about to be sent. The event is on disk before the message leaves, so that a probe that is killed
    /// while it sends still knows about the message.
    Created {
        number: u64,
        due_ns: Ns,
        watched: bool,
    },
    Answered {
        number: u64,
        answer: Answer,
        took_ns: Ns,
        at_ns: Ns,
    },
    Arrived {
        arrival: Arrival,
        at_ns: Ns,
    },
    /// A message has not arrived in time. `looked` is false if the message may have arrived unseen, because its route
    /// is no longer watched or its sink has dropped arrivals. The message then counts as in doubt and not as lost.
    Overdue {
        number: u64,
        looked: bool,
    },
    /// The wall clock was set forward by `by_ns`, or back if `by_ns` is negative. The due times of messages in flight
    /// are shifted by the same amount.
    ClockSet {
        by_ns: i64,
    },
    /// The daily report of a route was written, so the account drops its counts and latencies of that day.
    Reported {
        route: u16,
        day: u64,
    },
}

/// Stages of a message that the probe times. Each time counts from the moment at which the message was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStage {
    Accepted,
    Announced,
    Delivered,
}

impl ProbeStage {
    pub(super) const ALL: [(Self, &'static str); 3] =
        [(Self::Accepted, "accepted"), (Self::Announced, "announced"), (Self::Delivered, "delivered")];
}

/// Numbers of messages by what became of them. `lost` counts all accepted messages that did not arrive in time. `late`
/// counts those lost messages that arrived or bounced afterwards, so `lost - late` messages are still missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    pub(crate) created: u64,
    /// Messages that the server accepted, whatever happened to them afterwards.
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    /// Messages that may have been delivered or lost. Either the server's answer is unknown and no arrival was seen in
    /// time, or the message may have arrived unseen ([`Event::Overdue`]).
    pub(crate) in_doubt: u64,
    pub(crate) delivered: u64,
    pub(crate) bounced: u64,
    pub(crate) lost: u64,
    pub(crate) late: u64,
    /// Accepted messages of which the probe learns nothing more, because their route has no sink or mailbox to watch.
    pub(crate) unwatched: u64,
    /// Arrivals that change no other count, such as a second copy of a message, or a message that bounced before.
    pub(crate) repeated: u64,
}

impl Counts {
    #[cfg(test)]
    pub(super) fn settled(&self) -> u64 {
        let Self { rejected, failed, in_doubt, delivered, bounced, unwatched, .. } = *self;
        rejected + failed + in_doubt + delivered + bounced + unwatched + self.missing()
    }

    /// Returns the number of lost messages that have not arrived or bounced since.
    pub(super) fn missing(&self) -> u64 {
        self.lost.saturating_sub(self.late)
    }
}

/// A message in flight, for which the server's answer or the arrival is still missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenMessage {
    due_ns: Ns,
    /// Sum of all corrections of the wall clock since the message was created. `due_ns` includes this sum.
    #[serde(default)]
    clock_set_ns: i64,
    watched: bool,
    answer: Option<Answer>,
    /// How the message arrived, or `None` if it has not. It may arrive before the sender receives the server's answer.
    arrival: Option<ArrivalKind>,
}

impl OpenMessage {
    /// Returns the day on which the message was due by the clock at its creation, before any correction of the clock.
    /// The account has counted the message as created on this day.
    fn day(&self) -> u64 {
        day_of(self.due_ns.saturating_add_signed(self.clock_set_ns.saturating_neg()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MissingMessage {
    number: u64,
    day: u64,
    was_accepted: bool,
}

/// Counts and latencies of the messages of a route that were due on one day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "StoredDay", from = "StoredDay")]
pub(super) struct Day {
    pub(super) counts: Counts,
    pub(super) latencies: [Latencies; ProbeStage::ALL.len()],
}

/// JSON form of a [`Day`] in the journal. Each latency distribution is a text, in the same form as in interval logs.
#[derive(Serialize, Deserialize)]
struct StoredDay {
    counts: Counts,
    latencies: [Option<String>; ProbeStage::ALL.len()],
}

impl From<Day> for StoredDay {
    fn from(day: Day) -> Self {
        Self { counts: day.counts, latencies: day.latencies.map(|latencies| latencies.encoded()) }
    }
}

impl From<StoredDay> for Day {
    fn from(stored: StoredDay) -> Self {
        let latencies = stored.latencies.map(|text| text.and_then(|text| Latencies::decode(&text)).unwrap_or_default());
        Self { counts: stored.counts, latencies }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RouteAccount {
    pub(super) name: String,
    next: u64,
    pub(super) counts: Counts,
    pub(super) buckets: [Buckets; ProbeStage::ALL.len()],
    open: BTreeMap<u64, OpenMessage>,
    missing: VecDeque<MissingMessage>,
    /// Time at which the server last accepted a message, or 0 if it never did. `last_delivered_ns` is 0 if no message
    /// was ever delivered.
    pub(super) last_accepted_ns: Ns,
    pub(super) last_delivered_ns: Ns,
    pub(super) days: BTreeMap<u64, Day>,
}

/// The counts and open messages of all routes of a probe, including removed routes, whose mail may still arrive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Account {
    /// Run ID that is part of the trace in every message.
    pub(super) run: String,
    pub(super) routes: BTreeMap<u16, RouteAccount>,
}

pub(super) fn ns(time: Duration) -> Ns {
    Ns::try_from(time.as_nanos()).unwrap_or(Ns::MAX)
}

pub(super) fn unix_ns() -> Ns {
    ns(clock::wall())
}

/// Returns the number of the day (UTC) that contains a time. Day 0 is 1 January 1970.
pub(super) fn day_of(time_ns: Ns) -> u64 {
    time_ns / DAY_NS
}

pub(super) fn route_of(number: u64) -> u16 {
    u16::try_from(number >> ROUTE_SHIFT).unwrap_or(u16::MAX)
}

impl Account {
    pub(super) fn new(run: String) -> Self {
        Self { run, routes: BTreeMap::new() }
    }

    /// Returns the number of the route with this name, or a new number if the name is new. Returns `None` if there
    /// would be more than `MAX_ROUTES`.
    pub(super) fn open_route(&mut self, name: &str) -> Option<u16> {
        if let Some((number, _)) = self.routes.iter().find(|(_, route)| route.name == name) {
            return Some(*number);
        }
        // `routes` still contains removed routes, so their numbers are not reused. Otherwise, mail of a removed route
        // that arrives late would count for the new route.
        let number = self.routes.keys().next_back().map_or(0, |last| last + 1);
        let route = RouteAccount { name: name.to_owned(), ..RouteAccount::default() };
        (number < MAX_ROUTES).then(|| {
            self.routes.insert(number, route);
            number
        })
    }

    /// Returns the number for the route's next message. Its upper bits are the number of the route.
    pub(super) fn next_number(&self, route: u16) -> u64 {
        u64::from(route) << ROUTE_SHIFT | self.routes.get(&route).map_or(0, |route| route.next)
    }

    pub(super) fn unanswered(&self) -> Vec<u64> {
        let open = self.routes.values().flat_map(|route| &route.open);
        open.filter(|(_, message)| message.answer.is_none()).map(|(number, _)| *number).collect()
    }

    /// Returns the messages of a route that the server has answered, but that had not arrived `lost_after_ns` after
    /// they were due. Arrivals are known only up to the time `seen_until_ns`. A message that still had time to arrive
    /// at that time is left out, because it may have arrived since.
    pub(super) fn overdue(&self, route: u16, seen_until_ns: Ns, lost_after_ns: Ns) -> Vec<u64> {
        let open = self.routes.get(&route).into_iter().flat_map(|route| &route.open);
        let is_overdue = |message: &OpenMessage| {
            message.answer.is_some() && message.due_ns.saturating_add(lost_after_ns) <= seen_until_ns
        };
        open.filter(|(_, message)| is_overdue(message)).map(|(number, _)| *number).collect()
    }

    /// Returns true if the arrival of a message changes the counts of its route, so that the probe must record it.
    /// `is_own` is true if this process has sent the message. If an earlier process sent the message and already
    /// counted what became of it, the arrival does not count again, because sinks and mailboxes report old arrivals to
    /// each new process.
    pub(super) fn concerns(&self, arrival: &Arrival, is_own: bool) -> bool {
        let Some(route) = self.routes.get(&route_of(arrival.number)) else { return false };
        let is_expected = route.open.contains_key(&arrival.number)
            || route.missing.iter().any(|message| message.number == arrival.number);
        is_expected || is_own || arrival.kind == ArrivalKind::Duplicate
    }

    /// Returns the days to report, each with its route. A day is reported once it is over and has no message in flight.
    pub(super) fn finished_days(&self, today: u64) -> Vec<(u16, u64)> {
        let days =
            self.routes.iter().flat_map(|(number, route)| route.days.keys().map(move |day| (*number, route, *day)));
        let is_finished = |route: &RouteAccount, day| !route.open.values().any(|message| message.day() == day);
        days.filter(|(_, route, day)| *day < today && is_finished(route, *day))
            .map(|(number, _, day)| (number, day))
            .collect()
    }

    pub(super) fn apply(&mut self, event: &Event) {
        let number = match event {
            Event::Created { number, .. } | Event::Answered { number, .. } | Event::Overdue { number, .. } => *number,
            Event::Arrived { arrival, .. } => arrival.number,
            Event::ClockSet { by_ns } => {
                let open = self.routes.values_mut().flat_map(|route| route.open.values_mut());
                open.for_each(|message| {
                    message.due_ns = message.due_ns.saturating_add_signed(*by_ns);
                    message.clock_set_ns = message.clock_set_ns.saturating_add(*by_ns);
                });
                return;
            }
            Event::Reported { route, day } => {
                self.routes.get_mut(route).and_then(|route| route.days.remove(day));
                return;
            }
        };
        if let Some(route) = self.routes.get_mut(&route_of(number)) {
            route.apply(number, event);
        }
    }
}

impl RouteAccount {
    pub(super) fn in_flight(&self) -> u64 {
        self.open.len() as u64
    }

    pub(super) fn oldest_due_ns(&self) -> Option<Ns> {
        self.open.values().map(|message| message.due_ns).min()
    }

    fn apply(&mut self, number: u64, event: &Event) {
        match *event {
            Event::Created { due_ns, watched, .. } => {
                self.next = self.next.max((number & ((1 << ROUTE_SHIFT) - 1)) + 1);
                self.days.entry(day_of(due_ns)).or_default();
                self.open.insert(number, OpenMessage { due_ns, clock_set_ns: 0, watched, answer: None, arrival: None });
                self.count(day_of(due_ns), |counts| counts.created += 1);
            }
            Event::Answered { answer, took_ns, at_ns, .. } => {
                let Some(message) = self.open.get_mut(&number).filter(|message| message.answer.is_none()) else {
                    return;
                };
                message.answer = Some(answer);
                let day = message.day();
                if answer == Answer::Accepted {
                    self.count(day, |counts| counts.accepted += 1);
                    self.time(day, ProbeStage::Accepted, Some(took_ns));
                    self.last_accepted_ns = at_ns;
                }
                self.settle(number);
            }
            Event::Arrived { arrival, at_ns } => self.arrive(&arrival, at_ns),
            Event::Overdue { looked, .. } => self.give_up(number, looked),
            Event::ClockSet { .. } | Event::Reported { .. } => {}
        }
    }

    fn arrive(&mut self, arrival: &Arrival, at_ns: Ns) {
        let Arrival { number, kind, delivered_ns, announced_ns } = *arrival;
        let is_copy = kind == ArrivalKind::Duplicate;
        let expected = self.open.get_mut(&number).filter(|message| !is_copy && message.arrival.is_none());
        let day = if let Some(message) = expected {
            message.arrival = Some(kind);
            message.day()
        } else if let Some(place) = self.missing.iter().position(|message| !is_copy && message.number == number) {
            // The message was overdue and counted as lost or in doubt. It has arrived after all, so correct the counts.
            let Some(message) = self.missing.remove(place) else { return };
            self.count(message.day, |counts| {
                match message.was_accepted {
                    true => counts.late += 1,
                    false => counts.in_doubt = counts.in_doubt.saturating_sub(1),
                }
                *fate(counts, kind) += 1;
            });
            message.day
        } else {
            // The account no longer knows the message's day, and the report of that day may already be written. So
            // count the copy for the latest day.
            self.counts.repeated += 1;
            if let Some(mut day) = self.days.last_entry() {
                day.get_mut().counts.repeated += 1;
            }
            return;
        };
        if kind == ArrivalKind::Delivered {
            self.time(day, ProbeStage::Announced, announced_ns);
            self.time(day, ProbeStage::Delivered, delivered_ns);
            self.last_delivered_ns = at_ns;
        }
        self.settle(number);
    }

    /// If it is now known what became of a message, counts this and removes the message from the messages in flight.
    /// Does nothing if the server's answer is not known yet, or if a watched message may still arrive.
    fn settle(&mut self, number: u64) {
        let Some(message) = self.open.get(&number).copied() else { return };
        let OpenMessage { watched, answer: Some(answer), arrival, .. } = message else { return };
        let fate: fn(&mut Counts) -> &mut u64 = match (arrival, answer) {
            (Some(ArrivalKind::Bounced), _) => |counts| &mut counts.bounced,
            (Some(_), _) => |counts| &mut counts.delivered,
            (None, Answer::Rejected) => |counts| &mut counts.rejected,
            (None, Answer::Failed) => |counts| &mut counts.failed,
            (None, Answer::Accepted) if !watched => |counts| &mut counts.unwatched,
            (None, Answer::Unknown) if !watched => |counts| &mut counts.in_doubt,
            (None, Answer::Accepted | Answer::Unknown) => return,
        };
        self.open.remove(&number);
        self.count(message.day(), |counts| *fate(counts) += 1);
    }

    fn give_up(&mut self, number: u64, looked: bool) {
        let Some(message) = self.open.remove(&number) else { return };
        let was_accepted = looked && message.answer == Some(Answer::Accepted);
        let day = message.day();
        self.count(day, |counts| *(if was_accepted { &mut counts.lost } else { &mut counts.in_doubt }) += 1);
        // Remember the message, because it may still arrive late.
        self.missing.push_back(MissingMessage { number, day, was_accepted });
        if self.missing.len() > MAX_MISSING {
            self.missing.pop_front();
        }
    }

    /// Applies `change` to the counts of the route and of the day. A day whose report has been written no longer has
    /// counts.
    fn count(&mut self, day: u64, change: impl Fn(&mut Counts)) {
        change(&mut self.counts);
        if let Some(day) = self.days.get_mut(&day) {
            change(&mut day.counts);
        }
    }

    fn time(&mut self, day: u64, stage: ProbeStage, took_ns: Option<Ns>) {
        let Some(took) = took_ns.map(Duration::from_nanos) else { return };
        self.buckets[stage as usize].record(took);
        if let Some(day) = self.days.get_mut(&day) {
            day.latencies[stage as usize].record(took);
        }
    }
}

fn fate(counts: &mut Counts, kind: ArrivalKind) -> &mut u64 {
    if kind == ArrivalKind::Bounced { &mut counts.bounced } else { &mut counts.delivered }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Ns = 1_000_000_000;

    /// Applies the events in `script` to one route. A message can be created (c), accepted (a), rejected (r), failed
    /// (f), delivered (d), bounced (b), delivered again (D), or overdue (o; x if no longer watched). Its answer can be
    /// unknown (u). A digit after a letter is the number of the message, which is otherwise 0.
    fn played(script: &str, watched: bool) -> RouteAccount {
        let mut account = Account::new(String::new());
        assert_eq!(account.open_route("a"), Some(0));
        for word in script.split_whitespace() {
            let (what, number) = word.split_at(1);
            let number = number.parse().unwrap_or(0);
            let answered = |answer| Event::Answered { number, answer, took_ns: SECOND, at_ns: 5 * SECOND };
            let arrived = |kind| Event::Arrived {
                arrival: Arrival { number, kind, delivered_ns: Some(2 * SECOND), announced_ns: None },
                at_ns: 9 * SECOND,
            };
            account.apply(&match what {
                "c" => Event::Created { number, due_ns: SECOND, watched },
                "a" => answered(Answer::Accepted),
                "r" => answered(Answer::Rejected),
                "f" => answered(Answer::Failed),
                "u" => answered(Answer::Unknown),
                "d" => arrived(ArrivalKind::Delivered),
                "b" => arrived(ArrivalKind::Bounced),
                "D" => arrived(ArrivalKind::Duplicate),
                _ => Event::Overdue { number, looked: what == "o" },
            });
            let route = &account.routes[&0];
            assert_eq!(route.counts.created, route.in_flight() + route.counts.settled(), "{script}, at {word}");
            assert_eq!(route.days[&0].counts, route.counts, "{script}: the day has the same counts");
        }
        account.routes.remove(&0).unwrap()
    }

    fn shown(route: &RouteAccount) -> String {
        let counts = route.counts;
        let rows = [
            ("open", route.in_flight()),
            ("accepted", counts.accepted),
            ("rejected", counts.rejected),
            ("failed", counts.failed),
            ("doubt", counts.in_doubt),
            ("delivered", counts.delivered),
            ("bounced", counts.bounced),
            ("lost", counts.lost),
            ("late", counts.late),
            ("unwatched", counts.unwatched),
            ("repeated", counts.repeated),
        ];
        let text: Vec<String> =
            rows.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        text.join(", ")
    }

    #[test]
    fn every_message_ends_in_one_way() {
        for (script, expected) in [
            ("c", "open 1"),
            ("c a", "open 1, accepted 1"),
            ("c a d", "accepted 1, delivered 1"),
            ("c d", "open 1"),
            ("c d a", "accepted 1, delivered 1"),
            ("c d r", "delivered 1"),
            ("c d u", "delivered 1"),
            ("c d d a", "accepted 1, delivered 1, repeated 1"),
            ("c r", "rejected 1"),
            ("c f", "failed 1"),
            ("c u", "open 1"),
            ("c u d", "delivered 1"),
            ("c u o", "doubt 1"),
            ("c u o d", "delivered 1"),
            ("c a b", "accepted 1, bounced 1"),
            ("c a o", "accepted 1, lost 1"),
            ("c a o d", "accepted 1, delivered 1, lost 1, late 1"),
            ("c a o b", "accepted 1, bounced 1, lost 1, late 1"),
            ("c a o d D", "accepted 1, delivered 1, lost 1, late 1, repeated 1"),
            ("c a d D D", "accepted 1, delivered 1, repeated 2"),
            ("c a b d", "accepted 1, bounced 1, repeated 1"),
            ("c a a o a", "accepted 1, lost 1"),
            ("c c1 a1 d1 a", "open 1, accepted 2, delivered 1"),
            ("c o", "doubt 1"),
            ("c a x", "accepted 1, doubt 1"),
            ("c a x d", "accepted 1, delivered 1"),
        ] {
            assert_eq!(shown(&played(script, true)), expected, "{script}");
        }
        for (script, expected) in [("c a", "accepted 1, unwatched 1"), ("c u", "doubt 1"), ("c r", "rejected 1")] {
            assert_eq!(shown(&played(script, false)), expected, "{script}");
        }
    }

    #[test]
    fn times_are_of_the_stage_and_only_of_messages_that_reached_it() {
        let route = played("c a d c1 r1 c2 a2 b2 c3 a3 D3", true);
        let counted = route.buckets.map(|buckets| buckets.counts().iter().sum::<u64>());
        assert_eq!(counted, [3, 0, 1]);
        assert_eq!(route.days[&0].latencies.each_ref().map(Latencies::count), [3, 0, 1]);
        assert_eq!((route.last_accepted_ns, route.last_delivered_ns), (5 * SECOND, 9 * SECOND));
    }

    #[test]
    fn lost_messages_are_expected_for_long_but_not_without_bound() {
        let script: Vec<String> = (0..MAX_MISSING + 5).map(|number| format!("c{number} a{number} o{number}")).collect();
        let route = played(&[&script.join(" "), "d0 d900"].join(" "), true);
        assert_eq!(route.missing.len(), MAX_MISSING - 1);
        assert_eq!((route.counts.late, route.counts.repeated), (1, 1), "the first was forgotten");
    }

    #[test]
    fn a_day_is_finished_when_all_its_messages_are() {
        let mut account = Account::new(String::new());
        let route = account.open_route("a").unwrap();
        let created = |number, due_ns| Event::Created { number, due_ns, watched: true };
        account.apply(&created(0, DAY_NS - 1));
        account.apply(&created(1, DAY_NS + 1));
        assert_eq!(account.finished_days(0), []);
        account.apply(&Event::ClockSet { by_ns: 5 });
        assert_eq!(account.finished_days(1), [], "its message is in flight, although it is due on another day now");
        account.apply(&Event::Answered { number: 0, answer: Answer::Failed, took_ns: 0, at_ns: 0 });
        assert_eq!(account.finished_days(1), [(route, 0)]);
        let first = account.routes[&route].days[&0].counts;
        assert_eq!((first.created, first.failed), (1, 1));
        account.apply(&Event::Reported { route, day: 0 });
        assert_eq!(account.finished_days(1), []);
        assert_eq!(account.routes[&route].counts.failed, 1, "the route keeps its counts");
    }

    #[test]
    fn routes_keep_their_numbers() {
        let mut account = Account::new(String::new());
        let numbers = ["a", "b", "a"].map(|name| account.open_route(name).unwrap());
        assert_eq!(numbers, [0, 1, 0]);
        assert_eq!((account.next_number(0), account.next_number(1)), (0, 1 << 32));
        account.apply(&Event::Created { number: 1 << 32, due_ns: 0, watched: true });
        assert_eq!(account.next_number(1), (1 << 32) + 1);
        assert_eq!(account.unanswered(), [1 << 32]);
        account.apply(&Event::Created { number: 7 << 32, due_ns: 0, watched: true });
        assert_eq!(account.unanswered(), [1 << 32], "nobody knows route 7");
    }

    #[test]
    fn the_wall_clock_may_be_set() {
        let mut account = Account::new(String::new());
        let route = account.open_route("a").unwrap();
        account.apply(&Event::Created { number: 0, due_ns: 100 * SECOND, watched: true });
        account.apply(&Event::Answered { number: 0, answer: Answer::Accepted, took_ns: 1, at_ns: 1 });
        assert!(account.overdue(route, 109 * SECOND, 10 * SECOND).is_empty());
        assert_eq!(account.overdue(route, 110 * SECOND, 10 * SECOND), [0]);
        account.apply(&Event::ClockSet { by_ns: 3600 * 1_000_000_000 });
        assert!(account.overdue(route, 3_709 * SECOND, 10 * SECOND).is_empty());
        account.apply(&Event::ClockSet { by_ns: i64::MIN });
        assert_eq!(account.routes[&route].oldest_due_ns(), Some(0));
    }
}
