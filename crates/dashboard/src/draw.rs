//! Draws the dashboard as a whole: the head with the progress, the four panes, and the line of keys.
//!
//! ```text
//! mailrun bench                                                     12 s
//! ━━━━━━━━━━━━─────────────── 41 %  30,207 / 100,000 delivered · about 17 s left
//! ┌ 1 Rate ────────────────────┐┌ 2 Latency ─────────────────────────────┐
//! ┌ 3 Messages ────────────────┐┌ 4 Parties ─────────────────────────────┐
//!  p pause · 1-4 pane · Tab next · q stop · ? help
//! ```
use crate::progress::{draw_progress, whole_seconds};
use crate::state::{Dashboard, Ink, PANES};
use crate::{compact, panes};
use mailrun_text::printable::printable;
use mailrun_text::wrap::display_width;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Widget};

/// Minimum number of columns for the four panes. A narrower terminal gets the compact view.
pub(crate) const MIN_COLUMNS: u16 = 80;
pub(crate) const MIN_ROWS: u16 = 24;

const KEYS: &str = "p pause · 1-4 one pane · Tab next · q stop and report · ? help";
const HELP: [&str; 6] = [
    "p, space    pause the view; the run goes on",
    "1 2 3 4     one pane alone; the same key again: all",
    "Tab         the next pane; Shift-Tab: the one before",
    "Esc, 0      all panes",
    "q, Ctrl-C   stop and report; again: at once",
    "Ctrl-Z      suspend; fg comes back",
];

pub(crate) fn draw(dashboard: &Dashboard, frame: &mut Frame<'_>) {
    draw_on(dashboard, frame.area(), frame.buffer_mut());
}

fn draw_on(dashboard: &Dashboard, area: Rect, buffer: &mut Buffer) {
    if area.width < MIN_COLUMNS || area.height < MIN_ROWS {
        return compact::draw(dashboard, area, buffer);
    }
    let rows = Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]);
    let [head, body, foot] = rows.areas(area);
    draw_title(dashboard, head, buffer);
    draw_progress(dashboard, Rect { y: head.y + 1, height: 1, ..head }, buffer);
    match dashboard.enlarged {
        Some(pane) => draw_pane(dashboard, pane, body, buffer),
        None => draw_panes(dashboard, body, buffer),
    }
    draw_foot(dashboard, foot, buffer);
    if dashboard.has_help {
        draw_help(dashboard, body, buffer);
    }
}

fn draw_panes(dashboard: &Dashboard, body: Rect, buffer: &mut Buffer) {
    // The right column needs at least 45 columns, so that its table of latencies can show two stages.
    let [upper, lower] = Layout::vertical([Constraint::Fill(11), Constraint::Fill(10)]).areas(body);
    let columns = Layout::horizontal([Constraint::Fill(1), Constraint::Length(45.max(body.width * 2 / 5))]);
    let [first, second] = columns.areas(upper);
    let [third, fourth] = columns.areas(lower);
    for (pane, area) in [first, second, third, fourth].into_iter().enumerate() {
        draw_pane(dashboard, pane, area, buffer);
    }
}

fn draw_pane(dashboard: &Dashboard, pane: usize, area: Rect, buffer: &mut Buffer) {
    const TITLES: [&str; PANES] =
        [" 1 Rate and queue ", " 2 Latency and thresholds ", " 3 Messages and errors ", " 4 Processor and memory "];
    let palette = dashboard.palette;
    let block = Block::bordered().border_style(palette.style(Ink::Border)).title_style(palette.style(Ink::Title));
    let block = block.title(TITLES[pane]);
    let inner = block.inner(area);
    block.render(area, buffer);
    let view = dashboard.view();
    match pane {
        0 => panes::draw_rates(view, palette, inner, buffer),
        1 => panes::draw_latencies(view, palette, inner, buffer),
        2 => panes::draw_messages(view, palette, inner, buffer),
        _ => panes::draw_parties(view, palette, inner, buffer),
    }
}

fn draw_title(dashboard: &Dashboard, row: Rect, buffer: &mut Buffer) {
    let view = dashboard.view();
    let mut title = format!(" mailrun · {}", printable(&view.now.title));
    let elapsed = format!("{} ", whole_seconds(view.now.elapsed_s));
    let notice = if dashboard.is_paused() { " PAUSED " } else { "" };
    let right = elapsed.chars().count() + notice.len() + 1;
    let room = usize::from(row.width).saturating_sub(right);
    // Add parts of the run's description only while they fit, so that the elapsed time remains visible.
    for part in printable(&view.now.subject).split(" · ").filter(|part| !part.is_empty()) {
        if display_width(&title) + display_width(part) + 3 > room {
            break;
        }
        title += &format!(" · {part}");
    }
    buffer.set_stringn(row.x, row.y, title, room, dashboard.palette.style(Ink::Title));
    let at = row.right().saturating_sub(u16::try_from(right).unwrap_or(u16::MAX)).max(row.x);
    let (at, _) = buffer.set_stringn(at, row.y, notice, usize::from(row.width), dashboard.palette.style(Ink::Notice));
    buffer.set_stringn(at + 1, row.y, elapsed, usize::from(row.right() - at - 1), Style::new());
}

