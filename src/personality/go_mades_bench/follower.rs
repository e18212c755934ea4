//! Follows a run: counts each stage's messages and their times, reports every two seconds, and decides when to give up.
use super::flight::FlightTimes;
use super::options::Options;
use super::report::{Report, StageLine};
use super::stages::{self, Reported};
use crate::interrupt::Asked;
use crate::mades::{Mode, Stage, View, Watcher};
use crate::personality::go::voice;
use jiff::Zoned;
use jiff::tz::TimeZone;
use std::cell::RefCell;
use std::time::{Duration, SystemTime};

/// Interval of the intermediate reports.
const PERIOD: Duration = Duration::from_secs(2);

/// The observer of a run.
#[derive(Debug)]
pub(super) struct Follower {
    payload_bytes: u64,
    /// Messages to be sent; 0 if unlimited.
    limit: u64,
    patience: Duration,
    notes: RefCell<Notes>,
}

/// Observations so far.
#[derive(Debug)]
struct Notes {
    stages: Vec<Followed>,
    course: Option<Course>,
    now: Duration,
    outcome: Outcome,
    /// Intermediate reports so far.
    reports: u32,
}

#[derive(Debug)]
struct Followed {
    reported: Reported,
    flights: FlightTimes,
    /// Time at which the last message had come.
    completed: Option<Duration>,
}

/// Times at which the run began and ended, by the run's clock.
#[derive(Clone, Debug)]
struct Course {
    began: Duration,
    started: Zoned,
    ended: Option<Duration>,
}

/// The outcome of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    OfItself,
    Interrupted,
    /// No message came any more.
    GivenUp,
}

impl Follower {
    pub(super) fn new(options: &Options, mode: Mode) -> Self {
        let follow = |reported| Followed { reported, flights: FlightTimes::default(), completed: None };
        let stages = stages::of(mode).into_iter().map(follow).collect();
        let notes = Notes { stages, course: None, now: Duration::ZERO, outcome: Outcome::OfItself, reports: 0 };
        Self {
            payload_bytes: options.payload_bytes,
            limit: options.messages,
            patience: options.patience,
            notes: RefCell::new(notes),
        }
    }

    pub(super) fn outcome(&self) -> Outcome {
        self.notes.borrow().outcome
    }

    /// The current report; after the run it is the final one.
    pub(super) fn report(&self) -> String {
        let notes = self.notes.borrow();
        let Some(course) = &notes.course else { return String::new() };
        let until = course.ended.unwrap_or(notes.now);
        let stages = notes.stages.iter().map(|followed| StageLine {
            name: followed.reported.name,
            flights: &followed.flights,
            limit: self.limit,
            event_bytes: followed.reported.event_bytes(self.payload_bytes),
            duration: followed.completed.unwrap_or(until).saturating_sub(course.began),
        });
        let duration = until.saturating_sub(course.began);
        let report = Report {
            started: course.started.clone(),
            ended: course.ended.map(|_| &course.started + duration),
            duration,
            message_bytes: self.payload_bytes,
            stages: stages.collect(),
        };
        report.to_string()
    }

    /// Ends the run, if it has not ended before.
    pub(super) fn end(&self) {
        let mut notes = self.notes.borrow_mut();
        let now = notes.now;
        let is_interrupted = notes.outcome == Outcome::Interrupted;
        if let Some(course) = notes.course.as_mut().filter(|_| !is_interrupted) {
            course.ended.get_or_insert(now);
        }
    }

    /// Messages that have not reached each stage.
    pub(super) fn missing(&self) -> Vec<(&'static str, u64)> {
        let notes = self.notes.borrow();
        let missing =
            |followed: &Followed| (followed.reported.name, self.limit.saturating_sub(followed.flights.count()));
        notes.stages.iter().map(missing).filter(|(_, count)| *count > 0).collect()
    }

    /// The number of the intermediate report that is due, if one is.
    fn due(&self) -> Option<u32> {
        let mut notes = self.notes.borrow_mut();
        let course = notes.course.as_ref().filter(|course| course.ended.is_none())?;
        let is_due = notes.now.saturating_sub(course.began) >= PERIOD * notes.reports;
        notes.reports += u32::from(is_due);
        is_due.then_some(notes.reports)
    }
}

impl Watcher for Follower {
    fn reached(&self, stage: Stage, latency: Duration, now: Duration) {
        let mut notes = self.notes.borrow_mut();
        let Some(followed) = notes.stages.iter_mut().find(|followed| followed.reported.stage == stage) else { return };
        followed.flights.add(latency);
        if followed.flights.count() == self.limit {
            followed.completed = Some(now);
        }
    }

    fn look(&self, view: &View) -> Asked {
        let asked = self.notes.borrow_mut().see(view, self.patience);
        if let Some(number) = self.due() {
            voice::log(&format!("Intermediate Report #{number}"));
            voice::tell(&self.report());
        }
        asked
    }
}

