//! Decides who may send to whom, and which hop each recipient goes to. Pure: addresses and configuration in, hops out.
//!
//! ```text
//! recipient ─ local domain? ─ yes ─▶ alias? ─▶ mailbox? ─▶ Maildir, LMTP or a route      550 5.1.1 if there is none
//!                 │ no
//!                 ▼
//!            a friend? ─ no ─▶ 554 5.7.1
//!                 │ yes
//!                 ▼
//!            the first route that fits sender and domain, else the domain's MX
//! ```
//! A friend is a client of `networks`, or one that has logged in. Only `@` at the end of the local part decides the
//! domain: source routes have been dropped by then (RFC 5321 §3.6.1). A local part that reads like a route
//! (`user%elsewhere@local`, `elsewhere!user@local`, `"user@elsewhere"@local`) is refused to strangers, for the server
//! that it is handed to might follow it, and trusts us.
pub(crate) mod hop;
mod template;

use super::aliases::{Aliases, Meant, plain};
pub(crate) use hop::{Authority, Hop, Host, Lmtp, Security, Smtp, TlsPolicy, To};
use smtp::sasl::Credentials;
use smtp::{Path, Reply};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
pub(crate) use template::Template;

/// Tells whether a client may send to anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A client of `networks`, or logged in.
    Friend,
    Stranger,
}

/// Route of one recipient's mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    /// This hop, under the address that it came with.
    As(Hop),
    /// An alias: to these in its place, at least one. An address without a hop is discarded.
    Instead(Vec<(Box<str>, Hop)>),
}

/// Reason why a recipient is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    UnknownUser,
    RelayingDenied,
}

impl Refusal {
    /// Reply to the client.
    pub(crate) fn reply(self) -> &'static Reply {
        static UNKNOWN: Reply = Reply::fixed("550 5.1.1 No such user here\r\n");
        static DENIED: Reply = Reply::fixed("554 5.7.1 Relaying denied\r\n");
        match self {
            Self::UnknownUser => &UNKNOWN,
            Self::RelayingDenied => &DENIED,
        }
    }
}

/// A route: its senders and domains, and its target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route {
    /// Empty for all.
    pub(crate) from: Vec<SenderPattern>,
    pub(crate) to: Vec<DomainPattern>,
    pub(crate) way: Way,
}

/// Target of a route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Way {
    /// The same for all recipients.
    Hop(Hop),
    Maildir(Template),
    Mx(Mx),
}

/// The mail exchangers of the recipient's domain.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mx {
    pub(crate) port: u16,
    pub(crate) security: Security,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) connections: Option<u32>,
}

impl Default for Mx {
    fn default() -> Self {
        Self { port: 25, security: Security::default(), credentials: None, connections: None }
    }
}

/// Senders: an address, all of a domain, or the null sender; in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SenderPattern(Box<str>);

impl SenderPattern {
    /// Reads `ann@example.com`, `@example.com`, or `<>`.
    ///
    /// # Errors
    /// If it is none of these.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a valid sender; use something like ann@example.com, @example.com or <>");
        if text == "<>" {
            return Ok(Self("".into()));
        }
        let whole = if text.starts_with('@') { format!("x{text}") } else { text.to_owned() };
        let path = Path::mailbox(whole.as_bytes()).map_err(|_| wrong())?;
        path.domain().ok_or_else(wrong)?;
        Ok(Self(text.to_lowercase().into()))
    }
}

/// Domains: one, all below one, or all; in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainPattern(Box<str>);

impl DomainPattern {
    /// Every domain.
    pub(crate) fn any() -> Self {
        Self("*".into())
    }

