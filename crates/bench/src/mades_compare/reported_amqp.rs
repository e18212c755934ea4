//! Reads what clients of plain AMQP 1.0 report: quiver's summaries of its sender and receiver, and
//! the JSON of `artemis perf client`.
use super::reported::{ReportedLatency, ReportedResult};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

#[derive(Deserialize)]
struct QuiverSummary {
    results: QuiverResults,
}

/// Results of a sender or a receiver, as quiver writes them. Times are in milliseconds since 1970.
#[derive(Deserialize)]
struct QuiverResults {
    first_send_time: Option<u64>,
    last_receive_time: Option<u64>,
    message_count: u64,
    message_rate: Option<f64>,
    latency_average: Option<f64>,
    /// Latencies in this order: the minimum, the three quartiles, the maximum.
    latency_quartiles: Option<[f64; 5]>,
    /// Latency percentiles in this order: 90, 99, 99.9, 99.99 and 99.999 %.
    latency_nines: Option<[f64; 5]>,
}

/// Element of the JSON list that `artemis perf` writes. The list has an `Interval` for each second, and ends with a
/// `Summary`.
#[derive(Deserialize)]
#[serde(tag = "sampleType", rename_all = "lowercase")]
enum PerfSample {
    /// Messages sent and received per second since the previous sample. `time` is the time of this sample, in
    /// milliseconds since 1970.
    Interval {
        time: u64,
        sent: f64,
        received: f64,
    },
    Summary(PerfSummary),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PerfSummary {
    result: String,
    total_completed: u64,
    total_received: u64,
    total_transfer_time: PerfTimes,
}

/// Distribution of the transfer times of a run's messages, in microseconds.
#[derive(Deserialize)]
struct PerfTimes {
    /// Mean transfer time. `artemis perf` writes it as a JSON string with two decimal places, such as `"141131.15"`.
    mean: String,
    #[serde(rename = "50")]
    p50: f64,
    #[serde(rename = "90")]
    p90: f64,
    #[serde(rename = "99")]
    p99: f64,
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).context("it wrote no report")?;
    serde_json::from_str(&text).context("its report cannot be read")
}

/// Reads the results of quiver from its output directory.
///
/// # Errors
/// Fails if a summary is missing or cannot be read, if no message was sent or received, or if the run was too short for
/// a rate.
pub(super) fn of_quiver(directory: &Path, messages: u64) -> Result<ReportedResult> {
    let summary = |end: &str| read(&directory.join(format!("{end}-summary.json")));
    quiver_result(summary("sender")?, summary("receiver")?, messages)
}

fn quiver_result(sender: QuiverSummary, receiver: QuiverSummary, messages: u64) -> Result<ReportedResult> {
    let (sender, receiver) = (sender.results, receiver.results);
    let begun = sender.first_send_time.context("it sent nothing")?;
    let ended = receiver.last_receive_time.context("it received nothing")?;
    ensure!(ended > begun, "the run was too short for a rate: quiver counts whole milliseconds");
    let latency = receiver.latency_average.zip(receiver.latency_quartiles).zip(receiver.latency_nines);
    Ok(ReportedResult {
        // Compute the rate over the time from the first send to the last receipt. The rate that quiver reports for its
        // receiver leaves out the time before the first receipt.
        rate_per_s: receiver.message_count as f64 * 1000.0 / (ended - begun) as f64,
        sent_per_s: sender.message_rate,
        latency: latency.map(|((mean, quartiles), nines)| ReportedLatency {
            mean,
            p50: quartiles[2],
            p90: Some(nines[0]),
            p99: Some(nines[1]),
        }),
        fault: shortfall([("sent", sender.message_count), ("received", receiver.message_count)], messages),
    })
}

/// Reads the results of `artemis perf client` from the JSON file that it wrote.
///
/// # Errors
/// Fails if the JSON is missing or incomplete, or if the run was too short for a rate.
pub(super) fn of_perf(file: &Path, messages: u64) -> Result<ReportedResult> {
    perf_result(&read::<Vec<PerfSample>>(file)?, messages)
}

fn perf_result(samples: &[PerfSample], messages: u64) -> Result<ReportedResult> {
    let Some((PerfSample::Summary(summary), seconds)) = samples.split_last() else {
        anyhow::bail!("its report has no summary");
    };
    // Ignore the rates of the first sample, because the file does not say when its interval began. Each later interval
    // begins at the time of the sample before it.
    let (mut span_ms, mut sent, mut received, mut before) = (0, 0.0, 0.0, None);
    for sample in seconds {
        let PerfSample::Interval { time, sent: sent_per_s, received: received_per_s } = *sample else { continue };
        let interval_ms = before.map_or(0, |before| time.saturating_sub(before));
        before = Some(time);
        span_ms += interval_ms;
        sent += sent_per_s * interval_ms as f64;
        received += received_per_s * interval_ms as f64;
    }
    ensure!(
        span_ms > 0,
        "the run was too short for a rate: artemis perf counts messages once per second; raise --messages"
    );
    let times = &summary.total_transfer_time;
    let failed = (summary.result != "success").then(|| format!("its result is {}", summary.result));
    Ok(ReportedResult {
        rate_per_s: received / span_ms as f64,
        sent_per_s: Some(sent / span_ms as f64),
        latency: Some(ReportedLatency {
            mean: times.mean.parse::<f64>().context("its report cannot be read")? / 1000.0,
            p50: times.p50 / 1000.0,
            p90: Some(times.p90 / 1000.0),
            p99: Some(times.p99 / 1000.0),
        }),
        fault: failed
            .or_else(|| shortfall([("sent", summary.total_completed), ("received", summary.total_received)], messages)),
    })
}

