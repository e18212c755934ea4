//! `mailrun locust worker`: runs the source of mailrun as a worker of a Locust master.
use crate::options::connection::ConnectionArgs;
use crate::options::server::ServerArg;
use crate::options::values;
use crate::source::offer::arrival_with;
use crate::source::{MessageArgs, SessionArgs, source_options};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use mailrun_load::locust_worker::{self, LocustWorkerOptions};
use mailrun_load::source::{AllowedTargets, OfferedRate, SourceOptions, look_up};
use mailrun_measurement::record::Arrival;
use std::process::ExitCode;
use std::time::Duration;

/// Sends mail for a Locust master: each user is a session or, with --rate, adds to the rate
///
/// When the master starts a test, this worker starts a load. By default the load is a closed loop, in which this worker
/// runs as many sessions as the master gives it users. With --rate the loop is open, and each user adds to the rate. In
/// the master's statistics, the aggregate counts whole messages, and each phase has a row. The worker runs until the
/// master quits, or until it gets SIGINT or SIGTERM.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WorkerArgs {
    /// Server to send to: HOST, HOST:PORT, smtp://HOST, smtps://HOST (TLS before the greeting), lmtp://HOST or
    /// unix:PATH. The default port is 25.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse)]
    server: ServerArg,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    message: MessageArgs,
    /// Allow public addresses. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Connection")]
    allow_public: bool,
    #[command(flatten)]
    approach: ConnectionArgs,
}

/// Options for the master, and limits on what the master may ask of this worker.
#[derive(Debug, Args)]
#[command(next_help_heading = "Master")]
struct LinkArgs {
    /// Host of the Locust master.
    #[arg(long, value_name = "HOST", env = "LOCUST_MASTER_NODE_HOST", hide_env = true, default_value = "127.0.0.1")]
    master_host: String,
    /// Port of the Locust master.
    #[arg(long, value_name = "PORT", env = "LOCUST_MASTER_NODE_PORT", hide_env = true, default_value = "5557",
          value_parser = clap::value_parser!(u16).range(1..))]
    master_port: u16,
    /// Exit with status 2 if there is no master for this long. A running load ends a minute after its master is lost.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = values::some_duration)]
    master_timeout: Duration,
    /// Server that the master may name as host, besides SERVER; repeatable. Other servers are refused, because anybody
    /// who reaches the master's port can name a server.
    #[arg(long, value_name = "SERVER")]
    allow_target: Vec<String>,
    /// Maximum number of users that a master can ask for.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::sessions)]
    max_sessions: u32,
    /// Time that messages in transit have to finish when a test stops.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::some_duration)]
    drain: Duration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct PaceArgs {
    /// Open loop: messages per second for each user, however slow the server is.
    #[arg(long, value_name = "PER SECOND", value_parser = values::rate)]
    rate: Option<f64>,
    /// Distribution of messages over time, with --rate [default: constant].
    #[arg(long, value_enum, requires = "rate")]
    arrival: Option<Arrival>,
    /// Parallel sessions, with --rate [default: 100].
    #[arg(short, long, visible_short_alias = 'c', value_name = "N", value_parser = values::sessions, requires = "rate")]
    sessions: Option<u32>,
}

const OPEN_LOOP_SESSIONS: u32 = 100;

const EXAMPLES: &str = "\
Examples:
  mailrun locust file > locustfile.py
  locust -f locustfile.py --master --headless --expect-workers 2 -u 100 -r 20 -t 60s
  mailrun locust worker mx.example --master-host 192.0.2.1
  mailrun locust worker mx.example --master-host 192.0.2.1 --reuse --think-time 50ms..2s
  mailrun locust worker mx.example --master-host 192.0.2.1 --reuse --rate 10 --arrival poisson";

