//! One table for both readers: light lines for a terminal, pipes for Markdown.
//!
//! Cells may hold what a stranger's server said. They are made plain here: no control characters (a reply must
//! not move a terminal's cursor), nothing that turns the direction of writing, one line; and in Markdown they mean
//! themselves: no markup, no links, no HTML.
use crate::printable::is_hidden;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};

/// A header with a line under it, and nothing else: the figures are the picture.
const LIGHT: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Which edge a column's cells keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// Columns with titles, and rows of text.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of these columns and no rows yet.
    pub(crate) fn new<const N: usize>(columns: [(&'static str, Align); N]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; one cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// Whether it has rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// For a terminal of `width` columns; long words are wrapped inside their cell.
    pub(crate) fn terminal(&self, width: u16) -> String {
        let mut table = self.laid_out(LIGHT, plain);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        table.trim_fmt()
    }

    /// As a Markdown table, whose figures keep to the right.
    pub(crate) fn markdown(&self) -> String {
        let table = self.laid_out(ASCII_MARKDOWN, markdown_text);
        table
            .lines()
            .enumerate()
            .map(|(number, line)| if number == 1 { self.aligned(&line) } else { line })
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn laid_out(&self, style: TableStyle, cell: impl Fn(&str) -> String) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(style).set_header(self.columns.iter().map(|(title, _)| *title));
        for row in &self.rows {
            table.add_row(row.iter().map(|text| cell(text)));
        }
        for (column, (_, align)) in table.column_iter_mut().zip(&self.columns) {
            let alignment = match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            };
            column.set_cell_alignment(alignment);
        }
        table
    }

    /// Puts the colons into the line under the header: `|-----|----:|`.
    fn aligned(&self, separator: &str) -> String {
        let dashes = separator.trim_matches('|').split('|');
        let cells = dashes.zip(&self.columns).map(|(dashes, (_, align))| match align {
            Align::Left => dashes.to_owned(),
            Align::Right => format!("{}:", &dashes[1..]),
        });
        format!("|{}|", cells.collect::<Vec<_>>().join("|"))
    }
}

/// `text` on one line, without control characters and without what is not seen but changes how the rest is.
pub(crate) fn plain(text: &str) -> String {
    let shown = |letter: char| match letter {
        letter if letter.is_control() => ' ',
        letter if is_hidden(letter) => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    text.chars().map(shown).collect()
}

/// Text that means itself in Markdown (CommonMark, and GitHub's tables, links and mathematics).
pub(crate) fn markdown_text(text: &str) -> String {
    let text = plain(text);
    let mut safe = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        // A URL becomes a link by its "://", or by its "www.".
        let is_link = (letter == ':' && text[at..].starts_with("://")) || (letter == '.' && ends_in_www(&text[..at]));
        if is_link || "\\`*_[]<>#|&~$".contains(letter) {
            safe.push('\\');
        }
        safe.push(letter);
    }
    safe
}

fn ends_in_www(text: &str) -> bool {
    text.len() >= 3 && text.is_char_boundary(text.len() - 3) && text[text.len() - 3..].eq_ignore_ascii_case("www")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Table {
        let mut table = Table::new([("stage", Align::Left), ("messages", Align::Right)]);
        table.row(vec!["sent".to_owned(), "200,000".to_owned()]);
        table.row(vec!["delivered".to_owned(), "9".to_owned()]);
        table
    }

    #[test]
    fn a_terminal_gets_light_lines() {
        let text = sample().terminal(80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].chars().all(|c| c == '─'), "{text}");
        assert!(lines[3].ends_with("      9"), "{text}");
    }

    #[test]
    fn markdown_keeps_figures_to_the_right() {
        let text = sample().markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| stage     | messages |");
        assert_eq!(lines[1], "|-----------|---------:|");
        assert_eq!(lines[2], "| sent      |  200,000 |");
    }

    #[test]
    fn a_hostile_reply_stays_in_its_cell() {
        let mut table = Table::new([("text", Align::Left)]);
        table.row(vec!["550 a|b\r\n\u{1b}[2Jc".to_owned()]);
        let markdown = table.markdown();
        assert_eq!(markdown.lines().count(), 3, "{markdown}");
        assert!(markdown.contains("a\\|b"), "{markdown}");
        assert!(!table.terminal(60).contains('\u{1b}'));
    }
    #[test]
    fn a_strangers_markup_is_text() {
        for (said, shown) in [
            ("550 <img src=x onerror=alert(1)>", r"550 \<img src=x onerror=alert(1)\>"),
            ("[click](javascript:alert(1))", r"\[click\](javascript:alert(1))"),
            ("![x](https://evil.example/p.png)", r"!\[x\](https\://evil.example/p.png)"),
            ("see https://evil.example and www.evil.example", r"see https\://evil.example and www\.evil.example"),
            ("&#x202e;&lt;b&gt;", r"\&\#x202e;\&lt;b\&gt;"),
            ("**b** `c` ~~d~~ $e$ | f", r"\*\*b\*\* \`c\` \~\~d\~\~ \$e\$ \| f"),
            ("a\u{202e}b\u{1b}[0m\r\n# c", "a\u{fffd}b \\[0m  \\# c"),
            ("12:30, 4.2 ms (99.5 %) – ok", "12:30, 4.2 ms (99.5 %) – ok"),
        ] {
            assert_eq!(markdown_text(said), shown);
            let mut table = Table::new([("text", Align::Left)]);
            table.row(vec![said.to_owned()]);
            assert!(table.markdown().contains(shown), "{}", table.markdown());
            assert!(!table.terminal(80).chars().any(|c| c != '\n' && is_hidden(c)));
        }
    }

    proptest! {
        /// Whatever stands in a cell, each mark that could be markup has a backslash before it.
        #[test]
        fn no_mark_is_left_to_mean_something(text in "[a-z<>\\[\\]|&`*_#:/.\\\\\\u{202e}\\n ]{0,40}|.*") {
            let safe = markdown_text(&text);
            let mut letters = safe.chars();
            while let Some(letter) = letters.next() {
                prop_assert!(!is_hidden(letter), "{safe:?}");
                prop_assert!(!"`*_[]<>#|&".contains(letter), "{safe:?}");
                if letter == '\\' {
                    letters.next();
                }
            }
            prop_assert!(!safe.contains("://") && !safe.contains("www."), "{safe:?}");
        }
    }
}
