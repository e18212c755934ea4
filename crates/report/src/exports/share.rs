//! The description of a run that is to be published: everything that a reader needs to judge a figure. What is missing is
//! named.
use super::figures::{StageFigures, final_stage};
use super::private_words::{LEFT_OUT, public_command, public_sentence};
use crate::headline::{self, Headline};
use crate::numbers::{count, latency, memory, octets, rate, seconds};
use crate::table::{markdown_text, plain};
use journey::record::{Arrival, Host, HostDisk, Record};

/// Text in place of an item that the record does not have.
const MISSING: &str = "not recorded";
/// Text of a record in place of a fact that the host did not give.
const UNKNOWN: &str = "unknown";
/// Numbers of messages whose times are computed from the rate.
const COMPUTED_FOR: [u64; 3] = [1_000, 10_000, 100_000];

/// The description, in Markdown.
pub(super) fn share(record: &Record) -> String {
    let mut text = format!("### mailrun: {}\n\n", markdown_text(&outcome(record)));
    for (name, value) in items(record) {
        text.push_str(&format!("- **{name}**: {}\n", markdown_text(&value)));
    }
    let last = final_stage(record);
    text.push_str(&format!("\n**Results** ({})\n\n", markdown_text(&span(last.as_ref()))));
    for (name, value) in results(last.as_ref()) {
        text.push_str(&format!("- {name}: {}\n", markdown_text(&value)));
    }
    text
}

