//! A route of a probe, as the user wrote it: the server to send to, and where the mail should arrive.
use crate::options::server::{Scheme, ServerArg};
use crate::send::without_brackets;
use anyhow::{Context, Result, anyhow, bail, ensure};
use mailrun_load::mailboxes::{Passwords, mailboxes_of};
use mailrun_load::probe::{RouteOptions, Watch};
use mailrun_load::send::targets_of;
use mailrun_load::sink::{MailboxOptions, MailboxTls};
use mailrun_load::source::{AllowedTargets, TransportOptions};
use mailrun_net::Endpoint;
use mailrun_process::http_client::HttpClient;
use mailrun_process::tls_mode::TlsMode;
use mailrun_process::users;
use mailrun_smtp::Path as AddressPath;
use mailrun_smtp::sasl::{Credentials, Mechanisms};
use mailrun_smtp::server::Protocol;
use std::path::PathBuf;
use std::time::Duration;

const DEFAULT_LOST_AFTER: Duration = Duration::from_secs(600);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum of `--lost-after`: ten days. No server keeps trying to deliver mail for longer.
const MAX_LOST_AFTER: Duration = Duration::from_secs(10 * 86_400);
const MAX_RATE_PER_S: f64 = 10.0;

/// The values that the user gave for a route. `RouteKeys::route` replaces values that are `None` with their defaults.
#[derive(Clone, Debug)]
pub(crate) struct RouteKeys {
    pub(crate) name: String,
    pub(crate) server: ServerArg,
    pub(crate) rate: Option<f64>,
    pub(crate) to: String,
    pub(crate) from: Option<String>,
    pub(crate) hello: Option<String>,
    pub(crate) lost_after: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tls: Option<TlsMode>,
    pub(crate) tls_name: Option<String>,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) insecure: bool,
    pub(crate) login: Option<LoginKeys>,
    pub(crate) sink: Option<String>,
    pub(crate) mailbox: Option<MailboxKeys>,
}

#[derive(Clone, Debug)]
pub(crate) struct LoginKeys {
    pub(crate) user: String,
    pub(crate) password: PasswordPlace,
}

#[derive(Clone, Debug)]
pub(crate) struct MailboxKeys {
    pub(crate) url: String,
    pub(crate) password: PasswordPlace,
    pub(crate) keep_mail: bool,
}

/// File or environment variable that contains a password. The password itself is never part of a URL or of a command
/// line.
#[derive(Clone, Debug)]
pub(crate) enum PasswordPlace {
    File(PathBuf),
    Environment(String),
}

impl PasswordPlace {
    pub(crate) fn new(file: Option<PathBuf>, variable: &str) -> Self {
        file.map_or_else(|| Self::Environment(variable.to_owned()), Self::File)
    }

    fn read(&self) -> Result<String> {
        match self {
            Self::File(file) => users::read_password(file).with_context(|| format!("cannot read {}", file.display())),
            Self::Environment(name) => {
                std::env::var(name).map_err(|_| anyhow!("the environment variable {name} has no password"))
            }
        }
    }
}

impl LoginKeys {
    fn credentials(&self) -> Result<Credentials> {
        Ok(Credentials::new(&self.user, &self.password.read()?))
    }
}

impl RouteKeys {
    /// Checks the values, fills in the defaults and reads the passwords.
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be used, or if a password cannot be read.
    pub(crate) fn route(&self, allowed: AllowedTargets) -> Result<RouteOptions> {
        let tls = self.tls_mode()?;
        let rate = self.rate.unwrap_or(0.1);
        ensure!(
            rate <= MAX_RATE_PER_S,
            "a probe sends at most {MAX_RATE_PER_S} messages per second; mailrun bench makes a load"
        );
        let lost_after = self.lost_after.unwrap_or(DEFAULT_LOST_AFTER);
        ensure!(lost_after <= MAX_LOST_AFTER, "mail is lost after 10 days at the latest");
        let to = without_brackets(&self.to);
        let from = self.from.as_deref().map_or_else(|| to.clone(), without_brackets);
        for address in [&to, &from].into_iter().filter(|address| !address.is_empty()) {
            AddressPath::mailbox(address.as_bytes()).map_err(|_| anyhow!("{address:?} is not an address"))?;
        }
        ensure!(!to.is_empty(), "the recipient has no address");
        // If the server's name has only public addresses and these are not allowed, fail now. If the lookup fails,
        // start anyway, because the probe looks the name up again for each message.
        if Endpoint::resolve_all(self.server.address()).is_ok() {
            targets_of(self.server.address(), allowed)?;
        }
        let credentials = self.login.as_ref().map(LoginKeys::credentials).transpose()?;
        let lmtp = self.server.scheme() == Scheme::Lmtp;
        Ok(RouteOptions {
            name: self.name.clone(),
            server: self.server.address().to_owned(),
            transport: TransportOptions {
                tls,
                tls_insecure: self.insecure,
                ca: self.cacert.clone(),
                server_name: self.tls_name.clone(),
                credentials,
                protocol: if lmtp { Protocol::Lmtp } else { Protocol::Smtp },
                ..TransportOptions::default()
            },
            allowed,
            hello: self.hello.clone().unwrap_or_else(|| "mailrun.example.com".to_owned()),
            watch: self.watch(&to, allowed)?,
            from,
            to,
            interval: Duration::from_secs_f64(1.0 / rate),
            lost_after,
            timeout: self.timeout.unwrap_or(DEFAULT_TIMEOUT),
        })
    }

    fn tls_mode(&self) -> Result<TlsMode> {
        let tls = match (self.server.scheme(), self.tls) {
            (Scheme::Smtps, Some(TlsMode::None | TlsMode::StartTls)) => {
                let address = self.server.address();
                bail!("smtps:// means TLS before the greeting; write smtp://{address} for another use of TLS")
            }
            (Scheme::Smtps, _) => TlsMode::Implicit,
            (_, tls) => tls.unwrap_or_default(),
        };
        ensure!(
            tls != TlsMode::None || self.tls_name.is_none(),
            "tls_name has no effect without TLS: use starttls or implicit"
        );
        Ok(tls)
    }

    fn watch(&self, to: &str, allowed: AllowedTargets) -> Result<Watch> {
        match (&self.sink, &self.mailbox) {
            (Some(_), Some(_)) => bail!("mail arrives at a sink or in a mailbox; name one of them"),
            (None, None) => Ok(Watch::Nothing),
            (Some(url), None) => {
                // Create this client only to check the URL, because the probe creates its own client later.
                HttpClient::new(url, Duration::from_secs(1), 0)?;
                Ok(Watch::Sink(url.clone()))
            }
            (None, Some(MailboxKeys { url, password, keep_mail })) => {
                let passwords = |_: &[&str]| Ok(Passwords::One(password.read()?));
                let domain = to.rsplit_once('@').map(|(_, domain)| domain);
                let mut mailboxes =
                    mailboxes_of(std::slice::from_ref(url), domain, passwords, Mechanisms::PASSWORD, allowed)?;
                mailboxes.iter_mut().for_each(|mailbox| to.clone_into(&mut mailbox.address));
                let tls = MailboxTls { insecure: self.insecure, ca: self.cacert.clone() };
                let mailbox = MailboxOptions {
                    mailboxes,
                    poll: None,
                    // Also look at mail that is already in the mailbox, because mail that arrived while the probe was
                    // down must count as delivered.
                    existing: true,
                    whole: false,
                    deletes: None,
                    probe_mail: None,
                    tls,
                };
                Ok(Watch::Mailbox { mailbox: Box::new(mailbox), keep: *keep_mail })
            }
        }
    }
}
