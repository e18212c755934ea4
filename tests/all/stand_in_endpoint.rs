//! `mailrun mades-endpoint` as tests start it: an endpoint pair with its own queues, or on a given broker.
use crate::party::{Ended, MAILRUN, Process, wait_until};
use serde_json::Value;
use std::thread;
use std::time::Duration;

pub(crate) struct Endpoint {
    process: Process,
    /// URL of the endpoint's own AMQP listener. The URL has no address if the endpoint's queues are on a broker,
    /// because the endpoint then has no listener.
    pub(crate) url: String,
}

impl Endpoint {
    /// Starts an endpoint pair with its own queues, on a port that the kernel chooses.
    pub(crate) fn embedded(words: &[&str]) -> Self {
        Self::start(&[&["--embedded", "--listen", "127.0.0.1:0"], words].concat())
    }

    /// Starts an endpoint pair with its own queues, at which only this user may log in.
    pub(crate) fn guarded(user: &str, password: &str) -> Self {
        // The endpoint reads this file before it reports that it is ready, so the file may be deleted afterwards.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), password).unwrap();
        Self::embedded(&["--user", user, "--password-file", file.path().to_str().unwrap()])
    }

    pub(crate) fn start(words: &[&str]) -> Self {
        let process = Process::start(MAILRUN, &[&["mades-endpoint", "--live", "json"], words].concat());
        let ready: Value = wait_until("the endpoint to be ready", || {
            let said = process.said();
            let line = said.lines().find(|line| line.contains("ready"))?.to_owned();
            assert!(process.complained().is_empty(), "{}", process.complained());
            serde_json::from_str(&line).ok()
        });
        let addresses = find(&ready, "amqp").and_then(Value::as_array);
        let address = addresses.and_then(|all| all.first()).and_then(Value::as_str).unwrap_or_default();
        Self { process, url: format!("amqp://{address}") }
    }

    pub(crate) fn pause(&self, time: Duration) {
        self.process.suspend();
        thread::sleep(time);
        self.process.resume();
    }

    pub(crate) fn stop(self) -> Ended {
        self.process.terminate();
        self.process.finish()
    }

    pub(crate) fn hang_up(self) -> Ended {
        self.process.hang_up();
        self.process.finish()
    }
}

/// The first value with this key, at any depth.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let fields = value.as_object()?;
    fields.get(name).or_else(|| fields.values().find_map(|inner| find(inner, name)))
}
