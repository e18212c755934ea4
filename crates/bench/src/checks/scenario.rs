//! Checks that the scenario parser handles any text. The parser must either report an error at a line of the text, or
//! give the same scenario when it reads the text again.
use crate::scenario::Scenario;
use std::path::Path;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Scenario::read(text, Path::new("s")) {
        Ok(read) => assert_eq!(Scenario::read(text, Path::new("s")), Ok(read)),
        Err(error) => {
            let mut parts = error.splitn(4, ':').skip(1);
            let line: usize = parts.next().and_then(|line| line.parse().ok()).expect("it has a line");
            let column: usize = parts.next().and_then(|column| column.parse().ok()).expect("it has a column");
            assert!((1..=text.split('\n').count()).contains(&line) && column > 0, "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
