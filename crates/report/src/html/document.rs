//! The frame of a page: head, style, scripts, and the record of the run as data.
//!
//! The page loads nothing from elsewhere. Its content security policy (CSP) permits no connections. It permits only the
//! page's own two scripts, which it identifies by their hashes.
use super::escape::{escaped, json};
use super::tables::{PagePart, PageRuns};
use mailrun_measurement::record::Record;
use serde_json::Value;

const UPLOT_SCRIPT: &str = include_str!("../../assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../../assets/uPlot.min.css");
const OWN_SCRIPT: &str = include_str!("../../assets/report.js");
const OWN_STYLE: &str = include_str!("../../assets/report.css");

/// SHA-256 hashes of uPlot and our own script in base64. Browsers refuse to run a script with a different hash.
const UPLOT_HASH: &str = "GcjUxq2Ikpp59K5J1vcWFWbf0Lo9FcxJXpdPeH63jx8=";
const OWN_HASH: &str = "k5UMJAJEGGzW1ohS90nl6wBkoNdS3Q8me3ZAfCfEhSY=";

/// The page contains the run's record, so that readers can copy it. The record has one row for each second. If there
/// are more rows than this, the record on the page lacks the details named in `LEFT_OUT`. They are in `run.json`.
const MAX_ROWS: usize = 300;
/// If the record's JSON has more bytes than this, the record on the page lacks the details named in `LEFT_OUT`.
const MAX_DATA_BYTES: usize = 60_000;
const LEFT_OUT: &str = "the seconds, the slowest and the missing messages, and the histograms, which run.json has";
const MAX_TEXT_CHARS: usize = 1_000;
const MAX_ENTRIES: usize = 1_000;

/// Buttons that copy the run as Markdown or JSON. They do nothing without the page's script, so they are hidden until
/// it runs.
const BUTTONS: &str = "<p class=\"actions\" hidden><button type=\"button\" data-copy=\"markdown\">Copy as Markdown</button> \
                       <button type=\"button\" data-copy=\"record\">Copy as JSON</button> <span role=\"status\"></span></p>";

/// Returns the whole page of a run. The parts in `answer` explain the verdict, so they come first, before the links to
/// the other parts.
pub(super) fn page(runs: PageRuns<'_>, top: &str, answer: &[PagePart], parts: &[PagePart]) -> String {
    let record = runs.record;
    let scripts = format!("{}\n<script>{UPLOT_SCRIPT}</script>\n<script>{OWN_SCRIPT}</script>\n", copies(record));
    let head = PageHead {
        title: &record.name,
        policy: format!("; script-src 'sha256-{UPLOT_HASH}' 'sha256-{OWN_HASH}'"),
        styles: [UPLOT_STYLE, OWN_STYLE].join("\n"),
    };
    let top = format!("{top}<div class=\"answer\">{}</div>{BUTTONS}", sections(answer));
    frame(&head, &top, parts, &format!("Run {} · ", escaped(&record.run_id)), &scripts)
}

pub(super) fn plain_page(title: &str, top: &str, parts: &[PagePart]) -> String {
    let head = PageHead { title, policy: String::new(), styles: OWN_STYLE.to_owned() };
    frame(&head, top, parts, "", "")
}

struct PageHead<'a> {
    title: &'a str,
    /// Additions to the content security policy, which permit the page's own scripts.
    policy: String,
    styles: String,
}

fn frame(head: &PageHead<'_>, top: &str, parts: &[PagePart], source: &str, scripts: &str) -> String {
    let links: String = parts.iter().map(|part| format!("<a href=\"#{}\">{}</a> ", part.id, part.title)).collect();
    let sections = sections(parts);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{} – mailrun</title>\n\
         <style>{}</style>\n</head>\n<body>\n{top}\n<nav aria-label=\"Parts of the report\">{links}</nav>\n\
         <main>\n{sections}</main>\n<footer>{source}made by mailrun {}</footer>\n{scripts}</body>\n</html>\n",
        head.policy,
        escaped(head.title),
        head.styles,
        env!("CARGO_PKG_VERSION"),
    )
}

fn sections(parts: &[PagePart]) -> String {
    parts.iter().map(section).collect()
}

fn section(part: &PagePart) -> String {
    let PagePart { id, title, body } = part;
    format!("<section id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2>{body}</section>\n")
}

/// Returns script elements with the texts that the two buttons copy: the record as JSON, and the report as Markdown.
fn copies(record: &Record) -> String {
    let (data, is_whole) = data(record);
    let data = json(&data);
    let without = if is_whole { String::new() } else { format!(" data-without=\"{LEFT_OUT}\"") };
    let markdown = crate::markdown(&with_short_texts(record));
    format!(
        "<script type=\"application/json\" id=\"record\"{without}>{data}</script>\n\
         <script type=\"application/json\" id=\"markdown\">{}</script>",
        json(&Value::from(markdown))
    )
}

