//! Parses the messages of a Locust master. A master's port is open to its whole network, so the input is not trusted:
//! size and depth are limited, unknown messages are ignored, and senseless numbers are rejected.
use rmpv::Value;

const MAX_DEPTH: usize = 16;
const MAX_BYTES: usize = 1 << 20;
const MAX_CLASSES: usize = 64;
const MAX_NAME_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub enum MasterCommand {
    /// The master has registered the worker under this number.
    Ack(u64),
    /// The master tells the worker how many users to run. The numbers are totals and not changes.
    Spawn(SpawnTarget),
    /// All workers of the test have started their users.
    RampComplete,
    Stop,
    Quit,
    Reconnect,
    Heartbeat,
    /// The master's answer to the worker's question about the time on the master's clock. Only a master that runs
    /// mailrun's locustfile answers this question.
    Clock {
        sent_s: f64,
        /// Unix time on the master's clock when the question arrived.
        master_s: f64,
    },
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpawnTarget {
    /// The master's Unix time when it sent the `spawn`. The worker ignores a `spawn` that is not newer than the one
    /// before.
    pub timestamp: f64,
    pub classes: Vec<(String, u64)>,
    pub host: Option<String>,
    /// Id of the test, or `None` if the master does not run our locustfile, which adds the id.
    pub run_id: Option<String>,
    /// Set if the statistics must restart once all users have started (Locust's `--reset-stats`).
    pub reset_stats: bool,
}

impl MasterCommand {
    /// Parses a message of the master. Returns `None` if the message is too large or malformed, or
    /// if a field that the worker needs is missing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Some(bytes).filter(|bytes| bytes.len() <= MAX_BYTES)?;
        let message = rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH).ok()?;
        let Value::Array(parts) = message else { return None };
        let kind = parts.first()?.as_str()?;
        let data = parts.get(1)?;
        Some(match kind {
            "ack" => Self::Ack(field(data, "index").and_then(Value::as_u64).unwrap_or_default()),
            "spawn" => Self::Spawn(SpawnTarget::read(data)?),
            "spawning_complete" => Self::RampComplete,
            "stop" => Self::Stop,
            "quit" => Self::Quit,
            "reconnect" => Self::Reconnect,
            "heartbeat" => Self::Heartbeat,
            "mailrun_clock" => Self::clock(data)?,
            _ => Self::Unknown,
        })
    }

    fn clock(data: &Value) -> Option<Self> {
        let time = |name| field(data, name).and_then(Value::as_f64).filter(|time| time.is_finite());
        Some(Self::Clock { sent_s: time("sent")?, master_s: time("received")? })
    }
}

impl SpawnTarget {
    fn read(data: &Value) -> Option<Self> {
        let Value::Map(counts) = field(data, "user_classes_count")? else { return None };
        if counts.len() > MAX_CLASSES {
            return None;
        }
        let class = |(name, users): &(Value, Value)| Some((short(name)?, whole(users)?));
        let options = field(data, "parsed_options").unwrap_or(&Value::Nil);
        Some(Self {
            timestamp: field(data, "timestamp").and_then(Value::as_f64).filter(|time| time.is_finite())?,
            classes: counts.iter().map(class).collect::<Option<Vec<_>>>()?,
            host: field(data, "host").and_then(short).filter(|host| !host.is_empty()),
            run_id: field(options, "mailrun_run_id").and_then(short).filter(|id| !id.is_empty()),
            reset_stats: field(options, "reset_stats").and_then(Value::as_bool).unwrap_or_default(),
        })
    }

    pub fn users(&self) -> u64 {
        self.classes.iter().fold(0, |sum, (_, users)| sum.saturating_add(*users))
    }
}

fn field<'a>(data: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = data else { return None };
    pairs.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

fn short(value: &Value) -> Option<String> {
    value.as_str().filter(|text| text.len() <= MAX_NAME_BYTES).map(str::to_owned)
}

