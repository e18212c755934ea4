//! Detects stalls, which are times in which messages waited but none reached a stage. For example, a server accepted no
//! message, or an endpoint delivered none.
//!
//! The collector adds a [`Tick`] at regular intervals. A tick contains the times at which the first and the last
//! message since the previous tick reached the stage. A stall begins and ends at such times, so its length is more
//! exact than the interval between ticks. Time counts only while messages wait, because a source that has nothing to
//! send is not stalled.
//!
//! A server that rejects mail is still reachable, but a server to which connections fail may be gone. If connections
//! fail after the last rejection in a stall, and the stall then lasts for another second or longer, the detector
//! therefore splits the stall in two at that rejection.
use crate::record::StallRow;
use crate::stage::Stage;
use std::time::Duration;

/// A pause must last at least this long to be reported as a stall. Shorter pauses are normal for a working server.
const MIN_STALL: Duration = Duration::from_secs(1);
/// Maximum number of stalls that are kept. If a server stalls more often, the first stalls describe the problem well
/// enough.
const MAX_STALLS: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    pub now: Duration,
    /// Time at which the first message since the previous tick reached the stage.
    pub first: Option<Duration>,
    /// Time at which the latest message since the previous tick reached the stage.
    pub last: Option<Duration>,
    /// Time at which the first new message since the previous tick was due, and so began to wait for the stage.
    pub first_open: Option<Duration>,
    /// Number of messages that are waiting for the stage.
    pub open: u64,
    pub rejected: u64,
    pub failed: u64,
}

#[derive(Clone, Debug)]
pub struct StallDetector {
    stage: Stage,
    zero: Duration,
    /// Time at which a stall would begin. This is when a message last reached the stage or, if no message was waiting
    /// then, when the next message began to wait for it.
    since: Duration,
    /// Number of messages that had been rejected by the time `since`. The field `failed` is the number of messages that
    /// had failed by that time.
    rejected: u64,
    failed: u64,
    /// Time of the latest tick that reported rejected messages, and how many messages had failed by then. If more
    /// messages fail afterwards, the server may be gone. `None` if no message was rejected after `since`.
    last_rejection: Option<(Duration, u64)>,
    /// True if no message was waiting at the latest tick, and none had been rejected or failed since a message last
    /// reached the stage.
    is_idle: bool,
    latest: Tick,
    rows: Vec<StallRow>,
}

impl StallDetector {
    /// Creates a detector for stalls of a stage, in a load that begins at `began`. The times in the rows count from
    /// `zero`.
    pub fn new(stage: Stage, zero: Duration, began: Duration) -> Self {
        let latest = Tick { now: began, ..Tick::default() };
        let rows = Vec::new();
        Self { stage, zero, since: began, rejected: 0, failed: 0, last_rejection: None, is_idle: false, latest, rows }
    }

    pub fn add(&mut self, tick: Tick) {
        let is_waiting = self.is_waiting(&tick);
        if let Some(began) = tick.first_open.filter(|_| self.is_idle) {
            self.since = began;
        }
        if let (Some(first), Some(last)) = (tick.first, tick.last) {
            self.end(first);
            // Workers report at different times, so another worker may already have reported an arrival after `last`.
            // `since` is then later than `last`, so keep `since`.
            self.begin(last.max(self.since), &tick);
        } else if !is_waiting && !self.is_failing() {
            self.begin(tick.now, &tick);
        } else if tick.rejected > self.latest.rejected {
            self.last_rejection = Some((tick.now, tick.failed));
        }
        self.is_idle = !is_waiting && !self.is_failing();
        self.latest = tick;
    }

    /// Returns the time since a message last reached the stage, as a stall of any length. If the last rejection was at
    /// least a second ago and connections have failed since, the stall begins at that rejection, because the server was
    /// still reachable then.
    pub fn current(&self) -> StallRow {
        let (whole, gone) = self.split(self.latest.now, true);
        gone.unwrap_or(whole)
    }

    /// Returns all stalls of at least a second, including a stall that still goes on.
    pub fn rows(&self) -> Vec<StallRow> {
        let (whole, gone) = self.split(self.latest.now, true);
        let present = [Some(whole), gone].into_iter().flatten().filter(is_long);
        self.rows.iter().copied().chain(present).collect()
    }

