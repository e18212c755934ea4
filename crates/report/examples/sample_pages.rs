//! Writes the HTML pages of sample runs into a directory, with the record and the Markdown report of each run. The
//! first argument is the directory. Further arguments can name record files, whose pages are written as well. The tests
//! in `tests/browser` open the pages.
use mailrun_measurement::record::Record;
use mailrun_report::{
    capacity_page, comparison_page, markdown, page, sample, sample_capacity, sample_comparison, sample_runs,
};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "target/pages".to_owned()));
    fs::create_dir_all(&directory)?;
    let mut runs = sample_runs::kinds();
    runs.extend([("sink", sample::sink_alone()), ("unwatched", sample::unwatched())]);
    for (name, record) in &runs {
        write(&directory, name, record, None)?;
    }
    for (name, comparison) in sample_comparison::comparisons() {
        fs::write(directory.join(format!("{name}.html")), comparison_page(&comparison))?;
    }
    for (name, search) in sample_capacity::searches() {
        fs::write(directory.join(format!("{name}.html")), capacity_page(&search))?;
    }
    for file in arguments {
        let record: Record = serde_json::from_slice(&fs::read(&file)?)?;
        let name = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        write(&directory, &format!("failed-{name}"), &record, None)?;
    }
    write(&directory, "against", &sample_runs::failed(), Some(&sample_runs::passed()))
}

fn write(directory: &Path, name: &str, record: &Record, baseline: Option<&Record>) -> io::Result<()> {
    fs::write(directory.join(format!("{name}.html")), page(record, baseline))?;
    fs::write(directory.join(format!("{name}.md")), markdown(record))?;
    fs::write(directory.join(format!("{name}.json")), serde_json::to_vec(record)?)
}
