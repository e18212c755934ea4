//! Draws the four panes: rates and queue, latencies, messages and errors, CPU and memory.
use crate::history::{History, axis_span_s};
use crate::progress::whole_seconds;
use crate::snapshot::{StageTimes, TimesMs};
use crate::state::{DashboardView, Ink, Palette};
use mailrun_text::numbers::{count, latency, memory};
use mailrun_text::printable::printable;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Text;
use ratatui::widgets::{Paragraph, Widget, Wrap};

/// Bars that fill one to eight eighths of a row, so that a curve has eight times as many steps as rows.
const EIGHTHS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Width of the label before a curve. A pane of at least `WIDE_PANE` columns has room for a wider label.
const LABEL_COLUMNS: u16 = 13;
const WIDE_LABEL_COLUMNS: u16 = 18;
const WIDE_PANE: u16 = 60;
const MAX_ERROR_CHARACTERS: usize = 300;
const LEDGER_COLUMNS: u16 = 25;

struct Curve<'a> {
    name: &'a str,
    value: String,
    history: &'a History,
    ink: Ink,
}

/// Draws the curves of the rates and of the queue above one time axis. All rates have the same scale, so that they can
/// be compared. The queue has a scale of its own.
pub(crate) fn draw_rates(view: &DashboardView, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let has_sink = view.now.messages.delivered.is_some();
    let rate = |name, history, per_s, ink| Curve { name, value: per_second(per_s), history, ink };
    let mut curves = vec![
        rate("sent", &view.sent, view.rates.sent, Ink::Sent),
        rate("accepted", &view.accepted, view.rates.accepted, Ink::Accepted),
    ];
    if has_sink {
        curves.push(rate("delivered", &view.delivered, view.rates.delivered, Ink::Delivered));
    }
    let rates = curves.len();
    let name = if has_sink { "queue" } else { "under way" };
    curves.push(Curve { name, value: count(view.now.queue), history: &view.queue, ink: Ink::Queue });
    let Some(chart) = chart_area(area) else { return };
    let span_s = axis_span_s(view.now.elapsed_s, view.now.goal_s);
    let columns: Vec<_> = curves.iter().map(|curve| curve.history.columns(span_s, usize::from(chart.width))).collect();
    let peaks: Vec<f64> = columns.iter().map(|column| column.iter().flatten().copied().fold(0.0, f64::max)).collect();
    let rate_peak = peaks[..rates].iter().copied().fold(0.0, f64::max);
    let height = chart.height / curves.len() as u16;
    for (index, curve) in curves.iter().enumerate() {
        let row = Rect { y: chart.y + height * index as u16, height, ..chart };
        let peak = if index < rates { rate_peak } else { peaks[index] };
        let shown_peak = if index < rates { per_second(peaks[index]) } else { count(peaks[index].round() as u64) };
        draw_label(curve, &shown_peak, palette, Rect { x: area.x, width: chart.x - area.x, ..row }, buffer);
        let free = u16::from(height >= 4);
        let row = Rect { y: row.y + free, height: height - free, ..row };
        draw_curve(&columns[index], peak, palette.style(curve.ink), row, buffer);
    }
    draw_axis(span_s, palette, Rect { y: chart.bottom(), height: 1, ..chart }, buffer);
}

/// Returns the area of the curves, without the labels and the axis, or `None` if the pane is too small for curves.
fn chart_area(area: Rect) -> Option<Rect> {
    let label = if area.width >= WIDE_PANE { WIDE_LABEL_COLUMNS } else { LABEL_COLUMNS };
    let chart = Rect {
        x: area.x + label,
        width: area.width.checked_sub(label + 1)?,
        height: area.height.checked_sub(1)?,
        ..area
    };
    (chart.height >= 4 && chart.width > 0).then_some(chart)
}

fn draw_label(curve: &Curve<'_>, peak: &str, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let lines = [
        (curve.name.to_owned(), palette.style(curve.ink)),
        (curve.value.clone(), palette.style(Ink::Title)),
        (format!("peak {peak}"), palette.style(Ink::Border)),
    ];
    for ((text, style), y) in lines.iter().zip(area.y..area.bottom()) {
        buffer.set_stringn(area.x + 1, y, text, usize::from(area.width) - 2, *style);
    }
}

/// Draws a column for each value, as a share of the peak. Zero gets the lowest column, to distinguish it from an
/// unknown value, which gets no column.
fn draw_curve(columns: &[Option<f64>], peak: f64, style: Style, area: Rect, buffer: &mut Buffer) {
    let scale = if peak > 0.0 { f64::from(area.height) * 8.0 / peak } else { 0.0 };
    for (value, x) in columns.iter().zip(area.x..area.right()) {
        let Some(value) = value else { continue };
        let mut eighths = ((value * scale).round() as usize).max(1);
        for y in (area.y..area.bottom()).rev() {
            if eighths == 0 {
                break;
            }
            let part = eighths.min(8);
            buffer[(x, y)].set_symbol(EIGHTHS[part - 1]).set_style(style);
            eighths -= part;
        }
    }
}

