use crate::live_display::LiveDisplay;
use crate::snapshot::RunSnapshot;
use anyhow::Result;
use mailrun_measurement::Latencies;
use mailrun_process::event_output::EventOutput;
use mailrun_process::live::{LiveEvent, LiveMode, LiveProgress};
use mailrun_process::live_line::{LiveLine, NonTerminalOutput, RateWindow};
use mailrun_process::live_metrics::{LiveMetrics, MeasuredParty};
use std::net::SocketAddr;

pub struct ProgressOutput {
    events: EventOutput,
    display: LiveDisplay,
    rate: RateWindow,
    metrics: Option<LiveMetrics>,
    /// Text of the error that was last reported. A further error is reported only if its text differs.
    last_error: String,
}

impl ProgressOutput {
    /// Creates an output on standard error. If standard error is no terminal, `elsewhere` selects what is written.
    pub fn new(live: LiveMode, elsewhere: NonTerminalOutput) -> Self {
        Self {
            events: EventOutput::new(live),
            display: LiveDisplay::on_stderr(live, elsewhere),
            rate: RateWindow::default(),
            metrics: None,
            last_error: String::new(),
        }
    }

    /// Serves live metrics over HTTP on `address`, if there is an address.
    ///
    /// # Errors
    /// Fails if the HTTP server cannot listen on `address`.
    pub fn with_metrics(self, address: Option<SocketAddr>, party: MeasuredParty) -> Result<Self> {
        let metrics = address.map(|address| LiveMetrics::serve(address, party)).transpose()?;
        Ok(Self { metrics, ..self })
    }

    pub fn events(&self) -> &EventOutput {
        &self.events
    }

    /// Reports the latest error as a JSON event, unless its text is the same as in the last report.
    pub fn latest_error(&mut self, text: Option<String>) {
        let Some(text) = text.filter(|text| *text != self.last_error) else { return };
        self.events.event(&LiveEvent::Error { text: text.clone() });
        self.last_error = text;
    }

    /// Passes the run's figures, together with the latest error, to the dashboard.
    pub fn figures(&mut self, figures: impl FnOnce() -> RunSnapshot) {
        let last_error = &self.last_error;
        self.display.update(|| RunSnapshot { last_error: last_error.clone(), ..figures() });
    }

    /// Updates the metrics served over HTTP. `recent` must contain only the latencies since the last call.
    pub fn metrics(&self, progress: &LiveProgress, recent: &Latencies) {
        if let Some(metrics) = &self.metrics {
            metrics.add(progress, recent);
        }
    }

    /// Reports the progress as a JSON event and on the display. `done` is the count from which the rate is computed.
    pub fn progress(&mut self, progress: &LiveProgress, done: u64, line: impl FnOnce(&LiveProgress, f64) -> LiveLine) {
        self.events.event(&LiveEvent::Progress(*progress));
        self.rate.add(progress.elapsed_s, done);
        self.display.show(|| line(progress, self.rate.per_s()));
    }
}
