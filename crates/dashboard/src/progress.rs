//! Draws the progress bar and its text: the share of the run that is done, and the remaining time.
use crate::snapshot::RunSnapshot;
use crate::state::{Dashboard, DashboardView, Ink};
use mailrun_text::numbers::{count, seconds};
use mailrun_text::printable::printable;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Minimum elapsed time in seconds for an estimate of the remaining time. An earlier estimate would be far off.
const MIN_ESTIMATE_S: f64 = 1.0;
const MIN_ESTIMATE_SHARE: f64 = 0.01;

pub(crate) fn draw_progress(dashboard: &Dashboard, row: Rect, buffer: &mut Buffer) {
    let view = dashboard.view();
    let text = progress_text(view);
    let width = usize::from(row.width);
    let Some(share) = progress_share(&view.now) else {
        buffer.set_stringn(row.x + 1, row.y, text, width.saturating_sub(1), Style::new());
        return;
    };
    let text = format!("{} %  {text}", (share * 100.0).floor());
    let bar = width.saturating_sub(text.chars().count() + 3).clamp(0, 60);
    let full = (share * bar as f64) as usize;
    let palette = dashboard.palette;
    let at = buffer.set_stringn(row.x + 1, row.y, "━".repeat(full), bar, palette.style(Ink::Delivered)).0;
    let at = buffer.set_stringn(at, row.y, "─".repeat(bar - full), bar, palette.style(Ink::Border)).0;
    buffer.set_stringn(at + 1, row.y, text, usize::from(row.right().saturating_sub(at + 1)), Style::new());
}

/// Returns the share of the run that is done, by messages or by time, whichever is larger. Messages that were rejected
/// or failed count too, because the run does not send them again. Returns `None` if the run has no limit.
fn progress_share(now: &RunSnapshot) -> Option<f64> {
    let messages = (now.goal_messages > 0).then(|| now.messages.settled() as f64 / now.goal_messages as f64);
    let time = (now.goal_s > 0.0).then(|| now.elapsed_s / now.goal_s);
    messages.into_iter().chain(time).reduce(f64::max).map(|share| share.clamp(0.0, 1.0))
}

/// Formats the progress, for example `30,207 / 100,000 delivered · about 17 s left`.
pub(crate) fn progress_text(view: &DashboardView) -> String {
    let now = &view.now;
    if let Some(wait) = &now.wait {
        return printable(wait).into_owned();
    }
    let done = count(now.messages.done());
    let word = now.messages.done_word();
    let mut text = match (now.goal_messages, now.goal_s) {
        (0, goal_s) if goal_s > 0.0 => {
            format!("{:.0} / {goal_s:.0} s · {done} {word}", now.elapsed_s.min(goal_s).floor())
        }
        (0, _) => format!("{done} {word}"),
        (goal, _) => format!("{done} / {} {word}", count(goal)),
    };
    if let Some(left_s) = remaining_s(view) {
        text += &format!(" · about {} left", whole_seconds(left_s.ceil()));
    }
    text
}

/// Estimates the remaining time from the elapsed time, as if the run continued at the same speed.
fn remaining_s(view: &DashboardView) -> Option<f64> {
    let share = progress_share(&view.now)?;
    let is_known = view.now.elapsed_s >= MIN_ESTIMATE_S && (MIN_ESTIMATE_SHARE..1.0).contains(&share);
    is_known.then(|| view.now.elapsed_s * (1.0 - share) / share)
}

/// Formats a time in whole seconds, such as `12 s` or `2 min 03 s`.
pub(crate) fn whole_seconds(value_s: f64) -> String {
    if value_s < 99.5 { format!("{:.0} s", value_s.max(0.0).floor()) } else { seconds(value_s) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::MessageCounts;

    #[test]
    fn rejected_and_failed_messages_are_progress() {
        let messages = MessageCounts { accepted: 9, delivered: Some(5), rejected: 3, failed: 2, ..Default::default() };
        let run = RunSnapshot { goal_messages: 20, messages, ..RunSnapshot::default() };
        assert_eq!(progress_share(&run), Some(0.5));
        let without_sink = MessageCounts { accepted: 15, delivered: None, ..messages };
        assert_eq!(progress_share(&RunSnapshot { messages: without_sink, ..run }), Some(1.0));
    }
}