fn draw_axis(span_s: f64, palette: Palette, row: Rect, buffer: &mut Buffer) {
    let end = whole_seconds(span_s);
    let line = usize::from(row.width).saturating_sub(end.chars().count() + 5);
    let text = format!("0 s {} {end}", "─".repeat(line));
    buffer.set_stringn(row.x, row.y, text, usize::from(row.width), palette.style(Ink::Border));
}

type TimesFigure = fn(&TimesMs) -> f64;

pub(crate) fn draw_latencies(view: &DashboardView, palette: Palette, area: Rect, buffer: &mut Buffer) {
    const ROWS: [(&str, TimesFigure); 5] = [
        ("p50", |times| times.p50),
        ("p95", |times| times.p95),
        ("p99", |times| times.p99),
        ("p99.9", |times| times.p999),
        ("max", |times| times.max),
    ];
    const COLUMN: u16 = 9;
    let room = |x: u16| usize::from(area.right().saturating_sub(x));
    let step = if area.height >= 14 { 2 } else { 1 };
    for ((name, _), row) in ROWS.iter().zip(0..) {
        let y = area.y + 2 + row * step;
        if y < area.bottom() {
            buffer.set_stringn(area.x + 1, y, name, room(area.x + 1), palette.style(Ink::Label));
        }
    }
    draw_thresholds(view, palette, area, area.y + 2 + ROWS.len() as u16 * step, buffer);
    for (stage, index) in view.now.stages.iter().zip(0_u16..) {
        let x = area.x + 6 + index * COLUMN * 2;
        if x + 2 * COLUMN > area.right() {
            break;
        }
        let ink = if stage.name == "delivered" { Ink::Delivered } else { Ink::Accepted };
        let name: String = printable(&stage.name).chars().take(usize::from(2 * COLUMN - 1)).collect();
        let head = format!("{name:>0$}", usize::from(2 * COLUMN));
        buffer.set_stringn(x, area.y, head, room(x), palette.style(ink));
        let head = format!("{:>9}{:>9}", "now", "run");
        buffer.set_stringn(x, area.y + 1, head, room(x), palette.style(Ink::Border));
        for ((_, figure), row) in ROWS.iter().zip(0..) {
            let y = area.y + 2 + row * step;
            if y < area.bottom() {
                let text = times_text(stage, *figure);
                buffer.set_stringn(x, y, text, room(x), Style::new());
            }
        }
    }
}

/// Draws the thresholds from row `y` on. Currently missed thresholds come first, because not all may fit.
fn draw_thresholds(view: &DashboardView, palette: Palette, area: Rect, y: u16, buffer: &mut Buffer) {
    let mut thresholds: Vec<_> = view.now.thresholds.iter().collect();
    thresholds.sort_by_key(|threshold| threshold.passed != Some(false));
    let room = usize::from(area.bottom().saturating_sub(y));
    let shown = if thresholds.len() > room { room.saturating_sub(1) } else { thresholds.len() };
    let width = usize::from(area.width).saturating_sub(2);
    for (threshold, y) in thresholds.iter().take(shown).zip(y..) {
        let (mark, ink) = match threshold.passed {
            Some(true) => ("✓", Ink::Delivered),
            Some(false) => ("✗", Ink::Error),
            None => ("·", Ink::Label),
        };
        let value = if threshold.value.is_empty() { "–" } else { &threshold.value };
        let value = printable(value);
        let text = format!("{mark} {}", printable(&threshold.expression));
        let left = width.saturating_sub(value.chars().count() + 1);
        buffer.set_stringn(area.x + 1, y, text, left, palette.style(ink));
        let value = format!("{value:>width$}", width = width - left);
        buffer.set_stringn(area.x + 1 + left as u16, y, value, width - left, Style::new());
    }
    if shown < thresholds.len() && room > 0 {
        let more = format!("{} more", thresholds.len() - shown);
        buffer.set_stringn(area.x + 1, y + shown as u16, more, width, palette.style(Ink::Border));
    }
}

fn times_text(stage: &StageTimes, figure: TimesFigure) -> String {
    let text = |times: &TimesMs| match figure(times) {
        value if value > 0.0 => latency(value),
        _ => "–".to_owned(),
    };
    format!("{:>9}{:>9}", text(&stage.now), text(&stage.run))
}

