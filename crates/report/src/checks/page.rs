//! Reads arbitrary JSON as a run record and draws its page. The page must be complete HTML, and no text of the record
//! may become markup.
use mailrun_measurement::record::Record;

/// HTML tags that our pages never contain. If one appears, a text of the record was not escaped and became markup.
const FOREIGN: [&str; 4] = ["<img", "<iframe", "<form", "<object"];

pub fn check(data: &[u8]) {
    let Ok(record) = serde_json::from_slice::<Record>(data) else { return };
    let page = crate::page(&record, Some(&record));
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<section ").count(), page.matches("</section>").count());
    assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    assert!(!FOREIGN.iter().any(|tag| page.contains(tag)));
}
