//! Reads `[local]` and `[[route]]`: the domains whose mail is delivered here, and the next hops of
//! all other mail.
use super::section_reader::SectionReader;
use super::settings::DeliveryScope;
use super::values::{connection_limit, keyword};
use crate::own_addresses::OwnAddresses;
use crate::routing::aliases::{AliasContext, Aliases};
use crate::routing::{
    Access, CaFile, DomainPattern, Lmtp, LocalDomains, Mailbox, MaildirTemplate, Mx, NextHop, NextHopTls, Route,
    RouteIndex, RouteTarget, Router, SenderPattern, Smtp, SmtpTarget, TargetHost, TlsPolicy, is_domain,
};
use mailrun_net::Endpoint;
use mailrun_process::local_address::is_local_address;
use mailrun_process::toml_file::{ErrorCollector, Section};
use mailrun_process::users;
use mailrun_process::users::PASSWORD_VARIABLE;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::{Domain, Path as Address};
use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Port of SMTP between servers (RFC 5321 §4.5.4.2).
const SMTP_PORT: u16 = 25;
/// Port of SMTP with TLS before the greeting (RFC 8314 §3.3).
const SMTPS_PORT: u16 = 465;
/// Usual port of LMTP. RFC 2033 §5 names only port 25, and forbids it.
const LMTP_PORT: u16 = 24;
const MAX_ROUTES: usize = 100_000;

#[derive(Clone, Copy)]
pub(super) struct RouteReader<'a, 'o> {
    pub(super) reader: SectionReader<'a>,
    pub(super) delivery_scope: DeliveryScope,
    pub(super) own: &'o OwnAddresses,
}

pub(super) fn parse_next_hop(text: &str, reach: DeliveryScope, own: &OwnAddresses) -> Result<NextHop, String> {
    if text == "discard" {
        return Ok(NextHop::Discard);
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("smtp", text));
    if let Some(server) = text.strip_prefix("lmtp:") {
        let server = server.strip_prefix("//").unwrap_or(server);
        return lmtp_server(server, reach, own)
            .map(|endpoint| NextHop::Lmtp(Arc::new(Lmtp { endpoint, connections: None })));
    }
    let (policy, default_port) = match scheme {
        "smtp" => (TlsPolicy::default(), SMTP_PORT),
        "smtps" => (TlsPolicy::Implicit, SMTPS_PORT),
        _ => return Err(format!("{text:?} is not a next hop; write smtp://, smtps:// or lmtp://HOST[:PORT]")),
    };
    let to = SmtpTarget::Hosts(Box::new([host(rest, default_port, reach, own)?]));
    let security = NextHopTls { policy, ..NextHopTls::default() };
    Ok(NextHop::Smtp(Arc::new(Smtp { target: to, security, credentials: None, connections: None })))
}

