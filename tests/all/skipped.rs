//! Notes of what could not be tested here. `make test` prints them at its end.
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// Notes that a peer could not play.
pub(crate) fn skip(program: &str, why: &str) {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    fs::create_dir_all(&target).unwrap();
    let mut file = OpenOptions::new().create(true).append(true).open(target.join("skipped-peers.txt")).unwrap();
    writeln!(file, "{program}: {why}").unwrap();
    eprintln!("SKIPPED {program}: {why}");
}