    /// Reads `example.com`, `.example.com` (the domains below it, not itself), `[192.0.2.1]` or `*`.
    ///
    /// # Errors
    /// If it is none of these.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let domain = text.strip_prefix('.').unwrap_or(text);
        if text != "*" && !is_domain(domain) {
            return Err(format!("{text:?} is not a valid domain; use something like example.com, .example.com or *"));
        }
        Ok(Self(text.to_lowercase().into()))
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A domain by the grammar of addresses, or an address literal.
pub(crate) fn is_domain(text: &str) -> bool {
    let address = format!("x@{text}");
    Path::mailbox(address.as_bytes()).is_ok_and(|path| path.domain() == Some(text.as_bytes()))
}

/// The domains whose mail ends here, or is handed to the server behind.
#[derive(Debug, Default)]
pub(crate) struct Local {
    /// Domains in lower case.
    pub(crate) domains: HashSet<Box<str>>,
    /// The first of them: that of a bare `Postmaster`.
    pub(crate) first: Option<Box<str>>,
    pub(crate) aliases: Aliases,
    /// Mailboxes, in lower case; without it, the next hop decides.
    pub(crate) users: Option<HashSet<Box<str>>>,
    pub(crate) mailbox: Option<Mailbox>,
}

/// Target of local users' mail.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mailbox {
    Maildir(Template),
    Hop(Hop),
}

impl Local {
    pub(crate) fn has(&self, domain: &str) -> bool {
        self.domains.contains(domain)
    }

    fn has_user(&self, name: &str) -> bool {
        self.users.as_ref().is_none_or(|users| users.contains(name))
    }
}

/// All routes, ready for look-ups; a clone costs a counter.
#[derive(Clone, Debug)]
pub(crate) struct Router(Arc<Table>);

#[derive(Debug)]
struct Table {
    local: Local,
    ways: Vec<Way>,
    index: Index,
    /// Target if no route fits.
    otherwise: Way,
}

/// The first route of each domain.
type Domains = HashMap<Box<str>, usize, foldhash::fast::RandomState>;

/// Index that finds the first route for a sender and a domain.
#[derive(Debug, Default)]
pub(crate) struct Index {
    any_sender: Domains,
    senders: HashMap<Box<str>, Domains>,
}

impl Index {
    /// Adds a route; returns the number of an earlier one that takes all of its mail for one of its domains.
    pub(crate) fn add(&mut self, number: usize, route: &Route) -> Option<(DomainPattern, usize)> {
        let mut shadow = None;
        let mut add = |domains: &mut Domains, domain: &DomainPattern| {
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

    fn first(&self, sender: &Path<'_>, domain: &str, fit: Fit) -> Option<usize> {
        let first = first_for(&self.any_sender, domain, fit);
        if self.senders.is_empty() {
            return first;
        }
        let of_domain = sender.domain().map(|domain| format!("@{}", lowered(domain)).into());
        let keys = [Some(lowered(sender.as_bytes())), of_domain].into_iter().flatten();
        let found = keys.filter_map(|key| first_for(self.senders.get(&*key)?, domain, fit));
        found.chain(first).min()
    }
}

/// Selects the patterns that count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Patterns that name the domain, or one above it.
    Named,
    /// `*` too.
    Any,
}

fn lowered(text: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(text);
    // As most are that come.
    let is_low = text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    if is_low { text } else { text.to_lowercase().into() }
}

/// The first of the routes for the domain itself, for the domains above it with their dot, and for all.
fn first_for(domains: &Domains, domain: &str, fit: Fit) -> Option<usize> {
    let is_literal = domain.starts_with('[');
    let dots = domain.match_indices('.').filter(|_| !is_literal);
    let above = dots.map(|(at, _)| &domain[at..]);
    let all = (fit == Fit::Any).then_some("*");
    std::iter::once(domain).chain(above).chain(all).filter_map(|key| domains.get(key)).min().copied()
}

impl Router {
    /// The domain of this relay's own mail, if it has one.
    pub(crate) fn first_local_domain(&self) -> Option<&str> {
        self.0.local.first.as_deref()
    }

    /// Builds the router of that configuration. Mail that no route fits goes to `otherwise`.
    pub(crate) fn new(local: Local, routes: Vec<Route>, otherwise: Way) -> Self {
        let mut index = Index::default();
        routes.iter().enumerate().for_each(|(number, route)| drop(index.add(number, route)));
        let ways = routes.into_iter().map(|route| route.way).collect();
        Self(Arc::new(Table { local, ways, index, otherwise }))
    }

