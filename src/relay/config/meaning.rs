//! Reads the sections of relay.toml into `Config`, key by key.
use super::document::{LONGEST, Notes, Section};
use super::routes::Routing;
use super::{Complaints, Config, Delivery, Dns, Durability, Limits, LogLevel, Networks, NoticeTarget, Outside, Reach};
use super::{RefusedGreeting, Spool, SuccessNotices, Tls};
use crate::quantities::{bytes, count_up_to, duration};
use crate::reason::reason;
use crate::relay::retry::Schedule;
use crate::relay::routing::{Standing, is_domain};
use crate::users::Users;
use ipnet::IpNet;
use net::{Certificate, ClientLimits, Endpoint, ServerTls, SessionResumption, TlsFiles};
use smtp::Path as Address;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The least that a spool can work with.
const LEAST_SPOOL: u64 = 1 << 20;
/// Received fields before which no loop may be suspected (RFC 5321 §6.3).
const LEAST_HOPS: u64 = 100;
const DAY: Duration = Duration::from_secs(86_400);

/// Reads a configuration.
pub(super) fn read(text: &str, file: &Path, outside: &Outside<'_>) -> Result<Config, Complaints> {
    let notes = Notes::default();
    if text.len() > LONGEST {
        notes.add(&(0..0), format!("it is longer than {LONGEST} bytes"));
        notes.complaints(file, text)?;
    }
    let config = {
        let mut root = Section::whole(text, &notes);
        let base = file.parent().unwrap_or(Path::new(""));
        let config = notes.is_empty().then(|| Reader { notes: &notes, base, outside }.config(&mut root));
        if config.is_some() {
            root.end();
        }
        config
    };
    notes.complaints(file, text)?;
    Ok(config.expect("where nothing is wrong, it has been read"))
}

/// Context in which sections are read.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) notes: &'a Notes,
    /// Directory that relative paths begin at.
    pub(super) base: &'a Path,
    pub(super) outside: &'a Outside<'a>,
}

impl<'a> Reader<'a> {
    fn config(self, root: &mut Section<'a>) -> Config {
        let spool = self.spool(root);
        let mut config = Config::plain(&spool.directory, self.outside.hostname.clone());
        config.spool = spool;
        let allow_public = root.flag("allow_public").unwrap_or_default();
        config.reach = if allow_public { Reach::Anywhere } else { self.outside.reach };
        config.hostname = root.value("hostname", "\"relay.example.com\"", host_name).unwrap_or(config.hostname);
        self.listening(root, &mut config);
        self.login(root, &mut config);
        config.networks = self.networks(root).unwrap_or(config.networks);
        config.workers = root.value("workers", "2", |text| Ok(count(text, 1024)? as usize));
        config.log = root.value("log", "\"info\"", |text| one_of(&LogLevel::ALL, text)).unwrap_or_default();
        let http = root.value("http", "\"127.0.0.1:8025\"", |text| Ok((address(text)?, name_in(text))));
        (config.http, config.http_name) = http.map_or((None, None), |(address, name)| (Some(address), name));
        config.control = self.path(root, "control").map_or(config.control, |(_, path)| path);
        config.limits = self.limits(root, &config.spool);
        config.delivery = delivery(root);
        config.retry = self.retry(root);
        config.dns = dns(root);
        config.router = Routing { reader: self, reach: config.reach }.router(root);
        self.dsn(root, &mut config);
        config
    }

    fn networks(self, root: &mut Section<'a>) -> Option<Networks> {
        let at = root.key("networks")?;
        let networks = root.values("networks", "[\"10.0.0.0/8\"]", network)?;
        let checked = is_open_relay(&networks).map_or(Ok(()), |what| {
            Err(format!("together they are {what}: that would be an open relay; use only your own networks"))
        });
        self.notes.keep(&at, checked).map(|()| Networks(networks))
    }

