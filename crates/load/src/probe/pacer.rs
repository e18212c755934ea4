//! Decides when each route sends, and which messages are overdue. The caller passes all times and stores the returned
//! events, so that tests need no clock, socket or file.
use super::account::{Account, Answer, Event, Ns, day_of, route_of};
use crate::sink::arrivals::{Arrival, ArrivalKind, ArrivalList};
use mailrun_measurement::{Ledger, MarkResult};
use std::collections::HashMap;

/// Maximum pause of a route whose server refuses messages. If the route's interval is longer, the pause is one
/// interval.
const MAX_BACKOFF_NS: Ns = 600 * 1_000_000_000;
/// If the difference between the wall clock and the monotonic clock changes by at least this much, the probe concludes
/// that the wall clock was set.
const CLOCK_SET_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) name: String,
    pub(super) interval_ns: Ns,
    pub(super) lost_after_ns: Ns,
    /// True if the probe watches a sink or mailbox for the messages of the route.
    pub(super) is_watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skip {
    /// The message is skipped, because the previous one on its route is still being sent, or because the whole host was
    /// suspended when the message was due.
    Busy,
    /// The message is skipped, because its route pauses after the server refused earlier messages.
    Backoff,
    /// The journal cannot be written. The message is skipped, because the probe would not know of it after a restart.
    Disk,
}

impl Skip {
    pub(super) const ALL: [(Self, &'static str); 3] =
        [(Self::Busy, "busy"), (Self::Backoff, "backoff"), (Self::Disk, "disk")];
}

#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) number: u16,
    pub(super) pace: Pace,
    next_due_ns: Ns,
    is_sending: bool,
    /// Number of messages in a row that the server did not accept. Unanswered messages count as well.
    pub(super) refusals: u32,
    backoff_until_ns: Ns,
    /// Time on the monotonic clock up to which all arrivals on the route are known, or `None` before the first report.
    /// A message whose time limit ends later cannot count as lost yet.
    seen_until: Option<Ns>,
    /// Monotonic time at which a sink last said that it had dropped arrivals before the probe read them. An overdue
    /// message that was due before this time counts as in doubt and not as lost, because it may have arrived.
    missed_until: Option<Ns>,
    pub(super) skipped: [u64; Skip::ALL.len()],
    /// True if the server accepted the last message. `None` if no message was sent since the start.
    pub(super) is_up: Option<bool>,
}

/// The sink or mailbox that reported an arrival. The variant tells whether an earlier process of the probe may have
/// counted the arrival already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// A sink that has reported to this process before. `listed` leaves out the arrivals of earlier reports, so the
    /// remaining arrivals are new.
    Sink,
    /// A sink that reports to this process for the first time. An earlier process may have counted its arrivals.
    NewSink,
    /// A mailbox, which several routes may share. It reports each of its messages only once to this process, but an
    /// earlier process may have had the same report.
    Mailbox { first_route: u16 },
}

/// The arrivals in a sink's list that the sink has not reported to this process before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) witness: Witness,
    pub(super) arrivals: Vec<Arrival>,
    /// Number of arrivals that the sink dropped from its list before the probe saw them.
    pub(super) forgotten: u64,
}

/// A message that must be sent now. The journal has no event for it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) number: u64,
    pub(super) due_ns: Ns,
}

pub(super) struct Probe {
    pub(super) account: Account,
    pub(super) routes: Vec<Route>,
    /// Each route with the number of its first message in this process. Lower numbers belong to earlier processes.
    own_from: Vec<(u16, u64)>,
    /// Messages that were reported to this process as arrived.
    told: Ledger,
    /// Messages that were found in mailboxes, to recognise a second copy in the same mailbox. A ledger marks pairs of a
    /// message number and a recipient number. Here, the recipient number is the number of the mailbox's first route, so
    /// that each mailbox has its own marks.
    in_mailbox: Ledger,
    /// Maps the address of a sink to the name of its list, and to the number of arrivals that it has reported to this
    /// process. A new watch thread, for example after SIGHUP, gets the whole list again, so `listed` skips this number
    /// of arrivals.
    sinks: HashMap<String, (String, u64)>,
    /// Wall clock minus monotonic clock when the clocks were first compared or, later, when the probe last noticed that
    /// the wall clock was set. A change of at least `CLOCK_SET_NS` shows that it was set again.
    clock_offset_ns: Option<i128>,
    pub(super) clock_sets: u64,
}