    /// Routes mail to a recipient.
    ///
    /// # Errors
    /// If there is no route for it.
    pub(crate) fn route(&self, standing: Standing, sender: &Path<'_>, recipient: &Path<'_>) -> Result<Routed, Refusal> {
        let table = &*self.0;
        let local_part = str::from_utf8(recipient.local_part()).map_err(|_| Refusal::UnknownUser)?;
        let Some(domain) = recipient.domain() else {
            return if recipient.is_null() { Err(Refusal::UnknownUser) } else { table.postmaster(standing, sender) };
        };
        let domain = lowered(domain);
        if table.local.has(&domain) {
            if standing == Standing::Stranger && has_route_inside(local_part) {
                return Err(Refusal::RelayingDenied);
            }
            return table.to_local(sender, local_part, &domain);
        }
        match standing {
            Standing::Stranger => Err(Refusal::RelayingDenied),
            Standing::Friend => table.elsewhere(sender, local_part, &domain).map(Routed::As),
        }
    }

    /// Routes mail again that was let in before and waits. Aliases were followed when it came in, so a recipient that
    /// has a mailbox goes there, whatever aliases say now: one of them may be of its own name (`ann: ann, keeper`), or
    /// new. An alias is followed only if it has taken the mailbox's place, and then to all its targets.
    ///
    /// # Errors
    /// If there is no route for it any more.
    pub(crate) fn route_again(&self, sender: &Path<'_>, recipient: &Path<'_>) -> Result<Routed, Refusal> {
        let routed = self.route(Standing::Friend, sender, recipient);
        if matches!(routed, Ok(Routed::As(_))) {
            return routed;
        }
        self.0.mailbox_of(sender, recipient).map_or(routed, |hop| Ok(Routed::As(hop)))
    }

    /// Reports whether mail of a local domain can go anywhere: to a mailbox, by a route that names it, or by aliases
    /// alone.
    pub(crate) fn has_place_for(&self, domain: &str) -> bool {
        let Table { local, index, .. } = &*self.0;
        let nobody = Path::mailbox(b"").expect("the null path is a path");
        let only_aliases = local.users.is_none() && local.aliases.len() > 0;
        local.mailbox.is_some() || index.first(&nobody, domain, Fit::Named).is_some() || only_aliases
    }

    /// The next hops that need TLS, but whose certificate is not verified.
    pub(crate) fn insecure_hops(&self) -> impl Iterator<Item = String> {
        self.0.ways.iter().filter_map(|way| match way {
            Way::Hop(Hop::Smtp(smtp)) if smtp.security.insecure => Some(smtp.to.to_string()),
            Way::Mx(mx) if mx.security.insecure => Some("mx".to_owned()),
            _ => None,
        })
    }

    /// Number of aliases.
    pub(crate) fn aliases(&self) -> usize {
        self.0.local.aliases.len()
    }
}

/// Reports whether a local part could make the next server relay: by `@`, by the percent hack, by a bang path.
fn has_route_inside(local_part: &str) -> bool {
    local_part.contains(['@', '%', '!'])
}

impl Table {
    fn to_local(&self, sender: &Path<'_>, local_part: &str, domain: &str) -> Result<Routed, Refusal> {
        let Some(meant) = self.local.aliases.expand(local_part, domain) else {
            return self.mailbox(sender, local_part, domain).map(Routed::As);
        };
        let mut instead = Vec::with_capacity(meant.len());
        for one in meant {
            let (address, hop) = match one {
                Meant::Nobody => continue,
                Meant::Mailbox { local_part, domain } => {
                    (format!("{local_part}@{domain}").into(), self.mailbox(sender, &local_part, &domain)?)
                }
                Meant::Elsewhere(address) => {
                    let hop = self.to_address(sender, &address)?;
                    (address, hop)
                }
            };
            instead.push((address, hop));
        }
        Ok(if instead.is_empty() { Routed::As(Hop::Discard) } else { Routed::Instead(instead) })
    }