/// The same in five lines of plain text.
pub(super) fn share_short(record: &Record) -> String {
    let last = final_stage(record);
    let of = |names: &[&str], pairs: Vec<(String, String)>| {
        let chosen = pairs.into_iter().filter(|(name, _)| names.contains(&name.as_str()));
        chosen.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let host = &record.host;
    let results = results(last.as_ref());
    let times: Vec<String> =
        COMPUTED_FOR.iter().map(|number| format!("{} in {}", count(*number), took(last.as_ref(), *number))).collect();
    let lines = [
        format!("mailrun {} (commit {}): {}", version(record), commit(record), outcome(record)),
        format!(
            "{}; {} RAM; {}; disk {}, {}",
            processor(host),
            ram(host),
            system(host),
            disk(host.disk.as_ref()),
            file_system(host.disk.as_ref())
        ),
        format!("{}; {}", command(record), workload(record)),
        format!("{}; {} (computed from the rate)", of(&["rate"], results.clone()), times.join(", ")),
        format!("{}: {}", span(last.as_ref()), of(&["avg", "p50", "p95", "max"], results)),
    ];
    lines.map(|line| plain(&line) + "\n").concat()
}

fn outcome(record: &Record) -> String {
    let why = public_sentence(&headline::why(record), &record.workload.target);
    format!("{} {why}", Headline::of(record).name()).trim_end().to_owned()
}

fn items(record: &Record) -> Vec<(&'static str, String)> {
    let host = &record.host;
    vec![
        ("Version", version(record)),
        ("Commit", commit(record)),
        ("Date", known(&record.started_at)),
        ("CPU", processor(host)),
        ("RAM", ram(host)),
        ("OS", system(host)),
        ("Disk", disk(host.disk.as_ref())),
        ("File system", file_system(host.disk.as_ref())),
        ("Command", command(record)),
        ("Workload", workload(record)),
        ("Left out", format!("host names, addresses, paths and names of users; shown as {LEFT_OUT}")),
    ]
}

/// Figures by name.
fn results(last: Option<&StageFigures<'_>>) -> Vec<(String, String)> {
    let messages = last.map_or_else(|| MISSING.to_owned(), |stage| count(stage.count));
    let per_s = last.map_or_else(|| MISSING.to_owned(), |stage| format!("{} msg/s", rate(stage.rate())));
    let mut rows = vec![("messages".to_owned(), messages), ("rate".to_owned(), per_s)];
    for number in COMPUTED_FOR {
        let name = format!("time for {}", count(number));
        rows.push((name, format!("{} (computed from the rate)", took(last, number))));
    }
    let times = last.and_then(|stage| stage.latency);
    let figure = |time: Option<f64>| time.map_or_else(|| MISSING.to_owned(), latency);
    rows.push(("avg".to_owned(), figure(times.map(|times| times.mean))));
    rows.push(("p50".to_owned(), figure(times.map(|times| times.p50))));
    rows.push(("p95".to_owned(), figure(times.map(|times| times.p95))));
    rows.push(("max".to_owned(), figure(times.map(|times| times.max))));
    rows
}

/// Time that so many messages take at the rate of the run.
fn took(last: Option<&StageFigures<'_>>, messages: u64) -> String {
    let per_s = last.map(StageFigures::rate).filter(|rate| rate.is_finite() && *rate > 0.0);
    per_s.map_or_else(|| MISSING.to_owned(), |per_s| brief(messages as f64 / per_s))
}

fn brief(time_s: f64) -> String {
    if time_s < 1.0 { latency(time_s * 1e3) } else { seconds(time_s) }
}

/// The stages that the latencies lie between.
fn span(last: Option<&StageFigures<'_>>) -> String {
    match last {
        Some(stage) if !stage.since.is_empty() => format!("{} to {}", stage.since, stage.name),
        Some(stage) => stage.name.to_owned(),
        None => format!("latency {MISSING}"),
    }
}

fn known(text: &str) -> String {
    if text.is_empty() || text == UNKNOWN { MISSING.to_owned() } else { text.to_owned() }
}

fn version(record: &Record) -> String {
    known(&record.version)
}

fn commit(record: &Record) -> String {
    known(record.commit.as_deref().unwrap_or_default())
}

fn processor(host: &Host) -> String {
    let cores = if host.cores == 1 { "1 core".to_owned() } else { format!("{} cores", host.cores) };
    format!("{}, {cores}", known(&host.cpu_model))
}

fn ram(host: &Host) -> String {
    if host.memory_bytes == 0 { MISSING.to_owned() } else { memory(host.memory_bytes) }
}

fn system(host: &Host) -> String {
    format!("{}, kernel {}", known(&host.os), known(&host.kernel))
}

fn disk(disk: Option<&HostDisk>) -> String {
    let Some(disk) = disk else { return MISSING.to_owned() };
    let kind = disk.rotational.map(|rotates| if rotates { "rotating" } else { "not rotating" }.to_owned());
    let parts: Vec<String> = [disk.model.clone(), disk.device.clone(), kind].into_iter().flatten().collect();
    if parts.is_empty() { MISSING.to_owned() } else { parts.join(", ") }
}

fn file_system(disk: Option<&HostDisk>) -> String {
    disk.map_or_else(|| MISSING.to_owned(), |disk| known(&disk.file_system))
}

fn command(record: &Record) -> String {
    known(&public_command(&record.command, &record.workload.target))
}

fn workload(record: &Record) -> String {
    let load = &record.workload;
    if load.protocol.is_empty() {
        return MISSING.to_owned();
    }
    let pace = match (load.arrival, load.rate_per_s) {
        (Arrival::Closed, _) => "closed loop".to_owned(),
        (_, Some(per_s)) => format!("open loop at {} msg/s", rate(per_s)),
        (_, None) => "open loop in stages".to_owned(),
    };
    let reuse = match load.reuse {
        Some(1) => "one connection per message".to_owned(),
        Some(number) => format!("{} messages per connection", count(number)),
        None => "connections reused".to_owned(),
    };
    let parts = [
        load.protocol.to_uppercase(),
        format!("messages of {}", octets(load.message_bytes)),
        format!("{} recipient(s)", load.recipients),
        format!("{} sessions", load.sessions),
        reuse,
        pace,
        format!("TLS {}", known(&load.tls)),
    ];
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn every_item_is_there_and_a_missing_one_is_named() {
        let text = share(&sample::held());
        for line in [
            "### mailrun: PASS 200,000 delivered, none lost",
            "- **Version**: 0.1.0",
            "- **Commit**: 0123abc",
            "- **CPU**: AMD EPYC, 2 cores",
            "- **RAM**: 24.0 GiB",
            "- **Disk**: not recorded",
            "- **File system**: not recorded",
            "**Results** (created to delivered)",
            "- rate: 54,321 msg/s",
            "- time for 10,000: 184 ms (computed from the rate)",
            "- avg: 1.50 ms",
            "- p95: 2.50 ms",
            "- max: 12.50 ms",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
        let mut bare = sample::held();
        bare.stages.clear();
        bare.commit = None;
        bare.host.cpu_model = UNKNOWN.to_owned();
        let text = share(&bare);
        for name in [
            "- **Commit**: not recorded",
            "- rate: not recorded",
            "- p50: not recorded",
            "- **CPU**: not recorded, 2 cores",
        ] {
            assert!(text.lines().any(|line| line == name), "{name} in\n{text}");
        }
    }

    #[test]
    fn in_short_it_has_five_lines() {
        for record in [sample::held(), sample::mades(), sample::sink_alone(), sample::lossy()] {
            let text = share_short(&record);
            assert_eq!(text.lines().count(), 5, "{text}");
        }
        let text = share_short(&sample::held());
        assert!(text.contains("disk not recorded") && text.contains("1,000 in 18.41 ms"), "{text}");
    }

    #[test]
    fn no_name_of_a_host_a_user_or_a_recipient_is_published() {
        let mut record = sample::held();
        record.workload.target = "mx.private.example:25".to_owned();
        let words = "/home/private/mailrun bench mx.private.example:25 --user private --to private@a.example";
        record.command = words.split(' ').map(str::to_owned).collect();
        record.verdict.why = "mx.private.example:25 stopped answering private@a.example.".to_owned();
        for text in [share(&record), share_short(&record)] {
            assert!(!text.contains("private") && text.contains(LEFT_OUT), "{text}");
        }
        assert!(share(&record).contains("**Left out**"));
    }
}
