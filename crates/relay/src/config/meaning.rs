//! Reads the sections of relay.toml into `Config`, key by key.
use super::routes::RouteReader;
use super::section_reader::SectionReader;
use super::settings::{
    Config, ConfigEnvironment, DeliveryLimits, DeliveryScope, DnsConfig, DsnTarget, DurabilityLevel, ListenerTls,
    LogLevel, MAX_CONFIG_BYTES, Networks, RefusedGreeting, RelayLimits, SpoolConfig, SuccessDsnPolicy,
};
use super::values::{
    address, connection_limit, count, endpoint, failure_limit, host_name, is_open_relay, keyword, mailbox, name_in,
    name_server, network, optional_limit, positive_duration,
};
use crate::own_addresses::OwnAddresses;
use crate::qmgr::retry::RetrySchedule;
use crate::routing::Access;
use mailrun_net::{Certificate, ClientLimits, Endpoint, ServerTls, SessionResumption, TlsFiles, TlsSetupError};
use mailrun_process::toml_file::{ConfigErrors, ErrorCollector, Section};
use mailrun_process::users::Users;
use mailrun_smtp::Path as Address;
use mailrun_text::quantities::bytes;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const MIN_SPOOL_BYTES: u64 = 1 << 20;
/// Minimum value that the configuration may set for `max_hops`. A relay must not suspect a loop below this number of
/// `Received:` fields (RFC 5321 §6.3).
const MIN_HOP_LIMIT: u64 = 100;

pub(super) fn read(text: &str, file: &Path, outside: &ConfigEnvironment<'_>) -> Result<Config, ConfigErrors> {
    let errors = ErrorCollector::default();
    let base_directory = file.parent().unwrap_or(Path::new(""));
    let config = Section::root(text, MAX_CONFIG_BYTES, &errors).map(|mut root| {
        let config = SectionReader { errors: &errors, base_directory, environment: outside }.config(&mut root);
        root.finish();
        config
    });
    errors.finish(file, text)?;
    let config = config.expect("where nothing is wrong, it has been read");
    Ok(Config { file_warnings: errors.take_warnings(), ..config })
}

impl<'a> SectionReader<'a> {
    fn config(self, root: &mut Section<'a>) -> Config {
        let spool = self.spool(root);
        let mut config = Config::with_defaults(&spool.directory, self.environment.hostname.clone());
        config.spool = spool;
        let allow_public = root.flag("allow_public").unwrap_or_default();
        config.delivery_scope = if allow_public { DeliveryScope::Anywhere } else { self.environment.delivery_scope };
        config.has_own_name = root.key("hostname").is_some();
        config.hostname = root.value("hostname", "\"relay.example.com\"", host_name).unwrap_or(config.hostname);
        self.listeners(root, &mut config);
        self.auth(root, &mut config);
        config.networks = self.networks(root).unwrap_or(config.networks);
        config.workers = root.value("workers", "2", |text| Ok(count(text, 1024)? as usize));
        config.log = root.value("log", "\"info\"", |text| keyword(&LogLevel::ALL, text)).unwrap_or_default();
        let http = root.value("http", "\"127.0.0.1:8025\"", |text| Ok((address(text)?, name_in(text))));
        (config.http, config.http_name) = http.map_or((None, None), |(address, name)| (Some(address), name));
        config.control = self.path(root, "control").map_or(config.control, |(_, path)| path);
        config.limits = self.limits(root, &config.spool);
        config.delivery = delivery(root);
        config.retry = self.retry(root);
        config.dns = dns(root);
        let own = OwnAddresses::new(config.listeners());
        config.router = RouteReader { reader: self, delivery_scope: config.delivery_scope, own: &own }.router(root);
        self.dsn(root, &mut config);
        config
    }

    fn networks(self, root: &mut Section<'a>) -> Option<Networks> {
        let at = root.key("networks")?;
        let networks = root.values("networks", "[\"10.0.0.0/8\"]", network)?;
        let outcome = is_open_relay(&networks).map_or(Ok(()), |what| {
            Err(format!("together they are {what}: that would be an open relay; use only your own networks"))
        });
        self.errors.ok_or_add(&at, outcome).map(|()| Networks(networks))
    }

