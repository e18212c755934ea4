//! Tests of the tree's structure: crates depend on each other, and modules import each other, only in the allowed
//! directions.
use crate::source_text::{Source, root, sources, use_tree};
use std::fs;

/// Each crate with the crates that it depends on. A crate may depend only on crates further down in this list.
/// docs/architecture.md has the same lines.
const CRATES: [(&str, &[&str]); 29] = [
    ("mailrun", &["cli", "compat"]),
    (
        "cli",
        &[
            "bench",
            "compat",
            "load",
            "relay",
            "mades-bench",
            "mades-simulator",
            "mades",
            "compare",
            "dashboard",
            "process",
            "report",
            "net",
            "measurement",
            "smtp",
            "text",
            "capacity",
            "locust",
        ],
    ),
    (
        "bench",
        &[
            "compare",
            "dashboard",
            "process",
            "schedule",
            "report",
            "measurement",
            "text",
            "capacity",
            "crashfs",
            "lock",
        ],
    ),
    ("compat", &["mades-bench", "mades", "process", "schedule", "net", "measurement", "smtp"]),
    (
        "load",
        &[
            "dashboard",
            "process",
            "schedule",
            "report",
            "net",
            "measurement",
            "smtp",
            "mailbox",
            "text",
            "tls-verify",
            "mime",
            "locust",
            "lock",
        ],
    ),
    ("relay", &["process", "net", "measurement", "spool", "smtp", "text", "tls-verify", "mime", "lock"]),
    ("mades-bench", &["mades", "dashboard", "process", "schedule", "report", "net", "measurement", "text"]),
    ("mades-simulator", &["mades", "process", "measurement", "text", "amqp", "lock"]),
    ("mades", &["process", "net", "tls-verify", "amqp", "lock"]),
    ("compare", &["report", "measurement", "text"]),
    ("dashboard", &["process", "measurement", "text", "lock"]),
    ("process", &["net", "measurement", "smtp", "text", "lock"]),
    ("schedule", &["measurement", "text"]),
    ("report", &["measurement", "text", "capacity"]),
    ("net", &["eventloop", "smtp", "tls-verify", "lock"]),
    ("measurement", &["text", "mime"]),
    ("spool", &["lock"]),
    ("eventloop", &["lock"]),
    ("smtp", &["sasl"]),
    ("mailbox", &["sasl"]),
    ("text", &[]),
    ("tls-verify", &["lock"]),
    ("amqp", &["sasl"]),
    ("sasl", &[]),
    ("mime", &[]),
    ("capacity", &[]),
    ("locust", &[]),
    ("crashfs", &["lock"]),
    ("lock", &[]),
];

/// Names under `[dependencies]` of a crate's manifest.
fn manifest_dependencies(name: &str) -> Vec<String> {
    let path = if name == "mailrun" { "Cargo.toml".to_owned() } else { format!("crates/{name}/Cargo.toml") };
    let manifest: toml::Table = fs::read_to_string(root().join(&path)).unwrap().parse().unwrap();
    manifest["dependencies"].as_table().unwrap().keys().cloned().collect()
}

/// Workspace crates under `[dependencies]` of a crate's manifest, in the order of [`CRATES`].
fn dependencies(name: &str) -> Vec<&'static str> {
    let all = manifest_dependencies(name);
    let has = |other: &&str| all.contains(&format!("mailrun-{other}"));
    CRATES.iter().map(|(other, _)| *other).filter(has).collect()
}

#[test]
fn crates_stand_on_crates_below_them() {
    for (at, (name, below)) in CRATES.iter().enumerate() {
        assert_eq!(dependencies(name), *below, "crates/{name}/Cargo.toml is not as in the drawing");
        let is_below = |other: &&str| CRATES[at + 1..].iter().any(|(lower, _)| lower == other);
        assert!(below.iter().all(is_below), "{name} stands on a crate above it");
    }
    let members = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().file_name());
    let strangers: Vec<_> = members.filter(|name| !CRATES.iter().any(|(known, _)| name == known)).collect();
    assert!(strangers.is_empty(), "not in the drawing: {strangers:?}");
}

/// The relay must not depend on reports or the dashboard, because a mail server runs without a screen and must not be
/// rebuilt when a report changes.
#[test]
fn the_relay_stands_on_no_report_and_no_dashboard() {
    let mut found = vec!["relay"];
    let mut at = 0;
    while let Some(name) = found.get(at) {
        let (_, below) = CRATES.iter().find(|(other, _)| other == name).unwrap();
        let new: Vec<&str> = below.iter().copied().filter(|other| !found.contains(other)).collect();
        found.extend(new);
        at += 1;
    }
    let outside = found.iter().flat_map(|name| manifest_dependencies(name));
    let all: Vec<String> = found.iter().map(|name| format!("mailrun-{name}")).chain(outside).collect();
    let forbidden = ["mailrun-report", "mailrun-dashboard", "ratatui", "ratatui-crossterm", "crossterm"];
    assert_eq!(forbidden.map(|name| all.iter().any(|other| other == name)), [false; 5], "{forbidden:?} in {all:?}");
    assert!(all.iter().any(|other| other == "mailrun-text"), "{all:?}");
}

