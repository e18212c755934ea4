//! The settings of a relay with their defaults. A configuration also depends on other files, on environment variables
//! and on the host's name, to which this module gives access.
use crate::message::envelope::Client;
use crate::qmgr::retry::RetrySchedule;
use crate::routing::{Access, LocalDomains, Mx, RouteTarget, Router};
use ipnet::IpNet;
use mailrun_net::{BusyPoll, ClientLimits, Endpoint, ServerTls, TlsFiles};
use mailrun_process::users::Users;
use mailrun_spool::OnDamage;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub const DEFAULT_LISTEN: &str = "127.0.0.1:2525";
pub(super) const MAX_CONFIG_BYTES: usize = 1 << 20;
const MAX_FILE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub struct Config {
    /// The relay's name in the greeting, in `Received:` fields and in DSNs.
    pub(crate) hostname: String,
    /// Set if the configuration contains `hostname`. A server that greets with this name is then the relay itself, so
    /// mail would loop. Without the key, the relay uses the host's name, which other servers on this host may use as
    /// well.
    pub(crate) has_own_name: bool,
    pub listen: Vec<Endpoint>,
    /// Addresses at which TLS begins before the greeting.
    pub(crate) listen_tls: Vec<Endpoint>,
    pub(crate) listen_lmtp: Vec<Endpoint>,
    /// Set if each connection begins with a PROXY header, which names the client.
    pub(crate) proxy_protocol: bool,
    /// Clients, such as proxies, that may name another client with XCLIENT.
    pub(crate) xclient: Networks,
    pub(crate) networks: Networks,
    pub spool: SpoolConfig,
    pub limits: RelayLimits,
    pub(crate) tls: Option<ListenerTls>,
    pub(crate) users: Option<Arc<Users>>,
    /// Warnings about files that the configuration names, for example about a password file that
    /// other users may read.
    pub(super) file_warnings: Vec<String>,
    pub(crate) login_limits: LoginLimits,
    /// Clients whose failed logins count only against the user name, and not against the client's address. An example
    /// is a webmail server, because all its users have the same address.
    pub(crate) login_exempt: Networks,
    pub router: Router,
    pub(crate) delivery: DeliveryLimits,
    pub(crate) retry: RetrySchedule,
    pub(crate) dsn: DsnConfig,
    pub(crate) dns: DnsConfig,
    pub delivery_scope: DeliveryScope,
    pub http: Option<SocketAddr>,
    /// Host name from the key `http`, if the key contains a name and not an address. The relay accepts this name in the
    /// Host field of HTTP requests.
    pub(crate) http_name: Option<String>,
    /// Path of the socket for `mailrun queue`.
    pub control: PathBuf,
    /// Number of workers, or `None` for half the number of processors.
    pub workers: Option<usize>,
    /// Time for which event loops poll for events before they sleep. Only the option `--busy-poll` sets this time. The
    /// configuration file has no key for it, because it is meant for measurements.
    pub busy_poll: BusyPoll,
    pub log: LogLevel,
}

#[derive(Clone, Debug)]
pub(crate) struct ListenerTls {
    pub(crate) setup: ServerTls,
    pub(crate) files: TlsFiles,
}

/// A list of networks, such as the networks whose mail is relayed without a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks(pub(crate) Vec<IpNet>);

impl Default for Networks {
    /// Contains only the loopback addresses, so that the relay is not open to others by default.
    fn default() -> Self {
        let own = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().expect("both are networks"));
        Self(own.into())
    }
}

