//! Reads the manual's pages with their sections and command lines, and the help of every command.
//!
//! A command line is in a block or a span of code. A block is a script if it is marked `sh`, or if it has no mark and
//! its first word is a program. Other blocks are output, configuration and the like.
use crate::party::mailrun;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs that a line of a block may begin with.
const PROGRAMS: &str = "mailrun smtp-source smtp-sink go-smtp-source go-mades-bench cargo make sudo curl openssl jq swaks \
    echo printf postconf postfix postqueue kill rm du cd git docker scripts/start-artemis.sh scripts/start-rabbitmq.sh";
/// Programs that a span of code may begin with to count as a command line.
const SPAN_PROGRAMS: &str = "mailrun curl openssl jq swaks postconf cargo make sudo";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Block,
    /// A span of code in the column "type" of a table.
    Row,
    /// A span of code elsewhere.
    Sentence,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// The command lines between two headings of the second level.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) page: String,
    pub(crate) heading: String,
    pub(crate) commands: Vec<Command>,
}

/// A page, with its path from the root of the repository.
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md and every page of `docs`, without the decisions, which are for developers.
pub(crate) fn pages() -> Vec<Page> {
    let entries = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|is| is == "md")).collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| Page { name: name(path), text: fs::read_to_string(path).unwrap() }).collect()
}

pub(crate) fn page(name: &str) -> Page {
    pages().into_iter().find(|page| page.name == name).unwrap_or_else(|| panic!("no page {name}"))
}

/// The schema that `mailrun report --schema` prints.
pub(crate) fn schema() -> serde_json::Value {
    serde_json::from_str(&mailrun(&["report", "--schema"]).out).unwrap()
}

fn commands(help: &str) -> Vec<String> {
    let lines = help
        .lines()
        .skip_while(|line| !["Commands:", "Scenarios:"].contains(line))
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

fn help_of(path: &[String], all: &mut Vec<(String, String)>) {
    let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = mailrun(&words).out;
    assert!(help.contains("Usage: mailrun"), "{path:?}: {help}");
    for name in commands(&help) {
        help_of(&[path, &[name]].concat(), all);
    }
    all.push((path.join(" "), help));
}

pub(crate) fn all_help() -> Vec<(String, String)> {
    let mut all = Vec::new();
    help_of(&[], &mut all);
    all
}

#[derive(Debug)]
enum Piece {
    Heading(String),
    Block(String, Vec<String>),
    /// A row, and the header of its table.
    Row(String, String),
    Paragraph(String),
}

impl Page {
    /// The page's sections that have command lines. Everything before the first heading of the second level is a
    /// section as well.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let section = |heading: String| Section { page: self.name.clone(), heading, commands: Vec::new() };
        let mut sections = vec![section(String::new())];
        for (line, piece) in pieces(&self.text) {
            if let Piece::Heading(heading) = piece {
                sections.push(section(heading));
                continue;
            }
            let commands = &mut sections.last_mut().unwrap().commands;
            match piece {
                Piece::Block(mark, lines) => commands.extend(of_block(line, &mark, &lines)),
                Piece::Row(row, first) => commands.extend(of_row(line, &row, &first)),
                Piece::Paragraph(text) => commands.extend(of_text(line, &text, Place::Sentence)),
                Piece::Heading(_) => unreachable!(),
            }
        }
        sections.retain(|section| !section.commands.is_empty());
        sections
    }

    pub(crate) fn blocks(&self, mark: &str) -> Vec<String> {
        let blocks = pieces(&self.text).into_iter().filter_map(|(_, piece)| match piece {
            Piece::Block(marked, lines) if marked == mark => Some(lines.join("\n") + "\n"),
            _ => None,
        });
        blocks.collect()
    }

    /// Returns all blocks of the page, each with the number of its first line, its mark (such as `sh`), and its text.
    pub(crate) fn marked_blocks(&self) -> Vec<(usize, String, String)> {
        let blocks = pieces(&self.text).into_iter().filter_map(|(line, piece)| match piece {
            Piece::Block(mark, lines) => Some((line, mark, lines.join("\n") + "\n")),
            _ => None,
        });
        blocks.collect()
    }

    /// The rows of the tables below a heading of any level, including header rows. Code marks are removed.
    pub(crate) fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut is_code = false;
        let mut is_below = false;
        for line in self.text.lines() {
            is_code ^= line.trim_start().starts_with("```");
            if line.starts_with('#') && !is_code {
                is_below = line.trim_start_matches('#').trim() == heading;
            } else if is_below && line.starts_with("| ") && !line.starts_with("| ---") {
                let cells = line.trim().trim_matches('|').split(" | ");
                rows.push(cells.map(|cell| cell.trim().replace('`', "")).collect());
            }
        }
        rows
    }

    pub(crate) fn spans(&self) -> Vec<String> {
        let texts = pieces(&self.text).into_iter().filter_map(|(_, piece)| match piece {
            Piece::Row(text, _) | Piece::Paragraph(text) => Some(text),
            _ => None,
        });
        texts.flat_map(|text| spans(&text)).collect()
    }
}

