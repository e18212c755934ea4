//! Formats a report: the verdict alone, as much as a terminal of 80×24 can show, or all of it. The
//! verdict comes last.
//!
//! A report is shortened only if the whole report is in a file. Parts are left out in this order:
//! empty lines; remarks, the last one first; tables between the first and the last; runs that went
//! wrong, except the first; the first table.
use super::TextReport;
use mailrun_report::short::{ReportPart, fit, lines, lines_in};
use mailrun_report::{ReportLength, TextStyle};
use mailrun_text::printable::printable;
use mailrun_text::wrap::{display_width, wrapped};
use std::cmp::Reverse;

/// Maximum number of lines of a shortened report. It leaves a line of the terminal for the shell's
/// prompt.
const MAX_LINES: usize = 23;
/// Maximum width of sentences on a terminal, in columns.
const SENTENCE_WIDTH: usize = 100;

/// If a report is too long for the terminal, its parts with the lowest priority are left out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TablePriority {
    Remark(Reverse<usize>),
    Table(Reverse<usize>),
    Fault(Reverse<usize>),
    FirstTable,
    Always,
}

impl TextReport {
    /// Formats the report and its conclusion for a terminal of `width` columns, and leaves out columns of tables that
    /// do not fit. If `width` is `None`, the text is for a file and has all of the report.
    pub fn render(&self, width: Option<usize>, length: ReportLength, style: TextStyle) -> String {
        match (length, width) {
            (ReportLength::Verdict, _) => self.conclusion.lines(style, |line| vec![line.to_owned()]).join("\n") + "\n",
            (ReportLength::Short, Some(width)) if self.file.is_some() => self.short(width, style),
            (ReportLength::Short | ReportLength::Full, width) => self.full(width, style),
        }
    }

    fn full(&self, width: Option<usize>, style: TextStyle) -> String {
        let widest = self.text.lines().map(display_width).max().unwrap_or(0);
        let (text, conclusion) = match width {
            Some(width) if width < widest => {
                let wrap = |sentence: &str| wrap(sentence, width);
                (self.layout(width, wrap), self.conclusion.lines(style, wrap))
            }
            _ => (self.text.clone(), self.conclusion.lines(style, |line| vec![line.to_owned()])),
        };
        format!("{text}\n\n{}\n", conclusion.join("\n"))
    }

    fn short(&self, width: usize, style: TextStyle) -> String {
        let conclusion = self.conclusion.lines(style, |line| wrap(line, width));
        let room = MAX_LINES.saturating_sub(conclusion.len() + 1);
        let mut parts = self.parts(width);
        if lines_in(&parts) > room {
            let details = self.file.iter().map(|file| format!("details: {}", printable(&file.to_string_lossy())));
            let details: Vec<String> = details.collect();
            let line_count: usize = details.iter().map(|line| display_width(line).div_ceil(width.max(1))).sum();
            parts.push(ReportPart { priority: TablePriority::Always, has_gap: true, lines: details });
            fit(&mut parts, (room + 1).saturating_sub(line_count.saturating_sub(1)), TablePriority::Always);
        } else {
            parts.push(ReportPart { priority: TablePriority::Always, has_gap: true, lines: Vec::new() });
        }
        lines(parts).chain(conclusion).fold(String::new(), |text, line| text + &line + "\n")
    }

