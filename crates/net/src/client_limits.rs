//! Limits for each client address: the number of connections at a time, and the rates of
//! connections, logins and messages.
//!
//! ```text
//! accept ── admit ──▶ Admission ── take(messages) … ──▶ dropped: one connection fewer
//!             │                        │
//!             └─ 421 4.7.0             └─ 421 4.7.0; recipients: 450 4.7.0
//! ```
//! A rate is a bucket that holds a minute's allowance and refills continuously (GCRA, ITU-T I.371), so a client may use
//! a minute's allowance at once after a pause. IPv6 addresses are counted by their /64, which is the block that one
//! customer has (RFC 6177 §2). Clients that the server [exempts](crate::Service::is_exempt) are never looked up, so
//! they cost nothing.
use crate::recent::{RecentMap, Shards};
use mailrun_lock::lock;
use mailrun_smtp::reply::Reply;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// Minimum interval between two reports about the same client.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of reports per minute for all clients together, so that many clients cannot fill a log.
const MAX_REPORTS: u32 = 600;

/// Key under which a client is counted: an IPv4 address, or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientKey(IpAddr);

impl ClientKey {
    /// Returns the key under which the limits count a client with this address. An IPv4-mapped IPv6 address (RFC 4291
    /// §2.5.5.2) has the key of its IPv4 address, so that a client is not counted as two.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::from(u64::MAX) << 64))),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(v4) => v4.fmt(f),
            IpAddr::V6(v6) => write!(f, "{v6}/64"),
        }
    }
}

/// A limit that applies to each client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientLimit {
    /// Limit on the connections that a client has open at the same time.
    Connections,
    /// Limit on the new connections of a client per minute.
    ConnectionRate,
    /// Limit on the messages (MAIL commands) of a client per minute.
    MessageRate,
    /// Limit on the recipients (RCPT commands) of a client per minute.
    RecipientRate,
    /// Limit on the logins (AUTH commands) of a client per minute, whether or not they succeed.
    LoginRate,
    /// Limit on the TLS handshakes of a client per minute.
    HandshakeRate,
}

impl ClientLimit {
    /// All limits, for example to export a counter of refusals for each of them.
    pub const ALL: [Self; 6] = [
        Self::Connections,
        Self::ConnectionRate,
        Self::MessageRate,
        Self::RecipientRate,
        Self::LoginRate,
        Self::HandshakeRate,
    ];

    /// Returns the limit's name in logs and metrics, for example `message_rate`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionRate => "connection_rate",
            Self::MessageRate => "message_rate",
            Self::RecipientRate => "recipient_rate",
            Self::LoginRate => "login_rate",
            Self::HandshakeRate => "handshake_rate",
        }
    }

    /// Returns the reply to a client that exceeds the limit. It is 421, which ends the session. Only for the recipient
    /// rate, it is 450, so that recipients that were accepted before can still get their message.
    pub fn reply(self) -> &'static Reply {
        macro_rules! fixed {
            ($text:literal) => {{
                static REPLY: Reply = Reply::fixed(concat!($text, " from your address, try again later\r\n"));
                &REPLY
            }};
        }
        match self {
            Self::Connections => fixed!("421 4.7.0 Too many connections"),
            Self::ConnectionRate => fixed!("421 4.7.0 Too many connections a minute"),
            Self::MessageRate => fixed!("421 4.7.0 Too many messages a minute"),
            Self::RecipientRate => fixed!("450 4.7.0 Too many recipients a minute"),
            Self::LoginRate => fixed!("421 4.7.0 Too many logins a minute"),
            Self::HandshakeRate => fixed!("421 4.7.0 Too many TLS handshakes a minute"),
        }
    }
}