fn draw_foot(dashboard: &Dashboard, row: Rect, buffer: &mut Buffer) {
    let text = if dashboard.is_stopping { "stopping; q again: report at once" } else { KEYS };
    buffer.set_stringn(row.x + 1, row.y, text, usize::from(row.width) - 1, dashboard.palette.style(Ink::Border));
}

fn draw_help(dashboard: &Dashboard, body: Rect, buffer: &mut Buffer) {
    let height = HELP.len() as u16 + 2;
    let width = HELP.iter().map(|line| line.chars().count()).max().unwrap_or_default() as u16 + 4;
    let area = Rect { x: body.x + 1, y: body.bottom() - height, width, height };
    Clear.render(area, buffer);
    let block = Block::bordered().title(" Keys ").title_style(dashboard.palette.style(Ink::Title));
    let inner = block.inner(area);
    block.render(area, buffer);
    for (line, y) in HELP.iter().zip(inner.y..) {
        buffer.set_stringn(inner.x + 1, y, line, usize::from(inner.width) - 1, Style::new());
    }
}

#[cfg(test)]
mod tests {
    use super::{MIN_COLUMNS, MIN_ROWS};
    use crate::sample;
    use crate::snapshot::{MessageCounts, PartyLoad, RunSnapshot, StageTimes, ThresholdState, TimesMs};
    use crate::state::{Dashboard, DashboardKey, Palette};
    use proptest::prelude::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Color;

