//! Configuration of a relay, from relay.toml or from `--listen`, `--to` and `--spool`. The defaults
//! are safe: the relay listens on loopback only, and syncs each message.
//!
//! | file | what it does |
//! |---|---|
//! | `meaning` | reads the keys of each section into `Config` |
//! | `routes` | reads `[[route]]` and `[local]` |
//! | `settings` | the settings with their defaults |
//! | `section_reader` | reads the files that keys name, and collects the mistakes of all sections |
//! | `values` | reads words, numbers, times, networks and addresses |
//!
//! `docs/relay.md` and `example.toml` contain every key. Tests parse the examples in both files, so
//! these examples are valid.
mod meaning;
mod routes;
mod section_reader;
mod settings;
mod values;

use crate::own_addresses::OwnAddresses;
use crate::routing::{DomainPattern, LocalDomains, Mx, Route, RouteTarget, Router};
use mailrun_net::Endpoint;
use mailrun_process::reason::reason;
use mailrun_process::text_file;
pub use mailrun_process::toml_file::{ConfigError, ConfigErrors};
pub use settings::{Config, DEFAULT_LISTEN, DeliveryScope, DurabilityLevel, LogLevel, RelayLimits, SpoolConfig};
pub(crate) use settings::{ConfigEnvironment, DnsConfig, DsnTarget, LoggedIn, LoginLimits, RefusedGreeting, read};
use settings::{StorageCheck, hostname};
use std::path::Path;

impl Config {
    /// Reads a configuration file and the files that it names. Relative paths in the configuration file start from its
    /// directory.
    ///
    /// # Errors
    /// Returns all mistakes in the files, so that a user can correct them in one pass.
    #[cfg(test)]
    pub(crate) fn read(file: &Path) -> Result<Self, ConfigErrors> {
        Self::read_within(file, DeliveryScope::Local)
    }

    /// Reads a configuration file and the files that it names. With `reach`, a caller can allow
    /// delivery to public addresses even if the file does not.
    ///
    /// # Errors
    /// Fails if the files contain mistakes, and returns all of them.
    pub fn read_within(file: &Path, reach: DeliveryScope) -> Result<Self, ConfigErrors> {
        Self::read_with(file, &ConfigEnvironment { delivery_scope: reach, ..ConfigEnvironment::of_process() })
    }

    /// Like `read_within`, but also checks with `can_store_in` whether the spool's directory can be used. A relay that
    /// starts does not need this check, because it opens the spool and so notices any error.
    ///
    /// # Errors
    /// Fails if the files contain mistakes, and returns all of them.
    pub fn check(file: &Path, reach: DeliveryScope, can_store_in: &StorageCheck) -> Result<Self, ConfigErrors> {
        Self::read_with(
            file,
            &ConfigEnvironment { delivery_scope: reach, can_store_in, ..ConfigEnvironment::of_process() },
        )
    }

    fn read_with(file: &Path, outside: &ConfigEnvironment<'_>) -> Result<Self, ConfigErrors> {
        let complain = |message: String| ConfigErrors {
            file: file.to_owned(),
            errors: vec![ConfigError { line: 1, column: 1, message }],
        };
        let bytes = (outside.read)(file).map_err(|error| complain(format!("it cannot be read: {}", reason(&error))))?;
        let text = text_file::decode(bytes).map_err(|reason| complain(format!("it {reason}")))?;
        Self::parse(&text, file, outside)
    }

    /// Reads `text` as if it were the content of `file`.
    ///
    /// # Errors
    /// Returns all mistakes in the text and in the files that it names, and not only the first.
    pub(crate) fn parse(text: &str, file: &Path, outside: &ConfigEnvironment<'_>) -> Result<Self, ConfigErrors> {
        meaning::read(text, file, outside)
    }

    #[cfg(test)]
    pub(crate) fn read_text(text: &str) -> Self {
        Self::parse(text, Path::new("relay.toml"), &ConfigEnvironment::of_process()).expect("nothing is wrong with it")
    }

    /// Builds a configuration from command-line flags, without a configuration file. All mail that arrives at `listen`
    /// goes to `to` (`HOST[:PORT]`, `lmtp:HOST:PORT`, `lmtp:unix:PATH` or `discard`). The spool is in the directory
    /// `spool`.
    ///
    /// # Errors
    /// Fails if one of the flags is invalid. The message names the flag.
    pub fn from_flags(listen: &str, to: &str, spool: &Path, reach: DeliveryScope) -> Result<Self, String> {
        let listen = Endpoint::listening(listen).map_err(|reason| format!("--listen: {reason}"))?;
        let own = OwnAddresses::new([&listen].into_iter());
        let hop = routes::parse_next_hop(to, reach, &own).map_err(|what| format!("--to {what}"))?;
        let route = Route { from: Vec::new(), to: vec![DomainPattern::any()], target: RouteTarget::NextHop(hop) };
        let mut config = Self::with_defaults(spool, hostname());
        config.listen = vec![listen];
        config.delivery_scope = reach;
        config.router = Router::new(LocalDomains::default(), vec![route], RouteTarget::Mx(Mx::default()));
        Ok(config)
    }
}

/// A small but complete configuration file, shown in the manual.
pub const MINIMAL: &str = include_str!("minimal.toml");
/// A configuration file with every key, shown in the manual.
pub const EXAMPLE: &str = include_str!("example.toml");