/// Limits for each client address, in which `None` means no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Maximum number of connections that a client address may have open at the same time.
    pub connections: Option<u32>,
    /// Maximum number of new connections per minute.
    pub connection_rate: Option<u32>,
    /// Maximum number of messages (MAIL commands) per minute.
    pub message_rate: Option<u32>,
    /// Maximum number of recipients (RCPT commands) per minute.
    pub recipient_rate: Option<u32>,
    /// Maximum number of logins per minute, whether or not they succeed.
    pub login_rate: Option<u32>,
    /// Maximum number of TLS handshakes per minute.
    pub handshake_rate: Option<u32>,
    /// Maximum number of addresses whose rates are remembered. If there are more, the least
    /// recently used addresses are forgotten. Each address takes about 200 bytes.
    pub clients: usize,
}

impl Default for ClientLimits {
    /// Allows 50 connections at a time, as Postfix does. It also allows 600 connections, logins and TLS handshakes per
    /// minute, which is more than any honest sender needs.
    fn default() -> Self {
        Self {
            connections: Some(50),
            connection_rate: Some(600),
            message_rate: None,
            recipient_rate: None,
            login_rate: Some(600),
            handshake_rate: Some(600),
            clients: 32_768,
        }
    }
}

impl ClientLimits {
    /// Returns limits that allow everything, for example for a server that only trusted clients can reach.
    pub fn none() -> Self {
        Self {
            connections: None,
            connection_rate: None,
            message_rate: None,
            recipient_rate: None,
            login_rate: None,
            handshake_rate: None,
            clients: 2,
        }
    }

    /// Returns the allowance per minute, or `None` if there is no limit or if the limit is not a rate.
    fn rate(&self, limit: ClientLimit) -> Option<u32> {
        match limit {
            ClientLimit::Connections => None,
            ClientLimit::ConnectionRate => self.connection_rate,
            ClientLimit::MessageRate => self.message_rate,
            ClientLimit::RecipientRate => self.recipient_rate,
            ClientLimit::LoginRate => self.login_rate,
            ClientLimit::HandshakeRate => self.handshake_rate,
        }
    }
}

/// A report that a server has refused connections or commands of a client, for example for a log. The first refusal of
/// a client is reported at once, and later refusals at most once a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRefusal {
    /// Address of the client that was refused, or the /64 that contains it if it is an IPv6 address.
    pub client: ClientKey,
    /// Limit that caused the newest refusal. The other refusals in `times` may have been caused by other limits.
    pub limit: ClientLimit,
    /// Number of refusals since the last report about this client, including the newest.
    pub times: u64,
}

type RefusalCallback = Box<dyn Fn(&ClientRefusal) + Send + Sync>;

/// Counts the connections and commands of each client, to apply the limits. Several servers may share these counts.
pub struct Clients {
    limits: ClientLimits,
    shards: Shards<ClientTable>,
    connected: AtomicUsize,
    refused: [AtomicU64; ClientLimit::ALL.len()],
    on_refusal: Option<RefusalCallback>,
    report_rate: Mutex<RateBucket>,
}

#[derive(Debug)]
struct ClientTable {
    /// Number of open connections per client, without entries for clients that have no connections.
    open: HashMap<ClientKey, u32>,
    recent: RecentMap<ClientKey, ClientUsage>,
}

/// What a client has recently used of its allowances, and how many refusals of this client were not reported yet.
#[derive(Debug, Default)]
struct ClientUsage {
    rates: [RateBucket; ClientLimit::ALL.len()],
    reported_at: Option<Duration>,
    unreported: u64,
}

/// Bucket of a rate limit. Stores only the time at which the bucket will be full again, because its current content
/// follows from this time.
#[derive(Clone, Copy, Debug, Default)]
struct RateBucket {
    full_at: Duration,
}

impl RateBucket {
    /// Counts an event against the rate, or returns false if the allowance is used up.
    fn take(&mut self, per_minute: u32, now: Duration) -> bool {
        let full_at = self.full_at.max(now) + MINUTE / per_minute.max(1);
        // An empty bucket is full again after a minute. If this event moved `full_at` more than a minute ahead, it
        // would take more than the bucket holds, so reject the event.
        let has_one = full_at.saturating_sub(now) <= MINUTE;
        if has_one {
            self.full_at = full_at;
        }
        has_one
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clients({:?}, {} connected)", self.limits, self.connected())
    }
}