impl Probe {
    /// Creates a probe that continues the counts in `account`, which an earlier process has left. For each message that
    /// was still waiting for the server's answer, returns an event that sets the answer to unknown.
    pub(super) fn new(mut account: Account) -> (Self, Vec<Event>) {
        let answer = |number| Event::Answered { number, answer: Answer::Unknown, took_ns: 0, at_ns: 0 };
        let events: Vec<Event> = account.unanswered().into_iter().map(answer).collect();
        events.iter().for_each(|event| account.apply(event));
        let own_from = account.routes.keys().map(|route| (*route, account.next_number(*route))).collect();
        (
            Self {
                account,
                routes: Vec::new(),
                own_from,
                told: Ledger::default(),
                in_mailbox: Ledger::default(),
                sinks: HashMap::new(),
                clock_offset_ns: None,
                clock_sets: 0,
            },
            events,
        )
    }

    /// Makes the probe send on these routes only. A known route keeps its counts and, unless its interval has changed,
    /// its schedule. Returns false if the account would contain more than `MAX_ROUTES` routes. Removed routes stay in
    /// the account, so they count as well.
    #[must_use]
    pub(super) fn set_routes(&mut self, paces: Vec<Pace>, now_ns: Ns) -> bool {
        let numbers: Option<Vec<u16>> = paces.iter().map(|pace| self.account.open_route(&pace.name)).collect();
        let Some(numbers) = numbers else { return false };
        let count = paces.len() as u64;
        let mut before = std::mem::take(&mut self.routes);
        for (place, (pace, number)) in paces.into_iter().zip(numbers).enumerate() {
            let known = before.iter().position(|route| route.number == number).map(|place| before.swap_remove(place));
            // Spread the first messages, so that routes with the same interval do not all send at the same moment.
            let first_ns = now_ns + pace.interval_ns / count * place as u64;
            self.routes.push(match known {
                Some(route) if route.pace.interval_ns == pace.interval_ns => Route { pace, ..route },
                Some(route) => Route { pace, next_due_ns: first_ns, ..route },
                None => Route {
                    number,
                    pace,
                    next_due_ns: first_ns,
                    is_sending: false,
                    refusals: 0,
                    backoff_until_ns: 0,
                    seen_until: None,
                    missed_until: None,
                    skipped: [0; Skip::ALL.len()],
                    is_up: None,
                },
            });
        }
        true
    }

    /// Checks whether the wall clock was set since the last call. If so, moves all schedules by the same amount, and
    /// returns an event that moves the due times of messages in flight. Otherwise, these messages might seem overdue.
    pub(super) fn compare_clocks(&mut self, wall_ns: Ns, monotonic_ns: Ns) -> Option<Event> {
        let offset = i128::from(wall_ns) - i128::from(monotonic_ns);
        let by = offset - *self.clock_offset_ns.get_or_insert(offset);
        if by.unsigned_abs() < u128::from(CLOCK_SET_NS) {
            return None;
        }
        let by_ns = i64::try_from(by).unwrap_or(if by < 0 { i64::MIN } else { i64::MAX });
        self.clock_offset_ns = Some(offset);
        self.clock_sets += 1;
        for route in &mut self.routes {
            for time in [&mut route.next_due_ns, &mut route.backoff_until_ns] {
                *time = time.saturating_add_signed(by_ns);
            }
        }
        Some(Event::ClockSet { by_ns })
    }