impl Networks {
    /// Returns true if an address is in these networks. An IPv4 address may be written as IPv6,
    /// such as `::ffff:10.0.0.1` (RFC 4291 §2.5.5.2).
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns `Trusted` for clients that have logged in, that are local, or whose addresses are in these networks.
    pub(crate) fn access(&self, client: Client, login: LoggedIn) -> Access {
        match (client, login) {
            (_, LoggedIn::Yes) | (Client::Local, LoggedIn::No) => Access::Trusted,
            (Client::Remote(address), LoggedIn::No) if self.contain(address) => Access::Trusted,
            (Client::Remote(_) | Client::Unknown, LoggedIn::No) => Access::Untrusted,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolConfig {
    pub directory: PathBuf,
    pub durability: DurabilityLevel,
    /// Maximum number of bytes that the spool may take on disk. When the spool is full, clients get
    /// 452.
    pub max_bytes: u64,
    /// Maximum total size, in bytes, of the messages that the queue keeps in memory. All other messages are read again
    /// from the spool before they are delivered.
    pub memory_bytes: u64,
    /// Set if the relay must not start when it finds new damage in the spool.
    pub refuse_damage: bool,
}

/// Bytes of the spool that a message may need in addition to its size: this relay's `Received:` field
/// and the envelope, with room for about 1000 recipients.
const OWN_MESSAGE_BYTES: u64 = 64 << 10;

impl SpoolConfig {
    pub(crate) fn options(&self) -> mailrun_spool::Options {
        mailrun_spool::Options {
            max_bytes: self.max_bytes,
            durability: match self.durability {
                DurabilityLevel::Sync => mailrun_spool::Durability::Sync,
                DurabilityLevel::Write => mailrun_spool::Durability::Write,
                DurabilityLevel::Memory => mailrun_spool::Durability::Memory,
            },
            on_damage: if self.refuse_damage { OnDamage::Refuse } else { OnDamage::Quarantine },
            ..mailrun_spool::Options::default()
        }
    }

    /// Returns the maximum size of a message that an empty spool can hold. A larger message would get
    /// 452 forever.
    pub(crate) fn max_message_bytes(&self) -> u64 {
        self.options().max_stored_bytes().saturating_sub(OWN_MESSAGE_BYTES)
    }
}

/// The moment at which the relay answers 250 to a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DurabilityLevel {
    /// When the message is on disk, so that it survives a power failure
    #[default]
    Sync,
    /// When the kernel has the message: it survives a crash of this process, but no power failure
    Write,
    /// Immediately: the message is only in memory, and any crash loses it
    Memory,
}

impl DurabilityLevel {
    pub(crate) const ALL: [(Self, &'static str); 3] =
        [(Self::Sync, "sync"), (Self::Write, "write"), (Self::Memory, "memory")];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    pub(crate) message_bytes: u64,
    /// Maximum total size, in bytes, of the messages that clients are sending or that the relay has not answered with
    /// 250 yet. It is at least the maximum size of one message.
    pub incoming_bytes: u64,
    pub(crate) recipients: usize,
    pub(crate) sessions: usize,
    /// Maximum number of `Received:` fields. A message with more fields is in a loop.
    pub(crate) max_hops: u32,
    pub(crate) idle_timeout: Duration,
    /// Maximum number of NOOP, VRFY and similar commands between two messages.
    pub(crate) junk_commands: u32,
    /// Maximum time for which a client may stay connected without sending a message.
    pub(crate) no_message_timeout: Duration,
    pub(crate) message_timeout: Duration,
    /// Minimum rate, in bytes per second, at which a client must send a message, averaged over `idle_timeout`.
    pub(crate) min_data_rate: u64,
    /// Limits for each client address outside of `networks`.
    pub(crate) client: ClientLimits,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            message_bytes: 64 << 20,
            incoming_bytes: 128 << 20,
            recipients: 1000,
            sessions: 10_000,
            max_hops: 100,
            idle_timeout: Duration::from_secs(300),
            junk_commands: 100,
            no_message_timeout: Duration::from_secs(1800),
            message_timeout: Duration::from_secs(3600),
            // This is Postfix's default, in bytes per second. Even a modem with 9,600 bits per second is twice as fast.
            min_data_rate: 500,
            client: ClientLimits::default(),
        }
    }
}

impl RelayLimits {
    pub(crate) fn session_limits(&self) -> mailrun_smtp::Limits {
        mailrun_smtp::Limits {
            message_bytes: self.message_bytes,
            recipients: self.recipients,
            idle_timeout: self.idle_timeout,
            junk_commands: self.junk_commands,
            no_message_timeout: self.no_message_timeout,
            message_timeout: self.message_timeout,
            min_data_rate: self.min_data_rate,
            ..mailrun_smtp::Limits::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoginLimits {
    pub(crate) failures: u32,
    pub(crate) user_failures: u32,
    /// Period in which failed logins are counted. Afterwards, the count begins again at 0.
    pub(crate) period: Duration,
    /// Time for which logins are refused after too many failures, without checking the password.
    pub(crate) lock_duration: Duration,
    /// Delay of the reply to the first failed login. The delay doubles with each further failure.
    pub(crate) delay: Duration,
}

impl Default for LoginLimits {
    /// Failed logins count for ten minutes, and a lockout lasts ten minutes, as in fail2ban. The
    /// limits tolerate a user who tries several passwords before the right one.
    fn default() -> Self {
        Self {
            failures: 10,
            user_failures: 100,
            period: Duration::from_secs(600),
            lock_duration: Duration::from_secs(600),
            delay: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryLimits {
    pub(crate) per_destination: u32,
    pub(crate) overall: u32,
    pub(crate) greeting_5xx: RefusedGreeting,
}

/// How the relay treats a server that sends a 5xx reply instead of a greeting. RFC 5321 §3.1 leaves open whether the
/// server refuses this client for good, or is out of order while other servers accept the mail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RefusedGreeting {
    /// Try the next server, and defer the message if there is none (Postfix:
    /// `smtp_skip_5xx_greeting = yes`).
    #[default]
    Skip,
    Fail,
}

impl RefusedGreeting {
    pub(crate) const ALL: [(Self, &'static str); 2] = [(Self::Skip, "skip"), (Self::Fail, "fail")];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DsnConfig {
    /// Recipient of DSNs about failures, or `None` for the sender of the message.
    pub(crate) failures: Option<DsnTarget>,
    /// Recipient of DSNs about DSNs that could not be delivered. `None` means that undeliverable DSNs are only logged.
    pub(crate) double_bounces: Option<DsnTarget>,
    pub(crate) postmaster: String,
    pub(crate) success: SuccessDsnPolicy,
}

impl DsnConfig {
    pub(super) fn new(domain: &str) -> Self {
        Self {
            failures: None,
            double_bounces: None,
            postmaster: format!("postmaster@{domain}"),
            success: SuccessDsnPolicy::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DsnTarget {
    Postmaster,
    Maildir(Arc<Path>),
}

/// Clients that get DSNs about success if they ask for them with NOTIFY=SUCCESS. The sender's address does not decide
/// this, because a client could forge it and have DSNs sent to a stranger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SuccessDsnPolicy {
    Everyone,
    /// Only clients in `networks`, clients on Unix-domain sockets, and clients that have logged in get the success DSNs
    /// for which they ask.
    #[default]
    Networks,
    Nobody,
}

impl SuccessDsnPolicy {
    pub(crate) const ALL: [(Self, &'static str); 3] =
        [(Self::Everyone, "everyone"), (Self::Networks, "networks"), (Self::Nobody, "nobody")];

    pub(crate) fn is_for(self, client: Client, login: LoggedIn, networks: &Networks) -> bool {
        match self {
            Self::Everyone => true,
            Self::Networks => networks.access(client, login) == Access::Trusted,
            Self::Nobody => false,
        }
    }
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self { per_destination: 20, overall: 1000, greeting_5xx: RefusedGreeting::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DnsConfig {
    /// Name servers to query, or an empty list to query the servers that the system uses.
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) timeout: Duration,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self { servers: Vec::new(), timeout: Duration::from_secs(5) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeliveryScope {
    #[default]
    Local,
    Anywhere,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum LogLevel {
    /// Logs faults of the relay.
    Error,
    /// Also logs conditions that an administrator should look into.
    Warn,
    /// Also logs each delivery.
    #[default]
    Info,
    /// Also logs the steps of each session.
    Debug,
}

impl LogLevel {
    pub(crate) const ALL: [(Self, &'static str); 4] =
        [(Self::Error, "error"), (Self::Warn, "warn"), (Self::Info, "info"), (Self::Debug, "debug")];
}

/// Everything on which a configuration depends besides its own file: other files, environment variables, and the name
/// of the host. Tests replace these with fixed values.
pub(crate) struct ConfigEnvironment<'a> {
    pub(crate) read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) hostname: String,
    pub(crate) mode: &'a dyn Fn(&Path) -> Option<u32>,
    /// Addresses to which the relay may deliver even if its configuration file does not allow public addresses.
    pub(crate) delivery_scope: DeliveryScope,
    pub(crate) can_store_in: &'a StorageCheck,
}

/// Checks whether a directory can hold a spool, without changing anything. The directory need not exist.
pub(crate) type StorageCheck = dyn Fn(&Path) -> Result<(), String>;

impl ConfigEnvironment<'_> {
    pub(crate) fn of_process() -> Self {
        Self {
            read: &read,
            mode: &|path| std::fs::metadata(path).ok().map(|about| about.permissions().mode() & 0o777),
            variable: &|name| std::env::var(name).ok(),
            hostname: hostname(),
            delivery_scope: DeliveryScope::default(),
            // Do not check here whether the spool can be written, because the relay finds out when it opens the spool.
            can_store_in: &|_| Ok(()),
        }
    }
}

/// Reads the configuration or a file that it names. Fails if the file is longer than [`MAX_FILE_BYTES`], which no valid
/// file is.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

/// Returns the name of this host, or "localhost" if the name is not a valid domain.
pub(super) fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if crate::routing::is_domain(&name) { name } else { "localhost".to_owned() }
}

impl Config {
    pub(super) fn with_defaults(spool: &Path, hostname: String) -> Self {
        Self {
            hostname: hostname.clone(),
            has_own_name: false,
            listen: vec![Endpoint::Tcp(DEFAULT_LISTEN.parse().expect("it is an address"))],
            listen_tls: Vec::new(),
            listen_lmtp: Vec::new(),
            proxy_protocol: false,
            xclient: Networks(Vec::new()),
            networks: Networks::default(),
            spool: SpoolConfig {
                directory: spool.to_owned(),
                durability: DurabilityLevel::default(),
                max_bytes: 10 << 30,
                memory_bytes: 128 << 20,
                refuse_damage: false,
            },
            limits: RelayLimits::default(),
            tls: None,
            users: None,
            file_warnings: Vec::new(),
            login_limits: LoginLimits::default(),
            login_exempt: Networks(Vec::new()),
            router: Router::new(LocalDomains::default(), Vec::new(), RouteTarget::Mx(Mx::default())),
            delivery: DeliveryLimits::default(),
            retry: RetrySchedule::default(),
            dsn: DsnConfig::new(&hostname),
            dns: DnsConfig::default(),
            delivery_scope: DeliveryScope::default(),
            http: None,
            http_name: None,
            control: spool.join("control.sock"),
            workers: None,
            busy_poll: BusyPoll::Off,
            log: LogLevel::default(),
        }
    }

    pub fn listeners(&self) -> impl Iterator<Item = &Endpoint> {
        self.listen.iter().chain(&self.listen_tls).chain(&self.listen_lmtp)
    }

    /// Returns warnings about settings that are allowed but risky: next hops whose certificate is not verified although
    /// TLS is required, and files with secrets that all users of this host may read.
    pub fn warnings(&self) -> Vec<String> {
        let hops = self.router.insecure_hops();
        let of_hops = hops.map(|hop| format!("{hop}: insecure = true: the certificate is not verified"));
        of_hops.chain(self.file_warnings.iter().cloned()).collect()
    }

    /// Returns the keys whose values differ in `new` and take effect only after a restart. A reload reports these keys.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        // List every field here. The compiler then refuses a new field until somebody decides whether a change of it
        // needs a restart. Fields with `_` need no restart, because the relay always reads their current value.
        let Self {
            hostname,
            has_own_name,
            listen,
            listen_tls,
            listen_lmtp,
            proxy_protocol,
            xclient,
            networks: _,
            spool,
            limits,
            tls,
            users,
            file_warnings: _,
            login_limits: _,
            login_exempt: _,
            router: _,
            delivery,
            retry,
            dsn: _,
            dns,
            delivery_scope: _,
            http,
            http_name,
            control,
            workers,
            // A reload cannot change this field, because the configuration file has no key for it.
            busy_poll: _,
            log: _,
        } = self;
        let new_limits = RelayLimits { max_hops: limits.max_hops, ..new.limits.clone() };
        let changes = [
            ("listen", *listen != new.listen),
            ("listen_tls", *listen_tls != new.listen_tls),
            ("listen_lmtp", *listen_lmtp != new.listen_lmtp),
            ("proxy_protocol", *proxy_protocol != new.proxy_protocol),
            ("xclient", xclient.0.is_empty() != new.xclient.0.is_empty()),
            ("http", (http, http_name) != (&new.http, &new.http_name)),
            ("control", *control != new.control),
            ("workers", *workers != new.workers),
            ("hostname", (hostname, has_own_name) != (&new.hostname, &new.has_own_name)),
            ("spool", *spool != new.spool),
            ("limits", *limits != new_limits),
            ("tls", tls.is_some() != new.tls.is_some()),
            ("auth", users.is_some() != new.users.is_some()),
            ("delivery", *delivery != new.delivery),
            ("retry", *retry != new.retry),
            ("dns", *dns != new.dns),
        ];
        changes.into_iter().filter(|(_, is_changed)| *is_changed).map(|(key, _)| key).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedIn {
    Yes,
    No,
}
