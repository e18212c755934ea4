//! Writes tables with thin lines for a terminal, and with pipes for Markdown.
//!
//! On a terminal, a number is never split between two lines. If the columns are too wide, sentences are first wrapped
//! between words. If that is not enough, whole columns are left out: first those that `leave_out` names, in its order,
//! and then the others from the last one on. The file report.md and the run record have all columns.
//!
//! Cells may contain text of an untrusted server, so this module makes all text harmless. It
//! replaces control characters and direction marks, so that the text cannot move the cursor or
//! change the writing direction, and stays on one line. In Markdown it also escapes the text, so
//! that the text cannot become markup, a link or HTML.
use super::numbers;
use super::wrap::{clipped, display_width, longest_word, wrapped};
use crate::printable::is_hidden;
use std::borrow::Cow;

const GAP: usize = 2;
/// If a table is too wide, columns of sentences are narrowed to this width before any column is left out.
const WRAPPED_TEXT_WIDTH: usize = 24;
/// Minimum width of a column of sentences or names, unless all its contents are narrower.
const MIN_TEXT_WIDTH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    /// The column holds sentences, which a narrow terminal shows on several lines.
    Wrapped,
}

pub fn right(title: &'static str) -> (&'static str, Align) {
    (title, Align::Right)
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words, or a number that the caller has formatted, so that its format can differ from the rest of the column.
    Text(String),
    /// A time in milliseconds, which is shown with the same number of decimals as every other time
    /// of its column.
    Millis(f64),
    /// A figure. All figures of a column are shown with the same number of decimals.
    Figure(f64),
    Count(u64),
    /// A number and the text that shows it, for example with a unit.
    Number(f64, String),
}

impl Cell {
    fn value(&self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Millis(value) | Self::Figure(value) | Self::Number(value, _) => Some(*value),
            Self::Count(number) => Some(*number as f64),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A column for a caller that lays out the table itself, for example in HTML. Each cell has its text
/// and, if it is a number, its value. The text may come from a peer, so the caller must escape it.
pub struct ColumnCells {
    pub title: Cow<'static, str>,
    pub align: Align,
    pub cells: Vec<(String, Option<f64>)>,
}

#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(Cow<'static, str>, Align)>,
    rows: Vec<Vec<Cell>>,
    leave_out: Vec<Cow<'static, str>>,
    may_be_zero: Vec<&'static str>,
}

impl Table {
    pub fn new<T: Into<Cow<'static, str>>>(columns: impl IntoIterator<Item = (T, Align)>) -> Self {
        Self {
            columns: columns.into_iter().map(|(title, align)| (title.into(), align)).collect(),
            rows: Vec::new(),
            leave_out: Vec::new(),
            may_be_zero: Vec::new(),
        }
    }

