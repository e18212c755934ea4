use crate::dashboard_display::DashboardDisplay;
use crate::snapshot::RunSnapshot;
use mailrun_process::live::LiveMode;
use mailrun_process::live_line::{LineDisplay, LiveLine, NonTerminalOutput};

#[derive(Debug)]
pub struct LiveDisplay {
    line: LineDisplay,
    /// `None` if the terminal cannot show a dashboard, or if this run should have none.
    dashboard: Option<Box<DashboardDisplay>>,
}

impl LiveDisplay {
    /// Creates a display on standard error. `elsewhere` says what to write if standard error is not a terminal.
    pub fn on_stderr(live: LiveMode, elsewhere: NonTerminalOutput) -> Self {
        let line = LineDisplay::on_stderr(live, elsewhere);
        let dashboard = match line {
            LineDisplay::Terminal(_) => DashboardDisplay::new(live).map(Box::new),
            LineDisplay::Lines { .. } | LineDisplay::Nothing => None,
        };
        Self { line, dashboard }
    }

    /// Passes the figures of a run to the dashboard, and shows the dashboard once the run is long enough. `figures` is
    /// not called if there is no dashboard.
    pub fn update(&mut self, figures: impl FnOnce() -> RunSnapshot) {
        let Some(dashboard) = &mut self.dashboard else { return };
        dashboard.update(figures());
        if dashboard.should_show() {
            self.line.clear();
            dashboard.show();
        }
    }

    /// Shows a progress line, unless the previous line was shown only a moment ago. Callers can therefore call this as
    /// often as they like. While a dashboard is visible, no line is shown. If the line says what the run waits for, the
    /// dashboard then shows this text.
    pub fn show(&mut self, line: impl FnOnce() -> LiveLine) {
        match &mut self.dashboard {
            Some(dashboard) if dashboard.is_shown() => {
                if self.line.take_turn() {
                    dashboard.set_wait(line().wait());
                }
            }
            _ => self.line.show(line),
        }
    }

    /// Removes the progress line from the terminal, so that another line can be written there. A dashboard stays,
    /// because it is on the alternate screen.
    pub fn make_room(&mut self) {
        self.line.clear();
    }

    /// Removes the progress line, and closes the dashboard for the rest of the run.
    pub fn clear(&mut self) {
        self.line.clear();
        if let Some(dashboard) = &mut self.dashboard {
            dashboard.leave();
        }
    }
}
