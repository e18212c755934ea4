//! How the code is written: each type has one name, doc comments say what a thing is, functions are short.
use crate::source_text::{Source, product, sources};
use std::collections::{BTreeMap, BTreeSet};

/// The longest a function may be, its first and last line included.
const LONGEST: usize = 60;

/// Names that every Rust programmer reads as its module's own: `spool::Error`, `smtp::Command`.
const IDIOMATIC: [&str; 32] = [
    "Args",
    "Builder",
    "Client",
    "Command",
    "Config",
    "Connection",
    "Envelope",
    "Error",
    "ErrorKind",
    "Event",
    "Frame",
    "Handle",
    "Header",
    "Inner",
    "Item",
    "Iter",
    "Kind",
    "Message",
    "Options",
    "Outcome",
    "Reader",
    "Recipient",
    "Reply",
    "Request",
    "Response",
    "Server",
    "Session",
    "State",
    "Stats",
    "Status",
    "Stream",
    "Writer",
];

/// Other names that are declared in more than one file. The list may only shrink.
const SHARED: [&str; 0] = [];

/// Files whose doc comments are the help that users read: what a value is for is asked there as a question.
const HELP: &str = "src/cli/";

/// Doc comments in [`HELP`] that begin with a question word. The number may only shrink.
const QUESTIONS_IN_HELP: usize = 12;

/// Names of the types that a file declares, its unit tests aside.
fn declared(source: &Source) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in source.without_tests().lines().filter(|line| !line.trim_start().starts_with("//")) {
        let line = line.split("//").next().unwrap_or_default();
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            let next = ["struct", "enum", "trait"].contains(&word).then(|| words.next()).flatten();
            names.extend(next.filter(|name| name.starts_with(char::is_uppercase)).map(str::to_owned));
        }
    }
    names
}

#[test]
fn a_type_is_declared_once() {
    let mut files = BTreeMap::<String, Vec<String>>::new();
    for source in product() {
        for name in declared(&source) {
            files.entry(name).or_default().push(source.path.clone());
        }
    }
    assert!(files.len() > 500, "types are found: {}", files.len());
    let is_shared = |name: &str| files.get(name).is_some_and(|files| files.len() > 1);
    let is_listed = |name: &str| IDIOMATIC.contains(&name) || SHARED.contains(&name);
    let new: Vec<_> = files.iter().filter(|(name, _)| is_shared(name) && !is_listed(name)).collect();
    assert!(new.is_empty(), "declared in several files; give each the part's own word: {new:#?}");
    let stale: Vec<_> = SHARED.iter().filter(|name| !is_shared(name)).collect();
    assert!(stale.is_empty(), "declared once now; take it off SHARED: {stale:?}");
}

#[test]
fn declarations_are_found() {
    let text = "pub(crate) struct A<T>(T);\n/// enum No {}\nenum B { X } // struct No\ntrait C: D {}\nlet structure = E;\n#[cfg(test)]\nmod tests {\n    struct No;\n}\n";
    let source = Source { path: "x.rs".to_owned(), text: text.to_owned() };
    assert_eq!(declared(&source), ["A", "B", "C"].map(str::to_owned).into());
}

/// First lines of doc comments that begin with a question word.
fn questions(source: &Source) -> Vec<String> {
    const ASKING: [&str; 10] = ["What", "Whether", "Who", "Whom", "Whose", "How", "Where", "When", "Which", "Why"];
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let mut found = Vec::new();
    let mut is_inside = false;
    for (number, line) in source.text.lines().map(str::trim_start).enumerate() {
        let begins = is_doc(line) && !is_inside;
        is_inside = is_doc(line);
        let first = line.get(3..).unwrap_or_default().trim_start();
        let word = first.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if begins && ASKING.contains(&word) {
            found.push(format!("{}:{}: {line}", source.path, number + 1));
        }
    }
    found
}