    /// Names the columns that a narrow terminal leaves out, the least important first.
    #[must_use]
    pub fn leave_out<T: Into<Cow<'static, str>> + Clone>(mut self, titles: &[T]) -> Self {
        self.leave_out = titles.iter().cloned().map(Into::into).collect();
        self
    }

    /// Returns the titles passed to [`Table::leave_out`]. The record of a comparison stores them.
    pub fn left_out(&self) -> &[Cow<'static, str>] {
        &self.leave_out
    }

    /// Names the columns that are left out if all their cells are zero or empty.
    #[must_use]
    pub fn hide_zero(mut self, titles: &[&'static str]) -> Self {
        self.may_be_zero = titles.to_vec();
        self
    }

    pub fn row<C: Into<Cell>>(&mut self, cells: Vec<C>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Returns the table without a column, for example because an HTML page draws its values as bars.
    #[must_use]
    pub fn without(mut self, title: &str) -> Self {
        if let Some(at) = self.columns.iter().position(|(name, _)| *name == title) {
            self.columns.remove(at);
            self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
        }
        self
    }

    /// Removes a column whose cells are all equal, and returns their text. Keeps the column and
    /// returns `None` if the cells differ or if there are fewer than two rows.
    pub fn take_constant(&mut self, title: &str) -> Option<String> {
        let at = self.columns.iter().position(|(name, _)| *name == title)?;
        let (first, others) = self.rows.split_first()?;
        let is_constant = !others.is_empty() && others.iter().all(|row| row[at] == first[at]);
        let text = format_cells(&[&first[at]]).pop().filter(|_| is_constant)?;
        *self = std::mem::replace(self, Self::new::<&str>([])).without(title);
        Some(text)
    }

    pub fn split(mut self, count: usize) -> (Self, Self) {
        let rest = self.rows.split_off(count.min(self.rows.len()));
        let others = Self { rows: rest, ..self.clone() };
        (self, others)
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn terminal(&self, width: usize) -> String {
        let mut columns = self.texts(plain);
        self.fit(&mut columns, width);
        let lines: Vec<Vec<Vec<String>>> = (0..self.rows.len())
            .map(|row| columns.iter().map(|column| column.lines(&column.cells[row])).collect())
            .collect();
        let titles: Vec<String> = columns.iter().map(|column| clipped(&column.title, column.width)).collect();
        let mut text = line(&columns, &titles);
        let rule: usize = columns.iter().map(|column| column.width + GAP).sum();
        text.push_str(&format!("{}\n", "─".repeat(rule.min(width))));
        for row in &lines {
            let height = row.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                let cells: Vec<String> = row.iter().map(|cell| cell.get(at).cloned().unwrap_or_default()).collect();
                text.push_str(&line(&columns, &cells));
            }
        }
        text.trim_end_matches('\n').to_owned()
    }

    pub fn markdown(&self) -> String {
        let columns = self.texts(markdown_text);
        let cells = |row: &dyn Fn(&Column) -> String| {
            let cells: Vec<String> =
                columns.iter().map(|column| format!(" {} ", column.padded(&row(column)))).collect();
            format!("|{}|", cells.join("|"))
        };
        let rule: Vec<String> = columns.iter().map(Column::markdown_rule).collect();
        let mut lines = vec![cells(&|column| markdown_text(&column.title)), format!("|{}|", rule.join("|"))];
        lines.extend((0..self.rows.len()).map(|row| cells(&|column| column.cells[row].clone())));
        lines.join("\n")
    }

    /// Returns the columns for an HTML table, except the columns that [`Table::hide_zero`] hides.
    pub fn column_cells(&self) -> Vec<ColumnCells> {
        let contents = |column: Column| {
            let values = self.rows.iter().map(|row| row.get(column.at).and_then(Cell::value));
            let cells = column.cells.into_iter().zip(values).collect();
            ColumnCells { title: column.title, align: column.align, cells }
        };
        self.texts(str::to_owned).into_iter().map(contents).collect()
    }

    fn texts(&self, cell: impl Fn(&str) -> String) -> Vec<Column> {
        let column = |(at, (title, align)): (usize, &(Cow<'static, str>, Align))| {
            let cells: Vec<&Cell> = self.rows.iter().map(|row| &row[at]).collect();
            let cells: Vec<String> = format_cells(&cells).iter().map(|text| cell(text)).collect();
            let width = cells.iter().map(|text| display_width(text)).chain([display_width(title)]).max().unwrap_or(0);
            Column { at, title: title.clone(), align: *align, cells, width }
        };
        let columns = self.columns.iter().enumerate().map(column);
        columns.filter(|column| !(self.may_be_zero.contains(&&*column.title) && column.is_zero())).collect()
    }

    /// Fits the columns into `width`, with as many of these steps as necessary. Narrows the widest column of sentences
    /// to at least `WRAPPED_TEXT_WIDTH`. Leaves out the columns in `leave_out`. Narrows the widest column of sentences
    /// and the widest column of names to at least `MIN_TEXT_WIDTH`. Finally leaves out columns from the end.
    fn fit(&self, columns: &mut Vec<Column>, width: usize) {
        let missing = |columns: &[Column]| {
            columns.iter().map(|column| column.width + GAP).sum::<usize>().saturating_sub(width).saturating_sub(1)
        };
        let shrink = |columns: &mut Vec<Column>, is_meant: &dyn Fn(&Column) -> bool, min_width: usize| {
            let lacking = missing(columns);
            let widest = columns.iter_mut().filter(|column| is_meant(column)).max_by_key(|column| column.width);
            if let Some(column) = widest {
                let min_width = min_width.max(column.longest_word()).min(column.width);
                column.width = column.width.saturating_sub(lacking).max(min_width);
            }
        };
        shrink(columns, &|column| column.align == Align::Wrapped, WRAPPED_TEXT_WIDTH);
        for title in &self.leave_out {
            if missing(columns) > 0 {
                columns.retain(|column| column.title != *title);
            }
        }
        shrink(columns, &|column| column.align == Align::Wrapped, MIN_TEXT_WIDTH);
        shrink(columns, &|column| column.align == Align::Left, MIN_TEXT_WIDTH);
        // If the table is still too wide, leave out columns from the end.
        while missing(columns) > 0 && columns.len() > 1 {
            columns.pop();
        }
    }
}

struct Column {
    /// Index of the column in the table, counting hidden columns as well.
    at: usize,
    title: Cow<'static, str>,
    align: Align,
    cells: Vec<String>,
    width: usize,
}

impl Column {
    fn is_zero(&self) -> bool {
        self.cells.iter().all(|text| text.is_empty() || text.chars().all(|character| "0.–".contains(character)))
    }

    /// Returns the width to which a wrapped column can shrink without breaking a word. Words that are
    /// wider than `WRAPPED_TEXT_WIDTH` may be broken, so they do not count.
    fn longest_word(&self) -> usize {
        if self.align != Align::Wrapped {
            return 0;
        }
        let words = self.cells.iter().map(|text| longest_word(text));
        words.filter(|width| *width <= WRAPPED_TEXT_WIDTH).max().unwrap_or(0)
    }

    fn lines(&self, text: &str) -> Vec<String> {
        match self.align {
            Align::Wrapped => wrapped(text, "", "", self.width),
            Align::Left | Align::Right => vec![clipped(text, self.width)],
        }
    }

    fn padded(&self, text: &str) -> String {
        let room = " ".repeat(self.width.saturating_sub(display_width(text)));
        match self.align {
            Align::Right => format!("{room}{text}"),
            Align::Left | Align::Wrapped => format!("{text}{room}"),
        }
    }

    /// Returns the column's dashes for the line between the header and the rows of a Markdown table. A final colon
    /// aligns figures to the right.
    fn markdown_rule(&self) -> String {
        match self.align {
            Align::Right => format!("{}:", "-".repeat(self.width + 1)),
            Align::Left | Align::Wrapped => "-".repeat(self.width + 2),
        }
    }
}

fn line(columns: &[Column], cells: &[String]) -> String {
    let cells = columns.iter().zip(cells).map(|(column, text)| column.padded(text));
    let line = format!(" {}", cells.collect::<Vec<_>>().join(&" ".repeat(GAP)));
    format!("{}\n", line.trim_end())
}

fn format_cells(cells: &[&Cell]) -> Vec<String> {
    let largest = |pick: fn(&Cell) -> Option<f64>| cells.iter().filter_map(|cell| pick(cell)).fold(0.0, f64::max);
    let millis = numbers::decimals_of_millis(largest(|cell| match cell {
        Cell::Millis(value) => Some(*value),
        _ => None,
    }));
    let figures = numbers::decimals_of_figures(largest(|cell| match cell {
        Cell::Figure(value) => Some(*value),
        _ => None,
    }));
    let text = |cell: &&Cell| match cell {
        Cell::Text(text) => text.clone(),
        Cell::Millis(value) => numbers::fixed(*value, millis),
        Cell::Figure(value) => numbers::fixed(*value, figures),
        Cell::Count(number) => numbers::count(*number),
        Cell::Number(_, text) => text.clone(),
    };
    cells.iter().map(text).collect()
}

/// Makes `text` safe to print on one line. Control characters become spaces, and other hidden
/// characters, such as direction marks, become U+FFFD.
pub fn plain(text: &str) -> String {
    let shown = |character: char| match character {
        character if character.is_control() => ' ',
        character if is_hidden(character) => char::REPLACEMENT_CHARACTER,
        character => character,
    };
    text.chars().map(shown).collect()
}

/// Escapes a text for Markdown: CommonMark, and the tables, links and mathematics of GitHub.
pub fn markdown_text(text: &str) -> String {
    let text = plain(text);
    let mut safe = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        // GitHub recognises a URL by its "://" or its "www." and turns it into a link, so escape
        // these characters.
        let is_link =
            (character == ':' && text[at..].starts_with("://")) || (character == '.' && ends_in_www(&text[..at]));
        if is_link || "\\`*_[]<>#|&~$".contains(character) {
            safe.push('\\');
        }
        safe.push(character);
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
        assert_eq!(sample().terminal(usize::MAX), text, "without a limit");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].chars().all(|c| c == '─'), "{text}");
        assert!(lines[3].ends_with("      9"), "{text}");
    }

    #[test]
    fn columns_are_left_out_in_order_and_no_number_is_split() {
        let mut table = Table::new([("stage", Align::Left), right("min"), right("p50"), right("p99"), right("max")])
            .leave_out(&["min", "max", "p50"]);
        table.row(vec![
            Cell::from("delivered"),
            Cell::Millis(0.012),
            Cell::Millis(1.42),
            Cell::Millis(43.2),
            Cell::Millis(12_345.6),
        ]);
        let titles = |width| {
            table.terminal(width).lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(titles(80), "stage min p50 p99 max");
        assert_eq!(titles(38), "stage p50 p99 max");
        assert_eq!(titles(26), "stage p50 p99");
        assert_eq!(titles(20), "stage p99");
        for width in 12..80 {
            for line in table.terminal(width).lines().skip(2) {
                assert!(display_width(line) <= width, "{width}: {line}");
                let known = ["delivered", "0.012", "1.420", "43.200", "12,345.6"];
                assert!(line.split_whitespace().all(|word| known.contains(&word) || word.ends_with('…')), "{line}");
            }
        }
    }

    #[test]
    fn points_of_a_column_are_under_each_other() {
        let mut table = Table::new([("phase", Align::Left), ("p99", Align::Right)]);
        table.row(vec![Cell::from("mail"), Cell::Millis(9.765)]);
        table.row(vec![Cell::from("reply"), Cell::Millis(111.8)]);
        let text = table.terminal(80);
        let points: Vec<Option<usize>> = text.lines().skip(2).map(|line| line.find('.')).collect();
        assert!(points[0].is_some() && points[0] == points[1], "{text}");
        assert!(text.contains("9.77") && text.contains("111.80"), "{text}");
    }

    #[test]
    fn sentences_are_wrapped_between_words() {
        let mut table = Table::new([("count", Align::Right), ("text", Align::Wrapped)]);
        table.row(vec!["1,234", "452 4.3.1 Insufficient system storage, try again later"]);
        let text = table.terminal(40);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains("Insufficient")
                && text.contains("storage")
                && text.lines().all(|line| display_width(line) <= 40)
        );
    }

    #[test]
    fn a_column_of_zeros_is_hidden_where_that_is_said() {
        let mut table = Table::new([("stage", Align::Left), ("failed", Align::Right)]).hide_zero(&["failed"]);
        table.row(vec!["sent", "0"]);
        assert!(!table.terminal(80).contains("failed") && !table.markdown().contains("failed"));
        table.row(vec!["accepted", "7"]);
        assert!(table.terminal(80).contains("failed"));
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
        for (text, shown) in [
            ("550 <img src=x onerror=alert(1)>", r"550 \<img src=x onerror=alert(1)\>"),
            ("[click](javascript:alert(1))", r"\[click\](javascript:alert(1))"),
            ("![x](https://evil.example/p.png)", r"!\[x\](https\://evil.example/p.png)"),
            ("see https://evil.example and www.evil.example", r"see https\://evil.example and www\.evil.example"),
            ("&#x202e;&lt;b&gt;", r"\&\#x202e;\&lt;b\&gt;"),
            ("**b** `c` ~~d~~ $e$ | f", r"\*\*b\*\* \`c\` \~\~d\~\~ \$e\$ \| f"),
            ("a\u{202e}b\u{1b}[0m\r\n# c", "a\u{fffd}b \\[0m  \\# c"),
            ("12:30, 4.2 ms (99.5 %) – ok", "12:30, 4.2 ms (99.5 %) – ok"),
        ] {
            assert_eq!(markdown_text(text), shown);
            let mut table = Table::new([("text", Align::Left)]);
            table.row(vec![text.to_owned()]);
            assert!(table.markdown().contains(shown), "{}", table.markdown());
            assert!(!table.terminal(80).chars().any(|c| c != '\n' && is_hidden(c)));
        }
    }

    proptest! {
        /// In the result of `markdown_text`, every character that could be markup has a backslash before it.
        #[test]
        fn no_mark_is_left_to_mean_something(text in "[a-z<>\\[\\]|&`*_#:/.\\\\\\u{202e}\\n ]{0,40}|.*") {
            let safe = markdown_text(&text);
            let mut characters = safe.chars();
            while let Some(character) = characters.next() {
                prop_assert!(!is_hidden(character), "{safe:?}");
                prop_assert!(!"`*_[]<>#|&".contains(character), "{safe:?}");
                if character == '\\' {
                    characters.next();
                }
            }
            let unmarked = safe.replace("\\://", "");
            prop_assert!(!unmarked.contains("://") && !safe.contains("www."), "{safe:?}");
        }
    }
}
