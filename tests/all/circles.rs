//! Files of a crate must not import each other in circles, so that each can be read after the files that it imports.
//!
//! An import is a path in production code, in a `use` or inline. A re-exported name counts as an import of the file
//! that defines it. The rule also applies to a file and its ancestors (`mod.rs`, `lib.rs`). So if a parent uses its
//! children, anything that the children need must be in a separate file.
use crate::source_text::{Source, expand, root, sources, use_tree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Names from the crate's root to a module, or to an item in it.
type ModulePath = Vec<String>;

#[derive(Debug, Default)]
struct ModuleFile {
    file: String,
    uses: Vec<ModulePath>,
    re_exports: BTreeMap<String, ModulePath>,
}

impl ModuleFile {
    fn parse(source: &Source) -> Self {
        let mut module = Self { file: source.path.clone(), ..Self::default() };
        let mut lines = source.without_tests().lines().filter(|line| !line.trim_start().starts_with("//"));
        while let Some(line) = lines.next() {
            let Some((_, begin)) = use_tree(line) else {
                module.uses.extend(paths_in(line));
                continue;
            };
            let mut tree = begin.to_owned();
            while !tree.contains(';') {
                tree.push_str(lines.next().unwrap_or(";"));
            }
            let paths = expand(tree.split(';').next().unwrap_or_default());
            let paths = paths.iter().map(|path| names(path));
            if line.trim_start().starts_with("pub") {
                module.re_exports.extend(paths.filter_map(|path| Some((path.last()?.clone(), path))));
            } else {
                module.uses.extend(paths);
            }
        }
        module
    }
}

fn paths_in(line: &str) -> impl Iterator<Item = ModulePath> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.contains("::")).map(names)
}

/// Names of a path, without the `*` of a glob import.
fn names(path: &str) -> ModulePath {
    path.split(':').map(str::trim).filter(|name| !name.is_empty() && *name != "*").map(str::to_owned).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Import {
    from: String,
    to: String,
    names: BTreeSet<String>,
}

#[derive(Debug)]
struct CrateFiles(BTreeMap<ModulePath, ModuleFile>);

impl CrateFiles {
    fn new(sources: &[Source]) -> Self {
        let module = |source: &Source| source.module().into_iter().map(str::to_owned).collect();
        Self(sources.iter().map(|source| (module(source), ModuleFile::parse(source))).collect())
    }

    /// Resolves a path that occurs in the module `from`. Returns the module that defines the path's item, and the
    /// item's name, or `None` if the path leads out of this crate.
    fn resolve(&self, from: &[String], path: &[String]) -> Option<(ModulePath, String)> {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let full = match path.first()?.as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [from, &path[1..]].concat(),
            "super" => [&from[..from.len().saturating_sub(ups)], &path[ups..]].concat(),
            child if self.0.contains_key(&[from, &[child.to_owned()]].concat()) => [from, path].concat(),
            _ => return None,
        };
        let length = (0..=full.len()).rev().find(|length| self.0.contains_key(&full[..*length]))?;
        let module = full[..length].to_vec();
        let Some(name) = full.get(length) else { return Some((module, String::new())) };
        let re_exported = self.0[&module].re_exports.get(name).filter(|target| *target != path);
        let behind = re_exported.and_then(|target| self.resolve(&module, target));
        Some(behind.unwrap_or_else(|| (module, name.clone())))
    }

    /// Returns the names that each module imports, grouped by the module that defines them.
    fn imports(&self) -> BTreeMap<&ModulePath, BTreeMap<ModulePath, BTreeSet<String>>> {
        let mut imports: BTreeMap<_, BTreeMap<ModulePath, BTreeSet<String>>> = BTreeMap::new();
        for (module, file) in &self.0 {
            for (target, name) in file.uses.iter().filter_map(|path| self.resolve(module, path)) {
                if *module != target {
                    imports.entry(module).or_default().entry(target).or_default().insert(name);
                }
            }
        }
        imports
    }

    fn circular_imports(&self) -> Vec<Import> {
        let imports = self.imports();
        let edges = imports.iter().flat_map(|(from, targets)| targets.keys().map(|to| ((*from).clone(), to.clone())));
        let import = |(from, to): (ModulePath, ModulePath)| {
            let names = imports[&from][&to].clone();
            Import { from: self.0[&from].file.clone(), to: self.0[&to].file.clone(), names }
        };
        circular_edges(edges).into_iter().map(import).collect()
    }

    /// Returns the circular imports between the crate's top-level modules. Imports of a submodule count as imports of
    /// its top-level module.
    fn circular_root_modules(&self) -> Vec<(String, String)> {
        let imports = self.imports();
        let edges = imports.iter().flat_map(|(from, targets)| {
            targets.keys().filter_map(|to| Some((from.first()?.clone(), to.first()?.clone())))
        });
        circular_edges(edges.filter(|(from, to)| from != to))
    }
}

