//! Tests of the GitHub action (`action.yml`) and of the GitLab component (`templates/mailrun.yml`). bash runs the
//! commands of their steps, as on GitHub. GitHub and GitLab themselves have not run any step yet.
use crate::manual::{page, root};
use crate::party::{Ended, MAILRUN, Sink, peer, run, skip};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Prints the documents of a YAML file as a JSON list.
const TO_JSON: &str = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";

/// Reads the documents of a YAML file. Returns `None`, and notes the skipped test, if Python's YAML reader is missing.
pub(crate) fn documents(name: &str) -> Option<Vec<Value>> {
    let python = peer("python3")?;
    if run(&python, &["-c", "import yaml"]).code != Some(0) {
        skip("python3-yaml", "it is not installed");
        return None;
    }
    let read = run(&python, &["-c", TO_JSON, root().join(name).to_str().unwrap()]);
    assert_eq!(read.code, Some(0), "{name}: {}", read.err);
    Some(serde_json::from_str(&read.out).unwrap())
}

/// Commands of the action's steps: install, measure and compare.
fn steps() -> Option<[String; 3]> {
    let action = documents("action.yml")?.remove(0);
    let commands = action["runs"]["steps"].as_array().unwrap().iter().filter_map(|step| step["run"].as_str());
    let commands: Vec<String> = commands.map(str::to_owned).collect();
    Some(commands.try_into().unwrap())
}

struct Job {
    place: TempDir,
}

