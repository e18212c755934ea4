//! Records when the server was down, to correct the times of its replies. If the source reads a reply while the server
//! is down, the server must have sent the reply before it went down.
use mailrun_process::outputs;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
struct Outage {
    /// Time at which the fault ended the server. If the fault was a full disk, the time at which the disk had space
    /// again.
    from: Duration,
    /// Time at which the server was started again. `None` until then.
    to: Option<Duration>,
}

/// Periods in which the server was down, in order. All times are on the monotonic clock (`outputs::record_time`).
#[derive(Clone, Debug, Default)]
pub(super) struct Outages(Vec<Outage>);

impl Outages {
    pub(super) fn begins(&mut self) {
        self.0.push(Outage { from: outputs::record_time(), to: None });
    }

    pub(super) fn ends(&mut self) {
        self.0.last_mut().into_iter().for_each(|outage| outage.to = Some(outputs::record_time()));
    }

    /// Returns how long before `now` the server last went down, or 0 if it never went down.
    pub(super) fn since_last(&self, now: Duration) -> Duration {
        self.0.last().map_or(Duration::ZERO, |outage| now.saturating_sub(outage.from))
    }

    /// Returns two times for a missing message, in seconds since `origin`. The first is the latest time at which the
    /// server can have answered the message with 250. The second is the time at which the server went down after that.
    /// `read_s` is the time at which the source read the 250.
    pub(super) fn times(&self, origin: Duration, read_s: Option<f64>) -> (Option<f64>, f64) {
        let seconds = |at: Duration| at.saturating_sub(origin).as_secs_f64();
        let is_before = |outage: &&Outage| {
            let next_start = outage.to.map_or(f64::INFINITY, seconds);
            read_s.is_none_or(|read_s| read_s < next_start)
        };
        let next = self.0.iter().find(is_before).or(self.0.last());
        let fault_s = next.map_or(0.0, |outage| seconds(outage.from));
        let is_in_outage = next.as_ref().is_some_and(is_before);
        (read_s.map(|read_s| if is_in_outage { read_s.min(fault_s) } else { read_s }), fault_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_is_answered_while_the_server_is_away() {
        let outage =
            |from, to| Outage { from: Duration::from_millis(from), to: (to > 0).then(|| Duration::from_millis(to)) };
        let outages = Outages(vec![outage(10_350, 10_400), outage(10_600, 10_700), outage(13_000, 0)]);
        let origin = Duration::from_secs(10);
        for (read_s, answered_s, fault_s) in [
            (Some(0.2), Some(0.2), 0.35),
            // This reply was read at 0.353 s, but the server must have sent it before it was killed at 0.35 s.
            (Some(0.353), Some(0.35), 0.35),
            // The server ran again at 0.5 s, so only the next kill, at 0.6 s, can have lost this message.
            (Some(0.5), Some(0.5), 0.6),
            (Some(0.65), Some(0.6), 0.6),
            (Some(2.0), Some(2.0), 3.0),
            (Some(3.1), Some(3.0), 3.0),
            (None, None, 0.35),
        ] {
            assert_eq!(outages.times(origin, read_s), (answered_s, fault_s), "{read_s:?}");
        }
        assert_eq!(Outages::default().times(origin, Some(1.0)), (Some(1.0), 0.0));
    }

    #[test]
    fn the_time_until_the_server_is_back_counts_from_its_last_end() {
        let at = Duration::from_secs;
        let outages =
            |starts: &[u64]| Outages(starts.iter().map(|from| Outage { from: at(*from), to: None }).collect());
        for (starts, expected) in [(&[][..], 0), (&[10], 5), (&[10, 13], 2)] {
            assert_eq!(outages(starts).since_last(at(15)), at(expected), "{starts:?}");
        }
    }
}
