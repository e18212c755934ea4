pub(crate) mod file;
pub(crate) mod route;

use crate::options::server::ServerArg;
use crate::options::values;
use crate::report::messages::say;
use crate::sink::mailboxes;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use file::ProbeFile;
use mailrun_load::probe::{self, ProbeOptions, Reload, RouteOptions};
use mailrun_load::source::AllowedTargets;
use mailrun_net::Endpoint;
use mailrun_process::tls_mode::TlsMode;
use mailrun_process::users::PASSWORD_VARIABLE;
use mailrun_text::words::counted;
use route::{LoginKeys, MailboxKeys, PasswordPlace, RouteKeys};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Sends a message every few seconds for months, and records what became of each message
///
/// For each SERVER, the probe counts how many messages were accepted, delivered, bounced and lost. Prometheus can read
/// the counts at /metrics. The probe runs until Ctrl-C or SIGTERM. On SIGHUP, it reads FILE again.
#[derive(Clone, Debug, Args)]
#[command(after_help = manual(), override_usage = USAGE)]
pub(crate) struct ProbeArgs {
    /// Server to send to, repeatable: HOST[:PORT], smtp://HOST, smtps://HOST, lmtp://HOST, unix:PATH.
    #[arg(value_name = "SERVER", value_parser = ServerArg::parse, conflicts_with = "config", required_unless_present = "config")]
    servers: Vec<ServerArg>,
    /// Configuration file (TOML) with routes. All keys are shown below.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check FILE and exit. Errors are printed as FILE:LINE:COLUMN. The exit status is 2 if there are errors, otherwise
    /// 0.
    #[arg(long, requires = "config")]
    check: bool,
    /// Directory for the counts, which survive a restart. Only one probe at a time can use a directory.
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    state: Option<PathBuf>,
    /// Address at which /metrics is served [default: 127.0.0.1:9725].
    #[arg(long, value_name = "HOST:PORT", value_parser = values::listening)]
    http: Option<String>,
    /// Send to public addresses, and watch mailboxes there. Use it only with servers of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true)]
    allow_public: bool,
    #[command(flatten)]
    route: RouteArgs,
}

/// Options that apply to every SERVER.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Routes")]
struct RouteArgs {
    /// Messages per time: 1/10s, 1/m, 30/h; at most 10/s [default: 1/10s].
    #[arg(long, value_name = "RATE", value_parser = values::rate, conflicts_with = "config")]
    rate: Option<f64>,
    /// Address to which the probe sends mail.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config", required_unless_present = "config")]
    to: Option<String>,
    /// Sender, to whom notices of undeliverable mail go [default: the recipient].
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config")]
    from: Option<String>,
    /// HTTP interface of the mailrun sink where the mail arrives. Without --sink or --mailbox, the probe cannot see
    /// whether accepted mail arrives.
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "mailbox"])]
    sink: Option<String>,
    /// Mailbox where the mail arrives: imaps://user@HOST, pops://user@HOST, maildir:DIR or similar. The kinds of URL
    /// are those of mailrun sink --mailbox. In this mailbox, the probe deletes its own mail and no other mail.
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    mailbox: Option<String>,
    /// File with the password of the mailbox in its first line [default: the environment variable
    /// MAILRUN_MAILBOX_PASSWORD].
    #[arg(long, value_name = "FILE", requires = "mailbox")]
    mailbox_password_file: Option<PathBuf>,
    /// Time after which a message that has not arrived counts as lost [default: 10m].
    #[arg(long, value_name = "TIME", value_parser = values::some_duration, conflicts_with = "config")]
    lost_after: Option<Duration>,
    /// Use of TLS; the certificate of the server is verified [default: none].
    #[arg(long, value_enum, conflicts_with = "config")]
    tls: Option<TlsMode>,
    /// Trust the certificates in this PEM file instead of the system's, for servers and mailboxes.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    cacert: Option<PathBuf>,
    /// Accept any certificate.
    #[arg(long, conflicts_with_all = ["config", "cacert"])]
    insecure: bool,
    /// Log in as this user, with the password from --password-file or the environment variable MAILRUN_PASSWORD.
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    user: Option<String>,
    /// File with the password in its first line.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