/// Reads a count, which Python may send as a float with an integral value, such as 4.0.
fn whole(value: &Value) -> Option<u64> {
    let is_count = |number: &f64| *number >= 0.0 && number.fract() == 0.0;
    value.as_u64().or_else(|| value.as_f64().filter(is_count).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn message(kind: &str, data: Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        let parts = vec![Value::from(kind), data, Value::from("node")];
        rmpv::encode::write_value(&mut bytes, &Value::Array(parts)).unwrap();
        bytes
    }

    fn spawn(classes: Vec<(Value, Value)>, timestamp: Value) -> Vec<u8> {
        let data = vec![
            ("timestamp".into(), timestamp),
            ("user_classes_count".into(), Value::Map(classes)),
            ("host".into(), "127.0.0.1:2525".into()),
            ("stop_timeout".into(), 2.5.into()),
            ("parsed_options".into(), Value::Map(vec![("reset_stats".into(), true.into())])),
        ];
        message("spawn", Value::Map(data))
    }

    #[test]
    fn a_spawn_of_a_master_is_read_whole() {
        let bytes = spawn(vec![("A".into(), 3.into()), ("B".into(), 4.0.into())], 17.5.into());
        let Some(MasterCommand::Spawn(target)) = MasterCommand::decode(&bytes) else { panic!("no spawn") };
        assert_eq!((target.users(), target.timestamp, target.reset_stats), (7, 17.5, true));
        assert_eq!(target.host.as_deref(), Some("127.0.0.1:2525"));
    }

    #[test]
    fn numbers_that_make_no_sense_are_not_taken() {
        let at = |time: f64| Value::from(time);
        for users in [Value::from(-1), Value::from(0.5), Value::from(f64::NAN), Value::from("3"), Value::Nil] {
            assert_eq!(MasterCommand::decode(&spawn(vec![("A".into(), users)], at(1.0))), None);
        }
        for time in [f64::NAN, f64::INFINITY] {
            assert_eq!(MasterCommand::decode(&spawn(vec![("A".into(), 1.into())], at(time))), None);
        }
        let many = (0..=MAX_CLASSES).map(|number| (Value::from(number.to_string()), 1.into())).collect();
        assert_eq!(MasterCommand::decode(&spawn(many, at(1.0))), None);
        let huge = spawn(vec![("A".into(), u64::MAX.into()), ("B".into(), 1e300.into())], at(1.0));
        let Some(MasterCommand::Spawn(target)) = MasterCommand::decode(&huge) else { panic!("no spawn") };
        assert_eq!(target.users(), u64::MAX);
    }

    #[test]
    fn an_answer_for_the_clock_has_both_times() {
        let clock = |received: Value| {
            message("mailrun_clock", Value::Map(vec![("sent".into(), 1.5.into()), ("received".into(), received)]))
        };
        let expected = MasterCommand::Clock { sent_s: 1.5, master_s: 2.0 };
        assert_eq!(MasterCommand::decode(&clock(2.into())), Some(expected));
        for nonsense in [Value::from(f64::NAN), Value::Nil, "2".into()] {
            assert_eq!(MasterCommand::decode(&clock(nonsense)), None);
        }
    }

    #[test]
    fn what_is_unknown_is_known_to_be() {
        assert_eq!(MasterCommand::decode(&message("dance", Value::Nil)), Some(MasterCommand::Unknown));
        assert_eq!(MasterCommand::decode(&message("quit", Value::Nil)), Some(MasterCommand::Quit));
        assert_eq!(MasterCommand::decode(b""), None);
        assert_eq!(MasterCommand::decode(b"\xc1"), None);
        let deep: Vec<u8> = std::iter::repeat_n(0x91, 100_000).collect();
        assert_eq!(MasterCommand::decode(&deep), None);
        let claims = b"\xdd\xff\xff\xff\xff".to_vec();
        assert_eq!(MasterCommand::decode(&claims), None, "a length that is not there takes no memory");
    }
}
