//! Finds the servers for a domain's mail, and their addresses (RFC 5321 §5.1). A separate thread
//! queries DNS. The functions that choose servers from the DNS answers do no I/O.
//!
//! ```text
//! domain ─▶ address literal? ─▶ that address
//!    └─▶ MX ─▶ no record: the domain itself (implicit MX)    only ".": no mail (RFC 7505)
//!         └─▶ by preference, at random among equals, none behind this relay ─▶ A and AAAA
//! ```
//! Public addresses are left out unless the relay may send mail to them, whether they come from DNS
//! or from the configuration.
use crate::config::{DeliveryScope, DnsConfig};
use crate::own_addresses::OwnAddresses;
use crate::routing::{SmtpTarget, TargetHost};
use anyhow::{Context, Result, anyhow};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};
use mailrun_net::Endpoint;
use mailrun_process::local_address::is_local_address;
use mailrun_smtp::Domain;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

const MAX_PENDING_LOOKUPS: usize = 1024;
const MAX_EXCHANGERS: usize = 20;
const MAX_ADDRESSES: usize = 32;
const MAX_CACHE_ENTRIES: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MailServer {
    /// Name that the server's TLS certificate must have: the host's name, or its address.
    pub(crate) name: Arc<str>,
    pub(crate) address: SocketAddr,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unroutable {
    #[error("{0} does not exist")]
    NoSuchDomain(String),
    /// The domain declares with a null MX record that it accepts no mail (RFC 7505).
    #[error("{0} accepts no mail")]
    TakesNoMail(String),
    #[error("no mail server of {0} has an address")]
    NoAddress(String),
    /// No mail exchanger of the domain has a better preference than this relay itself, so delivery would loop.
    #[error("mail to {0} loops back to this relay")]
    Loop(String),
    #[error("{0} is not a valid address literal")]
    BadLiteral(String),
    #[error("{0} is a public address, and allow_public is not set")]
    Public(IpAddr),
    #[error("DNS lookup of {domain} failed: {why}")]
    LookupFailed { domain: String, why: String },
    /// The next hop in the configuration has no usable address. This is not the fault of the recipients, so their mail
    /// waits until the configuration or DNS is corrected.
    #[error("the configured next hop is not usable: {0}")]
    NextHop(Box<Self>),
}

impl Unroutable {
    pub(crate) fn lookup_failed(domain: &str, why: &str) -> Self {
        Self::LookupFailed { domain: domain.to_owned(), why: why.to_owned() }
    }

    /// Returns the SMTP reply code and the enhanced status code for this error (RFC 3463, RFC 7505 §4).
    pub(crate) fn codes(&self) -> (u16, &'static str) {
        match self {
            Self::NoSuchDomain(_) | Self::BadLiteral(_) => (550, "5.1.2"),
            Self::TakesNoMail(_) => (556, "5.1.10"),
            Self::NoAddress(_) => (550, "5.4.4"),
            Self::Loop(_) => (554, "5.4.6"),
            Self::Public(_) => (550, "5.7.1"),
            Self::LookupFailed { .. } => (451, "4.4.3"),
            Self::NextHop(_) => (451, "4.3.5"),
        }
    }

    pub(crate) fn is_transient(&self) -> bool {
        self.codes().0 < 500
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchanger {
    pub(crate) preference: u16,
    /// Name of the host in any letter case, with or without the final dot. `.` is the null MX.
    pub(crate) host: String,
}

/// Returns the hosts to try for a domain, with their preferences, in the order of preference. `seed` determines the
/// order among hosts with the same preference. Hosts without a better preference than `own_name` are left out, because
/// they would send the mail back (RFC 5321 §5.1).
///
/// # Errors
/// Fails if the domain accepts no mail, or if no host has a better preference than `own_name`.
pub(crate) fn order_hosts(
    domain: &str,
    exchangers: &[Exchanger],
    own_name: &str,
    seed: u64,
) -> Result<Vec<(u16, String)>, Unroutable> {
    if exchangers.is_empty() {
        return Ok(vec![(0, domain.to_owned())]);
    }
    let ranked_hosts = exchangers
        .iter()
        .map(|exchanger| (exchanger.preference, Domain::new(exchanger.host.trim_end_matches('.')).to_string()));
    let mut hosts: Vec<(u16, String)> = ranked_hosts.filter(|(_, host)| !host.is_empty()).collect();
    if hosts.is_empty() {
        return Err(Unroutable::TakesNoMail(domain.to_owned()));
    }
    let own_name = Domain::new(own_name.trim_end_matches('.'));
    let own_preference = hosts.iter().filter(|(_, host)| **host == *own_name).map(|(preference, _)| *preference).min();
    hosts.retain(|(preference, _)| own_preference.is_none_or(|own| *preference < own));
    if hosts.is_empty() {
        return Err(Unroutable::Loop(domain.to_owned()));
    }
    // Sort first, because the order of a DNS answer varies, and the same seed must always give the
    // same order.
    hosts.sort();
    hosts.shuffle(&mut StdRng::seed_from_u64(seed));
    hosts.sort_by_key(|(preference, _)| *preference);
    let mut seen = HashSet::new();
    let first = hosts.into_iter().filter(|(_, host)| seen.insert(host.clone()));
    Ok(first.take(MAX_EXCHANGERS).collect())
}

/// Parses an address literal such as `[192.0.2.1]` or `[IPv6:2001:db8::1]` (RFC 5321 §4.1.3).
pub(crate) fn literal(domain: &str) -> Option<IpAddr> {
    mailrun_smtp::address::address_literal(domain.as_bytes())
}

/// Addresses of servers, each with the rank of its host. For a domain, the rank is the MX preference. If a route lists
/// the hosts, it is the host's position in that list.
type RankedServers = Vec<(u16, MailServer)>;

/// Removes from a list of servers the hosts that have an address of this relay. For a domain, also removes the mail
/// exchangers without a better preference than these hosts, because they would send the mail back (RFC 5321 §5.1).
fn without_own(mut servers: RankedServers, target: &SmtpTarget, own: &OwnAddresses) -> Vec<MailServer> {
    let is_own = |server: &MailServer| own.contains(&Endpoint::Tcp(server.address));
    let ranks: Vec<u16> = servers.iter().filter(|(_, server)| is_own(server)).map(|(rank, _)| *rank).collect();
    servers.retain(|(rank, _)| match target {
        SmtpTarget::Hosts(_) => !ranks.contains(rank),
        SmtpTarget::Domain { .. } => ranks.iter().all(|own| rank < own),
    });
    servers.into_iter().map(|(_, server)| server).collect()
}

/// Removes duplicate addresses, and addresses to which the relay may not send mail.
fn reachable(servers: Vec<MailServer>, reach: DeliveryScope) -> Result<Vec<MailServer>, Unroutable> {
    let public = servers.iter().map(|one| one.address.ip()).find(|ip| !is_local_address(*ip));
    let mut seen = HashSet::new();
    let may = |one: &MailServer| reach == DeliveryScope::Anywhere || is_local_address(one.address.ip());
    let reachable_servers: Vec<_> =
        servers.into_iter().filter(|one| may(one) && seen.insert(one.address)).take(MAX_ADDRESSES).collect();
    match (reachable_servers.is_empty(), public) {
        (true, Some(public)) => Err(Unroutable::Public(public)),
        _ => Ok(reachable_servers),
    }
}

/// Handle of the DNS thread. All clones share the thread, which ends when the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    requests: mpsc::Sender<LookupRequest>,
    own: Arc<OwnAddresses>,
}

#[derive(Debug)]
struct LookupRequest {
    target: SmtpTarget,
    seed: u64,
    answer: oneshot::Sender<Result<Vec<MailServer>, Unroutable>>,
}

impl Resolver {
    /// Starts the thread that queries DNS. The thread sets up its resolver at the first query, so that a relay that
    /// needs no DNS needs no resolv.conf.
    pub(crate) fn start(dns: &DnsConfig, own_name: &str, own: Arc<OwnAddresses>) -> io::Result<Self> {
        let (questions, requests) = mpsc::channel(MAX_PENDING_LOOKUPS);
        let context = Arc::new(LookupContext {
            dns: dns.clone(),
            own_name: own_name.to_owned(),
            own: Arc::clone(&own),
            resolver: Default::default(),
            resolver_without_edns: Default::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("dns".to_owned()).spawn(move || runtime.block_on(serve(requests, context)))?;
        Ok(Self { requests: questions, own })
    }

    pub(crate) fn own_addresses(&self) -> &OwnAddresses {
        &self.own
    }

    /// Returns the servers of a next hop, at least one, in the order in which they should be tried. `seed` decides the
    /// order among equally preferred servers, so a new seed for each connection spreads the load. `scope` limits the
    /// addresses to which the relay may send mail. The caller must take it from the current configuration, because a
    /// reload may change it. The future can be awaited on any event loop.
    ///
    /// # Errors
    /// Fails if the next hop has no server to which the relay may send mail, or if DNS does not answer.
    pub(crate) async fn resolve(
        &self,
        to: &SmtpTarget,
        seed: u64,
        scope: DeliveryScope,
    ) -> Result<Vec<MailServer>, Unroutable> {
        let servers = self.servers(to, seed, scope).await;
        servers.map_err(|error| match (to, &error) {
            (SmtpTarget::Hosts(_), Unroutable::NoSuchDomain(_) | Unroutable::NoAddress(_) | Unroutable::Public(_)) => {
                Unroutable::NextHop(Box::new(error))
            }
            _ => error,
        })
    }

    async fn servers(&self, to: &SmtpTarget, seed: u64, scope: DeliveryScope) -> Result<Vec<MailServer>, Unroutable> {
        let servers = match literal_addresses(to)? {
            Some(servers) => without_own(servers, to, &self.own),
            None => self.request(to, seed).await?,
        };
        if servers.is_empty() {
            return Err(Unroutable::Loop(to.to_string()));
        }
        reachable(servers, scope)
    }

    async fn request(&self, to: &SmtpTarget, seed: u64) -> Result<Vec<MailServer>, Unroutable> {
        let (answer, answered) = oneshot::channel();
        let result = self.requests.send(LookupRequest { target: to.clone(), seed, answer }).await;
        let answered = if result.is_ok() { answered.await.ok() } else { None };
        answered.unwrap_or_else(|| Err(Unroutable::lookup_failed(&to.to_string(), "its thread has ended")))
    }
}

/// Returns the servers if the target contains only addresses, so that no DNS query is necessary.
/// Otherwise returns `None`.
fn literal_addresses(to: &SmtpTarget) -> Result<Option<RankedServers>, Unroutable> {
    match to {
        SmtpTarget::Domain { name, .. } if !name.starts_with('[') => Ok(None),
        SmtpTarget::Domain { name, port } => match literal(name) {
            Some(ip) => Ok(Some(vec![(0, mail_server(&ip.to_string(), ip, *port))])),
            None => Err(Unroutable::BadLiteral(name.to_string())),
        },
        SmtpTarget::Hosts(hosts) => {
            let written = |(rank, host): (u16, &TargetHost)| {
                Some((rank, mail_server(&host.name, host.name.parse().ok()?, host.port)))
            };
            Ok((0..).zip(hosts).map(written).collect())
        }
    }
}

fn mail_server(name: &str, ip: IpAddr, port: u16) -> MailServer {
    MailServer { name: name.into(), address: SocketAddr::new(ip, port) }
}

async fn serve(mut requests: mpsc::Receiver<LookupRequest>, context: Arc<LookupContext>) {
    while let Some(LookupRequest { target: to, seed, mut answer }) = requests.recv().await {
        let context = Arc::clone(&context);
        tokio::spawn(async move {
            tokio::select! {
                servers = context.resolve(&to, seed) => drop(answer.send(servers)),
                // Cancel the lookup, because its caller no longer waits for the answer.
                () = answer.closed() => {}
            }
        });
    }
}

struct LookupContext {
    dns: DnsConfig,
    own_name: String,
    own: Arc<OwnAddresses>,
    resolver: tokio::sync::OnceCell<TokioResolver>,
    resolver_without_edns: tokio::sync::OnceCell<TokioResolver>,
}

/// Tells whether queries contain the OPT record of EDNS (RFC 6891).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edns {
    AsConfigured,
    Off,
}

impl LookupContext {
    async fn resolve(&self, to: &SmtpTarget, seed: u64) -> Result<Vec<MailServer>, Unroutable> {
        match to {
            SmtpTarget::Hosts(hosts) => {
                let hosts: Vec<_> = (0..).zip(hosts.iter().cloned()).collect();
                self.addresses(to, &to.to_string(), &hosts).await
            }
            SmtpTarget::Domain { name, port } => {
                let exchangers = self.exchangers(name).await?;
                let hosts = order_hosts(name, &exchangers, &self.own_name, seed)?;
                let target = |name: String| TargetHost { name: name.into(), port: *port };
                let hosts: Vec<_> = hosts.into_iter().map(|(preference, name)| (preference, target(name))).collect();
                self.addresses(to, name, &hosts).await
            }
        }
    }

    async fn exchangers(&self, domain: &str) -> Result<Vec<Exchanger>, Unroutable> {
        let answer = match self.lookup(domain, RecordType::MX).await? {
            DnsAnswer::Records(records) => records,
            DnsAnswer::NoRecords => return Ok(Vec::new()),
            DnsAnswer::NoSuchName => return Err(Unroutable::NoSuchDomain(domain.to_owned())),
        };
        let exchanger = |record| match record {
            RData::MX(mx) => Some(Exchanger { preference: mx.preference, host: mx.exchange.to_utf8() }),
            _ => None,
        };
        Ok(answer.into_iter().filter_map(exchanger).collect())
    }

    /// Returns the addresses of all hosts, in order. If a host has no addresses or cannot be
    /// resolved at present, the addresses of the other hosts are used.
    async fn addresses(
        &self,
        target: &SmtpTarget,
        whose: &str,
        hosts: &[(u16, TargetHost)],
    ) -> Result<Vec<MailServer>, Unroutable> {
        let mut servers = Vec::new();
        let mut missing = Unroutable::NoAddress(whose.to_owned());
        for (rank, host) in hosts {
            match self.addresses_of(&host.name).await {
                Ok(addresses) => {
                    servers.extend(addresses.into_iter().map(|ip| (*rank, mail_server(&host.name, ip, host.port))))
                }
                // Prefer a temporary error to a permanent error, because a retry may still find an address.
                Err(error) if error.is_transient() || hosts.len() == 1 => missing = error,
                Err(_) => {}
            }
        }
        if !servers.is_empty() && !missing.is_transient() {
            missing = Unroutable::Loop(whose.to_owned());
        }
        let servers = without_own(servers, target, &self.own);
        if servers.is_empty() { Err(missing) } else { Ok(servers) }
    }

    /// Returns the addresses of a host. IPv4 addresses come first, because they also work if this relay has no IPv6.
    async fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, Unroutable> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![ip]);
        }
        let both = tokio::join!(self.lookup(host, RecordType::A), self.lookup(host, RecordType::AAAA));
        let mut addresses = Vec::new();
        let mut exists = false;
        let mut missing = None;
        for answer in [both.0, both.1] {
            match answer {
                Ok(DnsAnswer::Records(records)) => {
                    addresses.extend(records.into_iter().filter_map(|record| record.ip_addr()))
                }
                Ok(DnsAnswer::NoRecords) => exists = true,
                Ok(DnsAnswer::NoSuchName) => {}
                Err(error) => missing = Some(error),
            }
        }
        match (addresses.is_empty(), missing) {
            (false, _) => Ok(addresses),
            (true, Some(error)) => Err(error),
            (true, None) if exists => Err(Unroutable::NoAddress(host.to_owned())),
            (true, None) => Err(Unroutable::NoSuchDomain(host.to_owned())),
        }
    }

    /// Looks up a name as a fully qualified name. Otherwise, a search list in resolv.conf could redirect mail.
    async fn lookup(&self, name: &str, kind: RecordType) -> Result<DnsAnswer, Unroutable> {
        let mut outcome = self.query(name, kind, Edns::AsConfigured).await;
        if outcome.as_ref().is_err_and(is_edns_refused) {
            // Name servers that do not know EDNS refuse a query that uses it (RFC 6891 §7), so ask
            // again without EDNS.
            outcome = self.query(name, kind, Edns::Off).await;
        }
        match outcome {
            Ok(answer) => Ok(DnsAnswer::Records(answer.answers().iter().map(|record| record.data.clone()).collect())),
            Err(error) if error.is_nx_domain() => Ok(DnsAnswer::NoSuchName),
            Err(error) if error.is_no_records_found() => Ok(DnsAnswer::NoRecords),
            Err(error) => Err(Unroutable::lookup_failed(name, &error.to_string())),
        }
    }

    async fn query(&self, name: &str, kind: RecordType, edns: Edns) -> Result<Lookup, NetError> {
        let cell = if edns == Edns::Off { &self.resolver_without_edns } else { &self.resolver };
        let resolver = cell.get_or_try_init(|| async { build(&self.dns, edns) }).await?;
        resolver.lookup(format!("{name}."), kind).await
    }
}