#[test]
fn the_drawing_of_crates_is_the_table() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let line = |(name, below): &(&str, &[&str])| format!("{name:<15} → {}", below.join(", ")).trim_end().to_owned();
    let missing: Vec<String> = CRATES
        .iter()
        .filter(|(_, below)| !below.is_empty())
        .map(line)
        .filter(|line| !page.lines().any(|other| other == line))
        .collect();
    assert!(missing.is_empty(), "not in docs/architecture.md: {missing:#?}");
}

#[test]
fn the_glossary_explains_the_name_of_each_crate() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let section = page.split("## Crates").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the crates");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let explained: Vec<&str> = rows.map(|(name, _)| name).collect();
    let mut names: Vec<&str> = CRATES.iter().map(|(name, _)| *name).filter(|name| *name != "mailrun").collect();
    names.sort_unstable();
    assert_eq!(explained, names);
}

#[test]
fn words_of_the_code_lead_to_files() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let section = page.split("## Words of the code").nth(1).expect("words of the code");
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let places: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(places.len() > 10, "{places:?}");
    let is_file = |place: &&&str| {
        let (name, rest) = place.split_once('/').unwrap_or_default();
        root().join("crates").join(name).join("src").join(rest).exists()
    };
    let missing: Vec<_> = places.iter().filter(|place| !is_file(place)).collect();
    assert!(missing.is_empty(), "no such file: {missing:?}");
}

/// Reports whether a line contains the path as a whole, and not as part of a longer path or name.
fn uses(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + path.len()..].chars().next();
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        // A type also counts after the path of its module, as in `net::TcpStream`. A crate or a module counts only at
        // the start of a path.
        let is_type = path.starts_with(|c: char| c.is_uppercase());
        let begins = !before.is_some_and(|c| is_name(c) || (c == ':' && !is_type));
        begins && (path.ends_with(":") || !after.is_some_and(is_name))
    })
}

/// Reports whether an import names the path or something below it. If `path` is the name of a type, reports whether the
/// import names a type with this name in any module.
fn imports(import: &str, path: &str) -> bool {
    let below = import.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    below || (path.starts_with(|c: char| c.is_uppercase()) && import.ends_with(&format!("::{path}")))
}

fn trespasses(source: &Source, forbidden: &[&str]) -> Vec<String> {
    let imported = source.imports().into_iter();
    let imported = imported.filter(|(_, import)| forbidden.iter().any(|path| imports(import, path)));
    let is_inline = |line: &str, path: &str| {
        let is_type = path.starts_with(|c: char| c.is_uppercase());
        uses(line, &if is_type { path.to_owned() } else { format!("{path}::") })
    };
    let used = source.code().filter(|(_, line)| use_tree(line).is_none());
    let used = used.filter(|(_, line)| forbidden.iter().any(|path| is_inline(line, path)));
    let used = used.map(|(number, line)| (number, line.trim().to_owned()));
    imported.chain(used).map(|(number, what)| format!("{}:{number}: {what}", source.path)).collect()
}

/// Sans-IO code must not use any of these: clocks, sockets, files, the environment, threads, a runtime.
const CORE: &[&str] = &[
    "tokio",
    "mailrun_net",
    "rustix",
    "nix",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "Instant::now",
    "SystemTime::now",
    "std::fs",
    "std::env",
    "std::thread",
];