    /// Reads who receives notices. A postmaster who receives any must have a mailbox.
    fn dsn(self, root: &mut Section<'a>, config: &mut Config) {
        config.dsn.postmaster =
            format!("postmaster@{}", config.router.first_local_domain().unwrap_or(&config.hostname));
        let Some(mut section) = root.table("dsn") else { return };
        let dsn = &mut config.dsn;
        dsn.postmaster =
            section.value("postmaster", "\"postmaster@example.com\"", mailbox).unwrap_or(dsn.postmaster.clone());
        dsn.failures = self.notice_target(&mut section, "failures", "sender");
        dsn.double_bounces = self.notice_target(&mut section, "double_bounces", "log");
        dsn.success =
            section.value("success", "\"networks\"", |text| one_of(&SuccessNotices::ALL, text)).unwrap_or_default();
        let is_told = [&dsn.failures, &dsn.double_bounces].contains(&&Some(NoticeTarget::Postmaster));
        if is_told {
            let at = section.key("postmaster").unwrap_or(section.span.clone());
            self.has_postmaster(&at, config);
        }
        section.end();
    }

    fn notice_target(self, section: &mut Section<'a>, key: &'static str, usual: &str) -> Option<NoticeTarget> {
        let target = |text: &str| match (text, text.strip_prefix("maildir:")) {
            (text, _) if text == usual => Ok(None),
            ("postmaster", _) => Ok(Some(NoticeTarget::Postmaster)),
            (_, Some(path)) if !path.is_empty() => Ok(Some(NoticeTarget::Maildir(self.base.join(path).into()))),
            _ => Err(format!("{text:?} is not one of {usual}, postmaster, maildir:PATH")),
        };
        section.value(key, &format!("\"{usual}\""), target).flatten()
    }

    fn has_postmaster(self, at: &Range<usize>, config: &Config) {
        let null = Address::mailbox(b"").expect("the null path is a path");
        let Ok(postmaster) = Address::mailbox(config.dsn.postmaster.as_bytes()) else { return };
        if let Err(refusal) = config.router.route(Standing::Friend, &null, &postmaster) {
            let what = format!(
                "mail cannot be delivered to {} ({refusal:?}); write postmaster = \"ADDRESS\" in [dsn], or add a \
                 mailbox or alias",
                config.dsn.postmaster
            );
            self.notes.add(at, what);
        }
    }

    fn spool(self, root: &mut Section<'a>) -> Spool {
        let mut spool = Config::plain(Path::new("spool"), String::new()).spool;
        let Some(mut section) = root.table("spool") else {
            self.notes.add(&(0..0), "spool.directory is missing; write [spool] and directory = \"PATH\"");
            return spool;
        };
        match self.path(&mut section, "directory") {
            Some((span, path)) => {
                self.notes.keep(&span, (self.outside.can_store_in)(&path));
                spool.directory = path;
            }
            None => self.notes.add(&section.span, "spool.directory is missing; write directory = \"PATH\""),
        }
        let size = |text: &str| match bytes(text)? {
            few if few < LEAST_SPOOL => Err(format!("{text:?} is too small for a spool; use at least 1M")),
            enough => Ok(enough),
        };
        spool.durability =
            section.value("durability", "\"sync\"", |text| one_of(&Durability::ALL, text)).unwrap_or_default();
        spool.most_bytes = section.value("max_size", "\"10G\"", size).unwrap_or(spool.most_bytes);
        spool.memory_bytes = section.value("max_memory", "\"128M\"", bytes).unwrap_or(spool.memory_bytes);
        spool.refuse_damage = section.flag("refuse_damage").unwrap_or_default();
        section.end();
        spool
    }