/// Returns the record as JSON, and true if it is complete. If the record is too large, the JSON lacks the details named
/// in `LEFT_OUT`.
fn data(record: &Record) -> (Value, bool) {
    let seconds = |record: &Record| record.usage.iter().map(|party| party.seconds.len()).max().unwrap_or(0);
    if record.series.len() <= MAX_ROWS && seconds(record) <= MAX_ROWS {
        let data = short_value(record);
        if data.to_string().len() <= MAX_DATA_BYTES {
            return (data, true);
        }
    }
    (short_value(&without_details(record)), false)
}

fn without_details(record: &Record) -> Record {
    let mut record =
        Record { series: Vec::new(), usage: Vec::new(), slowest: Vec::new(), missing: Vec::new(), ..record.clone() };
    record.stages.iter_mut().for_each(|row| {
        row.histogram = None;
        row.service_histogram = None;
        row.arrivals = None;
    });
    record.phases.iter_mut().for_each(|row| row.histogram = None);
    record
}

fn short_value(record: &Record) -> Value {
    let mut value = serde_json::to_value(record).unwrap_or_default();
    shorten(&mut value, "");
    value
}

/// Returns the record with shortened texts, because a server may have answered with megabytes.
fn with_short_texts(record: &Record) -> Record {
    let mut record = record.clone();
    let texts = record.errors.iter_mut().map(|row| &mut row.text).chain(&mut record.verdict.reasons);
    let texts = texts.chain([&mut record.verdict.why, &mut record.name, &mut record.workload.target]);
    texts.for_each(cut);
    if let Some(mades) = &mut record.mades {
        mades.troubles.iter_mut().for_each(|row| cut(&mut row.text));
    }
    record
}

/// Shortens long texts and lists, except histograms, because a shortened histogram could not be decoded.
fn shorten(value: &mut Value, key: &str) {
    match value {
        Value::String(text) if !key.ends_with("histogram") => cut(text),
        Value::Array(entries) => {
            entries.truncate(MAX_ENTRIES);
            entries.iter_mut().for_each(|entry| shorten(entry, key));
        }
        Value::Object(fields) => fields.iter_mut().for_each(|(name, field)| shorten(field, name)),
        _ => {}
    }
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use sha2::{Digest, Sha256};

    /// SHA-256 hash of the script that uPlot 1.6.32 published. `assets/README.md` states the same hash.
    const PUBLISHED: &str = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f";
    const PUBLISHED_STYLE: &str = "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04";

    fn hexadecimal(text: &str) -> String {
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn base64(text: &str) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digest = Sha256::digest(text.as_bytes());
        let group = |bytes: &[u8]| {
            let number = (0..3).fold(0_usize, |sum, at| (sum << 8) | usize::from(bytes.get(at).copied().unwrap_or(0)));
            let letter =
                |at: usize| if at <= bytes.len() { LETTERS[(number >> (18 - 6 * at)) & 63] as char } else { '=' };
            (0..4).map(letter).collect::<String>()
        };
        digest.chunks(3).map(group).collect()
    }

    #[test]
    fn uplot_is_the_published_one() {
        assert_eq!(hexadecimal(UPLOT_SCRIPT), PUBLISHED);
        assert_eq!(hexadecimal(UPLOT_STYLE), PUBLISHED_STYLE);
        let readme = include_str!("../../assets/README.md");
        assert!(readme.contains(PUBLISHED) && readme.contains(PUBLISHED_STYLE));
    }

    #[test]
    fn the_policy_names_the_scripts_that_are_there() {
        assert_eq!(base64(UPLOT_SCRIPT), UPLOT_HASH);
        assert_eq!(base64(OWN_SCRIPT), OWN_HASH);
        assert!(!OWN_SCRIPT.contains("</") && !UPLOT_SCRIPT.contains("</script"));
    }

    #[test]
    fn the_data_of_a_short_run_is_its_record() {
        let record = sample::held();
        assert_eq!(serde_json::from_value::<Record>(data(&record).0).expect("it is a record"), record);
        assert!(!crate::page(&record, None).contains("data-without=\""));
    }

    #[test]
    fn the_copy_of_a_long_run_says_what_it_has_not() {
        let page = crate::page(&crate::sample_runs::hour(), None);
        assert!(page.contains(&format!("id=\"record\" data-without=\"{LEFT_OUT}\"")));
    }

    #[test]
    fn a_long_reply_is_cut_everywhere() {
        let mut record = sample::lossy();
        record.verdict.why = "x".repeat(10 << 20);
        assert!(data(&record).0.to_string().len() < 20_000);
        assert!(crate::page(&record, None).len() < 150_000);
    }
}