const USAGE: &str = "mailrun probe [OPTIONS] --state <DIR> --to <ADDRESS> <SERVER>...
       mailrun probe [OPTIONS] --config <FILE>";

const EXAMPLES: &str = "\
Examples:
  mailrun probe 127.0.0.1:25 --to probe@a.example --sink http://127.0.0.1:8025 --state DIR
  mailrun probe mx1.example mx2.example --to probe@a.example --mailbox imaps://probe@mail.example --state DIR
  mailrun probe --config probe.toml
  mailrun probe --config probe.toml --check

All keys of FILE:

";

const STATUS: &str = "
Exit status:
  0  stopped by Ctrl-C or SIGTERM, or --check found no fault
  2  it could not start, or the configuration has a fault";

fn manual() -> String {
    [EXAMPLES, file::EXAMPLE, STATUS].concat()
}

const DEFAULT_HTTP: &str = "127.0.0.1:9725";

impl ProbeArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (file, routes) = self.routes()?;
        if self.check {
            say(&format!("configuration OK: {}\n", counted(routes.len() as u64, "route")))?;
            return Ok(ExitCode::SUCCESS);
        }
        let http = self.http.clone().or(file.http).unwrap_or_else(|| DEFAULT_HTTP.to_owned());
        let address = match Endpoint::listening(&http).with_context(|| format!("cannot listen on {http}"))? {
            Endpoint::Tcp(address) => address,
            Endpoint::Unix(_) => bail!("--http {http} must have the form HOST:PORT"),
        };
        let Some(state) = self.state.clone().or(file.state) else {
            bail!("the probe needs a directory for its account: --state DIR, or the key state");
        };
        let reload: Option<Reload> = self.config.is_some().then(|| {
            let own = self.clone();
            Box::new(move || own.routes().map(|(_, routes)| routes)) as Reload
        });
        probe::run(ProbeOptions {
            routes,
            state,
            http: address,
            http_name: http.rsplit_once(':').map_or_else(String::new, |(host, _)| host.to_owned()),
            reload,
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Reads the configuration file and returns it with its routes. Without `--config`, returns the routes from the
    /// command line.
    fn routes(&self) -> Result<(ProbeFile, Vec<RouteOptions>)> {
        let file = match &self.config {
            Some(path) => file::read(path)?,
            None => ProbeFile { routes: self.typed_routes(), ..ProbeFile::default() },
        };
        let allowed =
            if self.allow_public || file.allow_public { AllowedTargets::Public } else { AllowedTargets::Local };
        let route = |keys: &RouteKeys| keys.route(allowed).with_context(|| format!("route {}", keys.name));
        let routes = file.routes.iter().map(route).collect::<Result<Vec<_>>>()?;
        ensure!(!routes.is_empty(), "there is no [[route]]");
        Ok((file, routes))
    }

    fn typed_routes(&self) -> Vec<RouteKeys> {
        let typed = &self.route;
        let keys = |server: &ServerArg| RouteKeys {
            name: server.address().to_owned(),
            server: server.clone(),
            rate: typed.rate,
            to: typed.to.clone().unwrap_or_default(),
            from: typed.from.clone(),
            hello: None,
            lost_after: typed.lost_after,
            timeout: None,
            tls: typed.tls,
            tls_name: None,
            cacert: typed.cacert.clone(),
            insecure: typed.insecure,
            login: typed.user.clone().map(|user| LoginKeys {
                user,
                password: PasswordPlace::new(typed.password_file.clone(), PASSWORD_VARIABLE),
            }),
            sink: typed.sink.clone(),
            mailbox: typed.mailbox.clone().map(|url| MailboxKeys {
                url,
                password: PasswordPlace::new(typed.mailbox_password_file.clone(), mailboxes::PASSWORD_VARIABLE),
                keep_mail: false,
            }),
        };
        self.servers.iter().map(keys).collect()
    }
}