    /// The next hop of an alias's target that is not local: the alias's author may send there.
    fn to_address(&self, sender: &Path<'_>, address: &str) -> Result<Hop, Refusal> {
        let path = Path::mailbox(address.as_bytes()).map_err(|_| Refusal::UnknownUser)?;
        let domain = path.domain().map(lowered).ok_or(Refusal::UnknownUser)?;
        self.elsewhere(sender, &String::from_utf8_lossy(path.local_part()), &domain)
    }

    /// The mailbox of a user that is no alias.
    fn mailbox(&self, sender: &Path<'_>, local_part: &str, domain: &str) -> Result<Hop, Refusal> {
        let name = plain(local_part);
        if !self.local.has_user(&name) {
            return Err(Refusal::UnknownUser);
        }
        match &self.local.mailbox {
            Some(Mailbox::Hop(hop)) => Ok(hop.clone()),
            Some(Mailbox::Maildir(template)) => maildir(template, &name, domain),
            // Its MX is this relay, and a smarthost would send it back: only a route that names it leads on.
            None => match self.index.first(sender, domain, Fit::Named) {
                Some(number) => follow(&self.ways[number], local_part, domain),
                None => Err(Refusal::UnknownUser),
            },
        }
    }

    /// The mailbox that an address names by itself; that of a bare `Postmaster` is in the first domain.
    fn mailbox_of(&self, sender: &Path<'_>, recipient: &Path<'_>) -> Option<Hop> {
        let local_part = str::from_utf8(recipient.local_part()).ok()?;
        let domain = recipient.domain().map(lowered).or(self.local.first.as_deref().map(Cow::Borrowed))?;
        self.local.has(&domain).then(|| self.mailbox(sender, local_part, &domain).ok())?
    }

    fn elsewhere(&self, sender: &Path<'_>, local_part: &str, domain: &str) -> Result<Hop, Refusal> {
        let way = self.index.first(sender, domain, Fit::Any).map_or(&self.otherwise, |number| &self.ways[number]);
        follow(way, local_part, domain)
    }

    /// The mailbox that every server has (RFC 5321 §4.5.1), given without a domain.
    fn postmaster(&self, standing: Standing, sender: &Path<'_>) -> Result<Routed, Refusal> {
        const NAME: &str = "postmaster";
        if let Some(domain) = &self.local.first {
            return self.to_local(sender, NAME, domain);
        }
        // Without a domain of its own, the smarthost's postmaster looks after its clients.
        let everything = self.index.first(sender, "*", Fit::Any).map(|number| &self.ways[number]);
        match (standing, everything) {
            (Standing::Friend, Some(Way::Hop(hop))) => Ok(Routed::As(hop.clone())),
            _ => Err(Refusal::UnknownUser),
        }
    }
}

fn follow(way: &Way, local_part: &str, domain: &str) -> Result<Hop, Refusal> {
    match way {
        Way::Hop(hop) => Ok(hop.clone()),
        Way::Maildir(template) => maildir(template, &plain(local_part), domain),
        Way::Mx(mx) => Ok(Hop::Smtp(Arc::new(Smtp {
            to: To::Domain { name: domain.into(), port: mx.port },
            security: mx.security.clone(),
            credentials: mx.credentials.clone(),
            connections: mx.connections,
        }))),
    }
}

fn maildir(template: &Template, name: &str, domain: &str) -> Result<Hop, Refusal> {
    let path = template.fill(name, domain).ok_or(Refusal::UnknownUser)?;
    Ok(Hop::Maildir(path.into()))
}

#[cfg(test)]
mod tests {
    use super::super::aliases::Surroundings;
    use super::*;
    use proptest::prelude::*;

    fn smarthost(name: &str) -> Hop {
        let to = To::Hosts(Box::new([Host { name: name.into(), port: 25 }]));
        Hop::Smtp(Arc::new(Smtp { to, security: Security::default(), credentials: None, connections: None }))
    }

    fn route(from: &[&str], to: &[&str], way: Way) -> Route {
        let from = from.iter().map(|from| SenderPattern::parse(from).unwrap()).collect();
        Route { from, to: to.iter().map(|to| DomainPattern::parse(to).unwrap()).collect(), way }
    }