    /// True if a message is waiting, or was rejected or failed since the last tick.
    fn is_waiting(&self, tick: &Tick) -> bool {
        let ended = |tick: &Tick| tick.rejected + tick.failed;
        tick.open > 0 || ended(tick) > ended(&self.latest)
    }

    /// True if messages were rejected or failed after the latest message reached the stage. While all sessions pause
    /// after such failures, no message is waiting, but the server may still be gone.
    fn is_failing(&self) -> bool {
        self.latest.rejected + self.latest.failed > self.rejected + self.failed
    }

    fn begin(&mut self, since: Duration, tick: &Tick) {
        self.since = since;
        self.rejected = tick.rejected;
        self.failed = tick.failed;
        self.last_rejection = None;
    }

    fn end(&mut self, at: Duration) {
        let (whole, gone) = self.split(at, false);
        // If a worker reports late, its message may have arrived at a time (`at`) within a stall that is already
        // recorded. The server worked again at that time, so end the stall there.
        let at_s = self.second(at);
        if let Some(last) = self.rows.last_mut().filter(|last| at_s > last.from_s && at_s < last.to_s) {
            last.to_s = at_s;
        }
        self.rows.retain(is_long);
        self.rows.extend([Some(whole), gone].into_iter().flatten().filter(is_long));
        self.rows.truncate(MAX_STALLS);
    }

    /// Returns the stall from `since` until `to`. If the last rejection was at least a second before `to` and
    /// connections have failed since, splits the stall in two: the first stall ends with that rejection, and the second
    /// one begins with it.
    fn split(&self, to: Duration, to_the_end: bool) -> (StallRow, Option<StallRow>) {
        let whole = self.row(to, to_the_end);
        let gone = self.last_rejection.map(|(at, failed)| StallRow {
            from_s: self.second(at),
            rejected: 0,
            failed: self.latest.failed.saturating_sub(failed),
            ..whole
        });
        let Some(gone) = gone.filter(|gone| gone.failed > 0 && is_long(gone)) else { return (whole, None) };
        let failed = whole.failed.saturating_sub(gone.failed);
        (StallRow { to_s: gone.from_s, to_the_end: false, failed, ..whole }, Some(gone))
    }

    fn second(&self, at: Duration) -> f64 {
        at.saturating_sub(self.zero).as_secs_f64()
    }

    fn row(&self, to: Duration, to_the_end: bool) -> StallRow {
        StallRow {
            stage: self.stage,
            from_s: self.second(self.since),
            to_s: self.second(to.max(self.since)),
            to_the_end,
            rejected: self.latest.rejected.saturating_sub(self.rejected),
            failed: self.latest.failed.saturating_sub(self.failed),
        }
    }
}