impl Notes {
    /// Takes note of the time; returns what the run is asked to do.
    fn see(&mut self, view: &View, patience: Duration) -> Asked {
        self.now = view.now;
        let course = self.course.get_or_insert_with(|| Course {
            began: view.began,
            started: local_now() - view.now.saturating_sub(view.began),
            ended: None,
        });
        if view.asked != Asked::Nothing {
            self.outcome = Outcome::Interrupted;
            return Asked::StopNow;
        }
        if let (None, Some(completed)) = (course.ended, self.stages.last().and_then(|last| last.completed)) {
            course.ended = Some(completed);
            voice::log("waiting a second for any out of order messages...");
        }
        if view.now.saturating_sub(view.heard) >= patience {
            self.outcome = Outcome::GivenUp;
            return Asked::StopNow;
        }
        Asked::Nothing
    }
}

/// The local time of day; UTC if the host has no time zone.
fn local_now() -> Zoned {
    let zone = TimeZone::system();
    let zone = if zone.is_unknown() { TimeZone::UTC } else { zone };
    let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
    now.to_zoned(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn view(now_ms: u64, heard_ms: u64) -> View {
        View { now: ms(now_ms), began: ms(1_000), heard: ms(heard_ms), asked: Asked::Nothing }
    }

    fn follower(words: &str, mode: Mode) -> Follower {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Follower::new(&Options::parse(&words).unwrap(), mode)
    }

    fn lines(follower: &Follower) -> Vec<String> {
        follower.report().lines().filter(|line| line.contains("msgs/s")).map(str::to_owned).collect()
    }

    #[test]
    fn each_stage_counts_for_itself_and_stops_its_own_clock() {
        let follower = follower("-n 2 -size 1000", Mode::Amqp);
        assert_eq!(follower.look(&view(1_020, 1_000)), Asked::Nothing);
        for (number, now) in [(1, 1_500), (3, 2_000)] {
            follower.reached(Stage::Created, ms(0), ms(now));
            follower.reached(Stage::Settled, ms(number), ms(now));
        }
        follower.reached(Stage::Inbox, ms(9), ms(3_000));
        assert_eq!(follower.look(&view(5_000, 3_000)), Asked::Nothing);
        let sent = "Sent to outbox    : 2.000 msgs/s     0.002 mb/s  2/2 msgs            duration: 1s        \
                    flight time: 0.002s (avg) 0.002s (median)";
        let inbox = "Received in inbox : 0.250 msgs/s     0.000 mb/s  1/2 msgs            duration: 4s        \
                     flight time: 0.009s (avg) 0.009s (median)";
        assert_eq!(lines(&follower), [sent, inbox]);
        assert_eq!(follower.missing(), [("Received in inbox", 1)]);
        follower.reached(Stage::Inbox, ms(9), ms(6_000));
        assert_eq!(follower.look(&view(6_500, 6_000)), Asked::Nothing);
        follower.end();
        assert!(follower.report().contains("\nDuration         : 5s\n") && follower.report().contains("\nEnded at "));
        assert_eq!((follower.missing(), follower.outcome()), (vec![], Outcome::OfItself));
    }

    #[test]
    fn what_never_comes_is_not_waited_for_for_ever() {
        // Reference §1.6: the original hangs here.
        let follower = follower("--timeout 3 -n 2", Mode::Amqp);
        assert_eq!(follower.look(&view(1_020, 1_000)), Asked::Nothing);
        follower.reached(Stage::Inbox, ms(9), ms(2_000));
        assert_eq!(follower.look(&view(4_999, 2_000)), Asked::Nothing);
        assert_eq!(follower.look(&view(5_000, 2_000)), Asked::StopNow);
        follower.end();
        assert_eq!(follower.outcome(), Outcome::GivenUp);
        assert_eq!(follower.missing(), [("Sent to outbox", 2), ("Received in inbox", 1)]);
        assert!(follower.report().contains("\nDuration         : 4s\n"), "{}", follower.report());
    }

    #[test]
    fn an_interrupted_run_has_no_end() {
        let follower = follower("-n 0", Mode::Amqp);
        let asked = View { asked: Asked::Stop, ..view(1_500, 1_500) };
        follower.reached(Stage::Inbox, ms(9), ms(1_200));
        assert_eq!(follower.look(&asked), Asked::StopNow);
        follower.end();
        assert_eq!(follower.outcome(), Outcome::Interrupted);
        assert!(!follower.report().contains("Ended at"));
        assert!(
            follower.missing().is_empty() && lines(&follower)[1].contains(" 1/0 msgs "),
            "without end: none is missing"
        );
    }

    #[test]
    fn it_says_how_it_stands_every_two_seconds() {
        let follower = follower("-n 9", Mode::Toolbox);
        let mut said = Vec::new();
        for now in (1_000..8_000).step_by(20) {
            follower.notes.borrow_mut().see(&view(now, now), ms(60_000));
            said.extend(follower.due().map(|number| (number, now)));
        }
        assert_eq!(said, [(1, 1_000), (2, 3_000), (3, 5_000), (4, 7_000)]);
    }
}
