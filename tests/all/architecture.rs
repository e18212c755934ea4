//! What the code says of itself is true: captions, the map, the direction of imports, the length of functions.
use std::fs;
use std::path::{Path, PathBuf};

/// The longest a function may be, its first and last line included.
const LONGEST: usize = 80;

/// A source file: its path from the root, and its text.
struct Source {
    path: String,
    text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every `.rs` file below those directories, in order.
fn sources(directories: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    directories.iter().for_each(|directory| collect(&root().join(directory), &mut paths));
    paths.sort();
    assert!(!paths.is_empty(), "{directories:?} hold nothing");
    paths.iter().map(|path| read(path)).collect()
}

pub(crate) fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

fn read(path: &Path) -> Source {
    let relative = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    Source { path: relative, text: fs::read_to_string(path).unwrap() }
}

#[test]
fn every_file_opens_with_a_caption() {
    let bare: Vec<String> = sources(&["src", "crates", "tests", "benches"])
        .into_iter()
        .filter(|source| !source.text.starts_with("//! ") || source.text.lines().next().unwrap().len() < 12)
        .map(|source| source.path)
        .collect();
    assert!(bare.is_empty(), "no caption: {bare:#?}");
}

#[test]
fn the_map_names_every_file() {
    let map = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let missing: Vec<String> = sources(&["src", "crates"])
        .into_iter()
        .map(|source| source.path)
        .filter(|path| !map.contains(Path::new(path).file_name().unwrap().to_str().unwrap()))
        .collect();
    assert!(missing.is_empty(), "not in docs/architecture.md: {missing:#?}");
}

/// Lines that are code, with their numbers: comments left out.
fn code(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let lines = source.text.lines().enumerate().map(|(number, line)| (number + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether a line uses that path: as a whole name, and not as a part of another path.
fn uses(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// Every line below those directories that uses one of the paths.
fn trespassers(directories: &[&str], forbidden: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources(directories) {
        for (number, line) in code(&source).filter(|(_, line)| forbidden.iter().any(|path| uses(line, path))) {
            found.push(format!("{}:{number}: {}", source.path, line.trim()));
        }
    }
    found
}

#[test]
fn imports_run_downward_only() {
    let rules: [(&[&str], Vec<&str>); 11] = [
        // A bench starts processes: it carries no mail itself.
        (&["src/bench"], vec!["crate::cli", "load::", "use relay::", "net::", "net;", "tokio", "smtp::"]),
        // A report reads records and nothing else.
        (&["crates/report/src"], CORE.to_vec()),
        (&["crates/workload/src"], CORE.to_vec()),
        // Source and sink know nothing of each other.
        (&["crates/load/src/source"], vec!["crate::sink"]),
        (&["crates/load/src/sink"], vec!["crate::source"]),
        // What the API says, and what the simulator does, is decided by what is given.
        (&["crates/mades/src/api", "crates/mades/src/simulator"], [CORE, &["crate::bench"]].concat()),
        (&["crates/mades/src/embedded", "crates/mades/src/endpoint"], vec!["crate::bench", "net::", "party::"]),
        // Who may be delivered now is decided by what is given: no clock, no socket, no file.
        (&["crates/relay/src/qmgr"], [CORE, &["smtp::", "spool::"]].concat()),
        // The spool has a disk, and knows nothing of what it keeps.
        (&["crates/spool/src"], vec!["tokio", "net::", "std::net"]),
        // The cores have no runtime, no sockets, no clock.
        (&["crates/smtp/src"], CORE.to_vec()),
        (&["crates/journey/src"], CORE.to_vec()),
    ];
    let found: Vec<String> = rules.iter().flat_map(|(where_, what)| trespassers(where_, what)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

const CORE: &[&str] = &[
    "tokio",
    "net::",
    "rustix",
    "std::net::Tcp",
    "TcpStream",
    "Instant::now",
    "SystemTime::now",
    "std::fs",
    "std::env",
    "std::thread",
];

#[test]
fn a_path_is_told_from_what_looks_like_it() {
    assert!(uses("use net::clock;", "net::") && uses("    net::clock::now()", "net::") && uses("(net::X)", "net::"));
    assert!(!uses("use std::net::IpAddr;", "net::") && !uses("use subnet::x;", "net::"));
    assert!(uses("use crate::sink::Faults;", "crate::sink"));
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