fn is_edns_refused(error: &NetError) -> bool {
    matches!(error, NetError::Dns(DnsError::ResponseCode(ResponseCode::FormErr | ResponseCode::NotImp)))
}

enum DnsAnswer {
    Records(Vec<RData>),
    /// The name exists, but has no records of this type.
    NoRecords,
    NoSuchName,
}

fn build(dns: &DnsConfig, edns: Edns) -> Result<TokioResolver, NetError> {
    let mut builder = if dns.servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let servers = dns.servers.iter().map(name_server).collect();
        TokioResolver::builder_with_config(
            ResolverConfig::from_parts(None, Vec::new(), servers),
            TokioRuntimeProvider::default(),
        )
    };
    let options = builder.options_mut();
    options.timeout = dns.timeout;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.cache_size = MAX_CACHE_ENTRIES;
    options.edns0 &= edns == Edns::AsConfigured;
    builder.build()
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let at = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    NameServerConfig::new(address.ip(), true, vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())])
}

/// Returns the names and addresses of a domain's servers, at least one, in the order in which they should be
/// tried. The domain may be an address literal (`[192.0.2.1]`). `seed` decides the order among servers of the same
/// preference.
///
/// # Errors
/// Fails if the domain has no server, or if `scope` excludes all of its servers because their addresses are
/// public.
pub fn mail_servers(domain: &str, port: u16, scope: DeliveryScope, seed: u64) -> Result<Vec<(String, SocketAddr)>> {
    let own = Arc::new(OwnAddresses::new([].iter()));
    // To prevent mail loops, the resolver omits the host with its own name, and hosts without a better preference.
    // This lookup relays nothing, so pass an empty name as the own name. The resolver then omits no host.
    let resolver = Resolver::start(&DnsConfig::default(), "", own).context("cannot start a thread")?;
    let target = SmtpTarget::Domain { name: domain.into(), port };
    let found = mailrun_net::worker::run(move |_| async move { resolver.resolve(&target, seed, scope).await })
        .context("cannot start an event loop")?;
    let servers = found.map_err(|error| match error {
        Unroutable::Public(address) => anyhow!(
            "{address} is a public address; only loopback and private addresses are allowed by default. If the server \
             is yours, add --allow-public"
        ),
        error => anyhow!("{error}"),
    })?;
    Ok(servers.into_iter().map(|server| (server.name.to_string(), server.address)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::proto::op::{Message, MessageType};
    use hickory_resolver::proto::rr::rdata::{A, AAAA, MX};
    use hickory_resolver::proto::rr::{Name, Record};
    use std::future::Future;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    const OWN: &str = "relay.example";

    fn exchangers(rows: &[(u16, &str)]) -> Vec<Exchanger> {
        rows.iter().map(|(preference, host)| Exchanger { preference: *preference, host: (*host).to_owned() }).collect()
    }

    fn ordered(rows: &[(u16, &str)], seed: u64) -> Result<Vec<String>, Unroutable> {
        let hosts = order_hosts("d.example", &exchangers(rows), OWN, seed)?;
        Ok(hosts.into_iter().map(|(_, host)| host).collect())
    }

    #[test]
    fn a_table_of_orders() {
        type OrderCase<'a> = (&'a [(u16, &'a str)], Result<&'a [&'a str], Unroutable>);
        let own = || "d.example".to_owned();
        let rows: &[OrderCase<'_>] = &[
            (&[], Ok(&["d.example"])),
            (&[(20, "b.example."), (10, "A.example.")], Ok(&["a.example", "b.example"])),
            (&[(0, ".")], Err(Unroutable::TakesNoMail(own()))),
            (&[(0, "."), (0, "")], Err(Unroutable::TakesNoMail(own()))),
            (&[(0, "."), (10, "a.example.")], Ok(&["a.example"])),
            (&[(10, "a.example"), (20, "Relay.example."), (30, "c.example")], Ok(&["a.example"])),
            (&[(20, "a.example"), (20, "relay.example"), (10, "b.example")], Ok(&["b.example"])),
            (&[(10, "relay.example"), (20, "b.example")], Err(Unroutable::Loop(own()))),
            (&[(10, "a.example"), (20, "a.example."), (20, "A.EXAMPLE")], Ok(&["a.example"])),
        ];
        for (exchangers, expected) in rows {
            let expected =
                expected.clone().map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>());
            assert_eq!(ordered(exchangers, 1), expected, "{exchangers:?}");
        }
    }

    #[test]
    fn equals_are_mixed_by_the_seed_and_by_nothing_else() {
        let rows = [(10, "a"), (10, "b"), (10, "c"), (20, "d"), (20, "e")];
        let mut backwards = rows;
        backwards.reverse();
        let mut firsts = HashSet::new();
        for seed in 0..100 {
            let order = ordered(&rows, seed).unwrap();
            assert_eq!(order, ordered(&backwards, seed).unwrap(), "the order of the answer decides nothing");
            let (best, rest) = order.split_at(3);
            assert!(best.iter().all(|host| ["a", "b", "c"].contains(&host.as_str())) && rest.len() == 2);
            firsts.insert(best[0].clone());
        }
        assert_eq!(firsts.len(), 3, "each has its turn");
        let many: Vec<(u16, String)> = (0..1000).map(|number| (number, format!("h{number}"))).collect();
        let many: Vec<(u16, &str)> = many.iter().map(|(preference, host)| (*preference, host.as_str())).collect();
        assert_eq!(ordered(&many, 0).unwrap().len(), MAX_EXCHANGERS);
    }

    #[test]
    fn a_table_of_literals() {
        for (text, expected) in [
            ("[127.0.0.1]", Some("127.0.0.1")),
            ("[IPv6:::1]", Some("::1")),
            ("[ipv6:2001:db8::1]", Some("2001:db8::1")),
            ("[::1]", None),
            ("[IPv6:127.0.0.1]", None),
            ("[127.0.0.1", None),
            ("127.0.0.1", None),
            ("[]", None),
            ("[example.com]", None),
        ] {
            assert_eq!(literal(text), expected.map(|address| address.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_left_out_unless_allowed() {
        let near = mail_server("a", "10.0.0.1".parse().unwrap(), 25);
        let far = mail_server("b", "8.8.8.8".parse().unwrap(), 25);
        let both = || vec![far.clone(), near.clone(), near.clone()];
        assert_eq!(reachable(both(), DeliveryScope::Local), Ok(vec![near.clone()]));
        assert_eq!(reachable(vec![far.clone()], DeliveryScope::Local), Err(Unroutable::Public(far.address.ip())));
        assert_eq!(reachable(both(), DeliveryScope::Anywhere), Ok(vec![far.clone(), near.clone()]));
    }

    #[test]
    fn what_may_go_better_later_is_told_from_what_may_not() {
        assert!(Unroutable::lookup_failed("d", "w").is_transient());
        assert!(Unroutable::NextHop(Box::new(Unroutable::NoSuchDomain("d".to_owned()))).is_transient());
        let name = || "d".to_owned();
        for error in [
            Unroutable::NoSuchDomain(name()),
            Unroutable::TakesNoMail(name()),
            Unroutable::NoAddress(name()),
            Unroutable::Loop(name()),
            Unroutable::BadLiteral(name()),
            Unroutable::Public("8.8.8.8".parse().unwrap()),
        ] {
            let (code, enhanced) = error.codes();
            assert!(!error.is_transient() && (500..600).contains(&code) && enhanced.starts_with("5."), "{error}");
        }
    }

    struct NameServer {
        address: SocketAddr,
        requests: Arc<AtomicUsize>,
    }

    impl NameServer {
        fn start() -> Self {
            Self::answering(answer)
        }

        fn answering(answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> Self {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            let requests = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&requests);
            std::thread::spawn(move || {
                let mut room = [0; 4096];
                while let Ok((length, client)) = socket.recv_from(&mut room) {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let Some(answer) = answer(&room[..length]) else { continue };
                    let _ = socket.send_to(&answer, client);
                }
            });
            Self { address, requests }
        }

        fn resolver(&self) -> Resolver {
            let dns = DnsConfig { servers: vec![self.address], timeout: Duration::from_secs(10) };
            Resolver::start(&dns, OWN, own_addresses()).unwrap()
        }
    }

    fn own_addresses() -> Arc<OwnAddresses> {
        let listener = Endpoint::resolve("127.0.0.1:2525").unwrap();
        Arc::new(OwnAddresses::new([listener].iter()))
    }

    fn answer(question: &[u8]) -> Option<Vec<u8>> {
        let requests = Message::from_vec(question).ok()?;
        let query = requests.queries.first()?.clone();
        let mut response = requests.clone();
        response.metadata.message_type = MessageType::Response;
        response.metadata.recursion_available = true;
        let name = query.name().to_utf8().to_lowercase();
        let (code, data) = zone(&name, query.query_type());
        response.metadata.response_code = code;
        for data in data {
            response.add_answer(Record::from_rdata(query.name().clone(), 300, data));
        }
        response.to_vec().ok()
    }

    fn zone(name: &str, kind: RecordType) -> (ResponseCode, Vec<RData>) {
        let mx = |preference, host: &str| RData::MX(MX::new(preference, Name::from_ascii(host).unwrap()));
        let a = |text: &str| RData::A(A(text.parse().unwrap()));
        let aaaa = |text: &str| RData::AAAA(AAAA(text.parse().unwrap()));
        let records = match (name, kind) {
            ("two.test.", RecordType::MX) => vec![mx(20, "b.test."), mx(10, "a.test.")],
            ("a.test.", RecordType::A) => vec![a("127.0.0.11")],
            ("a.test.", RecordType::AAAA) => vec![aaaa("fd00::11")],
            ("b.test.", RecordType::A) => vec![a("127.0.0.12")],
            ("implicit.test.", RecordType::A) => vec![a("127.0.0.13")],
            ("null.test.", RecordType::MX) => vec![mx(0, ".")],
            ("loop.test.", RecordType::MX) => vec![mx(10, "relay.example."), mx(20, "b.test.")],
            ("own.test.", RecordType::A) => vec![a("127.0.0.1")],
            ("own-mx.test.", RecordType::MX) => vec![mx(10, "own.test."), mx(20, "b.test.")],
            ("backup.test.", RecordType::MX) => vec![mx(10, "a.test."), mx(20, "own.test."), mx(20, "b.test.")],
            ("half-own.test.", RecordType::MX) => vec![mx(10, "broken.test."), mx(20, "own.test.")],
            ("public.test.", RecordType::MX) => vec![mx(10, "far.test.")],
            ("far.test.", RecordType::A) => vec![a("8.8.8.8")],
            ("half.test.", RecordType::MX) => vec![mx(10, "gone.test."), mx(20, "a.test.")],
            ("hollow.test.", RecordType::MX) => vec![mx(10, "gone.test."), mx(20, "empty.test.")],
            ("shaky.test.", RecordType::MX) => vec![mx(10, "broken.test."), mx(20, "gone.test.")],
            ("gone.test.", _) => return (ResponseCode::NXDomain, Vec::new()),
            ("broken.test.", _) => return (ResponseCode::ServFail, Vec::new()),
            _ => Vec::new(),
        };
        (ResponseCode::NoError, records)
    }

    /// Runs the future on a worker's event loop, because `resolve` must also work without tokio.
    fn wait<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
        mailrun_net::worker::run(|_| future).unwrap()
    }

    fn found(resolver: &Resolver, domain: &str) -> Result<Vec<String>, Unroutable> {
        found_within(DeliveryScope::Local, resolver, domain)
    }

    fn found_within(scope: DeliveryScope, resolver: &Resolver, domain: &str) -> Result<Vec<String>, Unroutable> {
        let to = SmtpTarget::Domain { name: domain.into(), port: 2525 };
        let resolver = resolver.clone();
        let destinations = wait(async move { resolver.resolve(&to, 7, scope).await })?;
        Ok(destinations.iter().map(|one| format!("{} {}", one.name, one.address)).collect())
    }

    #[test]
    fn a_table_of_domains_as_dns_has_them() {
        let server = NameServer::start();
        let resolver = server.resolver();
        let own = str::to_owned;
        let rows: &[(&str, Result<&[&str], Unroutable>)] = &[
            ("two.test", Ok(&["a.test 127.0.0.11:2525", "a.test [fd00::11]:2525", "b.test 127.0.0.12:2525"])),
            ("implicit.test", Ok(&["implicit.test 127.0.0.13:2525"])),
            ("half.test", Ok(&["a.test 127.0.0.11:2525", "a.test [fd00::11]:2525"])),
            ("[127.0.0.9]", Ok(&["127.0.0.9 127.0.0.9:2525"])),
            ("null.test", Err(Unroutable::TakesNoMail(own("null.test")))),
            ("loop.test", Err(Unroutable::Loop(own("loop.test")))),
            ("own.test", Err(Unroutable::Loop(own("own.test")))),
            ("own-mx.test", Err(Unroutable::Loop(own("own-mx.test")))),
            ("backup.test", Ok(&["a.test 127.0.0.11:2525", "a.test [fd00::11]:2525"])),
            ("[127.0.0.1]", Err(Unroutable::Loop(own("mx:[127.0.0.1]")))),
            ("gone.test", Err(Unroutable::NoSuchDomain(own("gone.test")))),
            ("empty.test", Err(Unroutable::NoAddress(own("empty.test")))),
            ("hollow.test", Err(Unroutable::NoAddress(own("hollow.test")))),
            ("public.test", Err(Unroutable::Public("8.8.8.8".parse().unwrap()))),
            ("[8.8.8.8]", Err(Unroutable::Public("8.8.8.8".parse().unwrap()))),
            ("[nonsense]", Err(Unroutable::BadLiteral(own("[nonsense]")))),
        ];
        for (domain, expected) in rows {
            let expected = expected.clone().map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
            assert_eq!(found(&resolver, domain), expected, "{domain}");
        }
        for domain in ["broken.test", "shaky.test"] {
            assert!(found(&resolver, domain).unwrap_err().is_transient(), "{domain}");
        }
        // A reload may change the permitted addresses (scope), so each lookup must apply the scope that it is given.
        for domain in ["public.test", "[8.8.8.8]"] {
            assert!(found_within(DeliveryScope::Anywhere, &resolver, domain).is_ok(), "{domain}");
            assert!(found(&resolver, domain).is_err(), "{domain}");
        }
    }

    #[test]
    fn a_server_that_does_not_know_edns_is_asked_without_it() {
        for code in [ResponseCode::FormErr, ResponseCode::NotImp] {
            let server = NameServer::answering(move |question| {
                let request = Message::from_vec(question).ok()?;
                if request.edns.is_none() {
                    return answer(question);
                }
                let mut response = request.clone();
                response.edns = None;
                response.metadata.message_type = MessageType::Response;
                response.metadata.response_code = code;
                response.to_vec().ok()
            });
            let all = found(&server.resolver(), "two.test");
            assert_eq!(all.map(|all| all.len()), Ok(3), "{code}");
        }
    }

    #[test]
    fn hosts_are_found_by_name_and_taken_by_address() {
        let server = NameServer::start();
        let resolver = server.resolver();
        let host = |name: &str, port| TargetHost { name: name.into(), port };
        let to = SmtpTarget::Hosts(Box::new([
            host("b.test", 24),
            host("127.0.0.1", 25),
            host("gone.test", 26),
            host("::1", 27),
        ]));
        let asker = resolver.clone();
        let all = wait(async move { asker.resolve(&to, 0, DeliveryScope::Local).await }).unwrap();
        let all: Vec<String> = all.iter().map(|one| one.address.to_string()).collect();
        assert_eq!(all, ["127.0.0.12:24", "127.0.0.1:25", "[::1]:27"]);
        for lost in ["gone.test", "empty.test", "public.test"] {
            let hop = SmtpTarget::Hosts(Box::new([host(lost, 25)]));
            let asker = resolver.clone();
            assert!(
                wait(async move { asker.resolve(&hop, 0, DeliveryScope::Local).await }).unwrap_err().is_transient(),
                "{lost}"
            );
        }
        let before = server.requests.load(Ordering::Relaxed);
        let written = SmtpTarget::Hosts(Box::new([host("127.0.0.1", 25)]));
        assert_eq!(wait(async move { resolver.resolve(&written, 0, DeliveryScope::Local).await }).unwrap().len(), 1);
        assert_eq!(server.requests.load(Ordering::Relaxed), before, "an address needs no DNS");
    }

    #[test]
    fn an_answer_is_kept_for_its_time() {
        let server = NameServer::start();
        let resolver = server.resolver();
        let first = found(&resolver, "two.test").unwrap();
        let requests = server.requests.load(Ordering::Relaxed);
        assert!(requests >= 4, "{requests}");
        assert_eq!(found(&resolver, "two.test").unwrap(), first);
        // Only the missing AAAA record of `b.test` may be queried again, because a negative answer
        // without SOA must not be cached (RFC 2308 §5).
        assert!(server.requests.load(Ordering::Relaxed) <= requests + 1);
    }

    #[test]
    fn a_server_that_is_silent_makes_it_later() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let dns = DnsConfig { servers: vec![silent.local_addr().unwrap()], timeout: Duration::from_millis(200) };
        let resolver = Resolver::start(&dns, OWN, own_addresses()).unwrap();
        let begun = Instant::now();
        assert!(found(&resolver, "two.test").unwrap_err().is_transient());
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn an_address_literal_needs_no_dns_and_a_public_one_needs_permission() {
        let local = DeliveryScope::Local;
        let found = mail_servers("[127.0.0.1]", 2525, local, 1).unwrap();
        assert_eq!(found, [("127.0.0.1".to_owned(), "127.0.0.1:2525".parse().unwrap())]);
        let refused = mail_servers("[8.8.8.8]", 25, local, 1).unwrap_err().to_string();
        assert!(refused.contains("--allow-public"), "{refused}");
        assert!(mail_servers("[8.8.8.8]", 25, DeliveryScope::Anywhere, 1).is_ok());
        assert!(mail_servers("[8.8.8]", 25, local, 1).is_err());
    }
}
