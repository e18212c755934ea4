//! The reference pages name everything that exists and nothing else: fields of `run.json` and of the HTTP API, metrics,
//! environment variables, options, and terms.
use crate::docs_script::{Step, namespaces, run_steps};
use crate::manual::{Page, all_help, page, pages, root};
use crate::party::{Sink, bench_as_typed, mailrun, undisturbed};
use crate::probe::Probe;
use crate::relay::{self, Den};
use crate::secured::Files;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Options of other programs that pages mention beside ours.
const OTHERS_OPTIONS: &[&str] = &[
    "--profile",        // An option of cargo
    "--no-healthcheck", // An option of Docker
    // The following options belong to Locust or to our locustfile.
    "--enable-rebalancing",
    "--reset-stats",
    "--worker", // mailrun also accepts this option, but only as its first word, in place of a command
    "--mailrun-drain",
    "--mailrun-report",
    "--mailrun-run-id",
    "--mailrun-stages",
    "--mailrun-thresholds",
];

/// Returns the names in the first cells of the rows below a heading. A cell may have several names.
fn names(page: &Page, heading: &str) -> BTreeSet<String> {
    let rows = page.rows(heading);
    assert!(rows.len() > 1, "{}: no table below {heading}", page.name);
    let cells = rows.iter().skip(1).flat_map(|row| row[0].split(", "));
    cells.map(|cell| cell.split('{').next().unwrap().to_owned()).collect()
}

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap_or_else(|| panic!("no object: {object}")).keys().cloned().collect()
}

/// The example record must have only fields of a real run, with values of the same type.
#[test]
fn the_example_of_the_record_is_one() {
    let example: Value = serde_json::from_str(&page("docs/run-json.md").blocks("json")[0]).unwrap();
    let run = bench_as_typed(&["--messages", "200", "--sessions", "5"]);
    let record: Value = serde_json::from_str(&run.file("run.json")).unwrap();
    is_part("", &example, &record);
}

fn is_part(path: &str, example: &Value, record: &Value) {
    match (example, record) {
        (Value::Object(example), Value::Object(record)) => {
            for (key, value) in example {
                let path = format!("{path}.{key}");
                is_part(&path, value, record.get(key).unwrap_or_else(|| panic!("no {path}")));
            }
        }
        (Value::Array(example), Value::Array(record)) => {
            // Compare each row of the example with the record's row of the same name.
            for row in example.iter().filter(|row| row.is_object()) {
                let twin = record.iter().find(|other| other["name"] == row["name"]);
                is_part(&format!("{path}[]"), row, twin.unwrap_or_else(|| panic!("no {path} like {row}")));
            }
        }
        (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_)) => {}
        _ => panic!("{path}: {example} in the example, {record} in a record"),
    }
}