/// Splits a page into headings, blocks, table rows and paragraphs, each with the number of its first line.
fn pieces(text: &str) -> Vec<(usize, Piece)> {
    let mut pieces = Vec::new();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line)).peekable();
    let mut is_after_text = false;
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim_start();
        if let Some(mark) = trimmed.strip_prefix("```") {
            let block = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```"));
            pieces.push((number + 1, Piece::Block(mark.trim().to_owned(), dedented(block))));
            is_after_text = false;
        } else if line.starts_with("    ") && !is_after_text {
            let mut block = vec![line];
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("    ") || line.trim().is_empty()) {
                block.push(line);
            }
            pieces.push((number, Piece::Block(String::new(), dedented(block))));
        } else if let Some(heading) = line.strip_prefix("## ") {
            pieces.push((number, Piece::Heading(heading.to_owned())));
            is_after_text = false;
        } else if trimmed.is_empty() || line.starts_with('#') {
            is_after_text = false;
        } else if trimmed.starts_with('|') {
            let first = match pieces.last() {
                Some((before, Piece::Row(_, first))) if *before + 1 == number => first.clone(),
                _ => trimmed.to_owned(),
            };
            pieces.push((number, Piece::Row(trimmed.to_owned(), first)));
            is_after_text = false;
        } else {
            match pieces.last_mut() {
                Some((_, Piece::Paragraph(text))) if is_after_text => *text = format!("{text} {trimmed}"),
                _ => pieces.push((number, Piece::Paragraph(trimmed.to_owned()))),
            }
            is_after_text = true;
        }
    }
    pieces
}

/// Removes the indentation that all lines share.
fn dedented<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let lines: Vec<&str> = lines.into_iter().collect();
    let blanks = lines.iter().filter(|line| !line.trim().is_empty()).map(|line| line.len() - line.trim_start().len());
    let blanks = blanks.min().unwrap_or(0);
    lines.iter().map(|line| line.get(blanks..).unwrap_or_default().to_owned()).collect()
}

/// Returns the command lines of a block. A block that is not a script has none.
fn of_block(first: usize, mark: &str, lines: &[String]) -> Vec<Command> {
    let begins_with_program =
        lines.iter().find(|line| !is_comment(line)).is_some_and(|line| is_command(line, PROGRAMS));
    if mark != "sh" && !(mark.is_empty() && begins_with_program) {
        return Vec::new();
    }
    let mut commands: Vec<Command> = Vec::new();
    let mut unfinished = None;
    for (at, line) in lines.iter().enumerate() {
        if unfinished.is_none() && is_comment(line) {
            continue;
        }
        let (begun, text) = match unfinished.take() {
            Some((begun, text)) => (begun, format!("{text}\n{line}")),
            None => (first + at, line.clone()),
        };
        if is_complete(&text) {
            commands.push(Command { line: begun, text, place: Place::Block });
        } else {
            unfinished = Some((begun, text));
        }
    }
    assert!(unfinished.is_none(), "a command without an end: {unfinished:?}");
    commands
}

fn is_comment(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

/// Reports whether the shell would run the text now instead of waiting for another line.
fn is_complete(text: &str) -> bool {
    if let Some((_, after)) = text.split_once("<<") {
        let word = after.split_whitespace().next().unwrap_or_default().trim_matches(['\'', '"', '-']);
        return text.lines().skip(1).any(|line| line == word);
    }
    let mut quote = None;
    let mut is_comment = false;
    let mut before = ' ';
    for letter in text.chars() {
        match quote {
            None if letter == '#' && before.is_whitespace() => is_comment = true,
            None if letter == '\n' => is_comment = false,
            None if !is_comment && (letter == '\'' || letter == '"') => quote = Some(letter),
            Some(open) if open == letter => quote = None,
            _ => {}
        }
        before = letter;
    }
    quote.is_none() && !["\\", "|", "&&"].iter().any(|end| text.trim_end().ends_with(end))
}

/// Reports whether a text begins with one of these programs, after any variable assignments.
fn is_command(text: &str, programs: &str) -> bool {
    let is_variable = |word: &str| word.split_once('=').is_some_and(|(name, _)| is_variable_name(name));
    let mut words = text.split_whitespace().skip_while(|word| is_variable(word));
    let Some(first) = words.next() else { return false };
    // A line of mailrun's output may also begin with its name, for example "mailrun: …" or "mailrun bench: …".
    let is_output = first == "mailrun" && words.next().is_none_or(|word| word.ends_with(':'));
    programs.split_whitespace().any(|program| program == first) && !is_output
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

fn of_row(line: usize, row: &str, first: &str) -> Vec<Command> {
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(str::trim).map(str::to_owned).collect::<Vec<_>>();
    let headings = cells(first);
    let place = |at: usize| match headings.get(at).map(String::as_str) {
        Some("type") => Place::Row,
        _ => Place::Sentence,
    };
    cells(row).iter().enumerate().flat_map(|(at, cell)| of_text(line, cell, place(at))).collect()
}

fn of_text(line: usize, text: &str, place: Place) -> Vec<Command> {
    let commands = spans(text).into_iter().filter(|span| span.contains(' ') && is_command(span, SPAN_PROGRAMS));
    commands.map(|text| Command { line, text, place }).collect()
}

/// Returns the spans of code in a text. A bar in a table cell is written `\|`, and is returned as `|`.
fn spans(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('`').collect();
    parts.iter().skip(1).step_by(2).map(|span| span.replace("\\|", "|").trim().to_owned()).collect()
}

