//! Writes the pages of sample runs, each with its record, into a directory: `tests/browser` opens them.
use mailrun_report::{page, sample, sample_runs};
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let directory = PathBuf::from(env::args().nth(1).unwrap_or_else(|| "target/pages".to_owned()));
    fs::create_dir_all(&directory)?;
    let mut runs = sample_runs::kinds();
    runs.extend([("sink", sample::sink_alone()), ("unwatched", sample::unwatched())]);
    for (name, record) in &runs {
        fs::write(directory.join(format!("{name}.html")), page(record, None))?;
        fs::write(directory.join(format!("{name}.json")), serde_json::to_vec(record)?)?;
    }
    let compared = page(&sample_runs::failed(), Some(&sample_runs::passed()));
    fs::write(directory.join("against.html"), compared)?;
    fs::write(directory.join("against.json"), serde_json::to_vec(&sample_runs::failed())?)
}
