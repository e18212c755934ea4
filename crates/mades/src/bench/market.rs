//! Load with the timing of a balancing market: the documents that operators and their providers exchange in a quarter-hour.
//!
//! ```text
//! minute of the quarter-hour   0      3      5      7.5     10     12
//! bids                         B…B                                       at the gate closure, 45 min before delivery
//! heartbeats                          H             H              H     12, 7.5 and 3 min before the next one
//! five-minute                  R             R              R
//! values                       v v v v …                                 one every 10 s
//! ```
//! A run begins at the start of a quarter-hour, and each quarter-hour is like the first. So the time and the document of a
//! message follow from its number.
use journey::record::MadesMarket;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Length of the period.
pub const QUARTER_HOUR: Duration = Duration::from_secs(15 * 60);
/// Most messages of a burst of bids, and most time series of each.
const MAX_BIDS: u32 = 1_000;
const MAX_TIME_SERIES: u32 = 20_000;
/// The usual ones: what the Nordic market allows for a quarter-hour (mFRR EAM).
const USUAL_BIDS: u32 = 100;
const USUAL_TIME_SERIES: u32 = 4_000;
/// Highest acceleration.
pub const MAX_ACCELERATION: u32 = 1_000;

/// Messages of one kind, and their times in each quarter-hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarketShape {
    /// A burst of bid documents at the start of the quarter-hour.
    Bids {
        /// Messages of the burst.
        messages: u32,
        /// Time series in each.
        time_series: u32,
    },
    /// Heartbeats 12, 7.5 and 3 minutes before its end.
    Heartbeats,
    /// A request every five minutes.
    FiveMinute,
    /// A value every ten seconds.
    Values,
}

impl MarketShape {
    /// Times of its messages in a quarter-hour, in order.
    fn times(self) -> Vec<Duration> {
        match self {
            Self::Bids { messages, .. } => vec![Duration::ZERO; messages as usize],
            Self::Heartbeats => [180, 450, 720].map(Duration::from_secs).to_vec(),
            Self::FiveMinute => [0, 300, 600].map(Duration::from_secs).to_vec(),
            Self::Values => (0..90).map(|number| Duration::from_secs(10 * number)).collect(),
        }
    }
}

impl FromStr for MarketShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bids" => return Ok(Self::Bids { messages: USUAL_BIDS, time_series: USUAL_TIME_SERIES }),
            "heartbeats" => return Ok(Self::Heartbeats),
            "five-minute" => return Ok(Self::FiveMinute),
            "values" => return Ok(Self::Values),
            _ => {}
        }
        let unknown = || {
            format!(
                "{text:?} is not a shape; use bids (100 messages of 4,000 time series), bids:20x500, heartbeats, \
                 five-minute or values"
            )
        };
        let (messages, time_series) =
            text.strip_prefix("bids:").and_then(|numbers| numbers.split_once('x')).ok_or_else(unknown)?;
        Ok(Self::Bids {
            messages: number(messages, MAX_BIDS, "messages of bids")?,
            time_series: number(time_series, MAX_TIME_SERIES, "time series of a message")?,
        })
    }
}

/// Reads a number from 1 to `most`.
fn number(text: &str, most: u32, what: &str) -> Result<u32, String> {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_plain && (1..=most).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number of {what}; use 1 to {most}"))
}

impl fmt::Display for MarketShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bids { messages, time_series } => write!(f, "bids:{messages}x{time_series}"),
            Self::Heartbeats => f.write_str("heartbeats"),
            Self::FiveMinute => f.write_str("five-minute"),
            Self::Values => f.write_str("values"),
        }
    }
}

/// The load of a market: its shapes, and how fast its time passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarketLoad {
    /// The shapes, all at once.
    pub shapes: Vec<MarketShape>,
    /// Quarter-hours of the market in one of the run.
    pub acceleration: u32,
}

impl MarketLoad {
    /// The shape of each message of a quarter-hour and its time in it, in order of the times.
    fn pattern(&self) -> Vec<(Duration, MarketShape)> {
        let all = self.shapes.iter().flat_map(|shape| shape.times().into_iter().map(move |time| (time, *shape)));
        let mut pattern: Vec<_> = all.collect();
        // Stable: of those at one time, in the order of the options.
        pattern.sort_by_key(|(time, _)| *time);
        pattern
    }

    /// The shapes of the messages of a quarter-hour, in order.
    pub(super) fn order(&self) -> Vec<MarketShape> {
        self.pattern().into_iter().map(|(_, shape)| shape).collect()
    }

