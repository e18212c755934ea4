use crate::history::History;
use crate::snapshot::RunSnapshot;
use ratatui::style::{Color, Modifier, Style};
use std::collections::VecDeque;

/// Window in seconds over which a rate is computed. It is long enough for a steady number and short enough to show a
/// stall.
const RATE_WINDOW_S: f64 = 1.0;
const MAX_PARTIES: usize = 8;
pub(crate) const PANES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DashboardKey {
    Character(char),
    Tab,
    BackTab,
    Escape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DashboardAction {
    Nothing,
    Redraw,
    Stop,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RunRates {
    pub(crate) sent: f64,
    pub(crate) accepted: f64,
    pub(crate) delivered: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DashboardView {
    pub(crate) now: RunSnapshot,
    pub(crate) rates: RunRates,
    pub(crate) sent: History,
    pub(crate) accepted: History,
    pub(crate) delivered: History,
    pub(crate) queue: History,
    /// Cores used by each process over time, in the order of `RunSnapshot::parties`.
    pub(crate) cores: Vec<History>,
    recent: VecDeque<RateStep>,
}

#[derive(Clone, Copy, Debug)]
struct RateStep {
    at_s: f64,
    sent: u64,
    accepted: u64,
    delivered: u64,
}

impl DashboardView {
    fn update(&mut self, now: RunSnapshot) {
        let at_s = now.elapsed_s;
        let has_advanced = self.recent.back().is_none_or(|last| at_s > last.at_s);
        if has_advanced {
            self.recent.push_back(RateStep {
                at_s,
                sent: now.messages.sent,
                accepted: now.messages.accepted,
                delivered: now.messages.delivered.unwrap_or_default(),
            });
            while self.recent.len() > 2 && self.recent[1].at_s <= at_s - RATE_WINDOW_S {
                self.recent.pop_front();
            }
            self.rates = self.current_rates();
            // The first report gives no rate, because a rate needs two reports.
            if self.recent.len() > 1 {
                self.sent.add(at_s, self.rates.sent);
                self.accepted.add(at_s, self.rates.accepted);
                self.delivered.add(at_s, self.rates.delivered);
            }
            self.queue.add(at_s, now.queue as f64);
            let parties = now.parties.len().min(MAX_PARTIES);
            if self.cores.len() < parties {
                self.cores.resize_with(parties, History::default);
            }
            for (history, party) in self.cores.iter_mut().zip(&now.parties) {
                history.add(at_s, party.cores);
            }
        }
        self.now = now;
    }

    fn current_rates(&self) -> RunRates {
        let (Some(from), Some(to)) = (self.recent.front(), self.recent.back()) else { return RunRates::default() };
        let length_s = to.at_s - from.at_s;
        if length_s <= 0.0 {
            return RunRates::default();
        }
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / length_s;
        RunRates {
            sent: rate(from.sent, to.sent),
            accepted: rate(from.accepted, to.accepted),
            delivered: rate(from.delivered, to.delivered),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Dashboard {
    view: DashboardView,
    /// While the dashboard is paused, the view that it shows. Otherwise `None`.
    paused: Option<Box<DashboardView>>,
    pub(crate) enlarged: Option<usize>,
    pub(crate) has_help: bool,
    pub(crate) is_stopping: bool,
    pub(crate) palette: Palette,
}

impl Dashboard {
    pub(crate) fn new(palette: Palette) -> Self {
        Self {
            view: DashboardView::default(),
            paused: None,
            enlarged: None,
            has_help: false,
            is_stopping: false,
            palette,
        }
    }

    /// Updates the current figures, even if the user has paused the dashboard and still sees the old ones.
    pub(crate) fn update(&mut self, now: RunSnapshot) {
        self.view.update(now);
    }

    pub(crate) fn press(&mut self, key: DashboardKey) -> DashboardAction {
        match key {
            DashboardKey::Character('q' | 'Q') => {
                self.is_stopping = true;
                return DashboardAction::Stop;
            }
            DashboardKey::Character('p' | 'P' | ' ') => {
                self.paused = match self.paused {
                    None => Some(Box::new(self.view.clone())),
                    Some(_) => None,
                }
            }
            DashboardKey::Character('?' | 'h') => self.has_help = !self.has_help,
            DashboardKey::Character(digit @ '1'..='4') => {
                let pane = digit as usize - '1' as usize;
                self.enlarged = if self.enlarged == Some(pane) { None } else { Some(pane) };
            }
            DashboardKey::Character('0') => self.enlarged = None,
            DashboardKey::Tab => {
                self.enlarged = match self.enlarged {
                    None => Some(0),
                    Some(pane) => Some(pane + 1).filter(|next| *next < PANES),
                }
            }
            DashboardKey::BackTab => {
                self.enlarged = match self.enlarged {
                    None => Some(PANES - 1),
                    Some(pane) => pane.checked_sub(1),
                }
            }
            DashboardKey::Escape if self.has_help => self.has_help = false,
            DashboardKey::Escape => self.enlarged = None,
            DashboardKey::Character(_) => return DashboardAction::Nothing,
        }
        DashboardAction::Redraw
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub(crate) fn view(&self) -> &DashboardView {
        self.paused.as_deref().unwrap_or(&self.view)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Palette {
    /// The 16 colours of the terminal, so that the dashboard follows the user's colour scheme.
    #[default]
    Colour,
    /// No colours, only bold and dim, for example because `NO_COLOR` is set.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Title,
    Label,
    Border,
    Sent,
    Accepted,
    Delivered,
    Queue,
    Error,
    Party,
    Notice,
}

impl Palette {
    pub(crate) fn style(self, ink: Ink) -> Style {
        let plain = match ink {
            Ink::Title | Ink::Error => Style::new().add_modifier(Modifier::BOLD),
            Ink::Border => Style::new().add_modifier(Modifier::DIM),
            Ink::Notice => Style::new().add_modifier(Modifier::REVERSED),
            _ => Style::new(),
        };
        let colour = match ink {
            Ink::Sent => Color::Blue,
            Ink::Accepted => Color::Cyan,
            Ink::Delivered => Color::Green,
            Ink::Queue => Color::Yellow,
            Ink::Error => Color::Red,
            Ink::Party => Color::Magenta,
            Ink::Border | Ink::Title | Ink::Label | Ink::Notice => return plain,
        };
        if self == Self::Colour { plain.fg(colour) } else { plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::MessageCounts;

    fn at(elapsed_s: f64, sent: u64) -> RunSnapshot {
        let messages = MessageCounts { created: sent, sent, accepted: sent, ..MessageCounts::default() };
        RunSnapshot { elapsed_s, messages, ..RunSnapshot::default() }
    }

    #[test]
    fn a_rate_is_that_of_the_last_second() {
        let mut dashboard = Dashboard::new(Palette::Plain);
        for quarter in 0..=20_u32 {
            dashboard.update(at(f64::from(quarter) / 4.0, u64::from(quarter) * 250));
        }
        assert_eq!(dashboard.view().rates.sent, 1_000.0);
        for quarter in 21..=25_u32 {
            dashboard.update(at(f64::from(quarter) / 4.0, 5_000));
        }
        assert_eq!(dashboard.view().rates.sent, 0.0, "it stands");
        assert!(dashboard.view().recent.len() < 8);
    }

    #[test]
    fn a_pause_keeps_the_view_and_the_run_goes_on() {
        let mut dashboard = Dashboard::new(Palette::Plain);
        dashboard.update(at(1.0, 5));
        assert_eq!(dashboard.press(DashboardKey::Character(' ')), DashboardAction::Redraw);
        dashboard.update(at(2.0, 9));
        assert!(dashboard.is_paused());
        assert_eq!(dashboard.view().now.messages.sent, 5);
        dashboard.press(DashboardKey::Character('p'));
        assert!(!dashboard.is_paused());
        assert_eq!(dashboard.view().now.messages.sent, 9);
    }

    #[test]
    fn keys_enlarge_panes_and_stop() {
        let mut dashboard = Dashboard::new(Palette::Plain);
        let mut after = |key| {
            let action = dashboard.press(key);
            (action, dashboard.enlarged, dashboard.has_help)
        };
        let redraw = |pane, help| (DashboardAction::Redraw, pane, help);
        assert_eq!(after(DashboardKey::Character('3')), redraw(Some(2), false));
        assert_eq!(after(DashboardKey::Tab), redraw(Some(3), false));
        assert_eq!(after(DashboardKey::Tab), redraw(None, false));
        assert_eq!(after(DashboardKey::BackTab), redraw(Some(3), false));
        assert_eq!(after(DashboardKey::Character('?')), redraw(Some(3), true));
        assert_eq!(after(DashboardKey::Escape), redraw(Some(3), false));
        assert_eq!(after(DashboardKey::Escape), redraw(None, false));
        assert_eq!(after(DashboardKey::Character('1')), redraw(Some(0), false));
        assert_eq!(after(DashboardKey::Character('1')), redraw(None, false));
        assert_eq!(after(DashboardKey::Character('x')).0, DashboardAction::Nothing);
        assert_eq!(after(DashboardKey::Character('q')).0, DashboardAction::Stop);
        assert!(dashboard.is_stopping);
    }
}