#[cfg(test)]
mod tests {
    use super::settings::{MAX_CONFIG_BYTES, Networks, SuccessDsnPolicy};
    use super::*;
    use crate::message::envelope::Client;
    use crate::qmgr::retry::RetrySchedule;
    use crate::routing::{Access, NextHop, ResolvedRoute, RouteError, SmtpTarget, TlsPolicy};
    use mailrun_smtp::Path as Address;
    use mailrun_smtp::login::{Auth, Proof};
    use mailrun_smtp::sasl::Mechanism;
    use proptest::prelude::*;
    use std::io;
    use std::time::Duration;

    fn file(path: &Path) -> io::Result<Vec<u8>> {
        let certificate = || mailrun_net::Certificate::self_signed(&["localhost"]).expect("it is a name");
        let text = match path.to_str().unwrap() {
            "/etc/relay/certificate.pem" | "/etc/relay/key.pem" => {
                // Take certificate and key from the same pair, because rustls checks that they match.
                static PAIR: std::sync::OnceLock<(String, String)> = std::sync::OnceLock::new();
                let pair = PAIR.get_or_init(|| {
                    let certificate = certificate();
                    (certificate.to_pem(), certificate.key_to_pem())
                });
                if path.ends_with("key.pem") { pair.1.clone() } else { pair.0.clone() }
            }
            "/etc/relay/ca.pem" => certificate().to_pem(),
            "/etc/relay/users" => "ann:secret\n".to_owned(),
            "/etc/relay/mailboxes" => "# ours\nann\nBob:x\npostmaster\n".to_owned(),
            "/etc/relay/nobody" => "ann\n".to_owned(),
            "/etc/relay/aliases" => "sales: ann, bob@else.example\nnowhere: .\n".to_owned(),
            "/etc/relay/loop" => "a: b\nb: a\n".to_owned(),
            "/etc/relay/two-mistakes" => "a: |x\nb: /y\n".to_owned(),
            "/etc/relay/password" => "pass word\nsecond line\n".to_owned(),
            "/etc/relay/latin1" => return Ok(vec![0xe9]),
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(text.into_bytes())
    }

    fn outside() -> ConfigEnvironment<'static> {
        ConfigEnvironment { hostname: "host.example".to_owned(), mode: &|_| None, ..ConfigEnvironment::of_process() }
    }

    fn parse(text: &str) -> Result<Config, ConfigErrors> {
        let variable = |name: &str| (name == "MAILRUN_PASSWORD").then(|| "s3cret".to_owned());
        let outside = ConfigEnvironment { read: &file, variable: &variable, ..outside() };
        Config::parse(text, Path::new("/etc/relay/relay.toml"), &outside)
    }

    fn routed(config: &Config, sender: &str, recipient: &str) -> Result<ResolvedRoute, RouteError> {
        let [sender, recipient] = [sender, recipient].map(|text| Address::mailbox(text.as_bytes()).unwrap());
        config.router.route(Access::Trusted, &sender, &recipient)
    }

    fn hop(config: &Config, sender: &str, recipient: &str) -> NextHop {
        match routed(config, sender, recipient) {
            Ok(ResolvedRoute::Direct(hop)) => hop,
            other => panic!("{recipient}: {other:?}"),
        }
    }

    #[test]
    fn one_line_is_enough_and_safe() {
        let config = parse("spool.directory = 'spool'").unwrap();
        assert_eq!(config.hostname, "host.example");
        assert_eq!(config.listen, [Endpoint::Tcp(DEFAULT_LISTEN.parse().unwrap())]);
        assert!(config.listen[0].ip().unwrap().is_loopback() && config.listen_tls.is_empty() && config.http.is_none());
        assert_eq!((config.networks.clone(), config.delivery_scope), (Networks::default(), DeliveryScope::Local));
        assert_eq!(config.spool.directory, Path::new("/etc/relay/spool"));
        assert_eq!(config.spool.durability, DurabilityLevel::Sync);
        assert_eq!(config.control, Path::new("/etc/relay/spool/control.sock"));
        assert_eq!((config.limits.clone(), config.retry.clone()), (RelayLimits::default(), RetrySchedule::default()));
        assert_eq!(hop(&config, "", "a@b.example").to_string(), "mx:b.example");
        assert!(config.users.is_none() && config.tls.is_none());
    }

