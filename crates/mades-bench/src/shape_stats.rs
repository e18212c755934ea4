//! Counts and latencies of each message shape (`--shape`) of a load. For each quarter-hour, also counts the messages
//! that were due in it.
use super::market::MarketLoad;
use super::options::MadesOptions;
use super::shape_schedule::ShapeSchedule;
use super::stages::{MessagePath, MessageStage};
use mailrun_measurement::record::{MadesMarket, MadesShape, MadesWindow, StageRow};
use mailrun_measurement::{Latencies, Stage, StageFigures, Throughput};
use std::rc::Rc;
use std::time::Duration;

/// Counts the messages that reached a stage, and keeps the latencies of the messages that reached it before their
/// time-out.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached {
    pub(super) count: u64,
    pub(super) late: u64,
    pub(super) latency: Latencies,
    pub(super) arrivals: Throughput,
}

impl Reached {
    pub(super) fn add(&mut self, reach: Reach) {
        let Reach { at, due, latency } = reach;
        self.count += 1;
        self.late += u64::from(latency.is_none());
        self.arrivals.record(at, due);
        if let Some(latency) = latency {
            self.latency.record(latency);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub(super) at: Duration,
    pub(super) due: Duration,
    /// `None` if the message reached the stage after its time-out.
    pub(super) latency: Option<Duration>,
}

/// Counts messages of one `--shape` that were due in one quarter-hour, such as 09:00 to 09:15. The distribution of
/// their latencies is not kept, because it would take too much memory: a run of weeks has thousands of quarter-hours.
#[derive(Clone, Copy, Debug, Default)]
struct WindowFigures {
    due: u64,
    created: u64,
    arrived: u64,
    completed: u64,
    late: u64,
    slowest: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct ShapeStats {
    schedule: Rc<ShapeSchedule>,
    shapes: Vec<[Reached; MessageStage::ALL.len()]>,
    /// Figures of each shape in each quarter-hour: all shapes of the first quarter-hour, then all shapes of the second,
    /// and so on.
    windows: Vec<WindowFigures>,
}

impl ShapeStats {
    pub(super) fn new(load: &MarketLoad, schedule: Rc<ShapeSchedule>) -> Self {
        Self { schedule, shapes: load.shapes.iter().map(|_| Default::default()).collect(), windows: Vec::new() }
    }

    fn window_mut(&mut self, sequence: u64) -> &mut WindowFigures {
        let each = self.shapes.len();
        let window = self.schedule.window(sequence);
        if self.windows.len() < (window + 1) * each {
            self.windows.resize((window + 1) * each, WindowFigures::default());
        }
        &mut self.windows[window * each + self.schedule.shape(sequence)]
    }

    pub(super) fn due(&mut self, sequence: u64) {
        self.window_mut(sequence).due += 1;
    }

    pub(super) fn reach(&mut self, path: MessagePath, sequence: u64, stage: MessageStage, reach: Reach) {
        self.shapes[self.schedule.shape(sequence)][stage as usize].add(reach);
        let latency = reach.latency;
        let window = self.window_mut(sequence);
        window.created += u64::from(stage == MessageStage::Created);
        window.arrived += u64::from(stage == path.mode.arrival());
        if stage == path.last() {
            window.completed += 1;
            window.late += u64::from(latency.is_none());
            window.slowest = window.slowest.max(latency.unwrap_or_default());
        }
    }

    /// Returns the settings and the figures of the load, as the record of the run contains them. Times count from
    /// `origin`. `missed` is the number of messages that were due but not created.
    pub(super) fn record(&self, options: &MadesOptions, created: u64, missed: u64, origin: Duration) -> MadesMarket {
        let mut stats = self.clone();
        (created..created + missed).for_each(|sequence| stats.due(sequence));
        let mut market = options.market.as_ref().map(|load| load.record(&options.message_type)).unwrap_or_default();
        market.missed = missed;
        for (number, figures) in stats.windows.iter().enumerate() {
            *market.shapes[number % self.shapes.len()].due.get_or_insert_default() += figures.due;
        }
        for (shape, reached) in market.shapes.iter_mut().zip(&self.shapes) {
            let row = |stage: &MessageStage| {
                let Reached { count, late, latency, arrivals } = &reached[*stage as usize];
                let service = &Latencies::default();
                let figures = StageFigures { count: *count, failed: 0, bytes: 0, arrivals, times: latency, service };
                StageRow { late: *late, ..figures.row(stage.stage(), "mades", Stage::Scheduled, None, origin) }
            };
            shape.stages = options.path().stages().iter().map(row).collect();
        }
        for (number, figures) in stats.windows.iter().enumerate().filter(|(_, figures)| figures.due > 0) {
            let (begin, from) = self.schedule.window_start(number / self.shapes.len());
            let WindowFigures { due, created, arrived, completed, late, slowest } = *figures;
            market.windows.push(MadesWindow {
                begin,
                from_s: from.as_secs_f64(),
                shape: market.shapes[number % self.shapes.len()].name.clone(),
                due,
                created,
                arrived,
                completed,
                late,
                slowest_ms: slowest.as_secs_f64() * 1e3,
            });
        }
        market
    }
}

impl MarketLoad {
    /// Returns the load's settings in the form of the record. Shapes that name no message type get `message_type`.
    pub fn record(&self, message_type: &str) -> MadesMarket {
        let shapes = self.shapes.iter().map(|shape| MadesShape {
            name: shape.name.clone(),
            message_type: shape.message_type(message_type).to_owned(),
            due: None,
            stages: Vec::new(),
        });
        MadesMarket {
            shapes: shapes.collect(),
            acceleration: self.acceleration,
            time_zone: self.time_zone.iana_name().unwrap_or_default().to_owned(),
            missed: 0,
            windows: Vec::new(),
        }
    }
}
