use crate::panes::{error_text, per_second};
use crate::progress::draw_progress;
use crate::state::{Dashboard, Ink};
use mailrun_text::numbers::{count, counted, latency, memory};
use mailrun_text::printable::printable;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Draws the dashboard of a small terminal: the progress, and below it lines with the figures of the run. The most
/// important figures come first, because the last lines may not fit.
pub(crate) fn draw(dashboard: &Dashboard, area: Rect, buffer: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    draw_progress(dashboard, Rect { height: 1, ..area }, buffer);
    let room = usize::from(area.width).saturating_sub(1);
    for (line, y) in lines(dashboard).iter().zip(area.y + 1..area.bottom()) {
        buffer.set_stringn(area.x + 1, y, line, room, Style::new());
    }
    if dashboard.is_paused() {
        let style = dashboard.palette.style(Ink::Notice);
        buffer.set_stringn(area.x, area.bottom() - 1, " PAUSED ", usize::from(area.width), style);
    }
}

fn lines(dashboard: &Dashboard) -> Vec<String> {
    let view = dashboard.view();
    let now = &view.now;
    let mut lines = vec![format!("accepted {} · {}", count(now.messages.accepted), per_second(view.rates.accepted))];
    if let Some(delivered) = now.messages.delivered {
        lines.push(format!("delivered {} · {}", count(delivered), per_second(view.rates.delivered)));
    }
    lines.push(format!("queue {}", count(now.queue)));
    for stage in &now.stages {
        lines.push(format!(
            "{}: p50 {} · p99 {}",
            printable(&stage.name),
            latency(stage.now.p50),
            latency(stage.now.p99)
        ));
    }
    let errors = counted(now.errors, "error");
    lines.push(match error_text(&now.last_error) {
        text if text.is_empty() => errors,
        text => format!("{errors}: {text}"),
    });
    for party in &now.parties {
        lines.push(format!("{}: {:.2} cores · {}", printable(&party.name), party.cores, memory(party.memory_bytes)));
    }
    lines
}