impl<'a> RouteReader<'a, '_> {
    pub(super) fn router(self, root: &mut Section<'a>) -> Router {
        let sections = root.tables("route");
        if let Some(first_beyond) = sections.get(MAX_ROUTES) {
            self.errors().add(&first_beyond.span, format!("at most {MAX_ROUTES} routes are possible"));
        }
        let routes = self.routes(sections);
        let local = root.table("local");
        let span = local.as_ref().map_or(0..0, |section| section.span.clone());
        let (local, domains) = local.map_or_else(Default::default, |section| self.local(section, !routes.is_empty()));
        let router = Router::new(local, routes, RouteTarget::Mx(Mx::default()));
        self.check_local_domains(&router, &domains, &span);
        router
    }

    fn errors(&self) -> &'a ErrorCollector {
        self.reader.errors
    }

    fn routes(self, sections: Vec<Section<'a>>) -> Vec<Route> {
        let mut index = RouteIndex::default();
        let mut routes = Vec::new();
        for mut section in sections {
            let span = section.key("to").unwrap_or(section.span.clone());
            let route = self.route(&mut section);
            section.finish();
            let Some(route) = route else { continue };
            if let Some((domain, earlier)) = index.add(routes.len(), &route) {
                let earlier = earlier + 1;
                let message = format!(
                    "route {earlier} matches all mail to {domain} before this one; put this one first, or remove it"
                );
                self.errors().add(&span, message);
            }
            routes.push(route);
        }
        routes
    }

    fn route(self, section: &mut Section<'a>) -> Option<Route> {
        let from = section.values("from", "\"@example.com\"", SenderPattern::parse).unwrap_or_default();
        let has_to = section.key("to").is_some();
        let to = section.values("to", "\"example.com\"", DomainPattern::parse);
        let way = self.target(section);
        if to.as_ref().map_or(!has_to, Vec::is_empty) {
            let message = "the route has no domains; write to = \"example.com\", or to = \"*\" for all";
            self.errors().add(&section.span, message);
        }
        Some(Route { from, to: to?, target: way? })
    }

    /// Reads the target of a route: SMTP servers with their TLS policy and login, an LMTP server, a Maildir, or
    /// `discard`, which drops the mail.
    fn target(self, section: &mut Section<'a>) -> Option<RouteTarget> {
        self.check_keys(section);
        let hosts_at = section.key("smtp");
        let hosts = section.list("smtp", "\"HOST:PORT\"").zip(hosts_at).map(|(texts, span)| self.hosts(&span, texts));
        let mx = self.true_flag(section, "mx");
        let lmtp = section.value("lmtp", "\"unix:PATH\"", |text| lmtp_server(text, self.delivery_scope, self.own));
        let maildir = self.maildir(section);
        let discard = self.true_flag(section, "discard");
        let connections = section.value("connections", "20", connection_limit);
        let port = section.value("port", "25", port);
        let (security, credentials) = self.security(section, hosts.as_deref());
        if let Some(hosts) = hosts {
            let to = SmtpTarget::Hosts(hosts.into());
            return Some(RouteTarget::NextHop(NextHop::Smtp(Arc::new(Smtp {
                target: to,
                security,
                credentials,
                connections,
            }))));
        }
        let mx =
            mx.map(|()| RouteTarget::Mx(Mx { port: port.unwrap_or(SMTP_PORT), security, credentials, connections }));
        let lmtp = lmtp.map(|endpoint| RouteTarget::NextHop(NextHop::Lmtp(Arc::new(Lmtp { endpoint, connections }))));
        let maildir = maildir.map(|(_, template)| RouteTarget::Maildir(template));
        mx.or(lmtp).or(maildir).or(discard.map(|()| RouteTarget::NextHop(NextHop::Discard)))
    }

    /// Checks that exactly one key names the target, and that the other keys suit this target.
    fn check_keys(self, section: &Section<'a>) {
        const TARGET_KEYS: [&str; 5] = ["smtp", "mx", "lmtp", "maildir", "discard"];
        const SMTP_KEYS: [&str; 8] =
            ["tls", "cacert", "insecure", "tls_name", "user", "password", "password_file", "auth_mechanism"];
        let keys: Vec<&str> = TARGET_KEYS.into_iter().filter(|key| section.key(key).is_some()).collect();
        let [end] = keys[..] else {
            let (span, what) = match keys.last().and_then(|last| section.key(last)) {
                Some(span) => {
                    (span, "a route has only one destination; keep one of smtp, mx, lmtp, maildir and discard")
                }
                None => (
                    section.span.clone(),
                    "the route has no destination; write one of smtp = \"HOST:PORT\", mx = true, lmtp = \
                     \"HOST:PORT\", maildir = \"PATH\" and discard = true",
                ),
            };
            return self.errors().add(&span, what);
        };
        let misplaced = |key: &str, ends: &[&str], where_: &str| {
            if let Some(span) = section.key(key).filter(|_| !ends.contains(&end)) {
                self.errors().add(&span, format!("{key} is only for {where_}; remove it"));
            }
        };
        SMTP_KEYS.into_iter().for_each(|key| misplaced(key, &["smtp", "mx"], "smtp and mx"));
        misplaced("connections", &["smtp", "mx", "lmtp"], "smtp, mx and lmtp");
        misplaced("port", &["mx"], "mx = true (for smtp write HOST:PORT)");
    }

    /// Reads a flag whose only permitted value is `true`, and returns `None` if the flag is missing. The value `false`
    /// is reported as a mistake, because it has no effect.
    fn true_flag(self, section: &mut Section<'a>, key: &'static str) -> Option<()> {
        let span = section.key(key)?;
        match section.flag(key) {
            Some(false) => {
                self.errors().add(&span, format!("{key} = false has no effect; remove it"));
                None
            }
            other => other.map(drop),
        }
    }

    fn hosts(self, span: &Range<usize>, texts: Vec<(Range<usize>, String)>) -> Vec<TargetHost> {
        if texts.is_empty() {
            self.errors().add(span, "smtp has no host; write smtp = \"HOST:PORT\"");
        }
        texts
            .into_iter()
            .filter_map(|(span, text)| {
                self.errors().ok_or_add(&span, host(&text, SMTP_PORT, self.delivery_scope, self.own))
            })
            .collect()
    }

    fn maildir(self, section: &mut Section<'a>) -> Option<(Range<usize>, MaildirTemplate)> {
        let (span, text) = section.text("maildir", "\"/var/mail/{domain}/{user}\"")?;
        let template = self.errors().ok_or_add(&span, MaildirTemplate::parse(&text))?;
        Some((span, template.below(self.reader.base_directory)))
    }

    /// Reads the TLS policy and the login of a next hop. Reports an error if the password might be sent unencrypted,
    /// unless all servers of the next hop have loopback addresses.
    fn security(self, section: &mut Section<'a>, hosts: Option<&[TargetHost]>) -> (NextHopTls, Option<Credentials>) {
        let user_at = section.key("user");
        let credentials = self.credentials(section);
        let tls_at = section.key("tls");
        // A password must not be sent unencrypted, so a next hop with a login requires TLS by
        // default.
        let default = if user_at.is_some() { TlsPolicy::Required } else { TlsPolicy::Opportunistic };
        let insecure_at = section.key("insecure");
        let insecure = section.flag("insecure").unwrap_or_default();
        let default = if insecure { TlsPolicy::Required } else { default };
        let policy = section.value("tls", "\"required\"", |text| keyword(&TlsPolicy::ALL, text)).unwrap_or(default);
        if let (Some(span), true, false) = (insecure_at, insecure, policy.is_required()) {
            let message = "insecure has no effect without tls = \"required\" or \"implicit\"; remove it, or change tls";
            self.errors().add(&span, message);
        }
        let is_near =
            |host: &TargetHost| host.name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let are_near = hosts.is_some_and(|hosts| hosts.iter().all(is_near));
        if let (Some(span), Some(_)) = (&tls_at, &credentials)
            && !policy.is_required()
            && !are_near
        {
            self.errors().add(span, "the password would be sent unencrypted; write tls = \"required\" or \"implicit\"");
        }
        let security = NextHopTls { policy, insecure, ca_file: None, server_name: None };
        let cacert = self.reader.path(section, "cacert");
        let authority = cacert.and_then(|(span, path)| self.authority(&span, &path, &security));
        let name = section.value("tls_name", "\"mail.example.com\"", |text| match is_domain(text) {
            true => Ok((*Domain::new(text)).into()),
            false => Err(format!("{text:?} is not a valid host name; use something like mail.example.com")),
        });
        (NextHopTls { ca_file: authority, server_name: name, ..security }, credentials)
    }

    fn authority(self, span: &Range<usize>, path: &Path, security: &NextHopTls) -> Option<Arc<CaFile>> {
        if security.insecure {
            self.errors().add(span, "cacert has no effect with insecure = true; remove one of them");
            return None;
        }
        if !security.is_verified() {
            let message = "cacert has no effect without tls = \"required\" or \"implicit\"; add one, or remove cacert";
            self.errors().add(span, message);
            return None;
        }
        let pem = self.reader.file(span, path)?;
        let authority = Arc::new(CaFile { path: path.to_owned(), pem });
        let security = NextHopTls { ca_file: Some(Arc::clone(&authority)), ..security.clone() };
        // Load the certificates with an arbitrary host name, so that unusable ones are reported
        // with the configuration instead of at the first delivery.
        let usable = security.client("localhost").map_err(|error| format!("{}: {error}", path.display()));
        self.errors().ok_or_add(span, usable).map(|_| authority)
    }

    /// Reads the user and the password for a next hop. The password comes from a file or from the
    /// environment.
    fn credentials(self, section: &mut Section<'a>) -> Option<Credentials> {
        let misplaced = self.reject_password(section);
        let file = self.reader.path(section, "password_file");
        let mechanism_at = section.key("auth_mechanism");
        let mechanism = section.value("auth_mechanism", "\"plain\"", |name| {
            name.parse::<Mechanism>().map_err(|unknown| unknown.to_string())
        });
        let Some((user_at, user)) = section.text("user", "\"NAME\"") else {
            let keys = [file.map(|(span, _)| (span, "a password")), mechanism_at.map(|span| (span, "auth_mechanism"))];
            for (span, what) in keys.into_iter().flatten() {
                self.errors().add(&span, format!("{what} requires a user; add user = \"NAME\""));
            }
            return None;
        };
        // An error about the misplaced password has been reported. Do not report a missing password as well.
        if misplaced {
            return None;
        }
        let password = match file {
            Some((span, path)) => users::first_line(&self.reader.secret_text(&span, &path)?).to_owned(),
            None => {
                let set = (self.reader.environment.variable)(PASSWORD_VARIABLE).ok_or_else(|| {
                    format!("user requires a password: write password_file = \"FILE\", or set {PASSWORD_VARIABLE}")
                });
                self.errors().ok_or_add(&user_at, set)?
            }
        };
        let credentials = Credentials::new(&user, &password);
        Some(match mechanism {
            Some(mechanism) => credentials.by(Mechanisms::NONE.with(mechanism)),
            None => credentials,
        })
    }

    /// Reports the key `password` and the former key `password_env` as mistakes. Returns true if
    /// the section contains one of these keys.
    fn reject_password(self, section: &mut Section<'a>) -> bool {
        let in_file = format!("a password must not be in this file: use password_file, or set {PASSWORD_VARIABLE}");
        let variable = format!("\"password_env\" is no longer a key: use password_file, or set {PASSWORD_VARIABLE}");
        let mut is_misplaced = false;
        for (key, what) in [("password", in_file), ("password_env", variable)] {
            if let Some(span) = section.key(key) {
                let _ = section.text(key, "\"\"");
                self.errors().add(&span, what);
                is_misplaced = true;
            }
        }
        is_misplaced
    }

    /// Reads `[local]`, the section about the relay's own domains. Also returns these domains with their positions in
    /// the file, so that the caller can report domains without a destination after it has read the routes.
    fn local(self, mut section: Section<'a>, has_routes: bool) -> (LocalDomains, Vec<(Range<usize>, String)>) {
        let domains = section.list("domains", "[\"example.com\"]").unwrap_or_default();
        for (span, domain) in &domains {
            if !is_domain(domain) {
                self.errors().add(span, format!("{domain:?} is not a valid domain; use something like example.com"));
            }
        }
        let normalized = |(_, domain): &(Range<usize>, String)| Domain::new(domain).into_owned();
        let mut local = LocalDomains { domains: domains.iter().map(normalized).collect(), ..LocalDomains::default() };
        local.primary_domain = domains.first().map(normalized);
        let users_at = self.reader.path(&mut section, "users");
        local.users = users_at.and_then(|(span, path)| self.reader.text(&span, &path)).map(|text| mailbox_names(&text));
        local.mailbox = self.mailbox(&mut section, local.users.is_some());
        if let Some((span, path)) = self.reader.path(&mut section, "aliases") {
            local.aliases = self.aliases(&span, &path, &local, has_routes);
        }
        section.finish();
        (local, domains)
    }

    fn mailbox(self, section: &mut Section<'a>, has_users: bool) -> Option<Mailbox> {
        let lmtp_at = section.key("lmtp");
        let lmtp = section.value("lmtp", "\"unix:PATH\"", |text| lmtp_server(text, self.delivery_scope, self.own));
        let lmtp = lmtp.map(|endpoint| Mailbox::NextHop(NextHop::Lmtp(Arc::new(Lmtp { endpoint, connections: None }))));
        let Some((span, template)) = self.maildir(section) else { return lmtp };
        if template.names_users() && !has_users {
            self.errors()
                .add(&span, "any address would create a directory; list the mailboxes: users = \"FILE\", one per line");
        }
        if let Some(span) = lmtp_at {
            self.errors().add(&span, "mail can go to one place only; remove lmtp or maildir");
        }
        Some(Mailbox::Maildir(template))
    }

    fn aliases(self, span: &Range<usize>, path: &Path, local: &LocalDomains, has_routes: bool) -> Aliases {
        let Some(text) = self.reader.text(span, path) else { return Aliases::default() };
        let has_place = local.mailbox.is_some() || has_routes;
        let is_user = |name: &str| local.users.as_ref().map_or(has_place, |users| users.contains(name));
        let around = AliasContext { is_local: &|domain| local.contains(domain), is_user: &is_user };
        Aliases::parse(&text, &around).unwrap_or_else(|mistakes| {
            mistakes.iter().for_each(|mistake| self.errors().add(span, format!("{}:{mistake}", path.display())));
            Aliases::default()
        })
    }

    /// Checks that mail for each local domain has a destination, and that mail for the postmaster is deliverable (RFC
    /// 5321 §4.5.1).
    fn check_local_domains(self, router: &Router, domains: &[(Range<usize>, String)], span: &Range<usize>) {
        let nobody = Address::mailbox(b"").expect("the null path is a path");
        let reaches = |address: &str| {
            let address = Address::mailbox(address.as_bytes());
            address.is_ok_and(|address| router.route(Access::Untrusted, &nobody, &address).is_ok())
        };
        for (at, domain) in domains.iter().filter(|(_, domain)| is_domain(domain)) {
            if !router.has_route_for(&Domain::new(domain)) {
                let message = format!(
                    "mail to {domain} has no destination; add maildir or lmtp to [local], or a route with to = \
                     \"{domain}\""
                );
                self.errors().add(at, message);
            }
        }
        if self.errors().is_empty() && !domains.is_empty() && !reaches("postmaster") {
            let message =
                "a domain must have a postmaster (RFC 5321 §4.5.1); add postmaster: NAME to aliases, or to users";
            self.errors().add(span, message);
        }
    }
}