    fn parts(&self, width: usize) -> Vec<ReportPart<TablePriority>> {
        let mut parts =
            vec![ReportPart { priority: TablePriority::Always, has_gap: false, lines: wrap(&self.title, width) }];
        let tables: Vec<_> = self.tables.iter().filter(|table| !table.is_empty()).collect();
        for (number, table) in tables.iter().enumerate() {
            let rank = match number {
                _ if number + 1 == tables.len() => TablePriority::Always,
                0 => TablePriority::FirstTable,
                _ => TablePriority::Table(Reverse(number)),
            };
            let lines = table.terminal(width).lines().map(str::to_owned).collect();
            parts.push(ReportPart { priority: rank, has_gap: true, lines });
        }
        let (faults, remarks): (Vec<_>, Vec<_>) = self.remarks.iter().partition(|remark| remark.starts_with("NOT OK"));
        for (number, fault) in faults.into_iter().enumerate() {
            let rank = if number == 0 { TablePriority::Always } else { TablePriority::Fault(Reverse(number)) };
            parts.push(ReportPart { priority: rank, has_gap: number == 0, lines: wrap(fault, width) });
        }
        for (number, remark) in remarks.into_iter().enumerate() {
            let part = ReportPart {
                priority: TablePriority::Remark(Reverse(number)),
                has_gap: number == 0,
                lines: wrap(remark, width),
            };
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
    use super::super::{Conclusion, Defects};
    use super::*;
    use mailrun_text::table::{Align, Table};

    fn report(rows: usize, faults: usize, remarks: usize) -> TextReport {
        let table = |title: &'static str| {
            let mut table = Table::new([(title, Align::Left), ("delivered/s", Align::Right)]);
            (0..rows).for_each(|row| table.row(vec![format!("relay {row}"), "1,000".to_owned()]));
            table
        };
        let faults: Vec<String> = (0..faults).map(|number| format!("NOT OK: fault {number}")).collect();
        let notes = (0..remarks).map(|number| format!("Remark {number}."));
        let defects = Defects { failed: faults.clone(), ..Defects::default() };
        let conclusion = Conclusion::of(&defects, "all well", true);
        let tables = vec![table("first"), table("middle"), table("last")];
        let mut report =
            TextReport::new("relay-x: what", tables, faults.iter().cloned().chain(notes).collect(), conclusion);
        report.file = Some("mailrun-results/x/table.txt".into());
        report
    }

    fn short(report: &TextReport) -> String {
        let text = report.render(Some(80), ReportLength::Short, TextStyle::Plain);
        assert!(text.lines().count() <= MAX_LINES, "{text}");
        text
    }

    #[test]
    fn what_fits_is_whole() {
        let text = short(&report(1, 0, 2));
        for words in ["first", "middle", "last", "Remark 1.", "\n\nPASS all well\n"] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        assert!(!text.contains("details:"), "{text}");
    }

    #[test]
    fn remarks_go_before_tables_and_what_went_wrong_stays() {
        let text = short(&report(3, 2, 9));
        assert!(text.contains("middle") && text.contains("NOT OK: fault 1") && !text.contains("Remark 8."), "{text}");
        assert!(text.contains("details: mailrun-results/x/table.txt\nFAIL NOT OK: fault 0 (and 1 more)\n"), "{text}");
        let text = short(&report(8, 2, 9));
        assert!(!text.contains("middle") && !text.contains("first") && text.contains("last"), "{text}");
        assert!(text.contains("NOT OK: fault 0") && !text.contains("Remark"), "{text}");
    }

    #[test]
    fn only_what_a_file_has_is_cut_and_only_on_a_terminal() {
        let kept = report(20, 0, 9);
        let lost = TextReport { file: None, ..kept.clone() };
        for (report, width, length) in [
            (&kept, None, ReportLength::Short),
            (&kept, Some(80), ReportLength::Full),
            (&lost, Some(80), ReportLength::Short),
        ] {
            let text = report.render(width, length, TextStyle::Plain);
            assert!(text.contains("first") && text.contains("middle") && text.contains("Remark 8."), "{text}");
        }
    }

    #[test]
    fn alone_the_verdict_is_a_line_and_has_its_colour() {
        assert_eq!(report(1, 0, 1).render(Some(20), ReportLength::Verdict, TextStyle::Plain), "PASS all well\n");
        let painted = report(1, 1, 1).render(None, ReportLength::Full, TextStyle::Colour);
        assert!(painted.ends_with("\n\n\u{1b}[1;31mFAIL\u{1b}[0m NOT OK: fault 0\n"), "{painted}");
    }
}
