//! Decides who may send to whom, and finds the next hop of each recipient. It does no I/O.
//!
//! ```text
//! recipient ─ local domain? ─ yes ─▶ alias? ─▶ mailbox? ─▶ Maildir, LMTP or a route
//!                  │ no                            └─ no ─▶ 550 5.1.1
//!                  ▼
//!            trusted client? ─ no ─▶ 554 5.7.1
//!                  │ yes
//!                  ▼
//!            the first route that fits sender and domain, else the domain's MX
//! ```
//! A client is trusted if the configuration lists its address in `networks`, or if it has logged in. If an address
//! contains more than one `@`, only the text after the last one is its domain. The SMTP parser has already removed
//! source routes (RFC 5321 §3.6.1). Untrusted clients may not use local parts that look like routes
//! (`user%elsewhere@local`, `elsewhere!user@local`, `"user@elsewhere"@local`), because the next server trusts this
//! relay and might follow them.
pub(crate) mod aliases;
mod next_hop;
mod template;

use aliases::{AliasTarget, Aliases, normalize_local_part};
use mailrun_smtp::sasl::Credentials;
use mailrun_smtp::{Domain, Path, Reply};
pub(crate) use next_hop::{CaFile, Lmtp, NextHop, NextHopTls, Smtp, SmtpTarget, TargetHost, TlsPolicy};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
pub(crate) use template::MaildirTemplate;