    #[test]
    fn dsn_recipients_are_configured() {
        const BASE: &str = "spool.directory = 'spool'\nhostname = 'relay.example'\n";
        let dsn =
            |text: &str| parse(&format!("{BASE}{text}")).map(|config| config.dsn).map_err(|error| error.to_string());
        let usual = dsn("").unwrap();
        assert_eq!((usual.failures, usual.double_bounces, usual.success), (None, None, SuccessDsnPolicy::Networks));
        assert_eq!(usual.postmaster, "postmaster@relay.example");
        let local = "local.domains = ['own.example']\nlocal.maildir = 'mail/{user}'\nlocal.users = 'mailboxes'\n";
        assert_eq!(dsn(local).unwrap().postmaster, "postmaster@own.example");
        let umlaut = "hostname = 'relay.bücher.example'\nspool.directory = 'spool'\n";
        assert_eq!(parse(umlaut).unwrap().hostname, "relay.xn--bcher-kva.example");
        let set = dsn("dsn.failures = 'maildir:failures'\ndsn.double_bounces = 'postmaster'\ndsn.success = 'nobody'")
            .unwrap();
        assert_eq!(set.failures, Some(DsnTarget::Maildir(Path::new("/etc/relay/failures").into())));
        assert_eq!((set.double_bounces, set.success), (Some(DsnTarget::Postmaster), SuccessDsnPolicy::Nobody));
        for (text, complaint) in [
            ("dsn.failures = 'nobody'", "not one of sender, postmaster, maildir:PATH"),
            ("dsn.failures = 'maildir:'", "not one of sender, postmaster, maildir:PATH"),
            ("dsn.double_bounces = 'sender'", "not one of log, postmaster, maildir:PATH"),
            ("dsn.success = 'some'", "not one of everyone, networks, nobody"),
            ("dsn.postmaster = 'postmaster'", "not a valid address"),
            ("delivery.greeting_5xx = 'maybe'", "not one of skip, fail"),
        ] {
            assert!(dsn(text).unwrap_err().contains(complaint), "{text}: {}", dsn(text).unwrap_err());
        }
        let nobody = format!("{local}dsn.postmaster = 'pm@own.example'\ndsn.failures = ");
        assert!(dsn(&format!("{nobody}'sender'")).is_ok());
        let complaint = dsn(&format!("{nobody}'postmaster'")).unwrap_err();
        assert!(complaint.contains("mail cannot be delivered to pm@own.example"), "{complaint}");
    }

    fn remote(address: &str) -> Client {
        Client::Remote(address.parse().unwrap())
    }

    #[test]
    fn notices_of_success_are_for_known_clients() {
        let networks = Networks::default();
        for (client, login, is_known) in [
            (remote("127.0.0.1"), LoggedIn::No, true),
            (remote("192.0.2.1"), LoggedIn::No, false),
            (remote("192.0.2.1"), LoggedIn::Yes, true),
            (Client::Unknown, LoggedIn::No, false),
            (Client::Unknown, LoggedIn::Yes, true),
            (Client::Local, LoggedIn::No, true),
        ] {
            assert_eq!(SuccessDsnPolicy::Networks.is_for(client, login, &networks), is_known, "{client:?}");
            assert!(SuccessDsnPolicy::Everyone.is_for(client, login, &networks));
            assert!(!SuccessDsnPolicy::Nobody.is_for(client, login, &networks));
        }
    }

    #[test]
    fn numbers_are_written_as_in_options() {
        let config = parse("spool.directory = 's'\n[limits]\nmax_sessions = '9k'\nmax_recipients = 500\n");
        let limits = config.unwrap_or_else(|complaints| panic!("{complaints}")).limits;
        assert_eq!((limits.sessions, limits.recipients), (9_000, 500));
    }

    #[test]
    fn the_example_has_every_key_and_means_what_it_says() {
        let config = parse(EXAMPLE).unwrap_or_else(|complaints| panic!("{complaints}"));
        assert_eq!((config.hostname.as_str(), config.workers), ("relay.example.com", Some(2)));
        assert_eq!((config.spool.max_bytes, config.spool.memory_bytes), (10 << 30, 128 << 20));
        assert_eq!((config.listen_tls.len(), config.listen_lmtp.len()), (1, 1));
        assert!(!config.proxy_protocol && config.xclient.contain("10.0.0.6".parse().unwrap()));
        assert!(config.tls.is_some() && config.users.is_some());
        assert_eq!(config.retry.backoff.max, Duration::from_secs(3600));
        assert_eq!(config.retry.lifetime, Duration::from_secs(5 * 86_400));
        assert_eq!(config.dns.servers, ["127.0.0.1:53".parse().unwrap()]);
        let partner = hop(&config, "x@y.example", "a@sub.partner.example");
        assert_eq!((partner.to_string().as_str(), partner.connections()), ("smtp:10.0.0.1:25,10.0.0.2:25", Some(50)));
        let NextHop::Smtp(smarthost) = hop(&config, "any@office.example.com", "a@far.example") else {
            panic!("no SMTP")
        };
        let credentials = smarthost.credentials.as_ref().unwrap();
        assert_eq!((credentials.name.as_str(), credentials.secret.as_str()), ("relay", "pass word"));
        assert_eq!(smarthost.security.server_name.as_deref(), Some("smarthost.example.net"));
        assert!(smarthost.security.ca_file.is_some() && smarthost.security.is_verified());
        assert_eq!(hop(&config, "", "a@lists.example.com").to_string(), "lmtp:unix:/run/lists.sock");
        assert_eq!(hop(&config, "", "A@archive.example.com").to_string(), "maildir:/etc/relay/archive/a");
        assert_eq!(hop(&config, "", "a@nowhere.example.com"), NextHop::Discard);
        assert_eq!(hop(&config, "", "ann@example.com").to_string(), "maildir:/etc/relay/mail/example.com/ann");
        assert_eq!(hop(&config, "", "nowhere@example.com"), NextHop::Discard);
        assert_eq!(routed(&config, "", "eve@example.com"), Err(RouteError::UnknownUser));
        assert!(matches!(routed(&config, "", "sales@example.com"), Ok(ResolvedRoute::Alias(all)) if all.len() == 2));
        assert_eq!(hop(&config, "", "a@far.example").to_string(), "mx:far.example");
        assert!(!format!("{config:?}").contains("pass word"), "secrets are not printed");
    }