    /// Reads the section `[dsn]`. If it directs DSNs to the postmaster, but mail to the postmaster is undeliverable,
    /// reports an error.
    fn dsn(self, root: &mut Section<'a>, config: &mut Config) {
        config.dsn.postmaster = format!("postmaster@{}", config.router.primary_domain().unwrap_or(&config.hostname));
        let Some(mut section) = root.table("dsn") else { return };
        let dsn = &mut config.dsn;
        dsn.postmaster =
            section.value("postmaster", "\"postmaster@example.com\"", mailbox).unwrap_or(dsn.postmaster.clone());
        dsn.failures = self.dsn_target(&mut section, "failures", "sender");
        dsn.double_bounces = self.dsn_target(&mut section, "double_bounces", "log");
        dsn.success =
            section.value("success", "\"networks\"", |text| keyword(&SuccessDsnPolicy::ALL, text)).unwrap_or_default();
        let tells_postmaster = [&dsn.failures, &dsn.double_bounces].contains(&&Some(DsnTarget::Postmaster));
        if tells_postmaster {
            let at = section.key("postmaster").unwrap_or(section.span.clone());
            self.check_postmaster(&at, config);
        }
        section.finish();
    }

    fn dsn_target(self, section: &mut Section<'a>, key: &'static str, usual: &str) -> Option<DsnTarget> {
        let target = |text: &str| match (text, text.strip_prefix("maildir:")) {
            (text, _) if text == usual => Ok(None),
            ("postmaster", _) => Ok(Some(DsnTarget::Postmaster)),
            (_, Some(path)) if !path.is_empty() => Ok(Some(DsnTarget::Maildir(self.base_directory.join(path).into()))),
            _ => Err(format!("{text:?} is not one of {usual}, postmaster, maildir:PATH")),
        };
        section.value(key, &format!("\"{usual}\""), target).flatten()
    }

    fn check_postmaster(self, at: &Range<usize>, config: &Config) {
        let null = Address::mailbox(b"").expect("the null path is a path");
        let Ok(postmaster) = Address::mailbox(config.dsn.postmaster.as_bytes()) else { return };
        if let Err(refusal) = config.router.route(Access::Trusted, &null, &postmaster) {
            let message = format!(
                "mail cannot be delivered to {} ({refusal:?}); write postmaster = \"ADDRESS\" in [dsn], or add a \
                 mailbox or alias",
                config.dsn.postmaster
            );
            self.errors.add(at, message);
        }
    }

    fn spool(self, root: &mut Section<'a>) -> SpoolConfig {
        let mut spool = Config::with_defaults(Path::new("spool"), String::new()).spool;
        let Some(mut section) = root.table("spool") else {
            self.errors.add(&(0..0), "spool.directory is missing; write [spool] and directory = \"PATH\"");
            return spool;
        };
        match self.path(&mut section, "directory") {
            Some((span, path)) => {
                self.errors.ok_or_add(&span, (self.environment.can_store_in)(&path));
                spool.directory = path;
            }
            None => self.errors.add(&section.span, "spool.directory is missing; write directory = \"PATH\""),
        }
        let size = |text: &str| match bytes(text)? {
            few if few < MIN_SPOOL_BYTES => Err(format!("{text:?} is too small for a spool; use at least 1M")),
            enough => Ok(enough),
        };
        spool.durability =
            section.value("durability", "\"sync\"", |text| keyword(&DurabilityLevel::ALL, text)).unwrap_or_default();
        spool.max_bytes = section.value("max_size", "\"10G\"", size).unwrap_or(spool.max_bytes);
        spool.memory_bytes = section.value("max_memory", "\"128M\"", bytes).unwrap_or(spool.memory_bytes);
        spool.refuse_damage = section.flag("refuse_damage").unwrap_or_default();
        section.finish();
        spool
    }