    /// Returns the messages that are to be sent now. For each, the caller must call [`Self::began`] or
    /// [`Self::skipped`].
    pub(super) fn due(&mut self, now_ns: Ns) -> Vec<Due> {
        let Self { account, routes, .. } = self;
        let mut due = Vec::new();
        for route in routes.iter_mut().filter(|route| route.next_due_ns <= now_ns) {
            let interval_ns = route.pace.interval_ns.max(1);
            // After a suspension of the host, several messages may be due. Send only the newest, and count the others
            // as skipped.
            let missed = (now_ns - route.next_due_ns) / interval_ns;
            route.skipped[Skip::Busy as usize] += missed;
            let due_ns = route.next_due_ns + missed * interval_ns;
            route.next_due_ns = due_ns + interval_ns;
            if route.is_sending {
                route.skipped[Skip::Busy as usize] += 1;
            } else if now_ns < route.backoff_until_ns {
                route.skipped[Skip::Backoff as usize] += 1;
            } else {
                due.push(Due { number: account.next_number(route.number), due_ns });
            }
        }
        due
    }

    /// Returns the event that must be in the journal before the message is sent, so that a restarted probe knows the
    /// message.
    pub(super) fn created(&self, due: &Due) -> Event {
        let watched = self.route(due.number).is_some_and(|route| route.pace.is_watched);
        Event::Created { number: due.number, due_ns: due.due_ns, watched }
    }

    /// Records that the message is being sent. The caller must first have written `event` to the journal.
    pub(super) fn began(&mut self, event: &Event) {
        self.account.apply(event);
        if let Event::Created { number, .. } = event
            && let Some(route) = self.route_mut(*number)
        {
            route.is_sending = true;
        }
    }

    /// Records that a due message is not sent, because its event could not be written to the journal.
    pub(super) fn skipped(&mut self, number: u64) {
        if let Some(route) = self.route_mut(number) {
            route.skipped[Skip::Disk as usize] += 1;
        }
    }

    /// Records that the server has answered, or the session has failed. Returns the event for the account. `took_ns` is
    /// the time since the message was due.
    pub(super) fn answered(&mut self, number: u64, answer: Answer, took_ns: Ns, now_ns: Ns) -> Event {
        if let Some(route) = self.route_mut(number) {
            route.is_sending = false;
            route.is_up = Some(answer == Answer::Accepted);
            route.refusals = if answer == Answer::Accepted { 0 } else { route.refusals.saturating_add(1) };
            route.backoff_until_ns = now_ns.saturating_add(route.backoff_ns());
        }
        Event::Answered { number, answer, took_ns, at_ns: now_ns }
    }

    /// Returns the arrivals in `list` that the sink at `address` has not reported to this process before.
    pub(super) fn listed(&mut self, address: &str, list: ArrivalList) -> News {
        let ArrivalList { sink, first, next, mut arrivals } = list;
        let known = self.sinks.get(address);
        let witness = if known.is_some() { Witness::Sink } else { Witness::NewSink };
        let told = match known {
            // For a short time after SIGHUP, two watch threads ask this sink. Skip the arrivals that one of them has
            // already received.
            Some((list, told)) if *list == sink => *told,
            Some(_) => 0,
            // This process asks the sink for the first time. The sink has already removed the arrivals before `first`
            // from its list. Do not warn of them, because an earlier process has probably received them.
            None => first,
        };
        let again = usize::try_from(told.saturating_sub(first)).unwrap_or(usize::MAX).min(arrivals.len());
        arrivals.drain(..again);
        self.sinks.insert(address.to_owned(), (sink, told.max(next)));
        News { witness, arrivals, forgotten: first.saturating_sub(told) }
    }

