//! Reports the capacities of a server on different numbers of processors, as a table and as the JSON value `by_cores`.
use crate::capacity::CapacityRun;
use mailrun_text::numbers::rate;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq)]
pub struct CoreCapacity {
    pub cores: u32,
    pub rate_per_s: Option<f64>,
    pub directory: PathBuf,
}

impl CoreCapacity {
    pub fn new(cores: u32, run: &CapacityRun) -> Self {
        Self { cores, rate_per_s: run.capacity_per_s(), directory: run.directory.clone() }
    }

    fn per_core_per_s(&self) -> Option<f64> {
        self.rate_per_s.map(|per_s| per_s / f64::from(self.cores.max(1)))
    }
}

pub fn core_capacity_text(rows: &[CoreCapacity]) -> String {
    let mut text = "server's cores     capacity     per core\n".to_owned();
    for row in rows {
        let shown = |per_s: Option<f64>| per_s.map_or_else(|| "–".to_owned(), |per_s| rate(per_s) + "/s");
        let _ = writeln!(text, "{:>14}  {:>11}  {:>11}", row.cores, shown(row.rate_per_s), shown(row.per_core_per_s()));
    }
    text
}

pub fn core_capacity_json(rows: &[CoreCapacity]) -> Value {
    let row = |row: &CoreCapacity| {
        json!({
            "cores": row.cores,
            "rate_per_s": row.rate_per_s,
            "per_core_per_s": row.per_core_per_s(),
            "directory": row.directory,
        })
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_shown_for_each_core_and_none_as_none() {
        let row = |cores, rate_per_s| CoreCapacity { cores, rate_per_s, directory: "d".into() };
        let rows = [row(1, None), row(2, Some(3_000.0))];
        let text = core_capacity_text(&rows);
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [["1", "–", "–"], ["2", "3,000/s", "1,500/s"]]);
        let json = core_capacity_json(&rows);
        assert_eq!(json[0], json!({"cores": 1, "rate_per_s": null, "per_core_per_s": null, "directory": "d"}));
        assert_eq!(json[1]["per_core_per_s"], 1_500.0);
    }
}
