//! Completion scripts and manual pages, read by real shells and by man.
use crate::party::{Ended, mailrun, peer, run};
use std::fs;
use tempfile::TempDir;

fn script(shell: &str) -> (TempDir, String) {
    let ended = mailrun(&["completions", shell]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("mailrun");
    fs::write(&path, ended.out).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (place, path)
}

fn succeeds(ended: &Ended) {
    assert!(ended.code == Some(0) && ended.err.is_empty(), "{ended:?}");
}

#[test]
fn bash_completes_options() {
    let Some(bash) = peer("bash") else { return };
    let (_place, path) = script("bash");
    succeeds(&run(&bash, &["--norc", "-n", &path]));
    let ask = format!(
        "source {path}; COMP_WORDS=(mailrun bench --thr); COMP_CWORD=2; _mailrun mailrun --thr bench; echo \"${{COMPREPLY[@]}}\""
    );
    let answer = run(&bash, &["--norc", "-c", &ask]);
    assert_eq!(answer.out.trim(), "--threshold", "{answer:?}");
}

#[test]
fn zsh_and_fish_read_their_scripts() {
    for (shell, words) in [("zsh", ["-f", "-n"]), ("fish", ["--no-config", "-n"])] {
        let Some(program) = peer(shell) else { continue };
        let (_place, path) = script(shell);
        succeeds(&run(&program, &[words[0], words[1], &path]));
    }
}

#[test]
fn fish_completes_options() {
    let Some(fish) = peer("fish") else { return };
    let (_place, path) = script("fish");
    let ask = format!("source {path}; complete -C 'mailrun bench --thr'");
    let answer = run(&fish, &["-c", &ask]);
    assert!(answer.out.starts_with("--threshold"), "{answer:?}");
}

#[test]
fn man_shows_every_page_without_a_warning() {
    let Some(man) = peer("man") else { return };
    let place = tempfile::tempdir().unwrap();
    let ended = mailrun(&["man", place.path().to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let pages: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(pages.len() > 40, "{}", pages.len());
    for page in pages {
        // Use a locale that every glibc has, because man warns about locales that are not installed.
        let shown = run("env", &["LC_ALL=C.UTF-8", &man, "--warnings", "-l", page.to_str().unwrap()]);
        assert!(shown.code == Some(0) && shown.err.is_empty(), "{}: {}", page.display(), shown.err);
        assert!(shown.out.contains("EXIT STATUS"), "{}: {}", page.display(), shown.out);
    }
}