    fn drawn(dashboard: &Dashboard, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| super::draw(dashboard, frame)).unwrap();
        terminal
    }

    fn text(terminal: &Terminal<TestBackend>) -> String {
        let buffer = terminal.backend().buffer();
        let row = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
        let rows: Vec<String> = buffer.content.chunks(buffer.area.width.into()).map(row).collect();
        rows.join("\n")
    }

    fn sampled() -> Dashboard {
        let mut dashboard = Dashboard::new(Palette::Colour);
        sample::snapshots().into_iter().for_each(|now| dashboard.update(now));
        dashboard
    }

    #[test]
    fn a_run_is_seen_as_a_whole_on_80_by_24() {
        let shown = text(&drawn(&sampled(), MIN_COLUMNS, MIN_ROWS));
        let last = sample::snapshots().pop().unwrap();
        let delivered = mailrun_text::numbers::count(last.messages.delivered.unwrap());
        for part in [
            "mailrun · bench · through the relay",
            "40 s",
            &format!("{delivered} / 60,000 delivered · about "),
            "1 Rate and queue",
            "2 Latency and thresholds",
            "127.0.0.1:2525 · 1,000/s",
            "✗ delivered.p99 < 50ms",
            "✓ rejected < 10%",
            "3 Messages and errors",
            "4 Processor and memory",
            "p99.9",
            "outstanding",
            "450 at rcpt",
            "Greylisted",
            "relay",
            "q stop and report",
            "0 s ─",
            "60 s",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
    }

    #[test]
    fn one_pane_has_the_whole_area() {
        let mut dashboard = sampled();
        for (key, shown, hidden) in
            [('1', "1 Rate", "2 Latency"), ('2', "2 Latency", "1 Rate"), ('4', "4 Pro", "3 Mess")]
        {
            dashboard.press(DashboardKey::Character(key));
            let text = text(&drawn(&dashboard, 80, 24));
            assert!(text.contains(shown) && !text.contains(hidden), "{text}");
        }
    }

    #[test]
    fn pause_and_help_are_seen() {
        let mut dashboard = sampled();
        dashboard.press(DashboardKey::Character('p'));
        dashboard.press(DashboardKey::Character('?'));
        let shown = text(&drawn(&dashboard, 80, 24));
        assert!(shown.contains("PAUSED") && shown.contains("pause the view; the run goes on"), "{shown}");
        dashboard.press(DashboardKey::Character('q'));
        let shown = text(&drawn(&dashboard, 80, 24));
        assert!(shown.contains("stopping"), "{shown}");
    }

    #[test]
    fn a_small_terminal_has_the_figures_as_lines() {
        let shown = text(&drawn(&sampled(), 60, 12));
        assert!(!shown.contains('┌') && shown.contains(" / 60,000 delivered"), "{shown}");
        assert!(shown.contains("errors: 450 at rcpt") && shown.contains("queue "), "{shown}");
        let line = text(&drawn(&sampled(), 40, 1));
        assert!(line.contains("60,000 delivered"), "{line}");
    }

    #[test]
    fn without_colour_there_is_none() {
        let has_colour = |palette| {
            let mut dashboard = Dashboard::new(palette);
            sample::snapshots().into_iter().for_each(|now| dashboard.update(now));
            let shown = drawn(&dashboard, 80, 24);
            shown.backend().buffer().content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(has_colour(Palette::Colour) && !has_colour(Palette::Plain));
    }

    #[test]
    fn a_wait_takes_the_place_of_the_estimate() {
        let mut dashboard = sampled();
        let wait = Some("sent 3,000; waiting for 22 at the sink, at most 8 s more".to_owned());
        dashboard.update(RunSnapshot { wait, ..sample::snapshots().pop().unwrap() });
        let shown = text(&drawn(&dashboard, 80, 24));
        assert!(shown.contains("waiting for 22 at the sink") && !shown.contains("about"), "{shown}");
    }

    #[test]
    fn the_sample_agrees_with_itself() {
        for now in sample::snapshots() {
            let counts = now.messages;
            assert_eq!(counts.created, counts.accepted + counts.rejected);
            assert_eq!(counts.due, counts.created);
            assert_eq!(counts.outstanding(), now.queue);
            assert_eq!(now.errors, counts.rejected);
            for stage in &now.stages {
                assert!(stage.now.max <= stage.run.max && stage.run.p50 <= stage.run.p999, "{stage:?}");
            }
        }
    }

    #[test]
    fn messages_that_are_due_and_unsent_are_outstanding() {
        let mut dashboard = sampled();
        let messages = MessageCounts { due: 250, created: 100, accepted: 20, ..MessageCounts::default() };
        dashboard.update(RunSnapshot { messages, ..sample::snapshots().pop().unwrap() });
        let shown = text(&drawn(&dashboard, 80, 24));
        let row = |name: &str, number: &str| format!("{name:<11}{number:>11}");
        for (name, number) in [("due", "250"), ("unsent", "150"), ("outstanding", "230")] {
            assert!(shown.contains(&row(name, number)), "{name} in\n{shown}");
        }
        let in_transit = MessageCounts { in_transit: Some(3), ..messages };
        assert_eq!(in_transit.outstanding(), 153);
    }

    #[test]
    fn missed_thresholds_come_first_and_the_others_are_counted() {
        let mut dashboard = sampled();
        let state = |number: u32| ThresholdState {
            expression: format!("accepted.p99 < {number}ms"),
            value: "12.0 ms".to_owned(),
            passed: Some(number > 12),
        };
        let thresholds = [20, 30, 40, 10].map(state).to_vec();
        dashboard.update(RunSnapshot { thresholds, ..sample::snapshots().pop().unwrap() });
        let shown = text(&drawn(&dashboard, 80, 24));
        assert!(shown.contains("✗ accepted.p99 < 10ms") && shown.contains("3 more"), "{shown}");
        assert!(!shown.contains("< 20ms"), "{shown}");
    }

    #[test]
    fn a_source_by_itself_has_no_deliveries() {
        let mut dashboard = Dashboard::new(Palette::Plain);
        let messages = MessageCounts { created: 12, sent: 11, accepted: 9, failed: 1, ..MessageCounts::default() };
        dashboard.update(RunSnapshot { messages, elapsed_s: 3.0, queue: 2, ..RunSnapshot::default() });
        let shown = text(&drawn(&dashboard, 80, 24));
        assert!(shown.contains("under way") && shown.contains("9 accepted"), "{shown}");
        assert!(!shown.contains("delivered   0"), "{shown}");
    }

    proptest! {
        /// Drawing must work for any figures and texts, and for a terminal of any size. The drawing must not contain
        /// control characters.
        #[test]
        fn anything_is_drawn_anywhere(
            (width, height) in (1_u16..200, 1_u16..60),
            text in "\\PC{0,20}|[\u{0}-\u{1f}\u{202e}<a-z日🙂]{0,400}",
            counts: [u64; 4],
            times in [0.0..1e12_f64, 0.0..1e12_f64, 0.0..1e12_f64],
            keys in "[p?q0-9]{0,3}",
        ) {
            let [created, accepted, goal_messages, memory_bytes] = counts.map(|count| count >> 8);
            let [elapsed_s, cores, p50] = times;
            let stage = |name: &str| StageTimes {
                name: name.to_owned(),
                now: TimesMs { p50, ..TimesMs::default() },
                run: TimesMs::default(),
            };
            let mut dashboard = Dashboard::new(Palette::Colour);
            for key in keys.chars() {
                dashboard.press(DashboardKey::Character(key));
            }
            for elapsed_s in [0.0, elapsed_s] {
                dashboard.update(RunSnapshot {
                    title: text.clone(),
                    subject: text.clone(),
                    thresholds: vec![
                        ThresholdState { expression: text.clone(), value: text.clone(), passed: None };
                        keys.len()
                    ],
                    wait: text.starts_with('a').then(|| text.clone()),
                    elapsed_s,
                    goal_messages,
                    goal_s: p50,
                    messages: MessageCounts { due: created / 3, created, sent: created, accepted, delivered: Some(accepted), ..MessageCounts::default() },
                    queue: accepted,
                    stages: vec![stage("accepted"), stage(&text), stage("delivered")],
                    errors: created,
                    last_error: text.clone(),
                    parties: vec![PartyLoad { name: text.clone(), cores, memory_bytes }; 12],
                });
            }
            let shown = super::tests::text(&drawn(&dashboard, width, height));
            prop_assert!(!shown.chars().any(|letter| letter != '\n' && mailrun_text::printable::is_hidden(letter)), "{}", shown);
        }
    }
}