fn circular_edges<N: Ord + Clone>(edges: impl Iterator<Item = (N, N)>) -> Vec<(N, N)> {
    let mut targets: BTreeMap<N, BTreeSet<N>> = BTreeMap::new();
    edges.for_each(|(from, to)| _ = targets.entry(from).or_default().insert(to));
    let leads = |from: &N, to: &N| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            if seen.insert(node) {
                open.extend(targets.get(node).into_iter().flatten());
            }
        }
        seen.contains(to)
    };
    let edges = targets.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
    edges.filter(|(from, to)| leads(to, from)).map(|(from, to)| (from.clone(), to.clone())).collect()
}

fn circular_imports() -> Vec<Import> {
    let members = fs::read_dir(root().join("crates")).unwrap();
    let mut directories: Vec<String> =
        members.map(|member| format!("crates/{}/src", member.unwrap().file_name().to_str().unwrap())).collect();
    directories.push("src".to_owned());
    directories.iter().flat_map(|directory| CrateFiles::new(&sources(&[directory])).circular_imports()).collect()
}

#[test]
fn no_files_import_from_each_other_in_a_circle() {
    let found: Vec<String> = circular_imports()
        .iter()
        .map(|Import { from, to, names }| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{from} -> {to}: {}", names.join(", "))
        })
        .collect();
    assert!(found.is_empty(), "a circle: move what both need to the lower file, or to one of its own: {found:#?}");
}

#[test]
fn no_modules_of_the_bench_import_from_each_other_in_a_circle() {
    let bench = CrateFiles::new(&sources(&["crates/bench/src"]));
    assert_eq!(bench.circular_root_modules(), [], "starting a server must not need a scenario");
}

/// Returns the circular imports of a crate with these files, each as `FROM TO`.
fn circular(files: &[(&str, &str)]) -> Vec<String> {
    let source = |(path, text): &(&str, &str)| Source { path: format!("src/{path}"), text: (*text).to_owned() };
    let found = CrateFiles::new(&files.iter().map(source).collect::<Vec<_>>());
    found.circular_imports().into_iter().map(|import| format!("{} {}", import.from, import.to)).collect()
}

#[test]
fn a_circle_is_found_through_trees_and_re_exports_and_in_place() {
    let library = ("lib.rs", "mod a;\nmod b;\npub use a::inner::{self, Low};\n");
    let module = ("a/mod.rs", "mod inner;\npub(crate) use inner::Low as First;\n");
    let inner = ("a/inner.rs", "use crate::{\n    a,\n    b::{self, High},\n};\npub struct Low;\n");
    let circle = ["src/a/inner.rs src/b.rs", "src/b.rs src/a/inner.rs"];
    for text in ["use crate::Low;\n", "use super::a::inner::*;\n", "fn f(x: Vec<crate::a::inner::Low>) {}\n"] {
        assert_eq!(circular(&[library, module, inner, ("b.rs", text)]), circle, "{text}");
    }
}

#[test]
fn a_parent_and_its_children_may_be_a_circle() {
    let library = ("lib.rs", "mod a;\nuse a::Low;\npub struct Options;\n");
    for text in ["use crate::Options;\n", "use super::Options;\n", "fn f(x: super::Options) {}\n"] {
        assert_eq!(circular(&[library, ("a.rs", text)]), ["src/lib.rs src/a.rs", "src/a.rs src/lib.rs"], "{text}");
    }
    let parent = ("a/mod.rs", "pub(crate) mod b;\npub(crate) fn f() { b::g() }\n");
    let child = ("a/b.rs", "pub(crate) fn g() { super::f() }\n");
    assert_eq!(circular(&[("lib.rs", "mod a;\n"), parent, child]).len(), 2);
}

#[test]
fn tests_comments_other_crates_and_what_a_parent_only_hands_on_are_no_circle() {
    let library = ("lib.rs", "mod a;\nmod b;\npub use b::Options;\nuse a::Low;\nuse b::High;\n");
    let low =
        "use crate::Options;\nuse std::b::High;\n// crate::b\n#[cfg(test)]\nmod tests {\n    use crate::Top;\n}\n";
    assert_eq!(circular(&[library, ("a.rs", low), ("b.rs", "use std::a::Low;\n")]), [""; 0]);
    // A child may use its parent. This makes no circle, because the parent uses nothing of its children.
    let parent = ("lib.rs", "mod a;\npub struct Options;\n");
    assert_eq!(circular(&[parent, ("a.rs", "use crate::Options;\n")]), [""; 0]);
}
