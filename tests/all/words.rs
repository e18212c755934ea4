//! The words that users read: help, documentation and messages are plain English. Words that were weeded out stay out.
use crate::party::{MAILRUN, mailrun};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words and turns that must not come back, in lower case. Each stands for a kind: archaic, inverted or personified.
const BANNED: [&str; 32] = [
    "nought",
    "whosever",
    "meanwhile",
    "folio",
    "laid out ahead",
    "came to grief",
    "for want of",
    "no number of",
    "it will do",
    "is meant?",
    "say it like",
    "are the most",
    "how to prove who we are",
    "is told",
    "are told",
    "nobody is",
    "not let in",
    "does not let",
    "in the clear",
    "keeps its word",
    "the ruler",
    "a message a ",
    "a connection a message",
    "messages a second",
    "one a line",
    " for ever ",
    "in vain",
    "stands in between",
    "his password",
    "lost, doubled",
    "or doubled",
    "are doubled",
];

/// The same, of whole words.
const BANNED_WORDS: [&str; 4] = ["octet", "octets", "plaint", "errand"];

/// Documents that users read. Those for developers are not among them.
const DOCUMENTS: [&str; 21] = [
    "README.md",
    "docs/relay.md",
    "docs/mades.md",
    "docs/workloads.md",
    "docs/sink-rules.md",
    "docs/drop-in.md",
    "docs/embedding.md",
    "docs/ci.md",
    "docs/report.md",
    "docs/progress.md",
    "docs/spool-format.md",
    "docs/README.md",
    "docs/bench-your-postfix.md",
    "docs/compared.md",
    "docs/environment.md",
    "docs/glossary.md",
    "docs/http.md",
    "docs/run-json.md",
    "docs/troubleshooting.md",
    "docs/decisions/0015-names-of-options.md",
    "CHANGELOG.md",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What is banned of a text, with some words around it.
fn found(text: &str) -> Vec<String> {
    // A media type is no word.
    let text = text.to_lowercase().replace("octet-stream", "").split_whitespace().collect::<Vec<_>>().join(" ");
    let around = |word: &str| {
        let at = text.find(word).unwrap();
        text[at..].chars().take(60).collect::<String>()
    };
    let turns = BANNED.iter().filter(|turn| text.contains(*turn)).map(|turn| around(turn));
    let words: Vec<&str> = text.split(|letter: char| !letter.is_alphanumeric()).collect();
    let whole = BANNED_WORDS.iter().filter(|word| words.contains(word)).map(|word| around(word));
    turns.chain(whole).collect()
}

/// Names of the commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let lines = help
        .lines()
        .skip_while(|line| !["Commands:", "Scenarios:"].contains(line))
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The help of a command and of all below it.
fn help_of(path: &[String], all: &mut Vec<(String, String)>) {
    let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = mailrun(&words).out;
    assert!(help.contains("Usage: mailrun"), "{path:?}: {help}");
    for name in commands(&help) {
        help_of(&[path, &[name]].concat(), all);
    }
    all.push((path.join(" "), help));
}

/// Name and help of every command.
pub(crate) fn all_help() -> Vec<(String, String)> {
    let mut all = Vec::new();
    help_of(&[], &mut all);
    all
}

#[test]
fn help_is_in_plain_words() {
    let all = all_help();
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["", "bench", "bench relay-soak", "bench mades", "source", "sink", "relay", "queue list", "spool check"]
    {
        assert!(names.contains(&name), "{name:?} is not among {names:?}");
    }
    let wrong: Vec<String> = all
        .iter()
        .flat_map(|(name, help)| found(help).into_iter().map(move |words| format!("mailrun {name} --help: {words}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The configuration that the relay's help shows on a terminal of that width.
fn example_shown(columns: &str) -> String {
    let shown = Command::new(MAILRUN).args(["relay", "--help"]).env("COLUMNS", columns).output().unwrap();
    let help = String::from_utf8(shown.stdout).unwrap();
    let (_, from_example) = help.split_once("All keys:\n").unwrap();
    from_example.split_once("\nLines of the alias file").unwrap().0.to_owned()
}

#[test]
fn the_relays_example_can_be_copied_from_its_help() {
    let expected: toml::Table = read(&root().join("crates/relay/src/config/example.toml")).parse().unwrap();
    for columns in ["80", "100"] {
        let shown = example_shown(columns);
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?} columns of {columns}");
        let parsed = shown.parse::<toml::Table>();
        assert!(parsed.as_ref() == Ok(&expected), "at {columns} columns: {parsed:?}");
    }
}

#[test]
fn documents_are_in_plain_words() {
    let wrong: Vec<String> = DOCUMENTS
        .iter()
        .flat_map(|name| found(&read(&root().join(name))).into_iter().map(move |words| format!("{name}: {words}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files with tests alone, outside of directories of tests.
const TEST_FILES: [&str; 4] = ["cases.rs", "model.rs", "read_back.rs", "rehearsal.rs"];

/// Files of the program's own code. The older tools' words are theirs.
fn sources() -> Vec<PathBuf> {
    let mut waiting = vec![root().join("src"), root().join("crates")];
    let mut files = Vec::new();
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let is_other = ["dropin", "tests", "benches", "examples"].iter().any(|name| path.ends_with(name));
            let entries = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            waiting.extend(entries.filter(|_| !is_other));
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !TEST_FILES.iter().any(|name| path.ends_with(name))
        {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The string literals of a Rust file, up to its tests, with the lines that they begin in.
fn literals(code: &str) -> Vec<(usize, String)> {
    let code = code.split("\n#[cfg(test)]\nmod ").next().unwrap_or(code);
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let line = code[..code.len() - rest.len() + at].matches('\n').count() + 1;
        let (before, here) = rest.split_at(at);
        let length = match here.as_bytes() {
            [b'/', b'/', ..] => here.find('\n').unwrap_or(here.len()),
            [b'\'', b'\\', _, b'\'', ..] => 4,
            [b'\'', _, b'\'', ..] => 3,
            [b'"', ..] => {
                let hashes = before.len() - before.trim_end_matches('#').len();
                let is_raw = before[..before.len() - hashes].ends_with('r');
                let (text, length) = literal(here, is_raw.then_some(hashes));
                // What an impossible error would say is for developers.
                if !before.trim_end().ends_with("expect(") {
                    found.push((line, without_placeholders(&text)));
                }
                length
            }
            _ => 1,
        };
        rest = &here[length..];
    }
    found
}

/// A format without the names of its values, which are not shown.
fn without_placeholders(text: &str) -> String {
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| shown + "…" + part.split_once('}').map_or(part, |(_, behind)| behind))
}

/// The text of the literal that begins here, and its length. `raw` is the number of hashes of a raw one.
fn literal(code: &str, raw: Option<usize>) -> (String, usize) {
    if let Some(hashes) = raw {
        let end = format!("\"{}", "#".repeat(hashes));
        let length = code[1..].find(&end).map_or(code.len(), |at| at + 1 + end.len());
        return (code[1..length - end.len()].to_owned(), length);
    }
    let mut letters = code.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '"' => return (code[1..at].replace("\\\n", " ").replace("\\n", " "), at + 1),
            _ => {}
        }
    }
    (String::new(), code.len())
}

#[test]
fn messages_are_in_plain_words() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for path in sources() {
        for (line, text) in literals(&read(&path)) {
            count += 1;
            let shown = path.strip_prefix(root()).unwrap().display().to_string();
            wrong.extend(found(&text).into_iter().map(|words| format!("{shown}:{line}: {words}")));
        }
    }
    assert!(count > 3000, "{count} texts");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_banned_is_found() {
    assert_eq!(found("It counts as\n nought."), ["nought."]);
    assert_eq!(found("64 octets"), ["octets"]);
    assert!(found("a doctet, and a message was sent").is_empty());
    let code = "fn a() { b(\"x\\\"y\", '\"', r#\"z\"q\"#); } // \"no\"\nlet c = \"two \\\n   lines\";\n#[cfg(test)]\nmod tests { \"t\" }";
    let texts: Vec<(usize, String)> = literals(code);
    assert_eq!(texts.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!([texts[0].1.as_str(), texts[1].1.as_str()], ["x\\\"y", "z\"q"]);
    assert_eq!(texts[2].1.split_whitespace().collect::<Vec<_>>(), ["two", "lines"]);
}