#[test]
fn a_doc_comment_begins_with_a_noun_or_a_verb() {
    let all = sources(&["src", "crates"]);
    let (help, code): (Vec<_>, Vec<_>) = all.iter().partition(|source| source.path.starts_with(HELP));
    let found: Vec<String> = code.into_iter().flat_map(questions).collect();
    assert!(found.is_empty(), "begin with a noun or a verb (\"Limit of …\", \"Writes …\"): {found:#?}");
    let found: Vec<String> = help.into_iter().flat_map(questions).collect();
    assert_eq!(found.len(), QUESTIONS_IN_HELP, "the number may only shrink, and is written down: {found:#?}");
}

/// Statements that bind several names to a tuple of as many expressions: `let (a, b) = (x, y);`.
fn tuple_lets(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in source.text.match_indices("let (") {
        let line = source.text[..at].rsplit('\n').next().unwrap_or_default();
        let rest = &source.text[at + 4..];
        let is_statement = line.trim().is_empty();
        let Some(pattern) = parenthesized(rest) else { continue };
        let Some(value) = rest[pattern.len()..].trim_start().strip_prefix('=').map(str::trim_start) else { continue };
        let is_tuple = parenthesized(value).is_some_and(|tuple| value[tuple.len()..].starts_with(';'));
        if is_statement && is_tuple {
            let number = source.text[..at].matches('\n').count() + 1;
            found.push(format!("{}:{number}: let {pattern} = …", source.path));
        }
    }
    found
}

/// The parentheses that a text begins with, and what is between them.
fn parenthesized(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return (at > 0).then(|| &text[..=at]);
        }
    }
    None
}

#[test]
fn a_statement_binds_one_thing() {
    let found: Vec<String> = sources(&["src", "crates", "tests", "benches"]).iter().flat_map(tuple_lets).collect();
    assert!(found.is_empty(), "a fact a line: {found:#?}");
}

#[test]
fn tuple_lets_are_told_from_what_looks_like_them() {
    let count = |text: &str| tuple_lets(&Source { path: "x.rs".to_owned(), text: text.to_owned() }).len();
    assert_eq!(
        count("    let (mut a, b) = (f(1), g());\n    let (a, (b, c)) = (\n        1,\n        (2, 3),\n    );\n"),
        2
    );
    assert_eq!(count("    let (a, b) = pair(1, 2);\n    let (Some(a), Some(b)) = (a, b) else { return };\n"), 0);
    assert_eq!(count("    if let (Some(a), Some(b)) = (a, b) {\n    // let (a, b) = (1, 2);\n"), 0);
}

/// The functions of a file that rustfmt has laid out: name line, first and last line.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut functions = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| opens_function(line)) {
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| {
            let rest = line.strip_prefix(indent).unwrap_or_default();
            rest.starts_with('}') || (rest.ends_with(';') && !rest.starts_with(' '))
        };
        let one_line = line.ends_with('}') || line.ends_with(';');
        let length = if one_line { 1 } else { lines[at + 1..].iter().position(is_end).unwrap_or(0) + 2 };
        functions.push((format!("{}:{}: {}", source.path, at + 1, line.trim()), length));
    }
    functions
}

fn opens_function(line: &str) -> bool {
    let words = line.split_whitespace().map(|word| word.split('(').next().unwrap_or_default());
    let is_qualifier =
        |word: &&str| ["pub", "const", "async", "unsafe", "extern"].contains(word) || word.ends_with(')');
    words.skip_while(is_qualifier).take(1).any(|word| word == "fn")
}

#[test]
fn no_function_is_long() {
    let all: Vec<(String, usize)> = sources(&["src", "crates", "tests"]).iter().flat_map(functions).collect();
    assert!(all.len() > 500, "functions are found: {}", all.len());
    let long: Vec<_> = all.into_iter().filter(|(_, length)| *length > LONGEST).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_length_of_a_function_is_told() {
    let text = "impl X {\n    pub(crate) async fn a() {\n        b();\n    }\n\n    fn c() {}\n}\n\nfn long(\n    a: u8,\n) -> u8 {\n    1\n}\n";
    let source = Source { path: "x.rs".to_owned(), text: text.to_owned() };
    assert_eq!(functions(&source).iter().map(|(_, length)| *length).collect::<Vec<_>>(), [3, 1, 5]);
}