    /// Lines that make a configuration invalid, and the error messages that they must cause. Only the beginning of each
    /// message is given, without the name of the file.
    type ConfigErrorRow = (&'static str, &'static [&'static str]);

    fn check(rows: &[ConfigErrorRow]) {
        let mut failures = Vec::new();
        for (text, expected) in rows {
            let text = format!("spool.directory = 's'\n{text}");
            let errors = parse(&text).map(|_| ()).map_err(|errors| errors.to_string()).err().unwrap_or_default();
            let lines: Vec<&str> =
                errors.lines().map(|line| line.strip_prefix("/etc/relay/relay.toml:").unwrap()).collect();
            let is_as_expected = lines.len() == expected.len()
                && lines.iter().zip(*expected).all(|(line, expected)| line.starts_with(expected));
            if !is_as_expected {
                failures.push(format!("{text}\nsays {lines:#?}"));
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    }

    const MISTAKES: &[(&str, &[&str])] = &[
        ("listn = ['127.0.0.1:25']", &["2:1: unknown key \"listn\"; did you mean \"listen\"?"]),
        ("frobnicate = 1", &["2:1: unknown key \"frobnicate\"; known keys: spool, allow_public, hostname,"]),
        ("listen = '127.0.0.1'", &["2:10: \"127.0.0.1\" has no port"]),
        ("listen = []", &["2:1: no address to listen on; write listen = "]),
        (
            "listen = ['127.0.0.1:1',\n  5]",
            &["3:3: listen must be text, or a list of texts; use something like listen = ["],
        ),
        ("listen_tls = '127.0.0.1:1'", &["2:1: listen_tls requires [tls]"]),
        ("proxy_protocol = 'v1'", &["2:18: proxy_protocol must be true or false, without quotes"]),
        ("xclient = 'all'", &["2:11: \"all\" is not a valid network"]),
        ("xclient = '0.0.0.0/0'", &["2:11: \"0.0.0.0/0\" is everyone"]),
        ("hostname = 5", &["2:12: \"5\" is not a valid host name; use something like relay.example.com"]),
        ("control = 5", &["2:11: control has the wrong type; use something like control = "]),
        ("hostname = 'a b'", &["2:12: \"a b\" is not a valid host name; use something like relay"]),
        (
            "networks = ['10.0.0.0/8', '10.0.0.0/33']",
            &["2:27: \"10.0.0.0/33\" is not a valid network; use something like"],
        ),
        ("networks = '0.0.0.0/0'", &["2:12: \"0.0.0.0/0\" is everyone: that would be an open relay"]),
        ("networks = '::/0'", &["2:12: \"::/0\" is everyone"]),
        ("networks = '::ffff:10.0.0.0/104'", &["2:12: \"::ffff:10.0.0.0/104\": write it as an IPv4 network"]),
        ("workers = 0", &["2:11: \"0\" is not a number from 1 to 1024"]),
        ("workers = true", &["2:11: workers has the wrong type; use something like workers = 2"]),
        ("allow_public = 'yes'", &["2:16: allow_public must be true or false, without quotes"]),
        ("log = 'loud'", &["2:7: \"loud\" is not one of error, warn, info, debug"]),
        ("http = 'unix:/x'", &["2:8: \"unix:/x\" is not a valid HOST:PORT"]),
        ("limits = 3", &["2:10: limits is a table; write [limits], and its keys in the lines below"]),
        ("[limits]\nmax_hop = 1", &["3:1: unknown key \"max_hop\" in [limits]; did you mean \"max_hops\"?"]),
        (
            "[limits]\nmax_message_size = '5x'",
            &["3:20: \"5x\" is not a valid size; use something like 400, 64k or 10M"],
        ),
        (
            "[limits]\nmax_message_size = '1k'",
            &["3:20: \"1k\" is too small: messages of 64k must be accepted (RFC 5321"],
        ),
        (
            "[limits]\nmax_message_size = '20G'",
            &["3:20: \"20G\" is more than spool.max_size permits; use at most 5301"],
        ),
        (
            "spool.max_size = '1M'\nlimits.max_message_size = '315314'",
            &["3:27: \"315314\" is more than spool.max_size permits; use at most 315313, or increase spool.max_size"],
        ),
        ("[limits]\nmax_incoming_size = '1M'", &["3:21: \"1M\" is less than limits.max_message_size"]),
        ("[limits]\nmax_incoming_size = 'all'", &["3:21: \"all\" is not a valid size"]),
        ("[limits]\nmax_recipients = 10", &["3:18: 10 is too small: 100 recipients"]),
        ("[limits]\nmin_data_rate = 'fast'", &["3:17: \"fast\" is not a number from 1 to 1000000"]),
        ("[limits]\nmax_hops = 30", &["3:12: 30 is too small"]),
        ("[retry]\nfirst = '1h'\nlongest = '5m'", &["4:1: retry.longest is less than retry.first"]),
        ("[retry]\nexpiry = '1h'\ndelay_notice = '2h'", &["4:1: the message expires before that"]),
        ("[retry]\nfirst = 'soon'", &["3:9: \"soon\" is not a valid time; use something like 30s, 5m, 4h or 5d"]),
        ("[retry]\nfirst = 0", &["3:9: \"0\": must be more than zero"]),
        ("[delivery]\noverall = -1", &["3:11: \"-1\" is not a number from 1"]),
        ("[dns]\nservers = ['localhost']", &["3:12: \"localhost\" is not a valid address"]),
        ("[tls]\nkey = 'key.pem'", &["2:1: TLS requires both: cert = "]),
        ("[tls]\nkey = 'gone'\ncert = 'certificate.pem'", &["3:7: cannot read /etc/relay/gone: "]),
        (
            "[tls]\nkey = 'certificate.pem'\ncert = 'certificate.pem'",
            &["3:7: /etc/relay/certificate.pem: no private key in PEM form"],
        ),
        ("[tls]\nkey = 'key.pem'\ncert = 'users'", &["4:8: /etc/relay/users: no certificate in PEM form"]),
        ("[tls]\nkey = ''\ncert = 'certificate.pem'", &["2:1: TLS requires both", "3:7: key is empty"]),
        ("[auth]", &["2:1: no users; write users = "]),
        ("[auth]\nusers = 'mailboxes'", &["3:9: /etc/relay/mailboxes:2: must have the form name:password"]),
        ("listen = '192.168.0.1:25'\n[auth]\nusers = 'users'", &["3:1: passwords would cross the network unencrypted"]),
        ("a = ", &["2:5: not valid TOML: "]),
        ("a = \nb = [\n", &["2:5: not valid TOML: ", "3:6: not valid TOML: unclosed array"]),
        ("workers = 1\nworkers = 2", &["3:1: not valid TOML: duplicate key"]),
    ];

    #[test]
    fn a_table_of_complaints_with_their_lines_and_columns() {
        check(MISTAKES);
    }

    #[test]
    fn a_table_of_complaints_of_routes() {
        check(&[
            ("[[route]]\nsmtp = 'a:25'", &["2:1: the route has no domains; write to = "]),
            ("[[route]]\nto = '*'", &["2:1: the route has no destination; write one of smtp = "]),
            ("[route]\nto = '*'", &["2:1: route is a list of tables; write [[route]]"]),
            ("[[route]]\nto = 'a b'\nmx = true", &["3:6: \"a b\" is not a valid domain; use something like"]),
            (
                "[[route]]\nto = '*'\nfrom = 'ann'\nmx = true",
                &["4:8: \"ann\" is not a valid sender; use something like"],
            ),
            ("[[route]]\nto = '*'\nmx = true\ndiscard = true", &["5:1: a route has only one destination"]),
            ("[[route]]\nto = '*'\nmx = false", &["4:1: mx = false has no effect; remove it"]),
            ("[[route]]\nto = '*'\nsmtp = []", &["4:1: smtp has no host"]),
            (
                "[[route]]\nto = '*'\nsmtp = ['a:25', 'b:0', '[x]:25', 'c:25:25', '[::1]25']",
                &[
                    "4:17: \"b:0\" is not a valid host",
                    "4:24: \"[x]:25\" is not a valid host",
                    "4:34: \"c:25:25\" is not a valid host",
                    "4:45: \"[::1]25\" is not a valid host",
                ],
            ),
            ("[[route]]\nto = '*'\nsmtp = '8.8.8.8'", &["4:8: 8.8.8.8 is a public address; write allow_public"]),
            ("[[route]]\nto = '*'\nlmtp = '8.8.8.8:24'", &["4:8: 8.8.8.8 is a public address"]),
            ("[[route]]\nto = '*'\nsmtp = 'a'\nport = 25", &["5:1: port is only for mx = true"]),
            ("[[route]]\nto = '*'\nmx = true\nport = 70000", &["5:8: \"70000\" is not a port"]),
            (
                "[[route]]\nto = '*'\ndiscard = true\ntls = 'none'\nconnections = 3",
                &["5:1: tls is only for smtp and mx; remove it", "6:1: connections is only for"],
            ),
            ("[[route]]\nto = '*'\nmaildir = '/m/{who}'", &["4:11: \"/m/{who}\": {who} is unknown"]),
            (
                "[[route]]\nto = '*'\nmx = true\n[[route]]\nto = 'a.example'\ndiscard = true",
                &["6:1: route 1 matches all mail to * before this one; put this one first"],
            ),
            (
                "[[route]]\nto = '*'\nmx = true\nrelay = 'x'",
                &["5:1: unknown key \"relay\" in route 1; known keys: from, to,"],
            ),
        ]);
    }

    #[test]
    fn a_table_of_complaints_of_tls_and_logins_of_routes() {
        check(&[
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\ntls = 'maybe'",
                &["5:7: \"maybe\" is not one of none, opportunistic, required"],
            ),
            ("[[route]]\nto = '*'\nsmtp = 'a'\ncacert = 'ca.pem'", &["5:10: cacert has no effect without tls = "]),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\ntls = 'required'\ncacert = 'users'",
                &["6:10: /etc/relay/users: no certificate in PEM"],
            ),
            ("[[route]]\nto = '*'\nsmtp = 'a'\ntls_name = 'x y'", &["5:12: \"x y\" is not a valid host name"]),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\ninsecure = true\ntls = 'opportunistic'",
                &["5:1: insecure has no effect without tls = "],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\ninsecure = true\ncacert = 'ca.pem'",
                &["6:10: cacert has no effect with insecure = true"],
            ),
            ("[[route]]\nto = '*'\ndiscard = true\ninsecure = true", &["5:1: insecure is only for smtp and mx"]),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\nauth_mechanism = 'gssapi'",
                &["6:18: \"gssapi\" is not one of plain, login, cram-md5, scram-sha-256, xoauth2"],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\nauth_mechanism = 'plain'",
                &["5:1: auth_mechanism requires a user; add user"],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\npassword = 'p'",
                &["6:1: a password must not be in this file: use password_file, or set MAILRUN_PASSWORD"],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\npassword_env = 'GONE'",
                &["6:1: \"password_env\" is no longer a key: use password_file, or set MAILRUN_PASSWORD"],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\npassword_file = 'latin1'",
                &["6:17: /etc/relay/latin1 is not UTF-8"],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\npassword_file = 'password'",
                &["5:17: a password requires a user; add user"],
            ),
            (
                "[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\ntls = 'none'",
                &["6:1: the password would be sent unencrypted"],
            ),
        ]);
    }

