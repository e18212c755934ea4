//! Draws the dashboard as an SVG for the gallery in docs, in the colours of a dark terminal.
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write;

const COLUMN: usize = 8;
const ROW: usize = 17;
/// Distance in pixels from the top of a cell to the base line of its text.
const BASE_LINE: usize = 13;
const BACKGROUND: &str = "#16181d";
const TEXT: &str = "#d4d7dd";
const DIM: &str = "#6d7380";

pub(crate) fn svg(buffer: &Buffer, title: &str) -> String {
    let columns = usize::from(buffer.area.width);
    let rows = usize::from(buffer.area.height);
    let width = columns * COLUMN + 16;
    let height = rows * ROW + 16;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <title>{title}</title>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
         <g transform=\"translate(8 8)\">\n"
    );
    for (cells, row) in buffer.content.chunks(columns.max(1)).zip(0..) {
        draw_row(cells, row * ROW, &mut picture);
    }
    picture + "</g>\n</svg>\n"
}

/// Draws a row of cells. Neighbouring cells of the same style share one SVG element, so that the file stays small.
fn draw_row(cells: &[Cell], y: usize, picture: &mut String) {
    let mut column = 0;
    while column < cells.len() {
        let first = &cells[column];
        let is_alike = |cell: &&Cell| Look::of(cell) == Look::of(first) && Glyph::of(cell).is_like(Glyph::of(first));
        let length = cells[column..].iter().take_while(is_alike).count().max(1);
        draw_run(&cells[column..column + length], column * COLUMN, y, picture);
        column += length;
    }
}

fn draw_run(cells: &[Cell], x: usize, y: usize, picture: &mut String) {
    let look = Look::of(&cells[0]);
    let width = cells.len() * COLUMN;
    if look.is_reversed {
        // Ignore the result here and below, because writing to a `String` cannot fail.
        let _ = writeln!(picture, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{ROW}\" fill=\"{TEXT}\"/>");
    }
    let fill = look.fill();
    let mut bar = |x: usize, y: f64, width: usize, height: f64| {
        let _ = writeln!(
            picture,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{width}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        );
    };
    let middle = y + ROW / 2;
    match Glyph::of(&cells[0]) {
        Glyph::Blank => {}
        Glyph::Bar(eighths) => {
            let height = ROW as f64 * f64::from(eighths) / 8.0;
            bar(x, (y + ROW) as f64 - height, width, height);
        }
        Glyph::Line(height) => bar(x, middle as f64 - height / 2.0, width, height),
        Glyph::Frame { right, down, up, left } => {
            let centre = x + COLUMN / 2;
            let top = if up { y } else { middle };
            let bottom = if down { y + ROW } else { middle + 1 };
            bar(centre, top as f64, 1, (bottom - top) as f64);
            if right {
                bar(centre, middle as f64 - 0.5, COLUMN / 2, 1.0);
            }
            if left {
                bar(x, middle as f64 - 0.5, COLUMN / 2, 1.0);
            }
        }
        Glyph::Text => {
            let text: String = cells.iter().map(Cell::symbol).collect();
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            let weight = if look.is_bold { " font-weight=\"700\"" } else { "" };
            let base = y + BASE_LINE;
            let _ = writeln!(
                picture,
                "<text x=\"{x}\" y=\"{base}\" textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{fill}\"{weight}>{text}</text>"
            );
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    colour: Color,
    is_bold: bool,
    is_dim: bool,
    is_reversed: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        Self {
            colour: cell.fg,
            is_bold: cell.modifier.contains(Modifier::BOLD),
            is_dim: cell.modifier.contains(Modifier::DIM),
            is_reversed: cell.modifier.contains(Modifier::REVERSED),
        }
    }

    fn fill(self) -> &'static str {
        match self.colour {
            _ if self.is_reversed => BACKGROUND,
            _ if self.is_dim => DIM,
            Color::Blue => "#6ea8fe",
            Color::Cyan => "#4fc3d9",
            Color::Green => "#7cc47f",
            Color::Yellow => "#e2b95b",
            Color::Red => "#f0776c",
            Color::Magenta => "#c594e8",
            _ => TEXT,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Glyph {
    Blank,
    /// A bar that fills this number of eighths of its cell, from 1 to 8.
    Bar(u32),
    /// A horizontal line of this thickness in pixels.
    Line(f64),
    /// A box-drawing character, with lines from the centre of its cell in these directions.
    Frame {
        right: bool,
        down: bool,
        up: bool,
        left: bool,
    },
    Text,
}

impl Glyph {
    fn of(cell: &Cell) -> Self {
        let Some(letter) = cell.symbol().chars().next() else { return Self::Blank };
        match letter {
            ' ' => Self::Blank,
            '▁'..='█' => Self::Bar(letter as u32 - '▁' as u32 + 1),
            '━' => Self::Line(3.0),
            '─' => Self::Line(1.0),
            '│' => Self::Frame { right: false, down: true, up: true, left: false },
            '┌' => Self::Frame { right: true, down: true, up: false, left: false },
            '┐' => Self::Frame { right: false, down: true, up: false, left: true },
            '└' => Self::Frame { right: true, down: false, up: true, left: false },
            '┘' => Self::Frame { right: false, down: false, up: true, left: true },
            _ => Self::Text,
        }
    }

    /// Returns true if neighbouring cells with these glyphs can be drawn as one shape.
    fn is_like(self, other: Self) -> bool {
        self == other && !matches!(self, Self::Frame { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::draw;
    use crate::sample;
    use crate::state::{Dashboard, Palette};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// The pictures in the gallery must show the current dashboard. If `MAILRUN_WRITE_PICTURES` is set, this test
    /// updates them.
    #[test]
    fn the_gallery_shows_the_dashboard_as_it_is() {
        for (width, height) in [(80, 24), (160, 50)] {
            let mut dashboard = Dashboard::new(Palette::Colour);
            sample::snapshots().into_iter().for_each(|now| dashboard.update(now));
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(&dashboard, frame)).unwrap();
            let title = format!("The dashboard of a run on a terminal of {width}×{height}");
            let picture = svg(terminal.backend().buffer(), &title);
            assert!(picture.len() < 100_000, "{}", picture.len());
            let path = format!("{}/../../docs/gallery/dashboard-{width}x{height}.svg", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("MAILRUN_WRITE_PICTURES").is_some() {
                std::fs::write(&path, &picture).unwrap();
            }
            assert!(std::fs::read_to_string(&path).unwrap() == picture, "{path} is another: make gallery");
        }
    }
}