/// Returns an error text if the sender or the receiver did not handle exactly `messages` messages.
fn shortfall(ends: [(&str, u64); 2], messages: u64) -> Option<String> {
    let (end, count) = ends.into_iter().find(|(_, count)| *count != messages)?;
    Some(format!("{end} {count} of {messages} messages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = r#"{"config": {"impl": "qpid-proton-c", "count": 20000}, "results": {
        "first_send_time": 1795953709957, "last_send_time": 1795953712188,
        "first_receive_time": null, "last_receive_time": null, "message_count": 20000, "message_rate": 8965,
        "latency_average": null, "latency_quartiles": null, "latency_nines": null}}"#;
    const RECEIVED: &str = r#"{"config": {"impl": "qpid-proton-c", "count": 20000}, "results": {
        "first_send_time": null, "last_send_time": null,
        "first_receive_time": 1795953710082, "last_receive_time": 1795953712263,
        "message_count": 20000, "message_rate": 9170, "latency_average": 85.27215,
        "latency_quartiles": [18, 56, 69, 108, 219], "latency_nines": [159, 201, 203, 219, 219]}}"#;
    const PERF: &str = r#"[
{"sampleType":"interval","warmup":false,"time":1795953702037,"sent":1752,"delayed":24,"completed":1751,"received":1370},
{"sampleType":"interval","warmup":false,"time":1795953703037,"sent":1900,"delayed":21,"completed":2020,"received":2276},
{"sampleType":"interval","warmup":false,"time":1795953705037,"sent":1090,"delayed":6,"completed":1057,"received":1169},
{"sampleType":"summary","time":1795953706550,"result":"success","totalSent":20000,"totalBlocked":220,
"totalCompleted":20000,"totalReceived":20000,
"totalSendTime":{"mean":"68703.75","50":45055,"90":134143,"99":448511,"99.9":1122303,"99.99":1163263,"max":1171455,"count":20000},
"totalTransferTime":{"mean":"141131.15","50":95231,"90":307199,"99":540671,"99.9":1064959,"99.99":1089535,"max":1089535,"count":20000}}
]"#;

    fn quiver(sent: &str, received: &str) -> Result<ReportedResult> {
        quiver_result(serde_json::from_str(sent)?, serde_json::from_str(received)?, 20_000)
    }

    fn perf(text: &str) -> Result<ReportedResult> {
        perf_result(&serde_json::from_str::<Vec<PerfSample>>(text)?, 20_000)
    }

    #[test]
    fn figures_are_those_of_the_report() {
        let latency = |mean, p50, p90, p99| Some(ReportedLatency { mean, p50, p90: Some(p90), p99: Some(p99) });
        let read = quiver(SENT, RECEIVED).unwrap();
        assert_eq!((read.rate_per_s.round(), read.sent_per_s, read.fault), (8673.0, Some(8965.0), None));
        assert_eq!(read.latency, latency(85.27215, 69.0, 159.0, 201.0));
        let read = perf(PERF).unwrap();
        // The first sample is ignored, because the beginning of its interval is unknown. In the other two, 1,900/s were
        // sent for 1 s and 1,090/s for 2 s. The mean is (1,900 + 2 × 1,090) / 3 = 1,360/s.
        assert_eq!((read.sent_per_s, read.rate_per_s, read.fault), (Some(1360.0), 1538.0, None));
        assert_eq!(read.latency, latency(141.13115, 95.231, 307.199, 540.671));
    }

    #[test]
    fn a_run_that_is_not_whole_is_told() {
        let few = |text: &str, name: &str| text.replace(&format!("{name}20000"), &format!("{name}19990"));
        for (read, fault) in [
            (quiver(&few(SENT, "\"message_count\": "), RECEIVED), "sent 19990 of 20000 messages"),
            (quiver(SENT, &few(RECEIVED, "\"message_count\": ")), "received 19990 of 20000 messages"),
            (perf(&few(PERF, "\"totalCompleted\":")), "sent 19990 of 20000 messages"),
            (perf(&few(PERF, "\"totalReceived\":")), "received 19990 of 20000 messages"),
            (perf(&PERF.replace("success", "fail")), "its result is fail"),
        ] {
            assert_eq!(read.unwrap().fault.as_deref(), Some(fault));
        }
    }

    #[test]
    fn a_report_without_a_rate_says_why() {
        let without_summary = format!("{}]", PERF[..PERF.find(",\n{\"sampleType\":\"summary").unwrap()].trim_end());
        let one_second = format!(
            "[{}",
            &PERF[PERF.find("{\"sampleType\":\"interval\",\"warmup\":false,\"time\":1795953705037").unwrap()..]
        );
        for (read, reason) in [
            (quiver(&SENT.replace("1795953709957", "null"), RECEIVED), "it sent nothing"),
            (quiver(SENT, &RECEIVED.replace("1795953712263", "null")), "it received nothing"),
            (quiver(SENT, &RECEIVED.replace("1795953712263", "1795953709957")), "too short for a rate"),
            (perf(&without_summary), "its report has no summary"),
            (perf(&one_second), "too short for a rate"),
            (perf("[]"), "its report has no summary"),
        ] {
            let error = read.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(of_perf(Path::new("/nowhere"), 1).unwrap_err().to_string(), "it wrote no report");
    }
}
