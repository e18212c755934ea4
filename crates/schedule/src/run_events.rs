//! Events of a run that explain its figures: the end of the warm-up, changes of the rate, and times
//! when the server did not accept messages.
use crate::offered_rate::OfferedRate;
use mailrun_measurement::merge::join_events;
use mailrun_measurement::record::{Ending, EventKind, EventRow, OfferedStage, StallRow, ThresholdRow};
use mailrun_text::words::grouped;
use std::time::Duration;

/// Start, end and stalls of a finished run. [`RunCourse::events`] makes the run's list of events from them. The
/// `Duration`s are times of the monotonic clock.
pub struct RunCourse<'a> {
    /// Moment from which the run record counts its times.
    pub origin: Duration,
    /// Time at which the load started. The warm-up and the first stage of the rate begin at this time.
    pub began: Duration,
    /// Time after which no more messages were created.
    pub ended: Duration,
    /// Periods in which the server accepted nothing, in seconds since `origin`.
    pub stalls: &'a [StallRow],
    pub ending: Ending,
    /// Time at which the load was stopped, if it was stopped early.
    pub stopped_at: Option<Duration>,
    /// Threshold that was missed and therefore stopped the load early, or `None` if no threshold stopped it.
    pub missed_threshold: Option<&'a ThresholdRow>,
}

impl RunCourse<'_> {
    /// Returns the events of the run, sorted by time.
    pub fn events(&self, warm_up: Option<Duration>, offered: Option<&OfferedRate>) -> Vec<EventRow> {
        let mut events = Vec::new();
        if let Some(warm_up) = warm_up {
            events.extend(self.event(self.began + warm_up, EventKind::WarmUpEnded, "the warm-up ended"));
        }
        events.extend(self.rate_stages(offered));
        events.extend(self.stalls.iter().flat_map(|stall| self.stall(stall)));
        events.extend(self.stop());
        join_events(events, Vec::new())
    }

    fn rate_stages(&self, offered: Option<&OfferedRate>) -> Vec<EventRow> {
        let stages = offered.map(OfferedRate::stages).unwrap_or_default();
        let mut begins = self.began;
        let mut events = Vec::new();
        for (number, stage) in stages.iter().enumerate() {
            if number > 0 {
                let name = stage.name.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
                let text = format!("stage {} of {}{name}: {}", number + 1, stages.len(), rate_text(stage));
                events.extend(self.event(begins, EventKind::RateStage, &text));
            }
            begins += Duration::try_from_secs_f64(stage.length_s).unwrap_or_default();
        }
        events
    }

    /// Returns the events `ServerLost` and `ServerBack` for the start and the end of a stall, in which the server
    /// accepted nothing. If the server rejected messages during the stall, there are no events, because a server that
    /// answers is not down.
    fn stall(&self, stall: &StallRow) -> Vec<EventRow> {
        if stall.rejected > 0 {
            return Vec::new();
        }
        let event = |at_s: f64, kind, text: &str| EventRow { at_s, kind, text: text.to_owned() };
        let lost = match stall.failed {
            0 => "the server accepted nothing more",
            _ => "the server accepted nothing more, and connections failed",
        };
        let mut events = vec![event(stall.from_s, EventKind::ServerLost, lost)];
        if !stall.to_the_end {
            events.push(event(stall.to_s, EventKind::ServerBack, "the server accepted messages again"));
        }
        events
    }

    fn stop(&self) -> Option<EventRow> {
        let text = match self.ending {
            Ending::Interrupted => "interrupted".to_owned(),
            Ending::GaveUp => "given up: the server was gone for too long".to_owned(),
            Ending::Aborted => {
                let missed = self.missed_threshold.map_or("a threshold", |row| row.expression.as_str());
                format!("ended because this was not met: {missed}")
            }
            Ending::Complete | Ending::ServerEnded | Ending::SinkEnded => return None,
        };
        Some(self.event_at(self.stopped_at?, EventKind::Stopped, &text))
    }

    /// Creates an event at the time `at`. Returns `None` if the load ended before then, so the event never happened.
    fn event(&self, at: Duration, kind: EventKind, text: &str) -> Option<EventRow> {
        (at <= self.ended).then(|| self.event_at(at, kind, text))
    }

    fn event_at(&self, at: Duration, kind: EventKind, text: &str) -> EventRow {
        EventRow { at_s: at.saturating_sub(self.origin).as_secs_f64(), kind, text: text.to_owned() }
    }
}