    /// Handles an arrival that a sink or mailbox has reported. Returns `None` if the arrival does not change the
    /// account, for example because a mailbox and a sink have both reported it.
    pub(super) fn arrived(&mut self, arrival: &Arrival, witness: Witness, now_ns: Ns) -> Option<Event> {
        let mut arrival = *arrival;
        let is_own = self.is_own(arrival.number);
        if arrival.kind == ArrivalKind::Delivered {
            let is_told = self.told.mark(arrival.number, 0) == MarkResult::Again;
            if let Witness::Mailbox { first_route } = witness
                && self.in_mailbox.mark(arrival.number, u32::from(first_route)) == MarkResult::Again
            {
                // This mailbox has contained the message before, so this copy is a duplicate. The watcher does not know
                // this if the mailbox was reopened, because each opening begins with a new watcher.
                arrival.kind = ArrivalKind::Duplicate;
            } else if is_told {
                return None;
            }
        }
        if !is_own && arrival.kind == ArrivalKind::Duplicate && witness != Witness::Sink {
            // Ignore the copy, because an earlier process of this probe may have counted it already.
            return None;
        }
        if !is_own && matches!(witness, Witness::Mailbox { .. }) {
            // An earlier process sent this message. It may have arrived while no probe watched the mailbox, so its
            // latencies may be too long. Latencies from a sink are right, because a sink needs no probe to measure.
            (arrival.delivered_ns, arrival.announced_ns) = (None, None);
        }
        self.account.concerns(&arrival, is_own).then_some(Event::Arrived { arrival, at_ns: now_ns })
    }

    /// Returns true if this process has sent the message, and false if an earlier process did.
    pub(super) fn is_own(&self, number: u64) -> bool {
        let route = route_of(number);
        let from =
            self.own_from.iter().find(|(known, _)| *known == route).map_or(u64::from(route) << 32, |(_, from)| *from);
        (from..self.account.next_number(route)).contains(&number)
    }

    /// Records that a sink or mailbox has reported all messages of these routes that had arrived until `at`, a time on
    /// the monotonic clock.
    pub(super) fn seen(&mut self, routes: &[u16], at: Ns) {
        let seen = self.routes.iter_mut().filter(|route| routes.contains(&route.number));
        seen.for_each(|route| route.seen_until = route.seen_until.max(Some(at)));
    }

    /// Records that a sink has dropped arrivals on these routes before it reported them. A message that was due before
    /// `at`, a time on the monotonic clock, may therefore have arrived unseen.
    pub(super) fn missed(&mut self, routes: &[u16], at: Ns) {
        let missed = self.routes.iter_mut().filter(|route| routes.contains(&route.number));
        missed.for_each(|route| route.missed_until = route.missed_until.max(Some(at)));
    }

    /// Converts a monotonic time to wall-clock time, so that it can be compared with the due times of messages. Uses
    /// `clock_offset_ns` instead of the present difference of the clocks: if the wall clock was just set, the due times
    /// have not been moved yet and still fit `clock_offset_ns`.
    fn wall_ns(&self, monotonic_ns: Ns) -> Ns {
        let wall_ns = i128::from(monotonic_ns) + self.clock_offset_ns.unwrap_or_default();
        Ns::try_from(wall_ns.max(0)).unwrap_or(Ns::MAX)
    }

    /// Returns an event for each overdue message. A message is overdue only if its sink or mailbox was read after the
    /// time limit, so no message counts as lost while the mailbox cannot be read. On a removed route, messages are
    /// overdue as soon as the server has answered, because the probe no longer looks for their arrival.
    pub(super) fn overdue(&self) -> Vec<Event> {
        let watched = |number| self.routes.iter().find(|route| route.number == number && route.pace.is_watched);
        let mut overdue = Vec::new();
        for number in self.account.routes.keys() {
            let Some(route) = watched(*number) else {
                let numbers = self.account.overdue(*number, Ns::MAX, 0).into_iter();
                overdue.extend(numbers.map(|number| Event::Overdue { number, looked: false }));
                continue;
            };
            let Some(seen_until) = route.seen_until else { continue };
            let missed = route.missed_until.map(|until| self.account.overdue(*number, self.wall_ns(until), 0));
            let missed = missed.unwrap_or_default();
            let numbers = self.account.overdue(*number, self.wall_ns(seen_until), route.pace.lost_after_ns).into_iter();
            overdue.extend(numbers.map(|number| Event::Overdue { number, looked: !missed.contains(&number) }));
        }
        overdue
    }