/// Tells whether a client may send mail to any domain, or only to local domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The configuration lists the client's address in `networks`, or the client has logged in.
    Trusted,
    Untrusted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedRoute {
    /// The mail goes to this next hop, with the original address.
    Direct(NextHop),
    /// The recipient is an alias. One or more addresses replace it, each with its next hop.
    Alias(Vec<(Box<str>, NextHop)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteError {
    UnknownUser,
    RelayingDenied,
}

impl RouteError {
    pub(crate) fn reply(self) -> &'static Reply {
        static UNKNOWN: Reply = Reply::fixed("550 5.1.1 No such user here\r\n");
        static DENIED: Reply = Reply::fixed("554 5.7.1 Relaying denied\r\n");
        match self {
            Self::UnknownUser => &UNKNOWN,
            Self::RelayingDenied => &DENIED,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route {
    /// Senders to which the route applies. An empty list means all senders.
    pub(crate) from: Vec<SenderPattern>,
    pub(crate) to: Vec<DomainPattern>,
    pub(crate) target: RouteTarget,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RouteTarget {
    NextHop(NextHop),
    Maildir(MaildirTemplate),
    Mx(Mx),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mx {
    pub(crate) port: u16,
    pub(crate) security: NextHopTls,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) connections: Option<u32>,
}

impl Default for Mx {
    fn default() -> Self {
        Self { port: 25, security: NextHopTls::default(), credentials: None, connections: None }
    }
}

/// A pattern for senders: an address, all addresses of a domain, or the null sender. It is in lower case, and its
/// domain is in the normal form of [`Domain`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SenderPattern(Box<str>);

impl SenderPattern {
    /// Parses `ann@example.com`, `@example.com` or `<>`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let error =
            || format!("{text:?} is not a valid sender; use something like ann@example.com, @example.com or <>");
        if text == "<>" {
            return Ok(Self("".into()));
        }
        let whole = if text.starts_with('@') { format!("x{text}") } else { text.to_owned() };
        let path = Path::mailbox(whole.as_bytes()).map_err(|_| error())?;
        let domain = Domain::new(path.domain().ok_or_else(error)?);
        let local_part = text.rsplit_once('@').map_or("", |(local_part, _)| local_part).to_lowercase();
        Ok(Self(format!("{local_part}@{domain}").into()))
    }
}

/// A pattern for domains: a single domain, all domains below it (with a leading dot), or all domains (`*`). It is in
/// the normal form of [`Domain`], so that patterns and domains can be compared as texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainPattern(Box<str>);

impl DomainPattern {
    pub(crate) fn any() -> Self {
        Self("*".into())
    }

    /// Parses `example.com`, `.example.com` (all domains below it, but not the domain itself), `[192.0.2.1]` or `*`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (dot, domain) = text.strip_prefix('.').map_or(("", text), |domain| (".", domain));
        if text != "*" && !is_domain(domain) {
            return Err(format!("{text:?} is not a valid domain; use something like example.com, .example.com or *"));
        }
        Ok(Self(format!("{dot}{}", Domain::new(domain)).into()))
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if the text may follow the `@` of an address: a valid domain, or an address literal.
pub(crate) fn is_domain(text: &str) -> bool {
    let address = format!("x@{text}");
    Path::mailbox(address.as_bytes()).is_ok_and(|path| path.domain() == Some(text.as_bytes()))
}

#[derive(Debug, Default)]
pub(crate) struct LocalDomains {
    pub(crate) domains: HashSet<Domain<'static>>,
    /// The first of the local domains. Mail to `Postmaster` without a domain goes to the postmaster of this domain.
    pub(crate) primary_domain: Option<Domain<'static>>,
    pub(crate) aliases: Aliases,
    /// Names of the mailboxes in lower case, or `None` if the next hop decides which mailboxes exist.
    pub(crate) users: Option<HashSet<Box<str>>>,
    pub(crate) mailbox: Option<Mailbox>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mailbox {
    Maildir(MaildirTemplate),
    NextHop(NextHop),
}

impl LocalDomains {
    pub(crate) fn contains(&self, domain: &Domain<'_>) -> bool {
        self.domains.contains(&**domain)
    }

    fn has_user(&self, name: &str) -> bool {
        self.users.as_ref().is_none_or(|users| users.contains(name))
    }
}

/// All routes, with an index by sender and domain. A clone only increments a reference count.
#[derive(Clone, Debug)]
pub struct Router(Arc<RoutingTable>);

#[derive(Debug)]
struct RoutingTable {
    local: LocalDomains,
    targets: Vec<RouteTarget>,
    index: RouteIndex,
    fallback: RouteTarget,
}

type DomainIndex = HashMap<Box<str>, usize, foldhash::fast::RandomState>;

#[derive(Debug, Default)]
pub(crate) struct RouteIndex {
    any_sender: DomainIndex,
    senders: HashMap<Box<str>, DomainIndex>,
}

impl RouteIndex {
    /// Adds a route. `number` is its position in the configuration, and earlier routes take precedence. If an earlier
    /// route has the same domain pattern for the same sender, or applies to all mail, returns this pattern and the
    /// number of the earlier route. The new route then never gets such mail.
    pub(crate) fn add(&mut self, number: usize, route: &Route) -> Option<(DomainPattern, usize)> {
        let mut shadow = None;
        let mut add = |domains: &mut DomainIndex, domain: &DomainPattern| {
            let earlier = *domains.entry(domain.0.clone()).or_insert(number);
            if earlier != number {
                shadow.get_or_insert_with(|| (domain.clone(), earlier));
            }
        };
        for domain in &route.to {
            if route.from.is_empty() {
                add(&mut self.any_sender, domain);
            }
            route.from.iter().for_each(|from| add(self.senders.entry(from.0.clone()).or_default(), domain));
        }
        let everything = self.any_sender.get("*").filter(|earlier| **earlier < number);
        shadow.or_else(|| everything.map(|earlier| (DomainPattern::any(), *earlier)))
    }

    fn first_match(&self, sender: &Path<'_>, domain: &str, fit: PatternScope) -> Option<usize> {
        let first = first_route_for(&self.any_sender, domain, fit);
        if self.senders.is_empty() {
            return first;
        }
        let local_part = String::from_utf8_lossy(sender.local_part()).to_lowercase();
        let of_domain = sender.domain().map(|domain| format!("@{}", Domain::new(domain))).unwrap_or_default();
        let keys = [local_part + &of_domain, of_domain];
        let positions = keys.iter().filter_map(|key| first_route_for(self.senders.get(&**key)?, domain, fit));
        positions.chain(first).min()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PatternScope {
    /// Only patterns that name the domain or a parent domain match. The pattern `*` does not match.
    Named,
    Any,
}

/// Returns the number of the matching route that comes first in the configuration. A route matches if it is for the
/// domain itself, for a parent domain (with a leading dot) or, if `fit` is `Any`, for all domains (`*`).
fn first_route_for(domains: &DomainIndex, domain: &str, fit: PatternScope) -> Option<usize> {
    let is_literal = domain.starts_with('[');
    let dots = domain.match_indices('.').filter(|_| !is_literal);
    let above = dots.map(|(at, _)| &domain[at..]);
    let all = (fit == PatternScope::Any).then_some("*");
    std::iter::once(domain).chain(above).chain(all).filter_map(|key| domains.get(key)).min().copied()
}

impl Router {
    /// Returns the first local domain, if there is one. The relay uses this domain in addresses of its own, such as the
    /// address of the postmaster.
    pub(crate) fn primary_domain(&self) -> Option<&str> {
        self.0.local.primary_domain.as_deref()
    }

    /// Creates a router that sends mail without a matching route to `otherwise`.
    pub(crate) fn new(local: LocalDomains, routes: Vec<Route>, otherwise: RouteTarget) -> Self {
        let mut index = RouteIndex::default();
        routes.iter().enumerate().for_each(|(number, route)| drop(index.add(number, route)));
        let ways = routes.into_iter().map(|route| route.target).collect();
        Self(Arc::new(RoutingTable { local, targets: ways, index, fallback: otherwise }))
    }

    /// Returns the next hop of mail to a recipient. If the recipient is an alias, returns the addresses that replace
    /// it, with their next hops.
    ///
    /// # Errors
    /// Fails if the recipient is unknown, or if the client may not send to it.
    pub(crate) fn route(
        &self,
        access: Access,
        sender: &Path<'_>,
        recipient: &Path<'_>,
    ) -> Result<ResolvedRoute, RouteError> {
        let table = &*self.0;
        let local_part = str::from_utf8(recipient.local_part()).map_err(|_| RouteError::UnknownUser)?;
        let Some(domain) = recipient.domain() else {
            return if recipient.is_null() {
                Err(RouteError::UnknownUser)
            } else {
                table.route_postmaster(access, sender)
            };
        };
        let domain = Domain::new(domain);
        if table.local.contains(&domain) {
            if access == Access::Untrusted && has_embedded_route(local_part) {
                return Err(RouteError::RelayingDenied);
            }
            return table.route_local(sender, local_part, &domain);
        }
        match access {
            Access::Untrusted => Err(RouteError::RelayingDenied),
            Access::Trusted => table.route_remote(sender, local_part, &domain).map(ResolvedRoute::Direct),
        }
    }

    /// Routes mail that a former run of the relay has accepted, with the present configuration. That run has already
    /// followed aliases. Mail for the mailbox `ann` therefore still goes only there, even if the alias
    /// `ann: ann, keeper` has been added since. If the mailbox no longer exists, but an alias of its name does, the
    /// mail goes to all targets of the alias.
    ///
    /// # Errors
    /// Fails if there is no longer a route for the recipient.
    pub(crate) fn reroute(&self, sender: &Path<'_>, recipient: &Path<'_>) -> Result<ResolvedRoute, RouteError> {
        let routed = self.route(Access::Trusted, sender, recipient);
        if matches!(routed, Ok(ResolvedRoute::Direct(_))) {
            return routed;
        }
        self.0.own_mailbox(sender, recipient).map_or(routed, |next_hop| Ok(ResolvedRoute::Direct(next_hop)))
    }

    /// Returns an address in the form in which addresses are compared. In its own domains, this relay ignores the
    /// letter case of local parts. In other domains it does not, because other servers may distinguish upper and lower
    /// case (RFC 5321 §2.4).
    pub(crate) fn compared(&self, address: &Path<'_>) -> String {
        let local_part = String::from_utf8_lossy(address.local_part());
        match address.domain().map(Domain::new).or_else(|| self.0.local.primary_domain.clone()) {
            Some(domain) if self.0.local.contains(&domain) => format!("{}@{domain}", normalize_local_part(&local_part)),
            Some(domain) => format!("{local_part}@{domain}"),
            None => local_part.to_lowercase(),
        }
    }

    /// Returns true if mail to a local domain can be delivered. This needs mailboxes, a route that names the domain, or
    /// aliases. Aliases are enough only if the configuration lists no users, because mail to a listed user needs a
    /// mailbox.
    pub(crate) fn has_route_for(&self, domain: &str) -> bool {
        let RoutingTable { local, index, .. } = &*self.0;
        let nobody = Path::mailbox(b"").expect("the null path is a path");
        let only_aliases = local.users.is_none() && local.aliases.len() > 0;
        local.mailbox.is_some() || index.first_match(&nobody, domain, PatternScope::Named).is_some() || only_aliases
    }

    /// Returns the next hops whose certificate is not verified although TLS is required. The relay
    /// logs a warning about each of them.
    pub(crate) fn insecure_hops(&self) -> impl Iterator<Item = String> {
        self.0.targets.iter().filter_map(|way| match way {
            RouteTarget::NextHop(NextHop::Smtp(smtp)) if smtp.security.insecure => Some(smtp.target.to_string()),
            RouteTarget::Mx(mx) if mx.security.insecure => Some("mx".to_owned()),
            _ => None,
        })
    }

    pub(crate) fn securities(&self) -> impl Iterator<Item = &NextHopTls> {
        self.0.targets.iter().chain([&self.0.fallback]).filter_map(|target| match target {
            RouteTarget::NextHop(NextHop::Smtp(smtp)) => Some(&smtp.security),
            RouteTarget::Mx(mx) => Some(&mx.security),
            _ => None,
        })
    }

    pub fn aliases(&self) -> usize {
        self.0.local.aliases.len()
    }
}

/// Returns true if a local part contains `@`, `%` (the percent hack) or `!` (a bang path). Such a local part could make
/// the next server relay the mail to another host.
fn has_embedded_route(local_part: &str) -> bool {
    local_part.contains(['@', '%', '!'])
}

impl RoutingTable {
    fn route_local(
        &self,
        sender: &Path<'_>,
        local_part: &str,
        domain: &Domain<'_>,
    ) -> Result<ResolvedRoute, RouteError> {
        let Some(meant) = self.local.aliases.expand(local_part, domain) else {
            return self.mailbox(sender, local_part, domain).map(ResolvedRoute::Direct);
        };
        let mut instead = Vec::with_capacity(meant.len());
        for one in meant {
            let (address, next_hop) = match one {
                AliasTarget::Discard => continue,
                AliasTarget::Mailbox { local_part, domain } => {
                    (format!("{local_part}@{domain}").into(), self.mailbox(sender, &local_part, &domain)?)
                }
                AliasTarget::Remote(address) => {
                    let next_hop = self.route_address(sender, &address)?;
                    (address, next_hop)
                }
            };
            instead.push((address, next_hop));
        }
        Ok(if instead.is_empty() { ResolvedRoute::Direct(NextHop::Discard) } else { ResolvedRoute::Alias(instead) })
    }

    /// Returns the next hop of a remote target of an alias. Does not check whether the client is trusted, because an
    /// alias may send mail to any domain.
    fn route_address(&self, sender: &Path<'_>, address: &str) -> Result<NextHop, RouteError> {
        let path = Path::mailbox(address.as_bytes()).map_err(|_| RouteError::UnknownUser)?;
        let domain = path.domain().map(Domain::new).ok_or(RouteError::UnknownUser)?;
        self.route_remote(sender, &String::from_utf8_lossy(path.local_part()), &domain)
    }

    fn mailbox(&self, sender: &Path<'_>, local_part: &str, domain: &str) -> Result<NextHop, RouteError> {
        let name = normalize_local_part(local_part);
        if !self.local.has_user(&name) {
            return Err(RouteError::UnknownUser);
        }
        match &self.local.mailbox {
            Some(Mailbox::NextHop(next_hop)) => Ok(next_hop.clone()),
            Some(Mailbox::Maildir(template)) => maildir(template, &name, domain),
            // Use only a route that names the domain. A route for all domains (`*`) usually leads to a smarthost. The
            // smarthost would look up the MX of this local domain, find this relay, and send the mail back.
            None => match self.index.first_match(sender, domain, PatternScope::Named) {
                Some(number) => resolve_target(&self.targets[number], local_part, domain),
                None => Err(RouteError::UnknownUser),
            },
        }
    }

    /// Returns the next hop of the mailbox that an address names, without following aliases. `Postmaster` without a
    /// domain belongs to the first local domain.
    fn own_mailbox(&self, sender: &Path<'_>, recipient: &Path<'_>) -> Option<NextHop> {
        let local_part = str::from_utf8(recipient.local_part()).ok()?;
        let domain = recipient.domain().map(Domain::new).or_else(|| self.local.primary_domain.clone())?;
        self.local.contains(&domain).then(|| self.mailbox(sender, local_part, &domain).ok())?
    }

    fn route_remote(&self, sender: &Path<'_>, local_part: &str, domain: &str) -> Result<NextHop, RouteError> {
        let way = self
            .index
            .first_match(sender, domain, PatternScope::Any)
            .map_or(&self.fallback, |number| &self.targets[number]);
        resolve_target(way, local_part, domain)
    }

    /// Routes mail for `Postmaster` without a domain, which every server must accept (RFC 5321 §4.5.1).
    fn route_postmaster(&self, access: Access, sender: &Path<'_>) -> Result<ResolvedRoute, RouteError> {
        const NAME: &str = "postmaster";
        if let Some(domain) = &self.local.primary_domain {
            return self.route_local(sender, NAME, domain);
        }
        // Without local domains, this relay has no postmaster, so mail to `Postmaster` goes to the smarthost. Only
        // trusted clients may send such mail.
        let everything = self.index.first_match(sender, "*", PatternScope::Any).map(|number| &self.targets[number]);
        match (access, everything) {
            (Access::Trusted, Some(RouteTarget::NextHop(next_hop))) => Ok(ResolvedRoute::Direct(next_hop.clone())),
            _ => Err(RouteError::UnknownUser),
        }
    }
}

fn resolve_target(way: &RouteTarget, local_part: &str, domain: &str) -> Result<NextHop, RouteError> {
    match way {
        RouteTarget::NextHop(next_hop) => Ok(next_hop.clone()),
        RouteTarget::Maildir(template) => maildir(template, &normalize_local_part(local_part), domain),
        RouteTarget::Mx(mx) => Ok(NextHop::Smtp(Arc::new(Smtp {
            target: SmtpTarget::Domain { name: domain.into(), port: mx.port },
            security: mx.security.clone(),
            credentials: mx.credentials.clone(),
            connections: mx.connections,
        }))),
    }
}

fn maildir(template: &MaildirTemplate, name: &str, domain: &str) -> Result<NextHop, RouteError> {
    let path = template.fill(name, domain).ok_or(RouteError::UnknownUser)?;
    Ok(NextHop::Maildir(path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::aliases::AliasContext;
    use proptest::prelude::*;

    fn smarthost(name: &str) -> NextHop {
        let to = SmtpTarget::Hosts(Box::new([TargetHost { name: name.into(), port: 25 }]));
        NextHop::Smtp(Arc::new(Smtp {
            target: to,
            security: NextHopTls::default(),
            credentials: None,
            connections: None,
        }))
    }

    fn route(from: &[&str], to: &[&str], way: RouteTarget) -> Route {
        let from = from.iter().map(|from| SenderPattern::parse(from).unwrap()).collect();
        Route { from, to: to.iter().map(|to| DomainPattern::parse(to).unwrap()).collect(), target: way }
    }

    /// Local domains a.example, b.example and bücher.example, with the mailboxes ann, bob and a%b.
    fn local(aliases: &str, mailbox: Option<Mailbox>) -> LocalDomains {
        let domains: HashSet<_> = ["a.example", "b.example", "bücher.example"].map(Domain::new).into();
        let users: HashSet<Box<str>> = ["ann", "bob", "a%b"].map(Box::from).into();
        let aliases = Aliases::parse(
            aliases,
            &AliasContext { is_local: &|domain| domains.contains(&**domain), is_user: &|name| users.contains(name) },
        );
        let aliases = aliases.unwrap();
        LocalDomains { primary_domain: Some(Domain::new("a.example")), domains, aliases, users: Some(users), mailbox }
    }

    fn table() -> Router {
        let mailbox = Mailbox::Maildir(MaildirTemplate::parse("/mail/{domain}/{user}").unwrap());
        let aliases = "postmaster: ann\nsales: bob, carl@else.example\nnobody: .\nann@b.example: ann, x@far.example\n\
            books@bücher.example: bob@xn--bcher-kva.example, x@käse.example, ö@käse.example\n";
        let routes = vec![
            route(&["boss@a.example", "@vip.example"], &["*"], RouteTarget::NextHop(smarthost("vip"))),
            route(&["Ann@XN--Kse-Qla.example"], &["gemüse.example"], RouteTarget::NextHop(smarthost("salad"))),
            route(&["<>"], &["else.example"], RouteTarget::NextHop(smarthost("bounces"))),
            route(&[], &["else.example", ".else.example"], RouteTarget::NextHop(smarthost("else"))),
            route(&[], &["sub.else.example", "[192.0.2.1]"], RouteTarget::NextHop(smarthost("late"))),
            route(&[], &["drop.example"], RouteTarget::NextHop(NextHop::Discard)),
            route(&[], &["files.example"], RouteTarget::Maildir(MaildirTemplate::parse("/files/{user}").unwrap())),
        ];
        Router::new(local(aliases, Some(mailbox)), routes, RouteTarget::Mx(Mx::default()))
    }

    /// Routes a recipient, and returns the result as text: the reply code `554` or `550`, the next hop, or
    /// `address=next_hop` for each target of an alias.
    fn routed_to(router: &Router, access: Access, sender: &str, recipient: &str) -> String {
        let sender = Path::mailbox(sender.as_bytes()).unwrap();
        let wire = format!("<{recipient}>");
        let (recipient, _) = Path::parse(wire.as_bytes()).unwrap();
        in_words(router.route(access, &sender, &recipient))
    }

    fn rerouted_to(router: &Router, recipient: &str) -> String {
        let sender = Path::mailbox(b"").unwrap();
        let recipient = Path::mailbox(recipient.as_bytes()).unwrap();
        in_words(router.reroute(&sender, &recipient))
    }

    fn in_words(routed: Result<ResolvedRoute, RouteError>) -> String {
        match routed {
            Ok(ResolvedRoute::Direct(next_hop)) => next_hop.to_string(),
            Ok(ResolvedRoute::Alias(all)) => {
                let mut all: Vec<_> = all.iter().map(|(address, next_hop)| format!("{address}={next_hop}")).collect();
                all.sort();
                all.join(" ")
            }
            Err(refusal) => refusal.reply().code().to_string(),
        }
    }

    #[test]
    fn trusted_clients_may_send_anywhere() {
        let rows = [
            ("s@x.example", "u@far.example", "mx:far.example"),
            ("s@x.example", "u@FAR.Example", "mx:far.example"),
            ("s@x.example", "u@else.example", "smtp:else:25"),
            ("s@x.example", "u@a.b.ELSE.example", "smtp:else:25"),
            ("s@x.example", "u@sub.else.example", "smtp:else:25"),
            ("s@x.example", "u@notelse.example", "mx:notelse.example"),
            ("s@x.example", "u@[192.0.2.1]", "smtp:late:25"),
            ("s@x.example", "u@[192.0.2.2]", "mx:[192.0.2.2]"),
            ("", "u@else.example", "smtp:bounces:25"),
            ("", "u@sub.else.example", "smtp:else:25"),
            ("Boss@A.example", "u@else.example", "smtp:vip:25"),
            ("boss@sub.a.example", "u@else.example", "smtp:else:25"),
            ("any@vip.example", "u@far.example", "smtp:vip:25"),
            ("s@x.example", "u@drop.example", "discard"),
            ("s@x.example", "\"U\"@files.example", "maildir:/files/u"),
            ("s@x.example", "\"../u\"@files.example", "550"),
            ("s@x.example", "Ann@A.example", "maildir:/mail/a.example/ann"),
            ("s@x.example", "eve@a.example", "550"),
            ("s@x.example", "nobody@b.example", "discard"),
            ("s@x.example", "ann@b.example", "ann@b.example=maildir:/mail/b.example/ann x@far.example=mx:far.example"),
            (
                "s@x.example",
                "sales@a.example",
                "bob@a.example=maildir:/mail/a.example/bob carl@else.example=smtp:else:25",
            ),
            ("s@x.example", "Ann@xn--bcher-kva.example", "maildir:/mail/xn--bcher-kva.example/ann"),
            ("s@x.example", "Ann@BÜCHER.example", "maildir:/mail/xn--bcher-kva.example/ann"),
            ("s@x.example", "u@käse.example", "mx:xn--kse-qla.example"),
            ("ann@käse.example", "u@xn--gemse-mva.example", "smtp:salad:25"),
            (
                "s@x.example",
                "books@xn--bcher-kva.example",
                "bob@xn--bcher-kva.example=maildir:/mail/xn--bcher-kva.example/bob \
                 x@käse.example=mx:xn--kse-qla.example ö@käse.example=mx:xn--kse-qla.example",
            ),
            ("s@x.example", "PostMaster", "ann@a.example=maildir:/mail/a.example/ann"),
        ];
        let router = table();
        for (sender, recipient, expected) in rows {
            assert_eq!(routed_to(&router, Access::Trusted, sender, recipient), expected, "{sender} to {recipient}");
        }
    }

    /// Tries forms of addresses that have made other servers open relays. An untrusted client must not be able to reach
    /// a remote address with any of them.
    #[test]
    fn untrusted_clients_reach_local_mailboxes_only() {
        let rows = [
            ("u@far.example", "554"),
            ("u@else.example", "554"),
            ("u@drop.example", "554"),
            ("u@sub.a.example", "554"),
            ("u@[127.0.0.1]", "554"),
            ("u@[a.example]", ""),
            ("u@far.example%a.example@far.example", ""),
            ("@a.example:u@far.example", "554"),
            ("@a.example,@b.example:u@far.example", "554"),
            ("@far.example:ann@a.example", "maildir:/mail/a.example/ann"),
            ("u%far.example@a.example", "554"),
            ("a%b@a.example", "554"),
            ("far.example!u@a.example", "554"),
            ("\"u@far.example\"@a.example", "554"),
            ("\"u%far.example\"@a.example", "554"),
            ("\"far.example\\!u\"@a.example", "554"),
            ("\"u\\@far.example\"@a.example", "554"),
            ("\"ann@a.example\"@far.example", "554"),
            ("u%a.example@far.example", "554"),
            ("ann@a.example", "maildir:/mail/a.example/ann"),
            ("\"ann\"@a.example", "maildir:/mail/a.example/ann"),
            ("eve@a.example", "550"),
            ("\"\"@a.example", "550"),
            ("postmaster", "ann@a.example=maildir:/mail/a.example/ann"),
            ("sales@b.example", "bob@b.example=maildir:/mail/b.example/bob carl@else.example=smtp:else:25"),
        ];
        let router = table();
        for (recipient, expected) in rows {
            if expected.is_empty() {
                assert!(Path::parse(format!("<{recipient}>").as_bytes()).is_err(), "{recipient}");
                continue;
            }
            // Any client can claim any sender address, so no sender address may help an untrusted client to reach more
            // recipients. The sender may change only the next hop of an alias's remote target, because routes can
            // depend on the sender. `expected` has the next hop `else`, so replace `bounces` and `vip` with it.
            for sender in ["", "s@x.example", "boss@a.example", "ann@a.example"] {
                let hop =
                    routed_to(&router, Access::Untrusted, sender, recipient).replace("smtp:bounces:25", "smtp:else:25");
                assert_eq!(hop.replace("smtp:vip:25", "smtp:else:25"), expected, "{sender} to {recipient}");
            }
        }
    }

    #[test]
    fn what_waits_goes_to_its_mailbox_and_to_an_alias_only_where_that_is_gone() {
        let aliases = "postmaster: ann\nsales: bob, carl@else.example\nbob: carl@else.example, ann\nnobody: .\n\
                       ann@b.example: ann, x@far.example\n";
        let mailbox = Mailbox::Maildir(MaildirTemplate::parse("/mail/{domain}/{user}").unwrap());
        let router = Router::new(local(aliases, Some(mailbox)), Vec::new(), RouteTarget::Mx(Mx::default()));
        let rows = [
            ("bob@a.example", "maildir:/mail/a.example/bob"),
            ("ann@b.example", "maildir:/mail/b.example/ann"),
            ("sales@a.example", "ann@a.example=maildir:/mail/a.example/ann carl@else.example=mx:else.example"),
            ("postmaster", "ann@a.example=maildir:/mail/a.example/ann"),
            ("nobody@a.example", "discard"),
            ("eve@a.example", "550"),
            ("u@far.example", "mx:far.example"),
        ];
        for (recipient, expected) in rows {
            assert_eq!(rerouted_to(&router, recipient), expected, "{recipient}");
        }
        // Without a list of users, only the next hop knows the mailboxes, so the router must accept any name.
        let LocalDomains { domains, primary_domain: first, aliases, .. } = local(aliases, None);
        let mailbox = Some(Mailbox::NextHop(smarthost("inner")));
        let router = Router::new(
            LocalDomains { domains, primary_domain: first, aliases, users: None, mailbox },
            Vec::new(),
            RouteTarget::Mx(Mx::default()),
        );
        for recipient in ["bob@a.example", "sales@a.example", "postmaster"] {
            assert_eq!(rerouted_to(&router, recipient), "smtp:inner:25", "{recipient}");
        }
        assert_eq!(rerouted_to(&router, "nobody@a.example"), "discard");
    }

    #[test]
    fn a_local_domain_without_a_mailbox_follows_only_a_route_that_names_it() {
        let routes = || {
            vec![
                route(&[], &["a.example"], RouteTarget::NextHop(smarthost("inner"))),
                route(&[], &["*"], RouteTarget::NextHop(smarthost("smart"))),
            ]
        };
        let router = Router::new(local("", None), routes(), RouteTarget::Mx(Mx::default()));
        assert_eq!(routed_to(&router, Access::Untrusted, "", "ann@a.example"), "smtp:inner:25");
        assert_eq!(routed_to(&router, Access::Untrusted, "", "ann@b.example"), "550");
        assert_eq!(routed_to(&router, Access::Trusted, "", "ann@b.example"), "550");
        assert!(router.has_route_for("a.example") && !router.has_route_for("b.example"));
        // Without local domains, mail for the postmaster goes to the smarthost, to which only trusted clients may send.
        let router = Router::new(LocalDomains::default(), routes(), RouteTarget::Mx(Mx::default()));
        assert_eq!(routed_to(&router, Access::Trusted, "", "Postmaster"), "smtp:smart:25");
        assert_eq!(routed_to(&router, Access::Untrusted, "", "Postmaster"), "550");
        let router = Router::new(LocalDomains::default(), Vec::new(), RouteTarget::Mx(Mx::default()));
        assert_eq!(routed_to(&router, Access::Trusted, "", "Postmaster"), "550");
    }

    #[test]
    fn a_route_that_nothing_comes_to_is_found() {
        let mut index = RouteIndex::default();
        let mut add = |number, from: &[&str], to: &[&str]| {
            index
                .add(number, &route(from, to, RouteTarget::NextHop(NextHop::Discard)))
                .map(|(domain, earlier)| (domain.to_string(), earlier))
        };
        assert_eq!(add(0, &[], &["a.example", ".a.example"]), None);
        assert_eq!(add(1, &["x@b.example"], &["*"]), None);
        assert_eq!(add(2, &[], &["b.example", "A.example"]), Some(("a.example".to_owned(), 0)));
        assert_eq!(add(3, &["X@b.example"], &["*"]), Some(("*".to_owned(), 1)));
        assert_eq!(add(4, &[], &["*"]), None);
        assert_eq!(add(5, &[], &["c.example"]), Some(("*".to_owned(), 4)));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["", "a b", "*.example", "..x", ".", "a@b", "-a", "[", "a.example."] {
            assert!(DomainPattern::parse(text).is_err(), "{text}");
        }
        for text in ["", "a", "@", "<a@b>", "@*", "a@b c", "postmaster"] {
            assert!(SenderPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refusals_are_the_replies_of_the_rfc() {
        assert!(RouteError::UnknownUser.reply().wire().starts_with(b"550 5.1.1 "));
        assert!(RouteError::RelayingDenied.reply().wire().starts_with(b"554 5.7.1 "));
    }

    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "ann",
            "a.example",
            "A.EXAMPLE",
            "b.example",
            "far.example",
            "@",
            "@",
            "%",
            "!",
            ":",
            ",",
            "\"",
            "\\",
            ".",
            "[",
            "]",
            "127.0.0.1",
            "postmaster",
            "sales",
            "x",
            "/",
            "é",
            " ",
            ">",
            "<",
        ]);
        prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_stranger_gets_mail_out(recipient in hostile(), local_part in "[a-z%!@\"\\\\]{1,12}", domain in hostile()) {
            let router = table();
            let nobody = Path::mailbox(b"").unwrap();
            for text in [recipient.clone(), format!("{local_part}@{domain}"), format!("\"{recipient}\"@a.example"), format!("{recipient}@a.example")] {
                let wire = format!("<{text}>");
                let Ok((path, _)) = Path::parse(wire.as_bytes()) else { continue };
                let Ok(routed) = router.route(Access::Untrusted, &nobody, &path) else { continue };
                let domain = path.domain().map(|domain| String::from_utf8_lossy(domain).to_lowercase());
                prop_assert!(matches!(domain.as_deref(), None | Some("a.example" | "b.example")), "{}", text);
                prop_assert!(!path.local_part().iter().any(|octet| b"@%!".contains(octet)), "{}", text);
                // Only an alias may lead an untrusted client's mail out of the local domains,
                // because this would otherwise be an open relay.
                match routed {
                    ResolvedRoute::Direct(next_hop) => prop_assert!(matches!(next_hop, NextHop::Maildir(_) | NextHop::Discard), "{}: {}", text, next_hop),
                    ResolvedRoute::Alias(all) => for (address, next_hop) in all {
                        let is_said = ["carl@else.example", "x@far.example"].contains(&&*address);
                        prop_assert!(is_said || matches!(next_hop, NextHop::Maildir(_)), "{}: {}", text, next_hop);
                    },
                }
            }
        }

        #[test]
        fn friends_and_strangers_see_the_same_local_mailboxes(name in "[a-z]{1,6}|ann|bob|sales|nobody") {
            let router = table();
            let address = format!("{name}@a.example");
            prop_assert_eq!(routed_to(&router, Access::Trusted, "", &address), routed_to(&router, Access::Untrusted, "", &address));
        }
    }
}