/// Draws the number of messages in each state, and the errors beside them or, in a narrow pane, below.
pub(crate) fn draw_messages(view: &DashboardView, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let messages = &view.now.messages;
    let delivered = messages.delivered.map_or_else(|| "–".to_owned(), count);
    let unsent = messages.unsent();
    let mut rows = vec![("due", count(messages.all()), Ink::Label)];
    rows.extend((unsent > 0).then(|| ("unsent", count(unsent), Ink::Error)));
    rows.extend([("accepted", count(messages.accepted), Ink::Accepted), ("delivered", delivered, Ink::Delivered)]);
    for (name, number) in [("rejected", messages.rejected), ("failed", messages.failed)] {
        // If the row `unsent` is shown, omit the rows `rejected` and `failed` when they are zero, so that the last row
        // still fits into the pane.
        if number > 0 || unsent == 0 {
            rows.push((name, count(number), if number > 0 { Ink::Error } else { Ink::Label }));
        }
    }
    rows.push(("outstanding", count(messages.outstanding()), Ink::Queue));
    let height = rows.len() as u16;
    let is_narrow = area.width < LEDGER_COLUMNS * 2;
    let width = if is_narrow { area.width } else { LEDGER_COLUMNS };
    for ((name, number, ink), y) in rows.into_iter().zip(area.y..area.bottom()) {
        let text = format!("{name:<11}{number:>11}");
        buffer.set_stringn(area.x + 1, y, text, usize::from(width).saturating_sub(1), palette.style(ink));
    }
    let errors = if is_narrow {
        Rect {
            y: area.y + height,
            height: area.height.saturating_sub(height),
            x: area.x + 1,
            width: area.width.saturating_sub(2),
        }
    } else {
        Rect { x: area.x + width + 1, width: area.width - width - 2, ..area }
    };
    draw_errors(view, palette, errors, is_narrow, buffer);
}

fn draw_errors(view: &DashboardView, palette: Palette, area: Rect, is_narrow: bool, buffer: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    let now = &view.now;
    let ink = if now.errors > 0 { Ink::Error } else { Ink::Label };
    let head = if is_narrow {
        format!("{:<11}{:>11}", "errors", count(now.errors))
    } else {
        format!("errors {}", count(now.errors))
    };
    buffer.set_stringn(area.x, area.y, head, usize::from(area.width), palette.style(ink));
    let text = error_text(&now.last_error);
    if !text.is_empty() {
        let text = if is_narrow { text } else { format!("last: {text}") };
        let area = Rect { y: area.y + 1, height: area.height - 1, ..area };
        Paragraph::new(Text::raw(text)).wrap(Wrap { trim: true }).render(area, buffer);
    }
}

/// Returns a peer's text for display, with control characters made visible, and cut at 300 characters.
pub(crate) fn error_text(text: &str) -> String {
    let cut: String = text.chars().take(MAX_ERROR_CHARACTERS).collect();
    let shown = printable(&cut);
    if shown.chars().count() <= MAX_ERROR_CHARACTERS && cut.len() == text.len() {
        return shown.into_owned();
    }
    shown.chars().take(MAX_ERROR_CHARACTERS).chain(['…']).collect()
}

pub(crate) fn draw_parties(view: &DashboardView, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let head = format!("{:<12}{:>9}{:>12}", "", "cores", "memory");
    buffer.set_stringn(area.x + 1, area.y, head, usize::from(area.width) - 1, palette.style(Ink::Border));
    let parties = &view.now.parties;
    let height = (area.height.saturating_sub(1) / parties.len().max(1) as u16).clamp(1, 6);
    let span_s = axis_span_s(view.now.elapsed_s, view.now.goal_s);
    let curve_x = area.x + 36;
    let curve_width = area.right().saturating_sub(curve_x + 1);
    for (index, party) in parties.iter().enumerate() {
        let y = area.y + 1 + height * index as u16;
        if y >= area.bottom() {
            break;
        }
        let name: String = printable(&party.name).chars().take(12).collect();
        let text = format!("{name:<12}{:>9.2}{:>12}", party.cores, memory(party.memory_bytes));
        buffer.set_stringn(area.x + 1, y, text, usize::from(area.width) - 1, Style::new());
        if let Some(history) = view.cores.get(index).filter(|_| curve_width >= 6) {
            let columns = history.columns(span_s, usize::from(curve_width));
            let peak = columns.iter().flatten().copied().fold(1.0, f64::max);
            let free = u16::from(height >= 3);
            let row = Rect { x: curve_x, y, width: curve_width, height: (height - free).min(area.bottom() - y) };
            draw_curve(&columns, peak, palette.style(Ink::Party), row, buffer);
        }
    }
}

/// Formats a rate, such as `0.4/s` or `12,393/s`. Rates below 10 have a decimal.
pub(crate) fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}/s") } else { format!("{}/s", count(rate.round() as u64)) }
}
