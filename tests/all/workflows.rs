//! The GitHub workflow files are valid YAML, call only existing targets of the Makefile, and pin the actions of others.
//! The tag of a release must equal the version.
use crate::party::{Ended, peer, run};
use std::fs;
use std::path::Path;

/// Converts YAML to JSON. Python's YAML reader is in Debian's python3-yaml.
const TO_JSON: &str = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";

#[test]
fn workflows_call_targets_of_the_makefile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
    let files = fs::read_dir(root.join(".github/workflows")).unwrap().map(|entry| entry.unwrap().path());
    let mut calls = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for command in text.lines().filter_map(|line| line.trim().strip_prefix("- run: ")) {
            let target = command.split_once("make ").map(|(_, rest)| rest.split(' ').next().unwrap_or_default());
            let target = target.unwrap_or_else(|| panic!("{}: {command:?} calls no target", file.display()));
            assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "no target {target:?}");
            calls += 1;
        }
    }
    assert!(calls >= 4, "{calls}");
}

/// A tag can be moved to other code, but the hash of a commit cannot.
#[test]
fn actions_of_others_are_pinned_by_the_hash_of_a_release() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workflows = fs::read_dir(root.join(".github/workflows")).unwrap().map(|entry| entry.unwrap().path());
    let mut pins = Vec::new();
    for file in workflows.chain([root.join("action.yml")]) {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: ")) {
            let (action, rest) = line.split_once('@').unwrap();
            let (hash, version) = rest.split_once(" # ").unwrap_or_else(|| panic!("{}: {line}", file.display()));
            assert!(hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
            assert!(version.starts_with('v') && version.matches('.').count() == 2, "{line}");
            pins.push((action.to_owned(), rest.to_owned()));
        }
    }
    pins.sort();
    pins.dedup();
    let twice = pins.windows(2).find(|pair| pair[0].0 == pair[1].0);
    assert!(pins.len() >= 4 && twice.is_none(), "{twice:?} {pins:?}");
}

#[test]
fn workflows_are_yaml() {
    let Some(python) = peer("python3") else { return };
    if run(&python, &["-c", "import yaml"]).code != Some(0) {
        return crate::skipped::skip("python3-yaml", "it is not installed");
    }
    let github = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github");
    let files = |name: &str| fs::read_dir(github.join(name)).unwrap().map(|entry| entry.unwrap().path());
    for path in files("").filter(|path| path.is_file()).chain(files("ISSUE_TEMPLATE")).chain(files("workflows")) {
        if path.extension().is_none_or(|extension| extension != "yml") {
            continue;
        }
        let read = run(&python, &["-c", TO_JSON, path.to_str().unwrap()]);
        assert_eq!(read.code, Some(0), "{}: {}", path.display(), read.err);
        let workflow: serde_json::Value = serde_json::from_str(&read.out).unwrap();
        if !path.parent().unwrap().ends_with("workflows") {
            continue;
        }
        let jobs = workflow["jobs"].as_object().unwrap();
        assert!(!jobs.is_empty() && jobs.values().all(|job| job["timeout-minutes"].is_number()), "{}", path.display());
    }
}

/// Runs the script that checks a tag, on a project with this version and changelog.
fn check_tag(tag: &str, version: &str, changelog: &str) -> Ended {
    let project = tempfile::tempdir().unwrap();
    let manifest =
        format!("[workspace]\n[workspace.package]\nversion = \"{version}\"\n\n[package]\nversion = \"9.9.9\"\n");
    fs::write(project.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(project.path().join("CHANGELOG.md"), changelog).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-tag.sh");
    run(script.to_str().unwrap(), &[tag, project.path().to_str().unwrap()])
}

#[test]
fn a_tag_must_equal_the_version() {
    let changelog = "# Changelog\n\n## 1.2.3 (2026-12-01)\n";
    let right = check_tag("v1.2.3", "1.2.3", changelog);
    assert_eq!(right.code, Some(0), "{}", right.err);
    for wrong in ["1.2.3", "v1.2.4", "v1.2", "v1.2.3-rc1", "v1x2x3", ""] {
        let refused = check_tag(wrong, "1.2.3", changelog);
        assert_eq!(refused.code, Some(1), "{wrong}");
        assert!(refused.err.contains("the version in Cargo.toml is 1.2.3"), "{}", refused.err);
    }
    let unnamed = check_tag("v1.2.3", "1.2.3", "# Changelog\n\n## Unreleased\n\n## 1.2.30\n\n## 1x2x3\n");
    assert_eq!(unnamed.code, Some(1));
    assert!(unnamed.err.contains("CHANGELOG.md has no section ## 1.2.3"), "{}", unnamed.err);
}

#[test]
fn the_tag_of_this_version_is_known() {
    let version = env!("CARGO_PKG_VERSION");
    let changelog = format!("## {version}\n");
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    assert!(manifest.contains(&format!("[workspace.package]\nversion = \"{version}\"\n")));
    assert_eq!(check_tag(&format!("v{version}"), version, &changelog).code, Some(0));
}