#[test]
fn every_field_of_the_sinks_http_is_described() {
    let page = page("docs/http.md");
    let sink = Sink::start(&[]);
    let ended = mailrun(&["bench", &sink.address(), "--sink", sink.url(), "--messages", "20", "--sessions", "2"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(keys(&sink.ask("/status")), names(&page, "GET /status"));
    assert_eq!(keys(&sink.ask("/ledger")[0]), names(&page, "GET /ledger"));
}

#[test]
fn every_metric_is_described() {
    let sink = Sink::start(&[]);
    let den = Den::to(&sink.address(), "http = \"127.0.0.1:0\"\n");
    let relay = den.open();
    let (code, text) = relay::http(&relay, "/metrics");
    assert_eq!(code, 200, "{text}");
    let served = text.lines().filter_map(|line| line.strip_prefix("# TYPE mailrun_relay_"));
    let served: BTreeMap<String, String> = served
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let rows = page("docs/http.md").rows("GET /metrics").into_iter().skip(1);
    let described: BTreeMap<String, String> =
        rows.map(|row| (row[0].split('{').next().unwrap().to_owned(), row[1].clone())).collect();
    assert_eq!(described, served);
}

#[test]
fn every_metric_of_the_probe_is_described() {
    let files = Files::new();
    let route = "[[route]]\nserver = \"127.0.0.1:1\"\nto = \"a@b.example\"\nrate = \"1/h\"\n";
    let config = files.keep("probe.toml", &format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{route}"));
    let probe = Probe::start(&config);
    let text = probe.text();
    let served = text.lines().filter_map(|line| line.strip_prefix("# TYPE mailrun_probe_")?.split_once(' '));
    let served: BTreeMap<String, String> = served.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
    let rows = page("docs/probe.md").rows("GET /metrics").into_iter().skip(1);
    // A row may describe several metrics.
    let described = rows.flat_map(|row| {
        let names = row[0].split(", ").map(|name| name.split('{').next().unwrap().to_owned());
        names.map(|name| (name, row[1].clone())).collect::<Vec<_>>()
    });
    assert_eq!(described.collect::<BTreeMap<String, String>>(), served);
}

fn sources(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !["tests", "benches", "examples"].iter().any(|name| path.ends_with(name)) {
            sources(&path, files);
        } else if path.extension().is_some_and(|is| is == "rs") {
            files.push(path);
        }
    }
}

/// Returns the path and the text of each source file, without its unit tests.
fn product() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    ["src", "crates"].iter().for_each(|name| sources(&root().join(name), &mut files));
    let code = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        text.split("\n#[cfg(test)]\nmod ").next().unwrap().to_owned()
    };
    files.into_iter().map(|path| (path.clone(), code(&path))).collect()
}

/// Environment variables that a file reads: arguments of calls such as `env::var`, and other string literals that look
/// like the name of a variable.
fn variables(path: &Path, code: &str) -> BTreeSet<String> {
    let is_name = |word: &&str| {
        let is_own = word.starts_with("MAILRUN_");
        let looks_so = word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        looks_so && (is_own || path.ends_with("crates/process/src/terminal.rs"))
    };
    let own = code.split('"').skip(1).step_by(2).filter(is_name);
    let called = ["env::var(\"", "env::var_os(\"", "env = \""];
    let called = called.iter().flat_map(|call| code.split(call).skip(1).filter_map(|rest| rest.split('"').next()));
    own.chain(called).map(str::to_owned).collect()
}

#[test]
fn every_environment_variable_is_described() {
    let mut read = BTreeSet::new();
    for (path, code) in product() {
        // Drop comments, because their quotes would disturb the search for string literals.
        let code: String =
            code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        read.extend(variables(&path, &code));
    }
    let page = page("docs/environment.md");
    let described = names(&page, "Environment variables");
    // Variables of the build and of test builds are not documented.
    read.retain(|name| !["MAILRUN_COMMIT", "MAILRUN_PLANNED_PANIC"].contains(&name.as_str()));
    assert_eq!(described, read);
}

