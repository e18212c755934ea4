//! `mailrun health`: asks a running relay or sink whether it works. It is meant for the health checks of containers.
use crate::report::messages::{failure, say};
use anyhow::{Result, bail};
use clap::Args;
use mailrun_process::http_client::{HttpClient, StatusCode};
use std::process::ExitCode;
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes; a longer answer is an error. The longest answers come from sinks that have seen
/// many runs.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Asks a running relay or sink whether it works
///
/// For health checks in places without another HTTP client, such as the container image. The relay or sink must serve
/// HTTP: start it with --http, or set `http` in relay.toml.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct HealthArgs {
    /// HOST:PORT of the HTTP interface, or one of its pages: /health or /ready of a relay, /status of a sink.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8025/health")]
    url: String,
}

const EXAMPLES: &str = "\
Examples:
  mailrun health
  mailrun health 127.0.0.1:18025
  mailrun health http://127.0.0.1:8025/ready
  mailrun health http://127.0.0.1:8025/status

Exit status: 0 it works; 1 it does not, or does not answer; 2 the URL is none.";

impl HealthArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let client = HttpClient::new(&self.url, ANSWER_TIMEOUT, MAX_ANSWER_BYTES)?;
        match ask(&client, &self.url) {
            Ok(()) => {
                say("ok\n")?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                mailrun_process::tell!("{}", failure(&error).trim_end());
                Ok(ExitCode::from(1))
            }
        }
    }
}

/// Requests the page at `url`, or `/health` or `/status` if `url` names no page. Returns an error unless the answer has
/// a 2xx status.
fn ask(client: &HttpClient, url: &str) -> Result<()> {
    let place = url.split_once("://").map_or(url, |(_, place)| place).trim_end_matches('/');
    let answer = match place.contains('/') {
        true => client.get("")?,
        // The URL names no page, so try both: a relay has the page /health, and a sink has the page /status.
        false => match client.get("/health")? {
            answer if answer.status == StatusCode::NOT_FOUND => client.get("/status")?,
            answer => answer,
        },
    };
    if !answer.status.is_success() {
        bail!("{url}: {}: {}", answer.status.as_u16(), String::from_utf8_lossy(&answer.body));
    }
    Ok(())
}
