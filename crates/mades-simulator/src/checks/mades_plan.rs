//! Reads any text as a plan file of the simulator. The reader must either report mistakes that lie
//! within the text, or return a valid plan that stays the same when it is written and read again.
use crate::model::{SimulatorPlan, plan_file};
use std::path::Path;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let preset = SimulatorPlan::preset("ecp-2022").expect("it is one");
    match plan_file::read(text, Path::new("p"), &preset) {
        Ok(read) => {
            assert_eq!(read.check(), Ok(()));
            let written = toml::to_string(&read).expect("a plan is always TOML");
            assert_eq!(plan_file::read(&written, Path::new("p"), &SimulatorPlan::default()), Ok(read));
        }
        Err(complaints) => {
            let lines = text.split('\n').count();
            for complaint in complaints.lines() {
                let mut parts = complaint.splitn(4, ':').skip(1);
                let line: usize = parts.next().and_then(|line| line.parse().ok()).expect("it has a line");
                let column: usize = parts.next().and_then(|column| column.parse().ok()).expect("it has a column");
                assert!((1..=lines).contains(&line) && column > 0, "{complaint}");
            }
        }
    }
}