    fn listening(self, root: &mut Section<'a>, config: &mut Config) {
        const EXAMPLE: &str = "[\"127.0.0.1:2525\"]";
        let listen = root.key("listen");
        config.listen = root.values("listen", EXAMPLE, endpoint).unwrap_or_else(|| config.listen.clone());
        let implicit = root.key("listen_tls");
        config.listen_tls = root.values("listen_tls", EXAMPLE, endpoint).unwrap_or_default();
        config.listen_lmtp = root.values("listen_lmtp", EXAMPLE, endpoint).unwrap_or_default();
        config.proxy_protocol = root.flag("proxy_protocol").unwrap_or_default();
        config.xclient = Networks(root.values("xclient", "[\"10.0.0.6\"]", network).unwrap_or_default());
        let tls = root.table("tls");
        match (&tls, implicit) {
            (None, Some(key)) => self.notes.add(&key, "listen_tls requires [tls] with cert and key"),
            (None, None) if config.listen.is_empty() && config.listen_lmtp.is_empty() => {
                self.notes.add(&listen.unwrap_or(0..0), format!("no address to listen on; write listen = {EXAMPLE}"));
            }
            _ => {}
        }
        config.tls = tls.and_then(|section| self.tls(section));
    }

    fn tls(self, mut section: Section<'a>) -> Option<Tls> {
        let span = section.span.clone();
        let chain = self.path(&mut section, "cert");
        let key = self.path(&mut section, "key");
        section.end();
        let (Some((chain_at, chain)), Some((key_at, key))) = (chain, key) else {
            self.notes.add(&span, "TLS requires both: cert = \"FILE\" and key = \"FILE\", in PEM form");
            return None;
        };
        let resumption = SessionResumption::On;
        let (chain_pem, key_pem) = (self.file(&chain_at, &chain), self.file(&key_at, &key));
        let certificate = Certificate::from_pem(&chain_pem?, &key_pem?).map_err(|why| why.to_string());
        let certificate = self.notes.keep(&chain_at, certificate)?;
        let setup = ServerTls::new(certificate, None, resumption).map_err(|why| why.to_string());
        let files = TlsFiles { certificate: chain, key, client_roots: None, resumption };
        self.notes.keep(&chain_at, setup).map(|setup| Tls { setup, files })
    }

    fn login(self, root: &mut Section<'a>, config: &mut Config) {
        let Some(mut section) = root.table("auth") else { return };
        let users = self.path(&mut section, "users");
        let Some((span, path)) = users else {
            self.notes.add(&section.span, "no users; write users = \"FILE\", a file with one name:password per line");
            return section.end();
        };
        let is_inside = |endpoint: &Endpoint| endpoint.ip().is_none_or(|ip| ip.is_loopback());
        let in_the_clear = config.listen.iter().chain(&config.listen_lmtp);
        if config.tls.is_none() && !in_the_clear.clone().all(is_inside) {
            let what = "passwords would cross the network unencrypted; add [tls], or listen on loopback only";
            self.notes.add(&section.span, what);
        }
        let users = self
            .text(&span, &path)
            .and_then(|text| self.notes.keep(&span, Users::parse(&text, &path).map_err(|why| format!("{why:#}"))));
        config.users = users.map(Arc::new);
        let limits = &mut config.login_limits;
        limits.failures = section.value("failures", "10", failures).unwrap_or(limits.failures);
        limits.user_failures = section.value("user_failures", "100", failures).unwrap_or(limits.user_failures);
        limits.period = section.value("period", "\"10m\"", some_time).unwrap_or(limits.period);
        limits.lock = section.value("lock", "\"10m\"", some_time).unwrap_or(limits.lock);
        limits.delay = section.value("delay", "\"1s\"", some_time).unwrap_or(limits.delay);
        config.login_exempt = Networks(section.values("exempt", "[\"10.0.0.5\"]", network).unwrap_or_default());
        section.end();
    }