impl WorkerArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let targets = self.targets()?;
        let link = &self.link;
        if link.master_host.is_empty() {
            bail!("--master-host is empty; name the host of the Locust master");
        }
        let is_ipv6 = link.master_host.contains(':') && !link.master_host.starts_with('[');
        let host = if is_ipv6 { format!("[{}]", link.master_host) } else { link.master_host.clone() };
        let options = LocustWorkerOptions {
            master: format!("{host}:{}", link.master_port),
            max_sessions: link.max_sessions,
            targets,
            server_name: |text| ServerArg::parse(text).ok().as_ref().map(server_name),
            drain: link.drain,
            master_timeout: link.master_timeout,
        };
        // Check the options by building a load now, so that a mistake is reported before a test starts.
        self.load(None)?;
        locust_worker::run(&options, |host| self.load(host))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the servers to which a master may direct load: SERVER and the servers of `--allow-target`, as names from
    /// `server_name`. Fails if a server cannot be looked up, or is public without `--allow-public`.
    fn targets(&self) -> Result<Vec<String>> {
        let allowed = self
            .link
            .allow_target
            .iter()
            .map(|target| ServerArg::parse(target).map_err(|reason| anyhow!("--allow-target {target}: {reason}")));
        let servers = allowed.chain([Ok(self.server.clone())]);
        let targets = servers.map(|server| {
            let server = server?;
            look_up(server.address(), self.reach())?;
            Ok(server_name(&server))
        });
        targets.collect()
    }

    fn reach(&self) -> AllowedTargets {
        if self.allow_public { AllowedTargets::Public } else { AllowedTargets::Local }
    }

    /// Returns the options with which the source runs when the master starts a test. The load goes to the server that
    /// the master has named or, if it has named none, to the server on the command line.
    fn load(&self, host: Option<&str>) -> Result<SourceOptions> {
        let named =
            host.map(|host| ServerArg::parse(host).map_err(|reason| anyhow!("{host}: {reason}"))).transpose()?;
        let server = named.as_ref().unwrap_or(&self.server);
        let base = source_options(server, &self.session, &self.message, &self.approach, self.reach())?;
        let offered_rate = self.pace.rate.map(OfferedRate::Constant);
        let sessions = match offered_rate {
            Some(_) => self.pace.sessions.unwrap_or(OPEN_LOOP_SESSIONS),
            None => self.link.max_sessions,
        };
        let arrival = arrival_with(self.pace.arrival, offered_rate.as_ref());
        Ok(SourceOptions { name: "worker".to_owned(), sessions, offered_rate, arrival, ..base })
    }
}

/// Returns a name by which servers are compared: all spellings of a server give the same name. The name includes the
/// scheme, so that a master cannot turn off TLS by naming the same host without `smtps://`. Upper and lower case are
/// the same in the name of a host, but not in a path.
fn server_name(server: &ServerArg) -> String {
    let is_path = server.address().starts_with("unix:");
    if is_path { server.url() } else { server.url().to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct WorkerTestCli {
        #[command(flatten)]
        typed: WorkerArgs,
    }

    #[test]
    fn a_master_may_name_the_server_as_it_was_typed_and_no_other() {
        for (typed, host, is_allowed) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.1:25", true),
            ("localhost", "smtp://LocalHost/", true),
            ("smtp://127.0.0.1:2525", "smtp://127.0.0.1:2525", true),
            ("[::1]", "[::1]:25", true),
            ("smtps://127.0.0.1", "smtps://127.0.0.1", true),
            ("smtps://127.0.0.1", "smtps://127.0.0.1:465", true),
            ("lmtp://127.0.0.1", "lmtp://127.0.0.1", true),
            ("unix:/Run/smtp.sock", "unix:/Run/smtp.sock", true),
            ("lmtp:unix:/run/lmtp.sock", "lmtp:unix:/run/lmtp.sock", true),
            ("127.0.0.1 --allow-target smtps://127.0.0.2", "smtps://127.0.0.2", true),
            // The master must not leave out the scheme that the user typed, because this would turn off TLS or LMTP.
            ("smtps://127.0.0.1", "127.0.0.1:465", false),
            ("127.0.0.1 --allow-target smtps://127.0.0.2", "127.0.0.2:465", false),
            ("lmtp://127.0.0.1", "127.0.0.1:24", false),
            ("unix:/Run/smtp.sock", "unix:/run/smtp.sock", false),
            ("127.0.0.1", "127.0.0.1:26", false),
            ("127.0.0.1", "", false),
        ] {
            let words = ["worker"].into_iter().chain(typed.split_whitespace());
            let targets = WorkerTestCli::try_parse_from(words).unwrap().typed.targets().unwrap();
            let name = ServerArg::parse(host).ok().as_ref().map(server_name);
            assert_eq!(name.is_some_and(|name| targets.contains(&name)), is_allowed, "{typed}: {host}");
        }
    }
}