impl Clients {
    /// Creates the counters for one or several servers that apply these limits. No client is counted yet.
    pub fn new(limits: ClientLimits) -> Self {
        let table = |capacity| ClientTable { open: HashMap::new(), recent: RecentMap::new(capacity) };
        Self {
            shards: Shards::new(limits.clients, table),
            limits,
            connected: AtomicUsize::new(0),
            refused: Default::default(),
            on_refusal: None,
            report_rate: Mutex::default(),
        }
    }

    /// Sets the function that receives reports of refusals. `report` runs on the thread of the worker that refused the
    /// client. It is called at most 600 times a minute, so it may write to a log even during an attack.
    #[must_use]
    pub fn on_refusal(mut self, report: impl Fn(&ClientRefusal) + Send + Sync + 'static) -> Self {
        self.on_refusal = Some(Box::new(report));
        self
    }

    /// Returns the number of open connections of clients that are not exempt.
    pub fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Returns the number of refusals because of this limit, over all clients.
    pub fn refused(&self, limit: ClientLimit) -> u64 {
        self.refused[limit as usize].load(Ordering::Relaxed)
    }

    /// Counts a new connection against the client's limits, and admits it if no limit is exceeded. The caller must keep
    /// the [`Admission`] until the connection ends, because dropping it allows the client another connection.
    ///
    /// # Errors
    /// If the client has exceeded a limit, returns this limit. The caller must then refuse the connection.
    pub fn admit(self: &Arc<Self>, address: IpAddr, now: Duration) -> Result<Admission, ClientLimit> {
        let client = ClientKey::of(address);
        let mut table = self.shards.lock(&client);
        let open_count = table.open.get(&client).copied().unwrap_or(0);
        let is_full = self.limits.connections.is_some_and(|limit| open_count >= limit);
        let outcome = if is_full {
            Err(ClientLimit::Connections)
        } else {
            table.take(&self.limits, client, ClientLimit::ConnectionRate, now)
        };
        if let Err(limit) = outcome {
            let times = table.count_refusal(client, now, || self.may_report(now));
            // Release the lock before calling back the embedding program, so that no other worker has to wait for the
            // callback.
            drop(table);
            self.refuse(client, limit, times);
            return Err(limit);
        }
        table.open.insert(client, open_count + 1);
        self.connected.fetch_add(1, Ordering::Relaxed);
        Ok(Admission { clients: Arc::clone(self), client, has_rates: true })
    }

    fn take(&self, client: ClientKey, limit: ClientLimit, now: Duration) -> Result<(), ClientLimit> {
        if self.limits.rate(limit).is_none() {
            return Ok(());
        }
        let mut table = self.shards.lock(&client);
        let outcome = table.take(&self.limits, client, limit, now);
        if outcome.is_err() {
            let times = table.count_refusal(client, now, || self.may_report(now));
            drop(table);
            self.refuse(client, limit, times);
        }
        outcome
    }

    fn release(&self, client: ClientKey) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
        let mut table = self.shards.lock(&client);
        match table.open.get_mut(&client) {
            Some(open) if *open > 1 => *open -= 1,
            _ => drop(table.open.remove(&client)),
        }
    }

    /// Returns true if a refusal may be reported now, and counts the report against [`MAX_REPORTS`].
    fn may_report(&self, now: Duration) -> bool {
        self.on_refusal.is_some() && lock(&self.report_rate).take(MAX_REPORTS, now)
    }

    fn refuse(&self, client: ClientKey, limit: ClientLimit, times: Option<u64>) {
        self.refused[limit as usize].fetch_add(1, Ordering::Relaxed);
        if let (Some(report), Some(times)) = (&self.on_refusal, times) {
            report(&ClientRefusal { client, limit, times });
        }
    }
}

impl ClientTable {
    fn take(
        &mut self,
        limits: &ClientLimits,
        client: ClientKey,
        limit: ClientLimit,
        now: Duration,
    ) -> Result<(), ClientLimit> {
        let Some(rate) = limits.rate(limit) else { return Ok(()) };
        let recent = self.recent.get_or_insert_with(client, ClientUsage::default);
        if recent.rates[limit as usize].take(rate, now) { Ok(()) } else { Err(limit) }
    }