    #[test]
    fn a_user_without_a_password_is_refused() {
        let text = "spool.directory = 's'\n[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'";
        let outside = ConfigEnvironment { read: &file, variable: &|_| None, ..outside() };
        let error = Config::parse(text, Path::new("r"), &outside).unwrap_err().to_string();
        let expected = "r:5:8: user requires a password: write password_file = \"FILE\", or set MAILRUN_PASSWORD";
        assert_eq!(error, expected);
        let NextHop::Smtp(smtp) = hop(&parse(text).unwrap(), "", "a@b.example") else { panic!("no SMTP") };
        assert_eq!(smtp.credentials.as_ref().unwrap().secret, "s3cret");
    }

    #[test]
    fn files_with_secrets_that_others_may_read_are_named() {
        let text = "spool.directory = 's'\nauth.users = 'users'\ntls = { cert = 'certificate.pem', key = 'key.pem' }\n\
            route = [{ to = '*', smtp = 'a', tls = 'required', cacert = 'ca.pem', user = 'u', password_file = 'password' }]\n";
        for (mode, is_warned) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            let outside = ConfigEnvironment { read: &file, mode: &|_| Some(mode), ..outside() };
            let config = Config::parse(text, Path::new("/etc/relay/relay.toml"), &outside).unwrap();
            let warnings = config.warnings();
            let named = |name: &str| {
                let text = format!("/etc/relay/{name} contains secrets, but others may read it (mode {mode:03o})");
                warnings.iter().any(|warning| warning.starts_with(&text))
            };
            for name in ["users", "key.pem", "password"] {
                assert_eq!(named(name), is_warned, "{mode:o} {name}: {warnings:?}");
            }
            assert_eq!(warnings.len(), if is_warned { 3 } else { 0 }, "{warnings:?}");
        }
    }

    #[test]
    fn insecure_requires_tls_and_verifies_nothing() {
        let text = "spool.directory = 's'\n[[route]]\nto = '*'\nsmtp = 'a'\ninsecure = true\n";
        for (tls, policy) in [
            ("", TlsPolicy::Required),
            ("tls = 'required'", TlsPolicy::Required),
            ("tls = 'implicit'", TlsPolicy::Implicit),
            ("user = 'u'\nauth_mechanism = 'Plain'", TlsPolicy::Required),
        ] {
            let config = parse(&format!("{text}{tls}")).unwrap();
            let NextHop::Smtp(smtp) = hop(&config, "", "a@b.example") else { panic!("no SMTP") };
            assert_eq!((smtp.security.policy, smtp.security.is_verified()), (policy, false), "{tls}");
            let warning = "smtp:a:25: insecure = true: the certificate is not verified";
            assert_eq!(config.warnings(), [warning], "{tls}");
        }
        let mx = text.replace("smtp = 'a'", "mx = true");
        assert_eq!(parse(&mx).unwrap().warnings(), ["mx: insecure = true: the certificate is not verified"]);
        assert!(parse("spool.directory = 's'").unwrap().warnings().is_empty());
    }

    #[test]
    fn a_table_of_complaints_of_local_domains() {
        check(&[
            ("[local]\ndomains = ['a.example', 'x y']\nlmtp = 'unix:/l'", &["3:25: \"x y\" is not a valid domain"]),
            ("[local]\ndomains = 'a.example'", &["3:11: mail to a.example has no destination; add maildir or lmtp"]),
            ("[local]\ndomains = 'a.example'\nusers = 'mailboxes'", &["3:11: mail to "]),
            (
                "[local]\ndomains = 'a.example'\nmaildir = '/m/{user}'",
                &["4:11: any address would create a directory; list the mailboxes"],
            ),
            (
                "[local]\ndomains = 'a.example'\nmaildir = '/m'\nlmtp = 'unix:/l'",
                &["5:1: mail can go to one place only"],
            ),
            (
                "[local]\ndomains = 'a.example'\nusers = 'nobody'\nmaildir = '/m/{user}'",
                &["2:1: a domain must have a postmaster (RFC 5321 §4.5.1); add"],
            ),
            (
                "[local]\ndomains = 'a.example'\naliases = 'gone'\nlmtp = 'unix:/l'",
                &["4:11: cannot read /etc/relay/gone"],
            ),
            (
                "[local]\ndomains = 'a.example'\naliases = 'loop'\nlmtp = 'unix:/l'",
                &["4:11: /etc/relay/loop:1:1: aliases form a loop: a → b → a"],
            ),
            (
                "[local]\ndomains = 'a.example'\naliases = 'two-mistakes'\nlmtp = 'unix:/l'",
                &["4:11: /etc/relay/two-mistakes:1:4: \"|x\"", "4:11: /etc/relay/two-mistakes:2:4: \"/y\""],
            ),
        ]);
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let text = "lsten = 1\nworkers = 0\n[limits]\nmax_hops = 1\nmax_sesions = 1\n[[route]]\nsmtp = 'x y'\n";
        let complaints = parse(text).unwrap_err();
        let places: Vec<_> = complaints.errors.iter().map(|complaint| (complaint.line, complaint.column)).collect();
        assert_eq!(places, [(1, 1), (1, 1), (2, 11), (4, 12), (5, 1), (6, 1), (7, 8)], "{complaints}");
    }

    #[test]
    fn a_spool_has_to_be_named() {
        for (text, expected) in [
            ("", "1:1: spool.directory is missing; write [spool]"),
            ("workers = 1\n[spool]\nmax_size = '1G'", "2:1: spool.directory is missing"),
            ("[spool]\ndirectory = 's'\nmax_size = '1k'", "3:12: \"1k\" is too small for a spool"),
            ("[spool]\ndirectory = 's'\ndurability = 'maybe'", "3:14: \"maybe\" is not one of sync, write, memory"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_or_no_text_is_said_so() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("relay.toml");
        assert!(Config::read(&path).unwrap_err().to_string().contains("relay.toml:1:1: it cannot be read: "));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(Config::read(&path).unwrap_err().to_string().contains("it is not UTF-8"));
        std::fs::write(&path, " ".repeat(MAX_CONFIG_BYTES + 1)).unwrap();
        assert!(Config::read(&path).unwrap_err().to_string().contains("it is longer than"));
    }

    #[test]
    fn files_may_begin_with_a_byte_order_mark_and_end_their_lines_in_crlf() {
        let read = |path: &Path| {
            let text = match path.file_name().and_then(|name| name.to_str()) {
                Some("users") => "ann:secret\r\nbob:other\r\n",
                Some("mailboxes") => "ann\r\npostmaster\r\n",
                Some("aliases") => "sales: ann\r\n",
                _ => return Err(io::ErrorKind::NotFound.into()),
            };
            Ok(["\u{feff}", text].concat().into_bytes())
        };
        let text = "spool.directory = 's'\nauth.users = 'users'\n[local]\ndomains = ['own.example']\n\
                    users = 'mailboxes'\naliases = 'aliases'\nmaildir = 'mail/{user}'\n";
        let outside = ConfigEnvironment { read: &read, ..outside() };
        let config = Config::parse(text, Path::new("/etc/relay/relay.toml"), &outside).unwrap();
        let proof = |name, password: &'static str| Auth {
            mechanism: Mechanism::Plain,
            name,
            proof: Proof::Shown(password.as_bytes()),
        };
        let users = config.users.clone().unwrap();
        assert!(users.verify(&proof("ann", "secret")) && users.verify(&proof("bob", "other")));
        for recipient in ["ann@own.example", "sales@own.example", "postmaster@own.example"] {
            assert!(routed(&config, "", recipient).is_ok(), "{recipient}");
        }
    }

    #[test]
    fn networks_that_are_everybody_together_are_refused() {
        let half_v4 = "2:1: together they are half of all IPv4 addresses or more: that would be an open relay";
        let half_v6 = "2:1: together they are half of all public IPv6 addresses or more";
        let translated = "2:1: together they are all IPv4 addresses behind a NAT64 translator";
        for (networks, complaint) in [
            ("'0.0.0.0/1', '128.0.0.0/1'", half_v4),
            ("'10.0.0.0/8', '64.0.0.0/2', '192.0.0.0/2'", half_v4),
            ("'0.0.0.0/2', '64.0.0.0/3', '96.0.0.0/3', '128.0.0.1/1'", half_v4),
            ("'2000::/3'", half_v6),
            ("'2000::/5', '2800::/5'", half_v6),
            ("'::/1', '8000::/1'", half_v6),
            ("'64:ff9b::/64'", translated),
        ] {
            let error = parse(&format!("spool.directory = 's'\nnetworks = [{networks}]")).unwrap_err().to_string();
            assert!(error.contains(complaint), "{networks}: {error}");
        }
        // Smaller networks must be accepted. The relay refuses only networks that are too large for a single owner.
        for networks in [
            "'0.0.0.0/2'",
            "'10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7', 'fe80::/10'",
            "'2001:db8::/16'",
        ] {
            assert!(parse(&format!("spool.directory = 's'\nnetworks = [{networks}]")).is_ok(), "{networks}");
        }
    }

    #[test]
    fn the_name_in_http_is_kept() {
        for (http, name) in [("localhost:8025", Some("localhost")), ("127.0.0.1:8025", None), ("[::1]:8025", None)] {
            let config = parse(&format!("spool.directory = 's'\nhttp = '{http}'")).unwrap();
            assert_eq!((config.http.is_some(), config.http_name.as_deref()), (true, name), "{http}");
        }
    }

    #[test]
    fn networks_and_logins_make_friends() {
        let config = parse("spool.directory = 's'\nnetworks = ['10.1.2.3/8', '2001:db8::1']").unwrap();
        for (address, expected) in [
            ("10.200.0.1", Access::Trusted),
            ("::ffff:10.0.0.1", Access::Trusted),
            ("2001:db8::1", Access::Trusted),
            ("127.0.0.1", Access::Untrusted),
            ("2001:db8::2", Access::Untrusted),
            ("11.0.0.1", Access::Untrusted),
            ("::10.0.0.1", Access::Untrusted),
        ] {
            assert_eq!(config.networks.access(remote(address), LoggedIn::No), expected, "{address}");
            assert_eq!(config.networks.access(remote(address), LoggedIn::Yes), Access::Trusted);
        }
        let own = parse("spool.directory = 's'").unwrap();
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(own.networks.access(remote(address), LoggedIn::No), Access::Trusted);
        }
        assert_eq!(own.networks.access(remote("10.0.0.1"), LoggedIn::No), Access::Untrusted);
    }

    #[test]
    fn flags_alone_make_a_relay() {
        let made = |to| Config::from_flags("127.0.0.1:0", to, Path::new("/s"), DeliveryScope::Local);
        for (to, expected) in [
            ("127.0.0.1:2526", "smtp:127.0.0.1:2526"),
            ("::1", "smtp:[::1]:25"),
            ("[::1]:2526", "smtp:[::1]:2526"),
            ("Sink.example", "smtp:sink.example:25"),
            ("lmtp:unix:/l", "lmtp:unix:/l"),
            ("lmtp:127.0.0.1:2400", "lmtp:127.0.0.1:2400"),
            ("lmtp://127.0.0.1", "lmtp:127.0.0.1:24"),
            ("smtp://127.0.0.1", "smtp:127.0.0.1:25"),
            ("smtps://mx.example", "smtp:mx.example:465"),
            ("discard", "discard"),
        ] {
            let config = made(to).unwrap();
            assert_eq!(hop(&config, "", "a@b.example").to_string(), expected);
        }
        for to in ["", "a b", "1.1.1.1:25", "lmtp:", "lmtp:a b", "x:y", "http://a", "smtp://"] {
            assert!(made(to).unwrap_err().starts_with("--to "), "{to}");
        }
        let NextHop::Smtp(smtps) = hop(&made("smtps://mx.example").unwrap(), "", "a@b.example") else {
            panic!("no SMTP")
        };
        assert!(smtps.security.is_verified());
        assert!(Config::from_flags("nowhere", "discard", Path::new("/s"), DeliveryScope::Local).is_err());
        assert!(Config::from_flags("127.0.0.1:0", "1.1.1.1", Path::new("/s"), DeliveryScope::Anywhere).is_ok());
    }

    #[test]
    fn a_password_makes_tls_required_but_near_by() {
        let text = "spool.directory = 's'\n[[route]]\nto = '*'\nsmtp = 'a.example'\nuser = 'u'";
        let config = parse(text).unwrap();
        let NextHop::Smtp(smtp) = hop(&config, "", "a@b.example") else { panic!("no SMTP") };
        assert!(smtp.security.is_verified() && matches!(&smtp.target, SmtpTarget::Hosts(hosts) if hosts.len() == 1));
        for near in ["127.0.0.1:25", "127.9.9.9", "[::1]:25", "::1", "::ffff:127.0.0.1"] {
            let near = text.replace("'a.example'", &format!("'{near}'\ntls = 'none'"));
            assert!(parse(&near).is_ok(), "{near}");
        }
        // Even a private network contains computers of other people, so the password must not be
        // sent over it unencrypted.
        for (far, tls) in [("10.0.0.1", "none"), ("192.168.1.1:587", "opportunistic"), ("[fd00::1]:25", "none")] {
            let far = text.replace("'a.example'", &format!("['127.0.0.1', '{far}']\ntls = '{tls}'"));
            let error = parse(&far).unwrap_err().to_string();
            assert!(error.contains("5:1: the password would be sent unencrypted"), "{error}");
        }
    }

    #[test]
    fn what_only_a_restart_changes_is_named() {
        let old = parse("spool.directory = 's'\nhttp = '127.0.0.1:8025'").unwrap();
        let rows: [(&str, &[&str]); 7] = [
            ("", &[]),
            ("workers = 3\nnetworks = '10.0.0.0/8'\nlisten = '127.0.0.1:1'", &["listen", "workers"]),
            ("allow_public = true", &[]),
            ("limits.max_hops = 200", &[]),
            ("limits.max_hops = 200\nlimits.max_sessions = 5000", &["limits"]),
            ("hostname = 'host.example'", &["hostname"]),
            ("delivery.overall = 999", &["delivery"]),
        ];
        for (text, keys) in rows {
            let new = parse(&format!("spool.directory = 's'\nhttp = '127.0.0.1:8025'\n{text}")).unwrap();
            assert_eq!(old.needs_restart(&new), keys, "{text}");
        }
        let renamed = parse("spool.directory = 's'\nhttp = 'localhost:8025'").unwrap();
        assert_eq!(old.needs_restart(&renamed), ["http"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_complained_of_within_it(text in "([a-z\\[\\]='\"{},.0-9\\n# ]|\\[\\[route\\]\\]\\n|to \
                                                                = '\\*'\\n|smtp = |\\[spool\\]\\n|directory \
                                                                = 's'\\n|é){0,24}") {
            crate::checks::config::check(text.as_bytes());
        }
    }
}
