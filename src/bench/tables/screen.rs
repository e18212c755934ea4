//! A sheet as a reader gets it: its verdict alone, what a terminal of 80×24 can show, or all of it; the verdict last.
//!
//! A sheet is cut only where a file has all of it. Left out are then, in this order: empty lines; remarks, the last one
//! first; tables between the first and the last; faults after the first; the first table.
use super::Sheet;
use crate::printable::printable;
use crate::report::part::{Part, fit, lines, lines_in};
use crate::report::wrap::{wide, wrapped};
use crate::report::{Extent, Ink};
use std::cmp::Reverse;

/// Lines of a sheet that is cut, so that a shell's prompt fits under it.
const LINES: usize = 23;
/// Sentences on a terminal take no more columns.
const SENTENCE_WIDTH: usize = 100;

/// Priority of a part; the lowest is left out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Remark(Reverse<usize>),
    Table(Reverse<usize>),
    Fault(Reverse<usize>),
    FirstTable,
    Always,
}

impl Sheet {
    /// The sheet and its conclusion for a terminal of `width` columns, where columns that have no room are left out; `None`
    /// is a file, which gets all of it.
    pub(crate) fn shown(&self, width: Option<usize>, extent: Extent, ink: Ink) -> String {
        match (extent, width) {
            (Extent::Verdict, _) => self.conclusion.lines(ink, |line| vec![line.to_owned()]).join("\n") + "\n",
            (Extent::Short, Some(width)) if self.kept.is_some() => self.short(width, ink),
            (Extent::Short | Extent::Full, width) => self.whole(width, ink),
        }
    }

    fn whole(&self, width: Option<usize>, ink: Ink) -> String {
        let widest = self.text.lines().map(wide).max().unwrap_or(0);
        let (text, conclusion) = match width {
            Some(width) if width < widest => {
                let wrap = |sentence: &str| wrap(sentence, width);
                (self.laid_out(width, wrap), self.conclusion.lines(ink, wrap))
            }
            _ => (self.text.clone(), self.conclusion.lines(ink, |line| vec![line.to_owned()])),
        };
        format!("{text}\n\n{}\n", conclusion.join("\n"))
    }

    /// The part of it that fits on a screen.
    fn short(&self, width: usize, ink: Ink) -> String {
        let conclusion = self.conclusion.lines(ink, |line| wrap(line, width));
        let room = LINES.saturating_sub(conclusion.len() + 1);
        let mut parts = self.parts(width);
        if lines_in(&parts) > room {
            let details = self.kept.iter().map(|file| format!("details: {}", printable(&file.to_string_lossy())));
            let details: Vec<String> = details.collect();
            let folded: usize = details.iter().map(|line| wide(line).div_ceil(width.max(1))).sum();
            parts.push(Part { rank: Rank::Always, has_gap: true, lines: details });
            fit(&mut parts, (room + 1).saturating_sub(folded.saturating_sub(1)), Rank::Always);
        } else {
            parts.push(Part { rank: Rank::Always, has_gap: true, lines: Vec::new() });
        }
        lines(parts).chain(conclusion).fold(String::new(), |text, line| text + &line + "\n")
    }

    fn parts(&self, width: usize) -> Vec<Part<Rank>> {
        let mut parts = vec![Part { rank: Rank::Always, has_gap: false, lines: wrap(&self.title, width) }];
        let tables: Vec<_> = self.tables.iter().filter(|table| !table.is_empty()).collect();
        for (number, table) in tables.iter().enumerate() {
            let rank = match number {
                _ if number + 1 == tables.len() => Rank::Always,
                0 => Rank::FirstTable,
                _ => Rank::Table(Reverse(number)),
            };
            let lines = table.terminal(width).lines().map(str::to_owned).collect();
            parts.push(Part { rank, has_gap: true, lines });
        }
        let (faults, remarks): (Vec<_>, Vec<_>) = self.remarks.iter().partition(|remark| remark.starts_with("NOT OK"));
        for (number, fault) in faults.into_iter().enumerate() {
            let rank = if number == 0 { Rank::Always } else { Rank::Fault(Reverse(number)) };
            parts.push(Part { rank, has_gap: number == 0, lines: wrap(fault, width) });
        }
        for (number, remark) in remarks.into_iter().enumerate() {
            let part = Part { rank: Rank::Remark(Reverse(number)), has_gap: number == 0, lines: wrap(remark, width) };
            parts.push(part);
        }
        parts
    }
}