    /// Counts a refusal. If a report is due and permitted, returns the number of refusals since the last report.
    fn count_refusal(&mut self, client: ClientKey, now: Duration, may_report: impl FnOnce() -> bool) -> Option<u64> {
        let recent = self.recent.get_or_insert_with(client, ClientUsage::default);
        recent.unreported += 1;
        let is_due = recent.reported_at.is_none_or(|then| now.saturating_sub(then) >= REPORT_INTERVAL);
        (is_due && may_report()).then(|| {
            recent.reported_at = Some(now);
            std::mem::take(&mut recent.unreported)
        })
    }
}

/// Permission for one connection of a client. Dropping it, when the connection ends, lets the client open another.
#[derive(Debug)]
pub struct Admission {
    clients: Arc<Clients>,
    client: ClientKey,
    has_rates: bool,
}

impl Admission {
    /// Counts an event, such as MAIL, against the rate that limits it.
    ///
    /// # Errors
    /// Returns the limit if its allowance is used up.
    pub fn take(&self, limit: ClientLimit, now: Duration) -> Result<(), ClientLimit> {
        if !self.has_rates {
            return Ok(());
        }
        self.clients.take(self.client, limit, now)
    }

    /// Exempts the client from the rate limits, because it has logged in. The connection still counts against the limit
    /// of open connections.
    pub fn waive_rates(&mut self) {
        self.has_rates = false;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.clients.release(self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_a_64() {
        for (one, other, is_same) in [
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("::1", "127.0.0.1", false),
        ] {
            assert_eq!(ClientKey::of(address(one)) == ClientKey::of(address(other)), is_same, "{one} {other}");
        }
        assert_eq!(ClientKey::of(address("2001:db8::1")).to_string(), "2001:db8::/64");
        assert_eq!(ClientKey::of(address("::ffff:192.0.2.1")).to_string(), "192.0.2.1");
    }

    #[test]
    fn one_client_that_has_all_its_connections_keeps_no_other_out() {
        let limits = ClientLimits { connections: Some(3), ..ClientLimits::none() };
        let clients = Arc::new(Clients::new(limits));
        let mut held: Vec<Admission> = (0..3).map(|_| clients.admit(address("192.0.2.1"), SECOND).unwrap()).collect();
        assert_eq!(clients.admit(address("192.0.2.1"), SECOND).unwrap_err(), ClientLimit::Connections);
        let other = clients.admit(address("192.0.2.2"), SECOND).unwrap();
        assert_eq!((clients.connected(), clients.refused(ClientLimit::Connections)), (4, 1));
        held.pop();
        held.push(clients.admit(address("192.0.2.1"), SECOND).unwrap());
        drop((held, other));
        assert_eq!(clients.connected(), 0);
        assert!(clients.shards.iter().all(|table| table.open.is_empty()), "who is gone takes no room");
    }

    #[test]
    fn each_rate_is_counted_for_itself_until_the_client_has_logged_in() {
        let limits = ClientLimits { message_rate: Some(2), recipient_rate: Some(3), ..ClientLimits::none() };
        let clients = Arc::new(Clients::new(limits));
        let mut client = clients.admit(address("192.0.2.1"), SECOND).unwrap();
        let take = |client: &Admission, limit, now| client.take(limit, now).is_ok();
        for number in 0..5 {
            assert_eq!(take(&client, ClientLimit::MessageRate, SECOND), number < 2);
            assert_eq!(take(&client, ClientLimit::RecipientRate, SECOND), number < 3);
            assert!(take(&client, ClientLimit::LoginRate, SECOND), "what has no limit has none");
        }
        assert!(take(&client, ClientLimit::MessageRate, SECOND * 31), "one in thirty seconds");
        assert!(!take(&client, ClientLimit::MessageRate, SECOND * 31));
        let second = clients.admit(address("192.0.2.1"), SECOND * 31).unwrap();
        assert!(!take(&second, ClientLimit::MessageRate, SECOND * 31), "the address counts, not the connection");
        client.waive_rates();
        assert!(take(&client, ClientLimit::MessageRate, SECOND * 31));
    }

    #[test]
    fn refusals_are_told_once_a_minute_for_each_client_and_none_is_forgotten() {
        let times = Arc::new(Mutex::new(Vec::new()));
        let clients = Clients::new(ClientLimits { connections: Some(0), ..ClientLimits::none() });
        let list = Arc::clone(&times);
        let clients = Arc::new(clients.on_refusal(move |refusal| list.lock().unwrap().push(refusal.times)));
        for tenth in 0..1300 {
            clients.admit(address("192.0.2.1"), SECOND * 100 + SECOND * tenth / 10).unwrap_err();
        }
        clients.admit(address("192.0.2.2"), SECOND * 231).unwrap_err();
        assert_eq!(*times.lock().unwrap(), [1, 600, 600, 1]);
        assert_eq!(clients.refused(ClientLimit::Connections), 1301);
        let refuse = |host: u16, now| {
            let [high, low] = host.to_be_bytes();
            clients.admit(IpAddr::from([10, 0, high, low]), now).unwrap_err();
        };
        (0..700).for_each(|host| refuse(host, SECOND * 400));
        refuse(699, SECOND * 401);
        assert_eq!(times.lock().unwrap().last(), Some(&2), "a refusal that was not told is told later");
    }

    #[test]
    fn every_refusal_says_why_in_one_line() {
        for limit in ClientLimit::ALL {
            let wire = String::from_utf8(limit.reply().wire().to_vec()).unwrap();
            let code = if limit == ClientLimit::RecipientRate { "450 4.7.0 Too many " } else { "421 4.7.0 Too many " };
            assert!(wire.starts_with(code) && wire.matches("\r\n").count() == 1, "{wire}");
        }
    }

    proptest! {
        /// In any period, a client may open at most as many connections as a full bucket allows, plus the refill during
        /// the period. It may have at most `max` connections open at a time.
        #[test]
        fn no_window_holds_more_than_it_may(
            rate in 1..100_u32, max in 1..5_u32, steps in prop::collection::vec((0..3000_u64, 0..3_u8, 0..3_u8), 1..300)
        ) {
            let limits = ClientLimits { connections: Some(max), connection_rate: Some(rate), ..ClientLimits::none() };
            let clients = Arc::new(Clients::new(ClientLimits { clients: 1000, ..limits }));
            let mut now = Duration::ZERO;
            let mut open: [Vec<Admission>; 3] = Default::default();
            let mut times: [Vec<Duration>; 3] = Default::default();
            for (pause, who, what) in steps {
                now += Duration::from_millis(pause);
                let place = usize::from(who);
                if what == 0 {
                    open[place].pop();
                } else if let Ok(admission) = clients.admit(IpAddr::from([192, 0, 2, who]), now) {
                    open[place].push(admission);
                    times[place].push(now);
                }
                prop_assert!(open[place].len() <= max as usize);
                prop_assert_eq!(clients.connected(), open.iter().map(Vec::len).sum::<usize>());
            }
            for times in &times {
                for (first, from) in times.iter().enumerate() {
                    for (last, to) in times.iter().enumerate().skip(first) {
                        let allowed = f64::from(rate) * (1.0 + (*to - *from).as_secs_f64() / 60.0);
                        prop_assert!((last - first + 1) as f64 <= allowed + 1e-3);
                    }
                }
            }
        }

        #[test]
        fn strangers_without_number_take_bounded_memory(seeds in prop::collection::vec(any::<u64>(), 1..2000)) {
            let limits = ClientLimits { connection_rate: Some(10), clients: 128, ..ClientLimits::none() };
            let clients = Arc::new(Clients::new(limits));
            for seed in seeds {
                let address = Ipv6Addr::from_bits(u128::from(seed) << 64 | 1);
                drop(clients.admit(IpAddr::V6(address), SECOND));
            }
            prop_assert!(clients.shards.iter().map(|table| table.recent.len()).sum::<usize>() <= 128);
        }
    }
}