fn is_long(row: &StallRow) -> bool {
    row.to_s - row.from_s >= MIN_STALL.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn of(ticks: u64, at: impl Fn(u64) -> Tick) -> StallDetector {
        let mut stalls = StallDetector::new(Stage::Accepted, ms(10_000), ms(10_000));
        for number in 1..=ticks {
            stalls.add(Tick { now: ms(10_000 + number * 250), ..at(number) });
        }
        stalls
    }

    fn busy(number: u64) -> Tick {
        let now = 10_000 + number * 250;
        Tick { first: Some(ms(now - 240)), last: Some(ms(now - 10)), open: 5, ..Tick::default() }
    }

    #[test]
    fn a_server_that_works_has_none() {
        assert!(of(20, busy).rows().is_empty());
    }

    #[test]
    fn a_stall_is_found_with_its_ends() {
        let waiting = Tick { open: 5, ..Tick::default() };
        let stalls = of(20, |number| if (7..=16).contains(&number) { waiting } else { busy(number) });
        let expected = StallRow { from_s: 1.49, to_s: 4.01, ..StallRow::default() };
        assert_eq!(stalls.rows(), [expected]);
    }

    #[test]
    fn one_that_lasts_to_the_end_counts_what_failed() {
        let failing = |number: u64| Tick { failed: (number - 6) * 10, ..Tick::default() };
        let stalls = of(16, |number| if number > 6 { failing(number) } else { busy(number) });
        let expected = StallRow { from_s: 1.49, to_s: 4.0, to_the_end: true, failed: 100, ..StallRow::default() };
        assert_eq!(stalls.rows(), [expected]);
    }

    #[test]
    fn a_server_that_died_accepts_nothing_since_its_last_reply() {
        // Each message fails as soon as a session begins it, so no message is waiting at any tick.
        let at = |number: u64| Tick {
            first_open: Some(ms(9_800 + number * 250)),
            open: 0,
            failed: number.saturating_sub(5),
            ..if number > 6 { Tick::default() } else { busy(number) }
        };
        let expected = StallRow { from_s: 1.49, to_s: 4.0, to_the_end: true, failed: 10, ..StallRow::default() };
        assert_eq!(of(16, at).rows(), [expected]);
    }

    #[test]
    fn a_session_that_rests_between_failures_does_not_end_a_stall() {
        let failed = |number: u64| Tick { failed: number / 4, ..Tick::default() };
        let rows = of(16, |number| if number > 2 { failed(number) } else { busy(number) }).rows();
        assert_eq!(rows, [StallRow { from_s: 0.75, to_s: 4.0, to_the_end: true, failed: 4, ..StallRow::default() }]);
    }

    #[test]
    fn a_source_with_nothing_to_send_is_no_stall() {
        let idle = |_| Tick::default();
        assert!(of(40, idle).rows().is_empty());
        // One message per second is sent and accepted at once, so the pauses between messages are
        // no stalls.
        let seldom =
            |number: u64| if number.is_multiple_of(8) { Tick { open: 0, ..busy(number) } } else { Tick::default() };
        assert!(of(40, seldom).rows().is_empty());
    }

    #[test]
    fn a_server_that_never_accepts_stalls_from_the_beginning() {
        let waiting = Tick { open: 1, rejected: 3, ..Tick::default() };
        let rows = of(8, |_| waiting).rows();
        assert_eq!(rows, [StallRow { to_s: 2.0, to_the_end: true, rejected: 3, ..StallRow::default() }]);
    }

    #[test]
    fn a_server_is_gone_from_its_last_rejection_on() {
        // The server accepts mail until 1.5 s. Then it rejects mail until the tick `last_rejection`. From this tick on,
        // every connection fails.
        let at = |last_rejection: u64| {
            move |number: u64| Tick {
                rejected: number.min(last_rejection),
                failed: number.saturating_sub(last_rejection - 1),
                ..if number > 6 { Tick { open: 1, ..Tick::default() } } else { busy(number) }
            }
        };
        let gone = StallRow { to_s: 7.5, to_the_end: true, ..StallRow::default() };
        // The server rejects mail for only 0.26 s. This is too short for a stall, so only the failed connections are a
        // stall.
        assert_eq!(of(30, at(7)).rows(), [StallRow { from_s: 1.75, failed: 23, ..gone }]);
        let rejecting = StallRow { from_s: 1.49, to_s: 3.0, rejected: 6, failed: 1, ..StallRow::default() };
        let failing = StallRow { from_s: 3.0, failed: 18, ..gone };
        let stalls = of(30, at(12));
        assert_eq!((stalls.rows(), stalls.current()), (vec![rejecting, failing], failing));
        // The server accepts a message at 7.51 s. This ends the stall in which connections failed. The stall in which
        // the server rejected mail must still end at 3.0 s.
        let stalls = of(31, |number| if number == 31 { busy(31) } else { at(12)(number) });
        let failing = StallRow { to_s: 7.51, to_the_end: false, ..failing };
        assert_eq!(stalls.rows(), [rejecting, failing]);
    }

    #[test]
    fn a_server_that_rejects_to_the_end_is_not_gone() {
        // After the last rejection, at most one connection fails, so the server must not count as gone.
        for failed in [0, 1] {
            let at = move |number: u64| {
                let rejected = number.min(13);
                let failed = if number > 13 { failed } else { 0 };
                Tick { open: 1, rejected, failed, ..Tick::default() }
            };
            let expected = StallRow { to_s: 4.0, to_the_end: true, rejected: 13, failed, ..StallRow::default() };
            assert_eq!(of(16, at).rows(), [expected]);
        }
    }
}
