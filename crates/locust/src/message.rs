//! Messages that a worker sends to a Locust master. Their types rule out messages that would crash the master.
//!
//! A stock master reads its workers' messages in a single greenlet, which dies if a message has an unexpected shape.
//! The master then keeps running but no longer hears any worker. Therefore each message is an enum variant with exactly
//! the fields that the master reads, and numbers are encoded so that Python reads them as numbers. The function
//! `is_safe` in the tests contains the rules, which were taken from the master's code.
use crate::clock_exchange::MasterClockOffset;
use rmpv::Value;
use std::collections::BTreeMap;

/// Start of the year 2500, which Python's `datetime` can still represent. Reports leave out later seconds.
const MAX_SECOND: u64 = 16_725_225_600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserState {
    Ready,
    Spawning,
    Running,
}

impl UserState {
    fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Spawning => "spawning",
            Self::Running => "running",
        }
    }
}

/// Used share of the host's processors, from 0 to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percent(f64);

impl Percent {
    /// Returns the nearest number from 0 to 100, or 0 for NaN.
    pub fn new(value: f64) -> Self {
        Self(if value.is_nan() { 0.0 } else { value.clamp(0.0, 100.0) })
    }
}

/// Number of users of each Locust user class, a Python class in the locustfile. Each class occurs once, and the sum
/// fits in 32 bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts(BTreeMap<String, u32>);

impl ClassCounts {
    /// Limits the sum of the users to `limit`: earlier classes keep their users, and later classes get the rest. For
    /// example, with a limit of 5, classes with 3 and 4 users get 3 and 2.
    pub fn within(classes: &[(String, u64)], limit: u32) -> Self {
        let mut left = limit;
        let mut counts = BTreeMap::new();
        for (name, users) in classes {
            let count = u32::try_from(*users).unwrap_or(u32::MAX).min(left);
            left -= count;
            *counts.entry(name.clone()).or_default() += count;
        }
        Self(counts)
    }

    pub fn emptied(&self) -> Self {
        Self(self.0.keys().map(|name| (name.clone(), 0)).collect())
    }