#[test]
fn command_lines_are_found() {
    let text = "# T\n\n`mailrun relay` and `mailrun source a:1\n--messages 5`, `--tls`, `mailrun: no`.\n\n## One\n\n\
        ```sh\n# first\nmailrun sink &\nA=b mailrun bench 'x\ny' \\\n  --quiet\n```\n\n```\nmailrun bench: 5\n```\n\n\
        1. x:\n\n       mailrun sink\n\n   and `curl x`\n\n| a | type |\n|---|---|\n| c | `mailrun sink --json \\| jq` |\n\n    [Unit]\n";
    let page = Page { name: "T".to_owned(), text: text.to_owned() };
    let sections = page.sections();
    let found = |at: usize| {
        let commands: &Vec<Command> = &sections[at].commands;
        commands.iter().map(|command| (command.line, command.text.as_str(), command.place)).collect::<Vec<_>>()
    };
    let first = [(3, "mailrun relay", Place::Sentence), (3, "mailrun source a:1 --messages 5", Place::Sentence)];
    assert_eq!(found(0), first);
    let second = [
        (10, "mailrun sink &", Place::Block),
        (11, "A=b mailrun bench 'x\ny' \\\n  --quiet", Place::Block),
        (22, "mailrun sink", Place::Block),
        (24, "curl x", Place::Sentence),
        (28, "mailrun sink --json | jq", Place::Row),
    ];
    assert_eq!(found(1), second);
    assert_eq!(page.rows("One"), [vec!["a", "type"], vec!["c", "mailrun sink --json \\| jq"]]);
    assert_eq!(page.spans().len(), 6);
}