    /// Returns the time at which the next message is due, or `None` without routes.
    pub(super) fn next_due_ns(&self) -> Option<Ns> {
        self.routes.iter().map(|route| route.next_due_ns).min()
    }

    pub(super) fn finished_days(&self, now_ns: Ns) -> Vec<(u16, u64)> {
        self.account.finished_days(day_of(now_ns))
    }

    pub(super) fn route(&self, number: u64) -> Option<&Route> {
        self.routes.iter().find(|route| route.number == route_of(number))
    }

    fn route_mut(&mut self, number: u64) -> Option<&mut Route> {
        self.routes.iter_mut().find(|route| route.number == route_of(number))
    }
}

impl Route {
    /// Returns how long the route pauses after its last refusals: two intervals after the first refusal, and twice as
    /// long after each further one, up to a limit.
    pub(super) fn backoff_ns(&self) -> Ns {
        let factor = match self.refusals {
            0 => return 0,
            refusals => 1_u64 << refusals.min(32),
        };
        self.pace.interval_ns.saturating_mul(factor).min(MAX_BACKOFF_NS.max(self.pace.interval_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Ns = 1_000_000_000;

    fn pace(name: &str, seconds: u64) -> Pace {
        Pace { name: name.to_owned(), interval_ns: seconds * SECOND, lost_after_ns: 60 * SECOND, is_watched: true }
    }

    fn probe(paces: Vec<Pace>) -> Probe {
        let (mut probe, events) = Probe::new(Account::new(String::new()));
        assert_eq!(events, []);
        assert!(probe.set_routes(paces, 100 * SECOND));
        probe
    }

    fn begin(probe: &mut Probe, second: u64) -> Vec<(u64, u64)> {
        let due = probe.due(second * SECOND);
        for one in &due {
            let event = probe.created(one);
            probe.began(&event);
        }
        due.iter().map(|due| (due.number, due.due_ns / SECOND)).collect()
    }

    fn answer(probe: &mut Probe, number: u64, answer: Answer, second: u64) {
        let event = probe.answered(number, answer, SECOND, second * SECOND);
        probe.account.apply(&event);
    }

    #[test]
    fn messages_are_due_at_their_interval_and_never_in_a_burst() {
        let mut probe = probe(vec![pace("a", 10)]);
        assert_eq!(begin(&mut probe, 99), []);
        assert_eq!(begin(&mut probe, 100), [(0, 100)]);
        answer(&mut probe, 0, Answer::Accepted, 101);
        assert_eq!(begin(&mut probe, 109), []);
        assert_eq!(begin(&mut probe, 111), [(1, 110)], "it counts from when it was due");
        assert_eq!(begin(&mut probe, 120), [], "the one before is being sent");
        assert_eq!(probe.routes[0].skipped, [1, 0, 0]);
        answer(&mut probe, 1, Answer::Accepted, 125);
        assert_eq!(begin(&mut probe, 195), [(2, 190)], "one after a pause of a minute");
        assert_eq!(probe.routes[0].skipped, [7, 0, 0]);
        assert_eq!(probe.next_due_ns(), Some(200 * SECOND));
    }

    #[test]
    fn routes_share_the_interval_and_have_numbers_of_their_own() {
        let mut probe = probe(vec![pace("a", 10), pace("b", 10)]);
        assert_eq!(begin(&mut probe, 100), [(0, 100)]);
        assert_eq!(begin(&mut probe, 105), [(1 << 32, 105)]);
    }

    #[test]
    fn a_server_that_refuses_is_left_alone_for_longer_and_longer() {
        let mut probe = probe(vec![pace("a", 10)]);
        let mut sent = Vec::new();
        for second in 100..4_000 {
            for (number, due) in begin(&mut probe, second) {
                sent.push(due);
                let outcome = if due < 3_900 { Answer::Rejected } else { Answer::Accepted };
                answer(&mut probe, number, outcome, second);
            }
        }
        assert_eq!(sent[..7], [100, 120, 160, 240, 400, 720, 1_320], "10 minutes at most");
        assert_eq!(probe.routes[0].is_up, Some(false));
        for number in 0..2 {
            answer(&mut probe, number, Answer::Accepted, 4_000);
        }
        assert_eq!((probe.routes[0].backoff_ns(), probe.routes[0].is_up), (0, Some(true)));
        assert_eq!(begin(&mut probe, 4_000).len(), 1);
        assert!(probe.routes[0].skipped[Skip::Backoff as usize] > 300);
    }

    #[test]
    fn backoff_ends_at_ten_minutes_or_the_interval() {
        for (interval, refusals, seconds) in
            [(10, 0, 0), (10, 1, 20), (10, 3, 80), (10, 60, 600), (3_600, 1, 3_600), (3_600, u32::MAX, 3_600)]
        {
            let mut probe = probe(vec![pace("a", interval)]);
            probe.routes[0].refusals = refusals;
            assert_eq!(probe.routes[0].backoff_ns(), seconds * SECOND, "{interval} s, {refusals} refusals");
        }
    }

    #[test]
    fn mail_is_overdue_only_when_somebody_has_looked() {
        let mut probe = probe(vec![pace("a", 10)]);
        begin(&mut probe, 100);
        answer(&mut probe, 0, Answer::Accepted, 101);
        for (seen, expected) in [(0, 0), (159, 0), (160, 1)] {
            probe.seen(&[0], seen * SECOND);
            assert_eq!(probe.overdue().len(), expected, "seen until {seen}");
        }
        probe.seen(&[0], 10 * SECOND);
        assert_eq!(probe.overdue(), [Event::Overdue { number: 0, looked: true }], "what was seen stays seen");
    }

    #[test]
    fn an_answer_that_nobody_heard_is_in_doubt_after_a_restart() {
        let mut probe = probe(vec![pace("a", 10)]);
        begin(&mut probe, 100);
        let (mut again, events) = Probe::new(probe.account);
        assert_eq!(events.len(), 1);
        assert!(again.set_routes(vec![pace("a", 10)], 130 * SECOND));
        let arrival = |number, kind| Arrival { number, kind, delivered_ns: None, announced_ns: None };
        assert!(!again.is_own(0));
        assert!(again.arrived(&arrival(0, ArrivalKind::Delivered), Witness::Sink, 0).is_some());
        assert_eq!(begin(&mut again, 130), [(1, 130)], "no number is used twice");
        again.seen(&[0], 500 * SECOND);
        assert_eq!(again.overdue(), [Event::Overdue { number: 0, looked: true }], "the answer to 1 is awaited");
        again.account.apply(&Event::Overdue { number: 0, looked: true });
        assert_eq!(again.account.routes[&0].counts.in_doubt, 1);
    }

    const MAILBOX: Witness = Witness::Mailbox { first_route: 0 };

    #[test]
    fn mail_of_earlier_processes_is_counted_once_and_copies_of_own_mail_each_time() {
        let mut probe = probe(vec![pace("a", 10)]);
        begin(&mut probe, 100);
        let delivered = Arrival { number: 0, kind: ArrivalKind::Delivered, delivered_ns: Some(5), announced_ns: None };
        let event = probe.arrived(&delivered, Witness::Sink, 0).unwrap();
        probe.account.apply(&event);
        answer(&mut probe, 0, Answer::Accepted, 101);
        assert_eq!(probe.arrived(&delivered, MAILBOX, 0), None, "it lies in a mailbox as well");
        let copy = Arrival { kind: ArrivalKind::Duplicate, ..delivered };
        let counted = Some(Event::Arrived { arrival: copy, at_ns: 0 });
        assert_eq!(probe.arrived(&delivered, MAILBOX, 0), counted, "a second message in the mailbox");
        assert_eq!(probe.arrived(&copy, MAILBOX, 0), counted);
        assert_eq!(probe.arrived(&copy, Witness::NewSink, 0), counted);
        begin(&mut probe, 110);
        answer(&mut probe, 1, Answer::Rejected, 111);
        let refused = Arrival { number: 1, ..delivered };
        assert!(probe.arrived(&refused, Witness::Sink, 0).is_some(), "the server had refused it");
        assert_eq!(begin(&mut probe, 140), [(2, 140)]);
        let (mut again, _) = Probe::new(probe.account);
        for (arrival, witness, why) in [
            (delivered, MAILBOX, "the mailbox still has it"),
            (delivered, MAILBOX, "the mailbox still has a copy"),
            (copy, MAILBOX, "the earlier process may have counted it"),
            (copy, Witness::NewSink, "the earlier process may have counted it"),
            (Arrival { number: 9 << 32, ..copy }, Witness::Sink, "no such route"),
        ] {
            assert_eq!(again.arrived(&arrival, witness, 0), None, "{why}");
        }
        assert!(again.arrived(&copy, Witness::Sink, 0).is_some(), "it came while this process watched");
        let Some(Event::Arrived { arrival, .. }) = again.arrived(&Arrival { number: 2, ..delivered }, MAILBOX, 0)
        else {
            panic!("it is in flight");
        };
        assert_eq!(arrival.delivered_ns, None, "it may have come while nobody watched");
    }

    fn list(sink: &str, first: u64, arrivals: &[(u64, ArrivalKind)]) -> ArrivalList {
        let arrival = |(number, kind)| Arrival { number, kind, delivered_ns: None, announced_ns: None };
        let arrivals: Vec<Arrival> = arrivals.iter().copied().map(arrival).collect();
        ArrivalList { sink: sink.to_owned(), first, next: first + arrivals.len() as u64, arrivals }
    }

    #[test]
    fn what_a_sink_reports_again_counts_once() {
        use ArrivalKind::{Bounced, Delivered, Duplicate};
        let mut probe = probe(vec![pace("a", 10)]);
        for number in 0..2 {
            begin(&mut probe, 100 + 10 * number);
            answer(&mut probe, number, Answer::Accepted, 101);
        }
        let arrivals = [(0, Delivered), (0, Duplicate), (1, Bounced), (1, Duplicate), (1, Duplicate)];
        let mut told = |sink: &str, first: usize, end: usize| {
            let news = probe.listed("h:1", list(sink, first as u64, &arrivals[first..end]));
            for arrival in news.arrivals {
                if let Some(event) = probe.arrived(&arrival, news.witness, 0) {
                    probe.account.apply(&event);
                }
            }
            let counts = probe.account.routes[&0].counts;
            (counts.delivered, counts.bounced, counts.repeated)
        };
        assert_eq!(told("one", 0, 3), (1, 1, 1));
        assert_eq!(told("one", 0, 4), (1, 1, 2), "it was asked for everything, as after SIGHUP");
        assert_eq!(told("one", 0, 2), (1, 1, 2), "an older answer");
        assert_eq!(told("one", 4, 5), (1, 1, 3));
        assert_eq!(told("two", 0, 2), (1, 1, 4), "the sink was restarted, and received a further copy");
    }

    #[test]
    fn mail_that_a_sink_has_forgotten_is_in_doubt_and_not_lost() {
        let mut probe = probe(vec![pace("a", 10)]);
        assert_eq!(probe.listed("h:1", list("one", 7, &[])).forgotten, 0, "an earlier process knows these");
        assert_eq!(probe.compare_clocks(1_000 * SECOND, 900 * SECOND), None);
        begin(&mut probe, 1_000);
        answer(&mut probe, 0, Answer::Accepted, 1_001);
        let news = probe.listed("h:1", list("one", 9, &[(8 << 32, ArrivalKind::Delivered)]));
        assert_eq!((news.forgotten, news.arrivals.len()), (2, 1));
        probe.missed(&[0], 905 * SECOND);
        begin(&mut probe, 1_010);
        answer(&mut probe, 1, Answer::Accepted, 1_011);
        probe.seen(&[0], 950 * SECOND);
        assert_eq!(probe.overdue(), [], "they may still come");
        probe.seen(&[0], 970 * SECOND);
        let overdue = |number, looked| Event::Overdue { number, looked };
        assert_eq!(probe.overdue(), [overdue(0, false), overdue(1, true)]);
        assert_eq!(probe.listed("h:1", list("one", 10, &[])).forgotten, 0, "it is told once");
    }

    #[test]
    fn a_clock_that_is_set_moves_schedule_and_messages() {
        let mut probe = probe(vec![pace("a", 10)]);
        begin(&mut probe, 100);
        answer(&mut probe, 0, Answer::Accepted, 101);
        assert_eq!(probe.compare_clocks(101 * SECOND, SECOND), None);
        assert_eq!(probe.compare_clocks(102 * SECOND + SECOND / 2, 2 * SECOND), None, "it drifts");
        // After second 2, the wall clock jumps by an hour. Before the probe notices the jump, the mailbox reports that
        // the message has not arrived by second 3. This report must not make the message overdue.
        probe.seen(&[0], 3 * SECOND);
        let event = probe.compare_clocks(3_703 * SECOND, 3 * SECOND).unwrap();
        assert_eq!(event, Event::ClockSet { by_ns: 3_600 * 1_000_000_000 });
        probe.account.apply(&event);
        assert_eq!(begin(&mut probe, 3_709), [], "ten seconds after the message before");
        probe.seen(&[0], 50 * SECOND);
        assert_eq!(probe.overdue(), []);
        assert_eq!(begin(&mut probe, 3_710), [(1, 3_710)]);
        let back = probe.compare_clocks(111 * SECOND, 11 * SECOND).unwrap();
        probe.account.apply(&back);
        answer(&mut probe, 1, Answer::Accepted, 112);
        assert_eq!(begin(&mut probe, 120), [(2, 120)]);
        assert_eq!(probe.clock_sets, 2);
        for (seen, expected) in [(59, 0), (60, 1)] {
            probe.seen(&[0], seen * SECOND);
            assert_eq!(probe.overdue().len(), expected, "the first message was due at second 0 of the monotonic clock");
        }
    }

    #[test]
    fn routes_may_change_while_the_probe_runs() {
        let mut probe = probe(vec![pace("a", 10), pace("b", 10)]);
        begin(&mut probe, 100);
        assert!(probe.set_routes(vec![pace("c", 10), pace("a", 10)], 103 * SECOND));
        assert_eq!(begin(&mut probe, 105), [(2 << 32, 103)], "b is gone, c begins, and a waits for its answer");
        answer(&mut probe, 0, Answer::Accepted, 104);
        assert_eq!(begin(&mut probe, 110), [(1, 110)], "a keeps its schedule");
        assert!(probe.set_routes(vec![pace("b", 10)], 111 * SECOND));
        let overdue = probe.overdue();
        assert_eq!(
            overdue,
            [Event::Overdue { number: 0, looked: false }],
            "nobody looks for mail of routes that are gone"
        );
        assert_eq!(begin(&mut probe, 111), [(1 << 32, 111)]);
        assert!(!probe.set_routes((0..2_000).map(|number| pace(&number.to_string(), 10)).collect(), 0));
    }

    #[test]
    fn a_message_that_cannot_be_written_down_is_not_sent() {
        let mut probe = probe(vec![pace("a", 10)]);
        let due = probe.due(100 * SECOND);
        probe.skipped(due[0].number);
        assert_eq!(probe.routes[0].skipped, [0, 0, 1]);
        assert_eq!(begin(&mut probe, 110), [(0, 110)], "the number is free");
    }
}