fn wrap(sentence: &str, width: usize) -> Vec<String> {
    wrapped(sentence, "", "  ", width.min(SENTENCE_WIDTH))
}

#[cfg(test)]
mod tests {
    use super::super::{Conclusion, Wrong};
    use super::*;
    use crate::report::table::{Align, Table};

    fn sheet(rows: usize, faults: usize, remarks: usize) -> Sheet {
        let table = |title: &'static str| {
            let mut table = Table::new([(title, Align::Left), ("delivered/s", Align::Right)]);
            (0..rows).for_each(|row| table.row(vec![format!("relay {row}"), "1,000".to_owned()]));
            table
        };
        let faults: Vec<String> = (0..faults).map(|number| format!("NOT OK: fault {number}")).collect();
        let said = (0..remarks).map(|number| format!("Remark {number}."));
        let wrong = Wrong { failed: faults.clone(), ..Wrong::default() };
        let conclusion = Conclusion::of(&wrong, "all well", true);
        let tables = vec![table("first"), table("middle"), table("last")];
        let mut sheet = Sheet::new("relay-x: what", tables, faults.iter().cloned().chain(said).collect(), conclusion);
        sheet.kept = Some("mailrun-results/x/table.txt".into());
        sheet
    }

    fn short(sheet: &Sheet) -> String {
        let text = sheet.shown(Some(80), Extent::Short, Ink::Plain);
        assert!(text.lines().count() <= LINES, "{text}");
        text
    }

    #[test]
    fn what_fits_is_whole() {
        let text = short(&sheet(1, 0, 2));
        for words in ["first", "middle", "last", "Remark 1.", "\n\nPASS all well\n"] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        assert!(!text.contains("details:"), "{text}");
    }

    #[test]
    fn remarks_go_before_tables_and_what_went_wrong_stays() {
        let text = short(&sheet(3, 2, 9));
        assert!(text.contains("middle") && text.contains("NOT OK: fault 1") && !text.contains("Remark 8."), "{text}");
        assert!(text.contains("details: mailrun-results/x/table.txt\nFAIL NOT OK: fault 0 (and 1 more)\n"), "{text}");
        let text = short(&sheet(8, 2, 9));
        assert!(!text.contains("middle") && !text.contains("first") && text.contains("last"), "{text}");
        assert!(text.contains("NOT OK: fault 0") && !text.contains("Remark"), "{text}");
    }

    #[test]
    fn only_what_a_file_has_is_cut_and_only_on_a_terminal() {
        let kept = sheet(20, 0, 9);
        let lost = Sheet { kept: None, ..kept.clone() };
        for (sheet, width, extent) in
            [(&kept, None, Extent::Short), (&kept, Some(80), Extent::Full), (&lost, Some(80), Extent::Short)]
        {
            let text = sheet.shown(width, extent, Ink::Plain);
            assert!(text.contains("first") && text.contains("middle") && text.contains("Remark 8."), "{text}");
        }
    }

    #[test]
    fn alone_the_verdict_is_a_line_and_has_its_colour() {
        assert_eq!(sheet(1, 0, 1).shown(Some(20), Extent::Verdict, Ink::Plain), "PASS all well\n");
        let painted = sheet(1, 1, 1).shown(None, Extent::Full, Ink::Colour);
        assert!(painted.ends_with("\n\n\u{1b}[1;31mFAIL\u{1b}[0m NOT OK: fault 0\n"), "{painted}");
    }
}