/// Formats the rate of a stage, for example `100/s` or `100/s to 1,000/s`.
fn rate_text(stage: &OfferedStage) -> String {
    let rate = |per_s: f64| match per_s {
        whole if whole.fract() == 0.0 => format!("{}/s", grouped(whole as u64)),
        part => format!("{part}/s"),
    };
    if stage.from_per_s == stage.to_per_s {
        rate(stage.from_per_s)
    } else {
        format!("{} to {}", rate(stage.from_per_s), rate(stage.to_per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Duration = Duration::from_millis(10_500);

    fn course<'a>(stalls: &'a [StallRow], ended_s: u64) -> RunCourse<'a> {
        RunCourse {
            origin: Duration::from_secs(10),
            began: BEGAN,
            ended: BEGAN + Duration::from_secs(ended_s),
            stalls,
            ending: Ending::Complete,
            stopped_at: None,
            missed_threshold: None,
        }
    }

    fn figures(events: &[EventRow]) -> Vec<(f64, EventKind, &str)> {
        events.iter().map(|event| (event.at_s, event.kind, event.text.as_str())).collect()
    }

    #[test]
    fn a_server_is_lost_and_back_unless_it_answers_with_rejections() {
        let stall = StallRow { from_s: 2.0, to_s: 4.0, failed: 3, ..StallRow::default() };
        let busy = StallRow { rejected: 5, ..stall };
        let last = StallRow { from_s: 7.0, to_s: 9.0, to_the_end: true, ..StallRow::default() };
        let stalls = [last, stall, busy];
        let events: Vec<_> = join_events(stalls.iter().flat_map(|row| course(&stalls, 9).stall(row)).collect(), vec![]);
        let expected = [
            (2.0, EventKind::ServerLost, "the server accepted nothing more, and connections failed"),
            (4.0, EventKind::ServerBack, "the server accepted messages again"),
            (7.0, EventKind::ServerLost, "the server accepted nothing more"),
        ];
        assert_eq!(figures(&events), expected);
    }

    #[test]
    fn each_later_stage_of_the_rate_that_began_is_an_event() {
        let stages = ["2s:100/s", "3s:100/s..1000/s", "9s:0.5/s"]
            .map(|text| crate::offered_rate::RateStage::parse(text).unwrap());
        let offered = OfferedRate::Stages(stages.to_vec());
        let events = course(&[], 4).rate_stages(Some(&offered));
        assert_eq!(figures(&events), [(2.5, EventKind::RateStage, "stage 2 of 3: 100/s to 1,000/s")]);
        let events = course(&[], 6).rate_stages(Some(&offered));
        assert_eq!(events.last().map(|event| event.text.as_str()), Some("stage 3 of 3: 0.5/s"));
        assert!(course(&[], 6).rate_stages(Some(&OfferedRate::Constant(5.0))).is_empty());
    }

    #[test]
    fn an_end_before_the_load_was_offered_is_an_event() {
        let mut course = course(&[], 5);
        assert!(course.stop().is_none());
        course.stopped_at = Some(BEGAN + Duration::from_secs(3));
        assert!(course.stop().is_none(), "it was complete all the same");
        course.ending = Ending::Interrupted;
        let events: Vec<_> = course.stop().into_iter().collect();
        assert_eq!(figures(&events), [(3.5, EventKind::Stopped, "interrupted")]);
    }
}
