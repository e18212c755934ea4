//! Source files as text, for tests of the project's structure: files, code without comments, imports.
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every `.rs` file below these directories, sorted.
pub(crate) fn sources(directories: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    directories.iter().for_each(|directory| collect(&root().join(directory), &mut paths));
    paths.sort();
    assert!(!paths.is_empty(), "{directories:?} hold nothing");
    paths.iter().map(|path| read(path)).collect()
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
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

impl Source {
    /// Lines of code with their numbers, without lines that are only a comment.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(number, line)| (number + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The text before the file's unit tests.
    pub(crate) fn without_tests(&self) -> &str {
        let is_module = |at: &usize| self.text[*at..].lines().nth(1).is_some_and(|line| line.starts_with("mod "));
        let has_body = |at: &usize| self.text[*at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
        let mut marks = self.text.match_indices("#[cfg(test)]\n").map(|(at, _)| at);
        let end = marks.find(|at| is_module(at) && has_body(at)).unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// Every imported path in full: groups are expanded, and `self` and `super` are resolved to `crate`.
    pub(crate) fn imports(&self) -> Vec<(usize, String)> {
        let code: String = self.code().map(|(number, line)| format!("{number}\t{line}\n")).collect();
        let mut found = Vec::new();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let (number, line) = line.split_once('\t').unwrap();
            let Some((indent, tree)) = use_tree(line) else { continue };
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some(next) = lines.next() else { break };
                tree.push_str(next.split_once('\t').unwrap().1.trim());
            }
            let tree = tree.split(';').next().unwrap_or_default();
            let depth = indent.len() / 4;
            let paths = expand(tree).into_iter().map(|path| self.absolute(&path, depth));
            found.extend(paths.map(|path| (number.parse().unwrap(), path)));
        }
        found
    }

    /// Resolves `self::` and `super::`, so that the path begins with `crate`.
    fn absolute(&self, path: &str, depth: usize) -> String {
        let path = path.strip_prefix("::").unwrap_or(path);
        let mut rest = path;
        let mut module = self.module();
        // Each `super` removes an inner module, so the names of inner modules do not matter, but only their number.
        module.extend(std::iter::repeat_n("inner", depth));
        while let Some(below) = rest.strip_prefix("super::") {
            module.pop();
            rest = below;
        }
        match rest.strip_prefix("self::") {
            Some(below) => ["crate", &module.join("::"), below].join("::").replace("::::", "::"),
            None if rest.len() < path.len() => ["crate", &module.join("::"), rest].join("::").replace("::::", "::"),
            None => path.to_owned(),
        }
    }

    /// Names of the modules from the crate's root to this file.
    pub(crate) fn module(&self) -> Vec<&str> {
        let inner = self.path.split_once("src/").map_or("", |(_, inner)| inner);
        let inner = inner.strip_suffix(".rs").unwrap_or(inner);
        let is_module = |part: &&str| !["lib", "main", "mod"].contains(part);
        inner.split('/').filter(is_module).collect()
    }
}

/// The tree of a `use` that begins on this line, and its indentation.
pub(crate) fn use_tree(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start();
    let indent = &line[..line.len() - rest.len()];
    let visible = rest
        .strip_prefix("pub ")
        .or_else(|| rest.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")?.1.into()));
    visible.unwrap_or(rest).strip_prefix("use ").map(|tree| (indent, tree))
}

/// Expands a tree: `a::{b, c::{d, self}}` is `a::b`, `a::c::d` and `a::c`.
pub(crate) fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        return vec![path.strip_suffix("::self").unwrap_or(path).to_owned()];
    };
    let body = rest.rsplit_once('}').map_or(rest, |(body, _)| body);
    let branches = branches(body).into_iter().filter(|branch| !branch.trim().is_empty());
    branches.flat_map(|branch| expand(&format!("{head}{}", branch.trim()))).collect()
}

/// Splits a group at its own commas, not at those of inner groups.
fn branches(body: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_own_comma = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    body.split(is_own_comma).collect()
}

#[test]
fn imports_are_written_out() {
    let text = "use crate::{party, source};\nuse mailrun_net::{\n    clock::{self, Clock},\n    tls,\n};\n    pub(crate) use super::x as y;\nuse super::z;\nuse super::super::cli;\n// use a::b;\nuse ::tokio::net;\n";
    let source = Source { path: "crates/bench/src/relays/disk.rs".to_owned(), text: text.to_owned() };
    let paths: Vec<String> = source.imports().into_iter().map(|(_, path)| path).collect();
    let expected = [
        "crate::party",
        "crate::source",
        "mailrun_net::clock",
        "mailrun_net::clock::Clock",
        "mailrun_net::tls",
        "crate::relays::disk::x",
        "crate::relays::z",
        "crate::cli",
        "tokio::net",
    ];
    assert_eq!(paths, expected);
}