impl Job {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("bin")).unwrap();
        Self { place }
    }

    fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_owned()
    }

    /// Puts a fake `mailrun` on the PATH. Each call writes its arguments to the file `calls`, and ends with the next
    /// exit status in `statuses`, which has one per line.
    fn with_statuses(statuses: &str) -> Self {
        let job = Self::new();
        job.write("statuses", statuses);
        let text = format!(
            "#!/bin/sh\ncd {place} && printf '%s|' \"$@\" >>calls && echo >>calls\nread -r status <statuses\n\
             sed -i 1d statuses\nexit $status\n",
            place = job.place.path().display()
        );
        job.write("bin/mailrun", &text);
        fs::set_permissions(job.path("bin/mailrun"), Permissions::from_mode(0o755)).unwrap();
        job
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.path("calls")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Runs a step's commands in the directory of the job.
    fn step(&self, commands: &str, environment: &[(&str, &str)]) -> Ended {
        self.write("step", commands);
        let bin = format!("PATH={}:{}", self.path("bin"), std::env::var("PATH").unwrap());
        let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
        let own = [format!("--chdir={}", self.place.path().display()), bin];
        let shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step"].map(str::to_owned);
        let words: Vec<String> = own.into_iter().chain(variables).chain(shell).collect();
        run("env", &words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

#[test]
fn a_run_that_cannot_tell_is_repeated_once() {
    let Some([_, measure, _]) = steps() else { return };
    // Each row has the exit statuses of successive mailrun calls, the number of runs that the step must make, the
    // expected status of the step, and the expected number of calls.
    for (statuses, runs, status, calls) in [
        ("0", "1", 0, 1),
        ("3\n0", "1", 0, 2),
        ("3\n3\n0", "1", 3, 2),
        ("3\n1", "1", 1, 2),
        ("1\n0", "1", 1, 1),
        ("2\n0", "1", 2, 1),
        ("0\n3\n0\n0", "3", 0, 4),
        ("0\n1\n0", "3", 1, 2),
    ] {
        let job = Job::with_statuses(statuses);
        let environment =
            [("SERVER", "127.0.0.1:1"), ("ARGUMENTS", ""), ("THRESHOLDS", ""), ("RUNS", runs), ("OUT", "out")];
        let ended = job.step(&measure, &environment);
        assert_eq!((ended.code, job.calls().len()), (Some(status), calls), "{statuses:?}: {ended:?}");
    }
}

#[test]
fn words_and_thresholds_reach_the_bench_as_they_are_typed() {
    let Some([_, measure, _]) = steps() else { return };
    let job = Job::with_statuses("0");
    let environment = [
        ("SERVER", "mx.example:25"),
        ("ARGUMENTS", "--rate 200\n  --subject 'a b' \"it's\" $HOME `id`"),
        ("THRESHOLDS", "accepted.p99 < 500ms\n\ndelivered.within(10s) >= 100%\n"),
        ("RUNS", "1"),
        ("OUT", "my results"),
    ];
    let ended = job.step(&measure, &environment);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let expected = "bench|mx.example:25|--rate|200|--subject|a b|it's|$HOME|`id`|--threshold|accepted.p99 < 500ms|--threshold|\
                    delivered.within(10s) >= 100%|--out|my results/1|--export|junit=my results/1/mailrun.xml|";
    assert_eq!(job.calls(), [expected]);
}

#[test]
fn an_undecided_comparison_warns_and_a_regression_fails() {
    let Some([_, _, compare]) = steps() else { return };
    let environment = |baseline, save| {
        let common =
            [("OUT", "out"), ("BASELINE_DIR", "kept"), ("FAIL_ON_REGRESSION", "20%"), ("GITHUB_ACTIONS", "true")];
        [&common[..], &[("BASELINE", baseline), ("SAVE_BASELINE", save)]].concat()
    };
    let compared =
        "compare|out|--baseline|main|--baseline-dir|kept|--fail-on-regression|20%|--html|out/compared.html|".to_owned();
    let saved = "baseline|save|main|out|--replace|--dir|kept|".to_owned();
    let warning = "::warning::A regression can neither be shown nor ruled out\n";
    for (statuses, baseline, save, status, calls, said) in [
        ("0", "", "false", 0, vec![], "No baseline is named, so nothing is compared\n"),
        ("0", "main", "false", 0, vec![compared.clone()], ""),
        ("1", "main", "false", 1, vec![compared.clone()], ""),
        ("2", "main", "false", 2, vec![compared.clone()], ""),
        ("3", "main", "false", 0, vec![compared], warning),
        ("0", "main", "true", 0, vec![saved.clone()], ""),
        ("2", "main", "true", 2, vec![saved], ""),
    ] {
        let job = Job::with_statuses(statuses);
        let ended = job.step(&compare, &environment(baseline, save));
        assert_eq!((ended.code, ended.out.as_str()), (Some(status), said), "{statuses} {baseline} {save}: {ended:?}");
        assert_eq!(job.calls(), calls);
    }
}

/// Makes an archive like that of a release from the mailrun under test. Returns the URL of the directory with all
/// releases. The release's file SHA256SUMS has the output of the shell command `checksum`, and a line for another file.
fn release(job: &Job, checksum: &str) -> String {
    let name = format!("mailrun-{}-x86_64-unknown-linux-gnu-static", env!("CARGO_PKG_VERSION"));
    let version = job.path(&format!("releases/v{}", env!("CARGO_PKG_VERSION")));
    let packed = job.path(&format!("packed/{name}"));
    fs::create_dir_all(&version).unwrap();
    fs::create_dir_all(&packed).unwrap();
    // Pack a script that starts the program, because the program itself has 200 MB in a test build.
    let program = Path::new(&packed).join("mailrun");
    fs::write(&program, format!("#!/bin/sh\nexec {MAILRUN} \"$@\"\n")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let script = format!(
        "tar -czf {version}/{name}.tar.gz -C {packed}/.. {name} && cd {version} && \
         {{ {checksum}; echo {:0>64} ' other.tar.gz'; }} >SHA256SUMS",
        1
    );
    assert_eq!(run("sh", &["-c", &script]).code, Some(0));
    format!("file://{}", job.path("releases"))
}

#[test]
fn the_step_installs_the_archive_of_a_release_and_checks_its_sum() {
    let (Some([install, _, _]), Some(_)) = (steps(), peer("curl")) else { return };
    if std::env::consts::ARCH != "x86_64" {
        return;
    }
    for (checksum, is_right) in
        [("sha256sum *.tar.gz", true), ("echo x | sha256sum | sed \"s/-/$(echo *.tar.gz)/\"", false)]
    {
        let job = Job::new();
        let releases = release(&job, checksum);
        // With this PATH, the step does not find another mailrun or cargo-binstall on this machine.
        let path = "PATH=bin:/usr/bin:/bin";
        job.write("step", &install);
        let place = format!("--chdir={}", job.place.path().display());
        let words = [&place, path, &format!("RELEASES={releases}"), "GITHUB_PATH=path"];
        let version = format!("VERSION={}", env!("CARGO_PKG_VERSION"));
        let shell = [version.as_str(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "step"];
        let ended = run("env", &[&words[..], &shell].concat());
        assert_eq!(ended.code == Some(0), is_right, "{ended:?}");
        let installed = fs::read_to_string(job.path("path")).unwrap_or_default();
        if is_right {
            let program = format!("{}/mailrun", installed.trim());
            assert_eq!(run(&program, &["--version"]).out, format!("mailrun {}\n", env!("CARGO_PKG_VERSION")));
            fs::remove_dir_all(installed.trim()).unwrap();
        } else {
            assert_eq!(installed, "");
        }
    }
}

#[test]
fn the_steps_measure_keep_and_compare() {
    let Some([_, measure, compare]) = steps() else { return };
    let sink = Sink::start(&[]);
    let job = Job::new();
    std::os::unix::fs::symlink(MAILRUN, job.path("bin/mailrun")).unwrap();
    let arguments = format!("--sink {} --messages 50 --sessions 2 --quiet", sink.url());
    let address = sink.address();
    let with = |thresholds: &'static str, out: &'static str| {
        let load = [("SERVER", address.as_str()), ("ARGUMENTS", arguments.as_str()), ("THRESHOLDS", thresholds)];
        let baseline = [("BASELINE", "main"), ("BASELINE_DIR", "kept"), ("FAIL_ON_REGRESSION", "20%")];
        [&load[..], &baseline, &[("RUNS", "2"), ("OUT", out), ("GITHUB_STEP_SUMMARY", "summary")]].concat()
    };
    let easy = with("accepted.p99 < 30s\ndelivered.within(60s) >= 100%", "before");
    let ended = job.step(&measure, &easy);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for file in ["before/1/report.html", "before/2/run.json", "before/2/mailrun.xml"] {
        assert!(job.place.path().join(file).exists(), "{file}");
    }
    let saved = job.step(&compare, &[&easy[..], &[("SAVE_BASELINE", "true")]].concat());
    assert_eq!(saved.code, Some(0), "{saved:?}");
    let after = with("", "after");
    assert_eq!(job.step(&measure, &after).code, Some(0));
    let compared = job.step(&compare, &[&after[..], &[("SAVE_BASELINE", "false")]].concat());
    // Two runs on each side are too few to show or rule out a regression.
    assert!(compared.code == Some(0) && compared.out.contains("neither be shown nor ruled out"), "{compared:?}");
    assert!(job.place.path().join("after/compared.html").exists());
    let missed = job.step(&measure, &with("accepted.p99 < 1us", "missed"));
    assert_eq!(missed.code, Some(1), "{missed:?}");
}

#[test]
fn the_component_has_the_inputs_and_commands_of_the_action() {
    let (Some(action), Some(component)) = (documents("action.yml"), documents("templates/mailrun.yml")) else { return };
    let [specification, jobs] = &component[..] else { panic!("{component:?}") };
    let job = &jobs["$[[ inputs.name ]]"];
    let commands: Vec<&str> = job["script"].as_array().unwrap().iter().map(|step| step.as_str().unwrap()).collect();
    assert_eq!(steps().unwrap().iter().map(String::as_str).collect::<Vec<_>>(), commands);
    let inputs = action[0]["inputs"].as_object().unwrap();
    let theirs = specification["spec"]["inputs"].as_object().unwrap();
    let own = ["artifact", "name", "image"];
    for name in inputs.keys().chain(theirs.keys()).filter(|name| !own.contains(&name.as_str())) {
        assert_eq!(
            inputs.get(name).map(|input| &input["default"]),
            theirs.get(name).map(|input| &input["default"]),
            "{name}"
        );
    }
    // Each environment variable of a step must take its value from the input of the same name.
    let steps = action[0]["runs"]["steps"].as_array().unwrap();
    let variables = steps.iter().filter_map(|step| step["env"].as_object()).flatten();
    for (name, value) in variables.chain(job["variables"].as_object().unwrap()) {
        let input = name.to_lowercase().replace('_', "-");
        assert!(value.as_str().unwrap().contains(&format!(" inputs.{input} ")), "{name}: {value}");
    }
    assert_eq!(inputs["version"]["default"], env!("CARGO_PKG_VERSION"));
    let page = page("docs/ci.md");
    let cells: Vec<String> = page.rows("Inputs").into_iter().skip(1).map(|row| row[0].clone()).collect();
    let mut described: Vec<&str> = cells.iter().flat_map(|cell| cell.split(", ")).collect();
    let mut names: Vec<&str> = inputs.keys().chain(theirs.keys()).map(String::as_str).collect();
    names.sort();
    names.dedup();
    described.sort();
    assert_eq!(described, names);
}