    /// The local part of a relay for a.example and b.example, with the mailboxes ann and bob.
    fn local(aliases: &str, mailbox: Option<Mailbox>) -> Local {
        let domains: HashSet<Box<str>> = ["a.example", "b.example"].map(Box::from).into();
        let users: HashSet<Box<str>> = ["ann", "bob", "a%b"].map(Box::from).into();
        let aliases = Aliases::parse(
            aliases,
            &Surroundings { is_local: &|domain| domains.contains(domain), is_user: &|name| users.contains(name) },
        );
        let aliases = aliases.unwrap();
        Local { first: Some("a.example".into()), domains, aliases, users: Some(users), mailbox }
    }

    fn table() -> Router {
        let mailbox = Mailbox::Maildir(Template::parse("/mail/{domain}/{user}").unwrap());
        let aliases = "postmaster: ann\nsales: bob, carl@else.example\nnobody: .\nann@b.example: ann, x@far.example\n";
        let routes = vec![
            route(&["boss@a.example", "@vip.example"], &["*"], Way::Hop(smarthost("vip"))),
            route(&["<>"], &["else.example"], Way::Hop(smarthost("bounces"))),
            route(&[], &["else.example", ".else.example"], Way::Hop(smarthost("else"))),
            route(&[], &["sub.else.example", "[192.0.2.1]"], Way::Hop(smarthost("late"))),
            route(&[], &["drop.example"], Way::Hop(Hop::Discard)),
            route(&[], &["files.example"], Way::Maildir(Template::parse("/files/{user}").unwrap())),
        ];
        Router::new(local(aliases, Some(mailbox)), routes, Way::Mx(Mx::default()))
    }

    /// As `554`, `550`, a hop, or `address=hop` for each in place of an alias.
    fn told(router: &Router, standing: Standing, sender: &str, recipient: &str) -> String {
        let sender = Path::mailbox(sender.as_bytes()).unwrap();
        let wire = format!("<{recipient}>");
        let (recipient, _) = Path::parse(wire.as_bytes()).unwrap();
        in_words(router.route(standing, &sender, &recipient))
    }

    fn told_again(router: &Router, recipient: &str) -> String {
        let (sender, recipient) = (Path::mailbox(b"").unwrap(), Path::mailbox(recipient.as_bytes()).unwrap());
        in_words(router.route_again(&sender, &recipient))
    }

    fn in_words(routed: Result<Routed, Refusal>) -> String {
        match routed {
            Ok(Routed::As(hop)) => hop.to_string(),
            Ok(Routed::Instead(all)) => {
                let mut all: Vec<_> = all.iter().map(|(address, hop)| format!("{address}={hop}")).collect();
                all.sort();
                all.join(" ")
            }
            Err(refusal) => refusal.reply().code().to_string(),
        }
    }

    #[test]
    fn a_table_of_what_friends_may() {
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
            ("s@x.example", "PostMaster", "ann@a.example=maildir:/mail/a.example/ann"),
        ];
        let router = table();
        for (sender, recipient, expected) in rows {
            assert_eq!(told(&router, Standing::Friend, sender, recipient), expected, "{sender} to {recipient}");
        }
    }