    fn limits(self, root: &mut Section<'a>, spool: &Spool) -> Limits {
        let mut limits = Limits::default();
        // A message that a small spool can never hold is answered as too large, and not to be tried again later.
        limits.message_bytes = limits.message_bytes.min(spool.most_bytes / 4);
        let Some(mut section) = root.table("limits") else { return limits };
        let message = |text: &str| match bytes(text)? {
            few if few < 64 << 10 => {
                Err(format!("{text:?} is too small: messages of 64k must be accepted (RFC 5321 §4.5.3.1.7)"))
            }
            many if many > spool.most_bytes => Err(format!("{text:?} is more than spool.max_size")),
            bytes => Ok(bytes),
        };
        let recipients = |text: &str| match count(text, 1_000_000)? {
            few @ ..100 => Err(format!("{few} is too small: 100 recipients must be accepted (RFC 5321 §4.5.3.1.8)")),
            enough => Ok(enough as usize),
        };
        let hops = |text: &str| match count(text, 10_000)? {
            few @ ..LEAST_HOPS => Err(format!("{few} is too small: a message may have 100 hops (RFC 5321 §6.3)")),
            enough => Ok(enough as u32),
        };
        limits.message_bytes = section.value("max_message_size", "\"64M\"", message).unwrap_or(limits.message_bytes);
        let most = limits.message_bytes;
        let incoming = |text: &str| match bytes(text)? {
            few if few < most => Err(format!("{text:?} is less than limits.max_message_size; use at least {most}")),
            enough => Ok(enough),
        };
        let incoming = section.value("max_incoming_size", "\"128M\"", incoming);
        limits.incoming_bytes = incoming.unwrap_or(limits.incoming_bytes.max(most));
        limits.recipients = section.value("max_recipients", "1000", recipients).unwrap_or(limits.recipients);
        let sessions = section.value("max_sessions", "10000", |text| Ok(count(text, 1_000_000)? as usize));
        limits.sessions = sessions.unwrap_or(limits.sessions);
        limits.hops = section.value("max_hops", "100", hops).unwrap_or(limits.hops);
        limits.idle = section.value("idle_timeout", "\"5m\"", some_time).unwrap_or(limits.idle);
        let junk = section.value("max_junk_commands", "100", |text| Ok(count(text, 1_000_000)? as u32));
        limits.junk_commands = junk.unwrap_or(limits.junk_commands);
        limits.without_message =
            section.value("without_message", "\"30m\"", some_time).unwrap_or(limits.without_message);
        limits.client = section.table("client").map_or(limits.client, client_limits);
        section.end();
        limits
    }

    fn retry(self, root: &mut Section<'a>) -> Schedule {
        let mut retry = Schedule::default();
        let Some(mut section) = root.table("retry") else { return retry };
        let longest_at = section.key("longest");
        let delay_at = section.key("delay_notice");
        let backoff = &mut retry.backoff;
        backoff.first = section.value("first", "\"5m\"", some_time).unwrap_or(backoff.first);
        backoff.longest = section.value("longest", "\"1h\"", some_time).unwrap_or(backoff.longest.max(backoff.first));
        retry.lifetime = section.value("expiry", "\"5d\"", some_time).unwrap_or(retry.lifetime);
        retry.notice_lifetime = section.value("notice_expiry", "\"5d\"", some_time).unwrap_or(retry.lifetime);
        let delay = |text: &str| if text == "never" { Ok(None) } else { some_time(text).map(Some) };
        let delay = section.value("delay_notice", "\"4h\"", delay);
        // A default that nobody set must not be an error: a short-lived queue has no time for it.
        let default = retry.delay_notice.filter(|after| *after < retry.lifetime);
        retry.delay_notice = delay.unwrap_or(default);
        if retry.backoff.longest < retry.backoff.first {
            let at = longest_at.unwrap_or(section.span.clone());
            self.notes.add(&at, "retry.longest is less than retry.first; use at least that");
        }
        if retry.delay_notice.is_some_and(|after| after >= retry.lifetime) {
            let at = delay_at.unwrap_or(section.span.clone());
            self.notes.add(&at, "the message expires before that; use less than expiry, or \"never\"");
        }
        section.end();
        retry
    }