    /// The load as the record of a run has it.
    pub fn record(&self) -> MadesMarket {
        let shapes = self.shapes.iter().map(ToString::to_string).collect();
        MadesMarket { shapes, acceleration: self.acceleration }
    }

    /// An hour of the market in the time of the run.
    pub fn hour(&self) -> Duration {
        4 * QUARTER_HOUR / self.acceleration
    }
}

/// The time of each message.
#[derive(Debug)]
pub(super) struct MarketSchedule {
    began: Duration,
    acceleration: u32,
    times: Vec<Duration>,
    issued: u64,
}

impl MarketSchedule {
    pub(super) fn new(load: &MarketLoad, began: Duration) -> Self {
        let times = load.pattern().into_iter().map(|(time, _)| time).collect();
        Self { began, acceleration: load.acceleration, times, issued: 0 }
    }

    /// Time at which the next message is due; the end of time if there are none.
    pub(super) fn due(&self) -> Duration {
        let each = self.times.len() as u64;
        let Some(quarter) = self.issued.checked_div(each) else { return Duration::MAX };
        let within = self.times[(self.issued % each) as usize];
        let quarters = QUARTER_HOUR.saturating_mul(u32::try_from(quarter).unwrap_or(u32::MAX));
        self.began.saturating_add(quarters.saturating_add(within) / self.acceleration)
    }

    /// Advances to the next message after one was given out.
    pub(super) fn advance(&mut self) {
        self.issued += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(shapes: &[&str], acceleration: u32) -> MarketLoad {
        MarketLoad { shapes: shapes.iter().map(|shape| shape.parse().unwrap()).collect(), acceleration }
    }

    fn times(load: &MarketLoad, count: usize) -> Vec<f64> {
        let mut schedule = MarketSchedule::new(load, Duration::from_secs(1_000));
        let mut next = || {
            let due = schedule.due();
            schedule.advance();
            (due - Duration::from_secs(1_000)).as_secs_f64()
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn each_shape_has_its_times_in_every_quarter_hour() {
        assert_eq!(times(&load(&["heartbeats"], 1), 5), [180.0, 450.0, 720.0, 1_080.0, 1_350.0]);
        assert_eq!(times(&load(&["five-minute"], 1), 4), [0.0, 300.0, 600.0, 900.0]);
        assert_eq!(times(&load(&["values"], 1), 91)[88..], [880.0, 890.0, 900.0]);
        assert_eq!(times(&load(&["bids:2x1"], 1), 5), [0.0, 0.0, 900.0, 900.0, 1_800.0]);
        assert_eq!(load(&["bids"], 1).shapes, load(&["bids:100x4000"], 1).shapes);
    }

    #[test]
    fn shapes_are_merged_and_their_time_is_compressed() {
        let all = load(&["heartbeats", "bids:1x9", "five-minute"], 60);
        assert_eq!(times(&all, 8), [0.0, 0.0, 3.0, 5.0, 7.5, 10.0, 12.0, 15.0]);
        let order: Vec<String> = all.order().iter().map(ToString::to_string).collect();
        let expected =
            ["bids:1x9", "five-minute", "heartbeats", "five-minute", "heartbeats", "five-minute", "heartbeats"];
        assert_eq!(order, expected);
        assert_eq!(all.hour(), Duration::from_secs(60));
    }

    #[test]
    fn what_is_no_shape_is_refused_with_one_that_is() {
        for wrong in ["", "bid", "bids:", "bids:10", "bids:0x1", "bids:1x0", "bids:+1x1", "bids:1001x1", "bids:1x20001"]
        {
            let why = wrong.parse::<MarketShape>().unwrap_err();
            assert!(why.contains("use "), "{why}");
        }
    }

    proptest! {
        #[test]
        fn a_shape_is_read_as_it_is_shown(messages in 1..=MAX_BIDS, time_series in 1..=MAX_TIME_SERIES, kind in 0..4) {
            let shape = match kind {
                0 => MarketShape::Bids { messages, time_series },
                1 => MarketShape::Heartbeats,
                2 => MarketShape::FiveMinute,
                _ => MarketShape::Values,
            };
            prop_assert_eq!(shape.to_string().parse(), Ok(shape));
        }

        #[test]
        fn times_never_go_back(bids in 1u32..5, acceleration in 1..=MAX_ACCELERATION) {
            let shapes = ["values", "heartbeats", &format!("bids:{bids}x1"), "five-minute"];
            let times = times(&load(&shapes, acceleration), 400);
            prop_assert!(times.is_sorted());
        }
    }
}