#[test]
fn imports_run_downward_only() {
    let rules: [(&[&str], Vec<&str>); 10] = [
        // Reports are made from records alone, so this crate needs no files, clocks or sockets.
        (&["crates/report/src"], CORE.to_vec()),
        (&["crates/schedule/src"], CORE.to_vec()),
        // Source and sink must not depend on each other.
        (&["crates/load/src/source"], vec!["crate::sink"]),
        (&["crates/load/src/sink"], vec!["crate::source"]),
        // The API and the simulator get time and bytes from their callers.
        (&["crates/mades/src/api", "crates/mades-simulator/src/model"], CORE.to_vec()),
        // The queue manager is sans-IO: it gets the time from its caller and returns actions.
        (&["crates/relay/src/qmgr"], [CORE, &["mailrun_smtp", "mailrun_spool"]].concat()),
        // The spool may use the disk, but not the network or an async runtime.
        (&["crates/spool/src"], vec!["tokio", "mailrun_net", "std::net"]),
        (&["crates/smtp/src", "crates/sasl/src", "crates/mailbox/src"], CORE.to_vec()),
        (&["crates/amqp/src"], CORE.to_vec()),
        (&["crates/measurement/src"], CORE.to_vec()),
    ];
    let mut found = Vec::new();
    for (directories, forbidden) in &rules {
        sources(directories).iter().for_each(|source| found.extend(trespasses(source, forbidden)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_way_to_write_an_import_is_caught() {
    let rule = ["crate::cli", "mailrun_net", "Instant::now", "TcpStream"];
    let caught = [
        "use crate::{cli, measurement};",
        "use crate::{\n    measurement,\n    cli::misuse,\n};",
        "use super::cli;",
        "pub(crate) use mailrun_net::clock;",
        "use mailrun_net;",
        "use {mailrun_net::clock, smtp};",
        "let now = mailrun_net::clock::now();",
        "    crate::cli::exit_code(x)",
        "let now = std::time::Instant::now();",
        "use std::net::{SocketAddr, TcpStream};",
        "std::net::TcpStream::connect(x)",
    ];
    for text in caught {
        let source = Source { path: "src/cli/mod.rs".to_owned(), text: text.to_owned() };
        assert_eq!(trespasses(&source, &rule).len(), 1, "{text}");
    }
    let fine =
        ["use std::net::IpAddr;", "use subnet::x;", "use crate::client;", "// mailrun_net::x", "TcpStreamLike::new()"];
    for text in fine {
        let source = Source { path: "src/cli/mod.rs".to_owned(), text: text.to_owned() };
        assert!(trespasses(&source, &rule).is_empty(), "{text}");
    }
}

/// Only `mailrun_lock` may decide what a lock does after the thread that held it has panicked. If other code unwraps
/// such a poisoned lock, every thread that takes it later panics as well. If other code treats it as a missing value,
/// the answers are wrong.
#[test]
fn a_poisoned_lock_is_used_by_one_rule() {
    let sources = sources(&["crates", "src"]).into_iter();
    let is_product = |source: &Source| source.path.contains("src/") && !source.path.starts_with("crates/lock/");
    let found: Vec<String> = sources.filter(is_product).flat_map(|source| own_lock_rules(&source)).collect();
    assert!(found.is_empty(), "use mailrun_lock::lock, or unpoisoned for what is no Mutex: {found:#?}");
}

/// Returns the places in a file's production code that check by themselves whether a lock is poisoned.
fn own_lock_rules(source: &Source) -> Vec<String> {
    let code = source.without_tests().lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let code = code.collect::<Vec<_>>().join(" ").replace(" .", ".");
    let unwraps = [".expect(", ".unwrap", ".ok()", ".map(", ".map_err(", ".is_ok()", ".is_err()"];
    let locks = code.match_indices(".lock()").filter(|(at, lock)| {
        let rest = &code[at + lock.len()..];
        // `disk.lock()` is allowed: it locks a file of the spool, and the lock of a file cannot be poisoned.
        let statement = code[..*at].rsplit(['{', '}', ';']).next().unwrap_or_default();
        let is_matched = statement.contains("Ok(") || statement.contains("match ");
        !statement.ends_with("disk") && (is_matched || unwraps.iter().any(|unwrap| rest.starts_with(unwrap)))
    });
    let of_std = code.match_indices("PoisonError").chain(code.match_indices("TryLockError"));
    let places: Vec<usize> = locks.chain(of_std).map(|(at, _)| at).collect();
    let excerpt =
        |at: usize| code[..at].chars().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<String>();
    places.into_iter().map(|at| format!("{}: {}", source.path, excerpt(at))).collect()
}

#[test]
fn every_way_to_look_at_a_poisoned_lock_is_caught() {
    let places = |text: &str| own_lock_rules(&Source { path: "src/a.rs".to_owned(), text: text.to_owned() }).len();
    for text in [
        "let x = self.state.lock().unwrap();",
        "let x = self.state\n    .lock()\n    .expect(\"nobody panics\");",
        "let x = state.lock().ok()?;",
        "if let Ok(mut logs) = state.replies.lock() {",
        "let x = state.read().unwrap_or_else(PoisonError::into_inner);",
        "match state.try_lock() { Err(TryLockError::WouldBlock) => {} }",
    ] {
        assert_eq!(places(text), 1, "{text}");
    }
    for text in
        ["lock(&self.state).count", "index.lock().oldest()", "io::stdout().lock().write_all(b)", "// x.lock().unwrap()"]
    {
        assert_eq!(places(text), 0, "{text}");
    }
}