    fn listeners(self, root: &mut Section<'a>, config: &mut Config) {
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
            (None, Some(key)) => self.errors.add(&key, "listen_tls requires [tls] with cert and key"),
            (None, None) if config.listen.is_empty() && config.listen_lmtp.is_empty() => {
                self.errors.add(&listen.unwrap_or(0..0), format!("no address to listen on; write listen = {EXAMPLE}"));
            }
            _ => {}
        }
        config.tls = tls.and_then(|section| self.tls(section));
    }

    fn tls(self, mut section: Section<'a>) -> Option<ListenerTls> {
        let span = section.span.clone();
        let chain = self.path(&mut section, "cert");
        let key = self.path(&mut section, "key");
        section.finish();
        let (Some((chain_at, chain)), Some((key_at, key))) = (chain, key) else {
            self.errors.add(&span, "TLS requires both: cert = \"FILE\" and key = \"FILE\", in PEM form");
            return None;
        };
        let resumption = SessionResumption::On;
        let chain_pem = self.file(&chain_at, &chain);
        let key_pem = self.secret(&key_at, &key);
        let certificate = match Certificate::from_pem(&chain_pem?, &key_pem?) {
            Ok(certificate) => certificate,
            Err(error) => {
                let is_key = matches!(error, TlsSetupError::NoKey);
                let (span, path) = if is_key { (&key_at, &key) } else { (&chain_at, &chain) };
                self.errors.add(span, format!("{}: {error}", path.display()));
                return None;
            }
        };
        let setup = ServerTls::new(certificate, None, resumption)
            .map_err(|error| format!("{} and {} cannot be used: {error}", chain.display(), key.display()));
        let files = TlsFiles { certificate: chain, key, client_roots: None, resumption };
        self.errors.ok_or_add(&chain_at, setup).map(|setup| ListenerTls { setup, files })
    }

    fn auth(self, root: &mut Section<'a>, config: &mut Config) {
        let Some(mut section) = root.table("auth") else { return };
        let users = self.path(&mut section, "users");
        let Some((span, path)) = users else {
            self.errors.add(&section.span, "no users; write users = \"FILE\", a file with one name:password per line");
            return section.finish();
        };
        let is_inside = |endpoint: &Endpoint| endpoint.ip().is_none_or(|ip| ip.is_loopback());
        let in_the_clear = config.listen.iter().chain(&config.listen_lmtp);
        if config.tls.is_none() && !in_the_clear.clone().all(is_inside) {
            let message = "passwords would cross the network unencrypted; add [tls], or listen on loopback only";
            self.errors.add(&section.span, message);
        }
        let users = self.secret_text(&span, &path).and_then(|text| {
            self.errors.ok_or_add(&span, Users::parse(&text, &path).map_err(|error| format!("{error:#}")))
        });
        config.users = users.map(Arc::new);
        let limits = &mut config.login_limits;
        limits.failures = section.value("failures", "10", failure_limit).unwrap_or(limits.failures);
        limits.user_failures = section.value("user_failures", "100", failure_limit).unwrap_or(limits.user_failures);
        limits.period = section.value("period", "\"10m\"", positive_duration).unwrap_or(limits.period);
        limits.lock_duration = section.value("lock", "\"10m\"", positive_duration).unwrap_or(limits.lock_duration);
        limits.delay = section.value("delay", "\"1s\"", positive_duration).unwrap_or(limits.delay);
        config.login_exempt = Networks(section.values("exempt", "[\"10.0.0.5\"]", network).unwrap_or_default());
        section.finish();
    }

    fn limits(self, root: &mut Section<'a>, spool: &SpoolConfig) -> RelayLimits {
        let mut limits = RelayLimits::default();
        // A message that is larger than the spool must get a permanent error, because the client would retry in vain
        // after a temporary error. The default limit is at most a quarter of `spool.max_size`, so that several messages
        // fit into the spool.
        let max_message_bytes = spool.max_message_bytes();
        limits.message_bytes = limits.message_bytes.min(spool.max_bytes / 4).min(max_message_bytes);
        let Some(mut section) = root.table("limits") else { return limits };
        let message = |text: &str| match bytes(text)? {
            few if few < 64 << 10 => {
                Err(format!("{text:?} is too small: messages of 64k must be accepted (RFC 5321 §4.5.3.1.7)"))
            }
            many if many > max_message_bytes => Err(format!(
                "{text:?} is more than spool.max_size permits; use at most {max_message_bytes}, or increase spool.max_size"
            )),
            bytes => Ok(bytes),
        };
        let recipients = |text: &str| match count(text, 1_000_000)? {
            few @ ..100 => Err(format!("{few} is too small: 100 recipients must be accepted (RFC 5321 §4.5.3.1.8)")),
            enough => Ok(enough as usize),
        };
        let hops = |text: &str| match count(text, 10_000)? {
            few @ ..MIN_HOP_LIMIT => Err(format!("{few} is too small: a message may have 100 hops (RFC 5321 §6.3)")),
            enough => Ok(enough as u32),
        };
        limits.message_bytes = section.value("max_message_size", "\"64M\"", message).unwrap_or(limits.message_bytes);
        let limit = limits.message_bytes;
        let incoming = |text: &str| match bytes(text)? {
            few if few < limit => Err(format!("{text:?} is less than limits.max_message_size; use at least {limit}")),
            enough => Ok(enough),
        };
        let incoming = section.value("max_incoming_size", "\"128M\"", incoming);
        limits.incoming_bytes = incoming.unwrap_or(limits.incoming_bytes.max(limit));
        limits.recipients = section.value("max_recipients", "1000", recipients).unwrap_or(limits.recipients);
        let sessions = section.value("max_sessions", "10000", |text| Ok(count(text, 1_000_000)? as usize));
        limits.sessions = sessions.unwrap_or(limits.sessions);
        limits.max_hops = section.value("max_hops", "100", hops).unwrap_or(limits.max_hops);
        limits.idle_timeout = section.value("idle_timeout", "\"5m\"", positive_duration).unwrap_or(limits.idle_timeout);
        let junk = section.value("max_junk_commands", "100", |text| Ok(count(text, 1_000_000)? as u32));
        limits.junk_commands = junk.unwrap_or(limits.junk_commands);
        limits.no_message_timeout =
            section.value("without_message", "\"30m\"", positive_duration).unwrap_or(limits.no_message_timeout);
        limits.message_timeout =
            section.value("message_timeout", "\"1h\"", positive_duration).unwrap_or(limits.message_timeout);
        let rate = |text: &str| if text == "0" { Ok(0) } else { count(text, 1_000_000) };
        limits.min_data_rate = section.value("min_data_rate", "500", rate).unwrap_or(limits.min_data_rate);
        limits.client = section.table("client").map_or(limits.client, client_limits);
        section.finish();
        limits
    }

    fn retry(self, root: &mut Section<'a>) -> RetrySchedule {
        let mut retry = RetrySchedule::default();
        let Some(mut section) = root.table("retry") else { return retry };
        let longest_at = section.key("longest");
        let delay_at = section.key("delay_notice");
        let backoff = &mut retry.backoff;
        backoff.initial = section.value("first", "\"5m\"", positive_duration).unwrap_or(backoff.initial);
        backoff.max = section.value("longest", "\"1h\"", positive_duration).unwrap_or(backoff.max.max(backoff.initial));
        retry.lifetime = section.value("expiry", "\"5d\"", positive_duration).unwrap_or(retry.lifetime);
        retry.notice_lifetime = section.value("notice_expiry", "\"5d\"", positive_duration).unwrap_or(retry.lifetime);
        let delay = |text: &str| if text == "never" { Ok(None) } else { positive_duration(text).map(Some) };
        let delay = section.value("delay_notice", "\"4h\"", delay);
        // If messages expire before the default delay notice is due, omit the notice without an error, because the user
        // did not ask for it.
        let default = retry.delay_notice.filter(|after| *after < retry.lifetime);
        retry.delay_notice = delay.unwrap_or(default);
        if retry.backoff.max < retry.backoff.initial {
            let at = longest_at.unwrap_or(section.span.clone());
            self.errors.add(&at, "retry.longest is less than retry.first; use at least that");
        }
        if retry.delay_notice.is_some_and(|after| after >= retry.lifetime) {
            let at = delay_at.unwrap_or(section.span.clone());
            self.errors.add(&at, "the message expires before that; use less than expiry, or \"never\"");
        }
        section.finish();
        retry
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
        *limit = section.value(key, example, optional_limit).unwrap_or(*limit);
    }
    section.finish();
    limits
}

fn delivery(root: &mut Section<'_>) -> DeliveryLimits {
    let mut delivery = DeliveryLimits::default();
    let Some(mut section) = root.table("delivery") else { return delivery };
    delivery.per_destination =
        section.value("per_destination", "20", connection_limit).unwrap_or(delivery.per_destination);
    delivery.overall = section.value("overall", "1000", connection_limit).unwrap_or(delivery.overall);
    delivery.greeting_5xx =
        section.value("greeting_5xx", "\"skip\"", |text| keyword(&RefusedGreeting::ALL, text)).unwrap_or_default();
    section.finish();
    delivery
}

fn dns(root: &mut Section<'_>) -> DnsConfig {
    let mut dns = DnsConfig::default();
    let Some(mut section) = root.table("dns") else { return dns };
    dns.servers = section.values("servers", "[\"127.0.0.1:53\"]", name_server).unwrap_or_default();
    dns.timeout = section.value("timeout", "\"5s\"", positive_duration).unwrap_or(dns.timeout);
    section.finish();
    dns
}