    pub fn users(&self) -> u32 {
        self.0.values().sum()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsEntry {
    pub name: String,
    /// Text in the column "Type" of Locust's tables, for example the name of a protocol.
    pub method: String,
    pub requests: u64,
    pub failures: u64,
    pub total_ms: f64,
    pub max_ms: f64,
    pub min_ms: Option<f64>,
    pub bytes: u64,
    /// Number of requests for each response time in milliseconds. The caller rounds the times to keep the list short.
    pub times: Vec<(f64, u64)>,
    /// Number of requests for each second of Unix time on the master's clock.
    pub per_second: BTreeMap<u64, u64>,
    pub failed_per_second: BTreeMap<u64, u64>,
    pub start_s: f64,
    /// Unix time of the last request, or `None` if there was no request.
    pub last_s: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorEntry {
    pub name: String,
    pub method: String,
    /// Text of the error, in the same words on all workers, because the master adds up errors with equal texts.
    pub error: String,
    pub occurrences: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactHistogram {
    pub tag: String,
    pub count: u64,
    /// Histogram in the format HdrHistogram V2, compressed with deflate, in base64. Its values are nanoseconds.
    pub encoded: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsReport {
    /// The row that the master's table shows as "Aggregated".
    pub total: StatsEntry,
    /// One row of the master's table for each kind of request.
    pub entries: Vec<StatsEntry>,
    pub errors: Vec<ErrorEntry>,
    pub classes: ClassCounts,
    /// Full latency histograms, which only a master with mailrun's locustfile reads. Locust itself gets only the
    /// rounded `times`.
    pub histograms: Vec<ExactHistogram>,
    /// Number of the report, starting at 1. From a gap in the numbers, our locustfile sees that a report was lost.
    pub number: u64,
    /// Set on the last report of a test, so that our locustfile knows that it has all counts.
    pub is_final: bool,
    /// Additional counts, which only a master with mailrun's locustfile reads.
    pub counts: Vec<(&'static str, u64)>,
    /// Difference between the master's clock and this host's clock, or `None` before the first measurement.
    pub clock: Option<MasterClockOffset>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WorkerMessage {
    /// Registers the worker with the master. The message names no version of Locust, so that the master does not
    /// compare versions.
    ClientReady,
    Heartbeat(UserState, Percent, u64),
    Spawning,
    /// Tells the master that all requested users have started.
    SpawningComplete(ClassCounts),
    Stats(Box<StatsReport>),
    ClientStopped,
    Quit,
    /// Adds a text to the master's table of exceptions.
    Exception(String),
    /// Asks for the time on the master's clock, and contains this host's Unix time. Only a master with our locustfile
    /// answers.
    Clock(f64),
}

impl WorkerMessage {
    /// Encodes the message for the wire. `node` is the name under which the worker is registered.
    pub fn encode(&self, node: &str) -> Vec<u8> {
        let message = Value::Array(vec![self.kind().into(), self.data(node), node.into()]);
        let mut bytes = Vec::with_capacity(256);
        rmpv::encode::write_value(&mut bytes, &message).expect("memory takes every byte");
        bytes
    }

    /// Returns the name by which the master selects the handler of the message.
    fn kind(&self) -> &'static str {
        match self {
            Self::ClientReady => "client_ready",
            Self::Heartbeat(..) => "heartbeat",
            Self::Spawning => "spawning",
            Self::SpawningComplete(_) => "spawning_complete",
            Self::Stats(_) => "stats",
            Self::ClientStopped => "client_stopped",
            Self::Quit => "quit",
            Self::Exception(_) => "exception",
            Self::Clock(_) => "mailrun_clock",
        }
    }

    fn data(&self, node: &str) -> Value {
        match self {
            // Send -1 instead of a version of Locust, so that the master does not compare versions.
            Self::ClientReady => Value::from(-1),
            Self::Heartbeat(state, processor, memory_bytes) => map([
                ("state", state.name().into()),
                ("current_cpu_usage", number(processor.0)),
                ("current_memory_usage", count(*memory_bytes)),
            ]),
            Self::SpawningComplete(classes) => map(users(classes)),
            Self::Stats(report) => report.data(node),
            Self::Exception(text) => map([("msg", text.as_str().into()), ("traceback", "".into())]),
            Self::Clock(sent_s) => map([("sent", number(*sent_s))]),
            Self::Spawning | Self::ClientStopped | Self::Quit => Value::Nil,
        }
    }
}

fn map<K: Into<Value>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn count(count: u64) -> Value {
    // Limit each count, because the master adds up the counts of all workers and converts the sums to floats. No real
    // count reaches 2^62.
    count.min(1 << 62).into()
}

/// Encodes a float. Infinity and NaN become 0, because Python raises an exception when a master rounds them.
fn number(number: f64) -> Value {
    Value::from(if number.is_finite() { number } else { 0.0 })
}

fn number_or_none(value: Option<f64>) -> Value {
    value.filter(|value| value.is_finite()).map_or(Value::Nil, number)
}

fn users(classes: &ClassCounts) -> [(&'static str, Value); 2] {
    let by_class = classes.0.iter().map(|(name, users)| (name.as_str(), count(u64::from(*users))));
    [("user_classes_count", map(by_class)), ("user_count", count(u64::from(classes.users())))]
}

impl StatsReport {
    fn data(&self, node: &str) -> Value {
        let errors = self.errors_by_key();
        let [classes, users] = users(&self.classes);
        let mut entries = vec![
            ("stats", Value::Array(self.entries.iter().map(StatsEntry::data).collect())),
            ("stats_total", self.total.data()),
            ("errors", map(errors.iter().map(|(key, error)| (key.as_str(), error.data())))),
            classes,
            users,
            ("mailrun_histograms", map(self.histograms.iter().map(|one| (one.tag.as_str(), one.data())))),
            (
                "mailrun_report",
                map([("worker", node.into()), ("number", count(self.number)), ("final", self.is_final.into())]),
            ),
            ("mailrun_counts", map(self.counts.iter().map(|(name, number)| (*name, count(*number))))),
        ];
        if let Some(clock) = self.clock {
            let clock = map([("offset_s", number(clock.offset_s)), ("bound_s", number(clock.bound_s))]);
            entries.push(("mailrun_clock", clock));
        }
        map(entries)
    }

    /// Returns each error under the key by which the master stores errors. Errors with the same key are added up,
    /// because the master would keep only the last of them.
    fn errors_by_key(&self) -> BTreeMap<String, ErrorEntry> {
        let mut errors = BTreeMap::new();
        for error in &self.errors {
            let key = format!("{}.{}.{}", error.method, error.name, error.error);
            let sum = errors.entry(key).or_insert_with(|| ErrorEntry { occurrences: 0, ..error.clone() });
            sum.occurrences += error.occurrences;
        }
        errors
    }
}

impl StatsEntry {
    fn data(&self) -> Value {
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        for (ms, count) in &self.times {
            // Use the bits of the float as the key, because `f64` has no `Ord` and positive floats sort like their
            // bits.
            let ms = if ms.is_finite() && *ms > 0.0 { *ms } else { 0.0 };
            *times.entry(ms.to_bits()).or_default() += count;
        }
        map([
            ("name", self.name.as_str().into()),
            ("method", self.method.as_str().into()),
            ("last_request_timestamp", number_or_none(self.last_s)),
            ("start_time", number(self.start_s)),
            ("num_requests", count(self.requests)),
            ("num_none_requests", count(0)),
            ("num_failures", count(self.failures)),
            ("total_response_time", number(self.total_ms)),
            ("max_response_time", number(self.max_ms)),
            ("min_response_time", number_or_none(self.min_ms)),
            ("total_content_length", count(self.bytes)),
            ("response_times", map(times.into_iter().map(|(ms, number)| (f64::from_bits(ms), count(number))))),
            ("num_reqs_per_sec", seconds(&self.per_second)),
            ("num_fail_per_sec", seconds(&self.failed_per_second)),
        ])
    }
}

impl ExactHistogram {
    fn data(&self) -> Value {
        map([("count", count(self.count)), ("v2", self.encoded.as_str().into())])
    }
}

impl ErrorEntry {
    fn data(&self) -> Value {
        map([
            ("method", self.method.as_str().into()),
            ("name", self.name.as_str().into()),
            ("error", self.error.as_str().into()),
            ("occurrences", count(self.occurrences)),
        ])
    }
}

fn seconds(seconds: &BTreeMap<u64, u64>) -> Value {
    // Skip seconds that Python's `datetime` cannot represent, because they cannot belong to a test.
    let seconds = seconds.iter().filter(|(second, _)| **second < MAX_SECOND);
    map(seconds.map(|(second, number)| (*second, count(*number))))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
        map.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    fn is_number(value: Option<&Value>) -> bool {
        value.is_some_and(|value| value.is_u64() || value.as_f64().is_some_and(f64::is_finite))
    }

    fn is_count(value: Option<&Value>) -> bool {
        value.is_some_and(Value::is_u64)
    }

    fn has_unique_keys(map: &Value, is_key: fn(&Value) -> bool) -> bool {
        let keys: Vec<String> = map.as_map().unwrap().iter().map(|(key, _)| key.to_string()).collect();
        let unique: std::collections::BTreeSet<&String> = keys.iter().collect();
        unique.len() == keys.len() && map.as_map().unwrap().iter().all(|(key, _)| is_key(key))
    }

    fn is_class_map(data: &Value) -> bool {
        let Some(classes) = get(data, "user_classes_count") else { return false };
        let counts = classes.as_map().unwrap();
        let users: u64 = counts.iter().filter_map(|(_, users)| users.as_u64()).sum();
        has_unique_keys(classes, Value::is_str)
            && counts.iter().all(|(_, users)| users.is_u64())
            && get(data, "user_count").and_then(Value::as_u64) == Some(users)
    }

    fn is_entry(entry: &Value) -> bool {
        let counts = ["num_requests", "num_none_requests", "num_failures", "total_content_length"];
        let numbers = ["start_time", "total_response_time", "max_response_time"];
        let optional = ["last_request_timestamp", "min_response_time"];
        let seconds = ["num_reqs_per_sec", "num_fail_per_sec"];
        let times = get(entry, "response_times").unwrap();
        ["name", "method"].iter().all(|key| get(entry, key).is_some_and(Value::is_str))
            && counts.iter().all(|key| is_count(get(entry, key)))
            && numbers.iter().all(|key| is_number(get(entry, key)))
            && optional.iter().all(|key| get(entry, key).is_some_and(Value::is_nil) || is_number(get(entry, key)))
            && seconds.iter().all(|key| has_unique_keys(get(entry, key).unwrap(), Value::is_u64))
            && has_unique_keys(times, |key| matches!(key, Value::F64(ms) if ms.is_finite() && *ms >= 0.0))
    }

    fn is_report(data: &Value) -> bool {
        let errors = get(data, "errors").unwrap();
        let is_error = |error: &Value| {
            ["method", "name", "error"].iter().all(|key| get(error, key).is_some_and(Value::is_str))
                && is_count(get(error, "occurrences"))
        };
        get(data, "stats").unwrap().as_array().unwrap().iter().all(is_entry)
            && is_entry(get(data, "stats_total").unwrap())
            && has_unique_keys(errors, Value::is_str)
            && errors.as_map().unwrap().iter().all(|(_, error)| is_error(error))
            && is_class_map(data)
    }

    /// Returns true if a master can handle the message without a crash. The fields and types follow
    /// `MasterRunner.handle_message` and `StatsEntry.unserialize` of Locust.
    pub(crate) fn is_safe(bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let Ok(Value::Array(parts)) = rmpv::decode::read_value(&mut rest) else { return false };
        let [Value::String(kind), data, Value::String(_)] = parts.as_slice() else { return false };
        let shape = match kind.as_str().unwrap() {
            "client_ready" => *data == Value::from(-1),
            "heartbeat" => {
                let state = get(data, "state").and_then(Value::as_str);
                let processor = get(data, "current_cpu_usage").and_then(Value::as_f64);
                ["ready", "spawning", "running"].contains(&state.unwrap_or_default())
                    && processor.is_some_and(|share| (0.0..=100.0).contains(&share))
                    && is_count(get(data, "current_memory_usage"))
            }
            "spawning" | "client_stopped" | "quit" => data.is_nil(),
            "spawning_complete" => is_class_map(data),
            "stats" => is_report(data),
            "mailrun_clock" => is_number(get(data, "sent")),
            "exception" => ["msg", "traceback"].iter().all(|key| get(data, key).is_some_and(Value::is_str)),
            _ => false,
        };
        rest.is_empty() && shape
    }

    fn floats() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), 0.0..1e6]
    }

    prop_compose! {
        fn entries()(
            name in ".{0,8}", counts in any::<[u64; 3]>(), floats in proptest::array::uniform4(floats()),
            times in proptest::collection::vec((floats(), any::<u32>()), 0..8),
            seconds in proptest::collection::btree_map(any::<u64>(), any::<u64>(), 0..4), none in any::<bool>(),
        ) -> StatsEntry {
            StatsEntry {
                name: name.clone(), method: name, requests: counts[0], failures: counts[1], bytes: counts[2],
                total_ms: floats[0], max_ms: floats[1], min_ms: (!none).then_some(floats[2]), start_s: floats[3],
                times: times.into_iter().map(|(ms, count)| (ms, u64::from(count))).collect(),
                per_second: seconds.clone(), failed_per_second: seconds, last_s: (!none).then_some(floats[3]),
            }
        }
    }

    prop_compose! {
        fn classes()(
            list in proptest::collection::vec((".{0,4}", any::<u64>()), 0..5), limit in any::<u32>()
        ) -> ClassCounts {
            ClassCounts::within(&list, limit)
        }
    }

    prop_compose! {
        fn reports()(
            total in entries(), entries in proptest::collection::vec(entries(), 0..4), classes in classes(),
            errors in proptest::collection::vec((".{0,3}", ".{0,3}", 0_u64..1 << 40), 0..6), number in any::<u64>(),
            offset_s in floats(),
        ) -> StatsReport {
            let error = |(name, error, occurrences): (String, String, u64)| {
                ErrorEntry { method: name.clone(), name, error, occurrences }
            };
            let histogram = ExactHistogram { tag: "message".to_owned(), count: number, encoded: "AA==".to_owned() };
            StatsReport {
                total, entries, classes, number, is_final: number % 2 == 0, errors: errors.into_iter().map(error).collect(),
                histograms: vec![histogram], counts: vec![("connections", number)],
                clock: (number % 3 == 0).then_some(MasterClockOffset { offset_s, bound_s: -offset_s }),
            }
        }
    }

    fn messages() -> impl Strategy<Value = WorkerMessage> {
        let states = prop_oneof![Just(UserState::Ready), Just(UserState::Spawning), Just(UserState::Running)];
        prop_oneof![
            Just(WorkerMessage::ClientReady),
            (states, floats(), any::<u64>()).prop_map(|(state, share, memory)| WorkerMessage::Heartbeat(
                state,
                Percent::new(share),
                memory
            )),
            Just(WorkerMessage::Spawning),
            classes().prop_map(WorkerMessage::SpawningComplete),
            reports().prop_map(|report| WorkerMessage::Stats(Box::new(report))),
            Just(WorkerMessage::ClientStopped),
            Just(WorkerMessage::Quit),
            ".{0,40}".prop_map(WorkerMessage::Exception),
            floats().prop_map(WorkerMessage::Clock),
        ]
    }

    proptest! {
        #[test]
        fn no_value_makes_a_message_that_ends_a_master(message in messages(), node in "[a-z]{1,8}_[0-9a-f]{4}") {
            prop_assert!(is_safe(&message.encode(&node)), "{message:?}");
        }
    }

    #[test]
    fn the_rules_refuse_what_ends_a_master() {
        let encoded = |value: Value| {
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, &value).unwrap();
            bytes
        };
        let of = |kind: &str, data: Value| encoded(Value::Array(vec![kind.into(), data, "n".into()]));
        for deadly in [
            of("client_ready", 3.into()),
            of("heartbeat", Value::Nil),
            of("heartbeat", Value::Map(vec![("state".into(), "ready".into())])),
            of("spawning_complete", Value::Nil),
            of("exception", Value::Map(vec![("msg".into(), "m".into())])),
            encoded(Value::Array(vec!["quit".into(), Value::Nil])),
            Vec::new(),
        ] {
            assert!(!is_safe(&deadly), "{deadly:?}");
        }
    }

    #[test]
    fn registering_has_these_bytes() {
        assert_eq!(WorkerMessage::ClientReady.encode("h_1"), b"\x93\xacclient_ready\xff\xa3h_1");
        assert_eq!(WorkerMessage::Quit.encode("h_1"), b"\x93\xa4quit\xc0\xa3h_1");
        let beat = WorkerMessage::Heartbeat(UserState::Ready, Percent::new(f64::NAN), 5).encode("h_1");
        assert!(beat.starts_with(b"\x93\xa9heartbeat\x83\xa5state\xa5ready\xb1current_cpu_usage\xcb\0\0\0\0\0\0\0\0"));
    }
}
