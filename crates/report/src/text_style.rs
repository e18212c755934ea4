#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextStyle {
    /// Text without escape sequences, for files and pipes.
    #[default]
    Plain,
    /// Text with bold titles, faint notes and coloured outcomes, for terminals.
    Colour,
}

pub(super) fn bold(text: &str, style: TextStyle) -> String {
    styled(text, "1", style)
}

/// Wraps `text` in the escape sequences of a rendition (SGR, ECMA-48).
pub(super) fn styled(text: &str, code: &str, style: TextStyle) -> String {
    match style {
        TextStyle::Plain => text.to_owned(),
        TextStyle::Colour => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
    }
}