    /// Tests addresses that have made relays open: a stranger can send to none of them.
    #[test]
    fn a_table_of_what_strangers_may() {
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
            // Not even the boss: any client can use that address.
            for sender in ["", "s@x.example", "boss@a.example", "ann@a.example"] {
                let told =
                    told(&router, Standing::Stranger, sender, recipient).replace("smtp:bounces:25", "smtp:else:25");
                assert_eq!(told.replace("smtp:vip:25", "smtp:else:25"), expected, "{sender} to {recipient}");
            }
        }
    }

    #[test]
    fn what_waits_goes_to_its_mailbox_and_to_an_alias_only_where_that_is_gone() {
        let aliases = "postmaster: ann\nsales: bob, carl@else.example\nbob: carl@else.example, ann\nnobody: .\n\
                       ann@b.example: ann, x@far.example\n";
        let mailbox = Mailbox::Maildir(Template::parse("/mail/{domain}/{user}").unwrap());
        let router = Router::new(local(aliases, Some(mailbox)), Vec::new(), Way::Mx(Mx::default()));
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
            assert_eq!(told_again(&router, recipient), expected, "{recipient}");
        }
        // If the next hop has the list of mailboxes, each name may be one.
        let Local { domains, first, aliases, .. } = local(aliases, None);
        let mailbox = Some(Mailbox::Hop(smarthost("inner")));
        let router =
            Router::new(Local { domains, first, aliases, users: None, mailbox }, Vec::new(), Way::Mx(Mx::default()));
        for recipient in ["bob@a.example", "sales@a.example", "postmaster"] {
            assert_eq!(told_again(&router, recipient), "smtp:inner:25", "{recipient}");
        }
        assert_eq!(told_again(&router, "nobody@a.example"), "discard");
    }

    #[test]
    fn a_local_domain_without_a_mailbox_follows_only_a_route_that_names_it() {
        let routes = || {
            vec![
                route(&[], &["a.example"], Way::Hop(smarthost("inner"))),
                route(&[], &["*"], Way::Hop(smarthost("smart"))),
            ]
        };
        let router = Router::new(local("", None), routes(), Way::Mx(Mx::default()));
        assert_eq!(told(&router, Standing::Stranger, "", "ann@a.example"), "smtp:inner:25");
        assert_eq!(told(&router, Standing::Stranger, "", "ann@b.example"), "550");
        assert_eq!(told(&router, Standing::Friend, "", "ann@b.example"), "550");
        assert!(router.has_place_for("a.example") && !router.has_place_for("b.example"));
        // With nothing local, the smarthost has the postmaster, and strangers have none.
        let router = Router::new(Local::default(), routes(), Way::Mx(Mx::default()));
        assert_eq!(told(&router, Standing::Friend, "", "Postmaster"), "smtp:smart:25");
        assert_eq!(told(&router, Standing::Stranger, "", "Postmaster"), "550");
        let router = Router::new(Local::default(), Vec::new(), Way::Mx(Mx::default()));
        assert_eq!(told(&router, Standing::Friend, "", "Postmaster"), "550");
    }

    #[test]
    fn a_route_that_nothing_comes_to_is_found() {
        let mut index = Index::default();
        let mut add = |number, from: &[&str], to: &[&str]| {
            index
                .add(number, &route(from, to, Way::Hop(Hop::Discard)))
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
        assert!(Refusal::UnknownUser.reply().wire().starts_with(b"550 5.1.1 "));
        assert!(Refusal::RelayingDenied.reply().wire().starts_with(b"554 5.7.1 "));
    }

    /// Pieces of addresses, put together in all the wrong ways.
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
                let Ok(routed) = router.route(Standing::Stranger, &nobody, &path) else { continue };
                let domain = path.domain().map(|domain| String::from_utf8_lossy(domain).to_lowercase());
                prop_assert!(matches!(domain.as_deref(), None | Some("a.example" | "b.example")), "{}", text);
                prop_assert!(!path.local_part().iter().any(|octet| b"@%!".contains(octet)), "{}", text);
                // Only an alias leads outside.
                match routed {
                    Routed::As(hop) => prop_assert!(matches!(hop, Hop::Maildir(_) | Hop::Discard), "{}: {}", text, hop),
                    Routed::Instead(all) => for (address, hop) in all {
                        let is_said = ["carl@else.example", "x@far.example"].contains(&&*address);
                        prop_assert!(is_said || matches!(hop, Hop::Maildir(_)), "{}: {}", text, hop);
                    },
                }
            }
        }

        #[test]
        fn friends_and_strangers_see_the_same_local_mailboxes(name in "[a-z]{1,6}|ann|bob|sales|nobody") {
            let router = table();
            let address = format!("{name}@a.example");
            prop_assert_eq!(told(&router, Standing::Friend, "", &address), told(&router, Standing::Stranger, "", &address));
        }
    }
}