/// Parses a list of mailbox names, one per line. A password after a colon is ignored, so that a
/// file of users and passwords can be used as well.
fn mailbox_names(text: &str) -> HashSet<Box<str>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(':').next().unwrap_or_default().trim().to_lowercase().into()).collect()
}

/// Parses `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
fn host(text: &str, default_port: u16, reach: DeliveryScope, own: &OwnAddresses) -> Result<TargetHost, String> {
    let error = || format!("{text:?} is not a valid host; use something like mail.example.com:25 or [::1]:25");
    let (name, port) = Endpoint::split_port(text).ok_or_else(error)?;
    let may_be_name = !text.starts_with('[') && is_domain(name);
    if name.parse::<IpAddr>().is_err() && !may_be_name {
        return Err(error());
    }
    let port = port.map_or(Ok(default_port), self::port).map_err(|_| error())?;
    name.parse().map_or(Ok(()), |address| check_scope(address, reach))?;
    let name = Domain::new(name);
    if own.contains_host(&name, port) {
        return Err(own_address(text));
    }
    Ok(TargetHost { name: (*name).into(), port })
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{text:?} is not a port; ports are 1 to 65535")),
    }
}

fn own_address(text: &str) -> String {
    format!("{text} is an address of this relay, and mail would go in circles; write the address of another server")
}

fn lmtp_server(text: &str, reach: DeliveryScope, own: &OwnAddresses) -> Result<Endpoint, String> {
    let endpoint = match text.starts_with("unix:") {
        true => Endpoint::resolve(text),
        false => Endpoint::resolve(&host(text, LMTP_PORT, DeliveryScope::Anywhere, own)?.to_string()),
    };
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    endpoint.ip().map_or(Ok(()), |address| check_scope(address, reach))?;
    if own.contains(&endpoint) { Err(own_address(text)) } else { Ok(endpoint) }
}

fn check_scope(address: IpAddr, reach: DeliveryScope) -> Result<(), String> {
    if reach == DeliveryScope::Anywhere || is_local_address(address) {
        return Ok(());
    }
    Err(format!("{address} is a public address; write allow_public = true at the top, or use --allow-public"))
}