#[test]
fn every_option_exists() {
    let help: String = all_help().into_iter().map(|(_, help)| help).collect();
    let known: BTreeSet<&str> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    let mut unknown = Vec::new();
    let mut printed = BTreeSet::new();
    // Leave out these pages, because they name options of other programs.
    let others = ["docs/architecture.md", "docs/drop-in.md", "docs/from-swaks.md"];
    for page in pages().iter().filter(|page| !others.contains(&page.name.as_str())) {
        for span in page.spans().iter().filter(|span| span.starts_with("--")) {
            let option = span.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap().to_owned();
            if !known.contains(option.as_str()) && !OTHERS_OPTIONS.contains(&option.as_str()) && option != "--" {
                unknown.push(format!("{}: {span}", page.name));
            }
            printed.insert(option);
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(OTHERS_OPTIONS.iter().all(|option| printed.contains(*option)), "listed, and on no page");
}

#[test]
fn troubles_have_the_programs_words() {
    let page = page("docs/troubleshooting.md");
    let code: String = product().into_iter().map(|(_, code)| code.replace("\\\n", " ")).collect();
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let headings = page.text.lines().filter(|line| line.starts_with("## "));
    let quoted: Vec<&str> = headings.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    let invalid = page
        .text
        .lines()
        .filter(|line| line.starts_with("| `") && !line.starts_with("| `4") && !line.starts_with("| `5"));
    let rows = invalid.flat_map(|line| line.split(" | ").next().unwrap().split('`').skip(1).step_by(2));
    // These words are not in our code, because they come from the operating system and from rustls.
    let others = ["Connection refused", "UnknownIssuer"];
    let unknown: Vec<&str> = quoted.iter().copied().chain(rows).filter(|words| !words.starts_with("--")).collect();
    assert!(unknown.len() > 15, "{unknown:?}");
    let unknown: Vec<&str> =
        unknown.into_iter().filter(|words| !others.contains(words) && !code.contains(*words)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Lines of a CI job that its shell runs, except those that install mailrun or use git.
fn script(yaml: &str) -> String {
    let mut script = Vec::new();
    let mut block = None;
    for line in yaml.lines() {
        let blanks = line.len() - line.trim_start().len();
        let word = line.trim().trim_start_matches("- ");
        if block.is_some_and(|least| blanks > least) {
            script.push(line.trim().to_owned());
            continue;
        }
        block = None;
        match (word, word.strip_prefix("run: ")) {
            ("run: |" | "|", _) => block = Some(blanks),
            (_, Some(command)) => script.push(command.to_owned()),
            _ if ["- mailrun ", "- sh ", "- timeout "].iter().any(|start| line.trim().starts_with(start)) => {
                script.push(word.to_owned());
            }
            _ => {}
        }
    }
    script.retain(|line| !["cargo ", "git "].iter().any(|start| line.starts_with(start)));
    script.join("\n")
}

/// The script `ci/start-server` from docs/ci.md. It starts mailrun's relay as the server, so that a reader can try the
/// jobs without a server of their own.
const SERVER: &str = "exec mailrun relay --listen \"127.0.0.1:$1\" --to \"127.0.0.1:$2\" --spool \"$(mktemp -d)\"\n";

#[test]
#[ignore = "slow: make test-slow PART=docs"]
fn the_jobs_run_as_they_are_printed() {
    let Some(flags) = namespaces() else { return };
    let page = page("docs/ci.md");
    assert!(page.text.contains(SERVER));
    // Leave out the jobs that use the action or the component, because these jobs contain no commands. The tests in
    // action.rs run the commands of the action and of the component.
    let mut jobs = page.blocks("yaml");
    jobs.retain(|job| job.contains("mailrun bench"));
    assert_eq!(jobs.len(), 2);
    let files = [("ci/start-server", SERVER), ("base/ci/start-server", SERVER)];
    for (job, has_comparison) in jobs.iter().zip([true, false]) {
        let script = script(job).replace("--budget 120s", "--budget 120s --rounds 2 --messages 200");
        assert_eq!(script.contains("mailrun compare"), has_comparison, "{script}");
        let (servers, gate) = script.split_at(script.find("timeout").unwrap());
        let step = |text: &str| Step { text: text.to_owned(), ports: Vec::new() };
        let steps = [step("export GITHUB_STEP_SUMMARY=summary"), step(servers), step(&format!("(set -e\n{gate}\n)"))];
        // Repeat the job if it fails, because a busy machine may be the bottleneck or miss the threshold.
        undisturbed(
            || run_steps(&flags, &files, &steps),
            |done| {
                let said = &done[2].said;
                let is_invalid = done[2].code == Some(3) && said.contains("INVALID ");
                let has_passed = done[2].code == Some(0) || is_invalid;
                done[..2].iter().all(|done| done.code == Some(0)) && has_passed && said.contains("PASS ")
            },
        );
    }
}
