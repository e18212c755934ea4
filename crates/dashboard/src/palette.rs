use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Palette {
    /// The terminal's 16 colours, as set by its user.
    #[default]
    Colour,
    /// No colours (NO_COLOR), only bold and dim.
    Plain,
}

/// Part of the drawing, which determines its colour.
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