    /// A path; a relative one begins at `base`.
    pub(super) fn path(self, section: &mut Section<'a>, key: &'static str) -> Option<(Range<usize>, PathBuf)> {
        let (span, text) = section.text(key, "\"PATH\"")?;
        if text.is_empty() {
            self.notes.add(&span, format!("{key} is empty; write {key} = \"PATH\""));
            return None;
        }
        Some((span, self.base.join(text)))
    }

    /// Reads the file that is named there.
    pub(super) fn file(self, span: &Range<usize>, path: &Path) -> Option<Vec<u8>> {
        let bytes =
            (self.outside.read)(path).map_err(|error| format!("cannot read {}: {}", path.display(), reason(&error)));
        self.notes.keep(span, bytes)
    }

    /// Likewise, as text.
    pub(super) fn text(self, span: &Range<usize>, path: &Path) -> Option<String> {
        let text = String::from_utf8(self.file(span, path)?).map_err(|_| format!("{} is not UTF-8", path.display()));
        self.notes.keep(span, text)
    }
}

fn client_limits(mut section: Section<'_>) -> ClientLimits {
    let mut limits = ClientLimits::default();
    let keys = [
        ("connections", "50", &mut limits.connections),
        ("connections_per_minute", "600", &mut limits.connection_rate),
        ("messages_per_minute", "1000", &mut limits.message_rate),
        ("recipients_per_minute", "5000", &mut limits.recipient_rate),
        ("logins_per_minute", "600", &mut limits.login_rate),
        ("handshakes_per_minute", "600", &mut limits.handshake_rate),
    ];
    for (key, example, limit) in keys {
        *limit = section.value(key, example, amount).unwrap_or(*limit);
    }
    section.end();
    limits
}

/// A number from one on, or "unlimited".
fn amount(text: &str) -> Result<Option<u32>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    let number =
        count(text, 1_000_000).map_err(|_| format!("{text:?} is not a number from 1 to 1000000 or \"unlimited\""))?;
    Ok(Some(number as u32))
}

fn failures(text: &str) -> Result<u32, String> {
    count(text, 1_000_000).map(|number| number as u32)
}

fn delivery(root: &mut Section<'_>) -> Delivery {
    let mut delivery = Delivery::default();
    let Some(mut section) = root.table("delivery") else { return delivery };
    delivery.per_destination = section.value("per_destination", "20", connections).unwrap_or(delivery.per_destination);
    delivery.overall = section.value("overall", "1000", connections).unwrap_or(delivery.overall);
    delivery.greeting_5xx =
        section.value("greeting_5xx", "\"skip\"", |text| one_of(&RefusedGreeting::ALL, text)).unwrap_or_default();
    section.end();
    delivery
}

fn dns(root: &mut Section<'_>) -> Dns {
    let mut dns = Dns::default();
    let Some(mut section) = root.table("dns") else { return dns };
    dns.servers = section.values("servers", "[\"127.0.0.1:53\"]", name_server).unwrap_or_default();
    dns.patience = section.value("timeout", "\"5s\"", some_time).unwrap_or(dns.patience);
    section.end();
    dns
}

/// The word's meaning.
pub(super) fn one_of<T: Copy>(all: &[(T, &str)], text: &str) -> Result<T, String> {
    let found = all.iter().find(|(_, word)| *word == text).map(|(meaning, _)| *meaning);
    found.ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|(_, word)| *word).collect();
        format!("{text:?} is not one of {}", words.join(", "))
    })
}

/// A number from one on: `500`, or `"10k"`.
fn count(text: &str, most: u64) -> Result<u64, String> {
    count_up_to(text, most).map_err(|_| format!("{text:?} is not a number from 1 to {most}"))
}

pub(super) fn connections(text: &str) -> Result<u32, String> {
    count(text, 100_000).map(|number| number as u32)
}

/// A time that is not zero; days too.
fn some_time(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()).filter(|days| *days <= 10_000);
    match days.map_or_else(|| duration(text), |days| Ok(DAY * days)) {
        Ok(Duration::ZERO) => Err(format!("{text:?}: must be more than zero")),
        Ok(time) => Ok(time),
        Err(_) => Err(format!("{text:?} is not a valid time; use something like 30s, 5m, 4h or 5d")),
    }
}

fn host_name(text: &str) -> Result<String, String> {
    // A number is an address that lacks something (RFC 1123 §2.1).
    let is_number = text.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if is_domain(text) && !is_number {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a valid host name; use something like relay.example.com"))
}

fn mailbox(text: &str) -> Result<String, String> {
    match Address::mailbox(text.as_bytes()) {
        Ok(_) if text.contains('@') => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not a valid address; use something like postmaster@example.com")),
    }
}

fn network(text: &str) -> Result<IpNet, String> {
    let host = text.parse::<IpAddr>().map(IpNet::from);
    let network = host.or_else(|_| text.parse::<IpNet>());
    let network = network
        .map_err(|_| format!("{text:?} is not a valid network; use something like 10.0.0.0/8 or 2001:db8::/32"))?;
    if network.prefix_len() == 0 {
        return Err(format!("{text:?} is everyone: that would be an open relay; use only your own networks"));
    }
    let is_mapped = |address: IpAddr| matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if is_mapped(network.network()) {
        return Err(format!("{text:?}: write it as an IPv4 network; addresses are compared without ::ffff:"));
    }
    Ok(network.trunc())
}

/// Names the clients that networks admit together, where these are more than any one owner's: half of IPv4 or more,
/// half of the allocated IPv6 (2000::/3) or more, and IPv4 as a translator writes it (RFC 6052 §2.1).
fn is_open_relay(networks: &[IpNet]) -> Option<&'static str> {
    let all = IpNet::aggregate(&networks.to_vec());
    let hosts_v4 = |network: &IpNet| match network {
        IpNet::V4(network) => 1_u64 << (32 - network.prefix_len()),
        IpNet::V6(_) => 0,
    };
    // In units of a /64, the smallest that is assigned.
    let subnets_v6 = |network: &IpNet| match network {
        IpNet::V6(network) if network.prefix_len() < 64 => 1_u128 << (64 - network.prefix_len()),
        _ => 0,
    };
    let translated: IpNet = "64:ff9b::/96".parse().expect("it is a network");
    if all.iter().map(hosts_v4).sum::<u64>() >= 1 << 31 {
        return Some("half of all IPv4 addresses or more");
    }
    if all.iter().map(subnets_v6).sum::<u128>() >= 1 << 60 {
        return Some("half of all public IPv6 addresses or more");
    }
    all.iter().any(|network| network.contains(&translated)).then_some("all IPv4 addresses behind a NAT64 translator")
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    Endpoint::listening(text).map_err(|why| why.to_string())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    match Endpoint::listening(text) {
        Ok(Endpoint::Tcp(address)) => Ok(address),
        Err(why) => Err(why.to_string()),
        Ok(Endpoint::Unix(_)) => Err(format!("{text:?} is not a valid HOST:PORT; use something like 127.0.0.1:8025")),
    }
}

/// The host of HOST:PORT, if it is a name.
fn name_in(text: &str) -> Option<String> {
    let (host, _) = text.rsplit_once(':')?;
    let is_name = is_domain(host) && !host.starts_with('[') && host.parse::<IpAddr>().is_err();
    is_name.then(|| host.to_owned())
}

fn name_server(text: &str) -> Result<SocketAddr, String> {
    let bare = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    bare.or_else(|_| text.parse())
        .map_err(|_| format!("{text:?} is not a valid address; use something like 127.0.0.1 or [::1]:53"))
}
