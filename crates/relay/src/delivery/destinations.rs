//! Gives each destination of a worker a number, because the queue knows destinations only by number. A destination that
//! the queue no longer needs is forgotten, and its number is reused, so that domains of old mail take no memory.
use crate::delivery::ca_files::CaFiles;
use crate::fault_log::LOG_TARGET;
use crate::qmgr::DestinationId;
use crate::routing::NextHop;
use mailrun_net::ClientSecurity;
use mailrun_net::recent::RecentMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Number of destinations that are kept even if they are idle, because resuming their TLS sessions is cheaper than full
/// handshakes.
const RETAINED_DESTINATIONS: usize = 1_000;
/// Each search for idle destinations checks this many destinations, plus 1/`SCAN_DIVISOR` of all destinations. A search
/// takes a fraction of a millisecond, and twenty searches check every destination.
const MIN_SCANNED: usize = 64;
const SCAN_DIVISOR: usize = 20;

/// Maximum number of hosts per destination whose TLS settings are kept. One DNS answer names fewer hosts. But without a
/// limit, a domain that names other hosts in each answer could fill the memory.
const MAX_HOSTS: usize = 64;

struct HostTls {
    /// Content of the route's CA file at the last attempt to build `security` from it, even if that attempt failed. New
    /// content leads to another attempt.
    pem: Option<Arc<[u8]>>,
    security: Option<ClientSecurity>,
}

#[derive(Default)]
pub(crate) struct Destinations {
    ids: HashMap<NextHop, DestinationId, foldhash::fast::RandomState>,
    /// All destinations, indexed by their numbers. `None` marks a free number.
    entries: Vec<Option<DestinationEntry>>,
    free_ids: BinaryHeap<Reverse<u32>>,
    /// Index of the destination that was last checked for idleness. The next search continues after it.
    next: usize,
}

struct DestinationEntry {
    next_hop: NextHop,
    /// TLS settings by host. They are kept, so that the CA certificates for a host are parsed only once and after each
    /// change, and not for each connection.
    hosts: RecentMap<Arc<str>, HostTls>,
    name: Arc<str>,
    /// Until this time, connections send one message at a time, because a session with several messages in transit has
    /// failed.
    unstreamed_until: Duration,
}

impl Destinations {
    /// Returns the next hop's number, and true if the number has just been assigned.
    pub(crate) fn id(&mut self, next_hop: &NextHop) -> (DestinationId, bool) {
        if let Some(key) = self.ids.get(next_hop) {
            return (*key, false);
        }
        let entry = Some(DestinationEntry {
            next_hop: next_hop.clone(),
            hosts: RecentMap::new(MAX_HOSTS),
            name: next_hop.to_string().into(),
            unstreamed_until: Duration::ZERO,
        });
        let key = match self.free_ids.pop() {
            Some(Reverse(number)) => {
                self.entries[number as usize] = entry;
                DestinationId(number)
            }
            None => {
                self.entries.push(entry);
                DestinationId(u32::try_from(self.entries.len() - 1).expect("memory holds fewer destinations"))
            }
        };
        self.ids.insert(next_hop.clone(), key);
        (key, true)
    }

    /// Forgets idle destinations, and returns their numbers. Each call checks only some of the destinations, in turn,
    /// so that no call takes long.
    pub(crate) fn forget_idle(&mut self, is_idle: impl Fn(DestinationId) -> bool) -> Vec<DestinationId> {
        let mut forgotten = Vec::new();
        if self.ids.len() <= RETAINED_DESTINATIONS {
            return forgotten;
        }
        for _ in 0..MIN_SCANNED + self.entries.len() / SCAN_DIVISOR {
            self.next = (self.next + 1) % self.entries.len();
            let key = DestinationId(self.next as u32);
            if let Some(entry) = self.entries[self.next].take_if(|_| is_idle(key)) {
                self.ids.remove(&entry.next_hop);
                self.free_ids.push(Reverse(key.0));
                forgotten.push(key);
            }
            if self.ids.len() <= RETAINED_DESTINATIONS {
                break;
            }
        }
        forgotten
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    fn entry(&self, key: DestinationId) -> &DestinationEntry {
        self.entries[key.0 as usize].as_ref().expect("a destination that is not idle is known")
    }

    pub(crate) fn next_hop(&self, key: DestinationId) -> NextHop {
        self.entry(key).next_hop.clone()
    }

    pub(crate) fn name(&self, key: DestinationId) -> Arc<str> {
        Arc::clone(&self.entry(key).name)
    }

    /// Limits a destination to one message at a time until the given time, after a session with several messages in
    /// transit has failed.
    pub(crate) fn disable_streaming(&mut self, key: DestinationId, until: Duration) {
        if let Some(entry) = &mut self.entries[key.0 as usize] {
            entry.unstreamed_until = until;
        }
    }

    pub(crate) fn may_stream(&self, key: DestinationId, now: Duration) -> bool {
        self.entry(key).unstreamed_until <= now
    }

    /// Returns the TLS settings for a host of this destination.
    ///
    /// # Errors
    /// Fails if the CA certificates cannot be used, or if the host's name is not valid for a TLS certificate.
    pub(crate) fn security(
        &mut self,
        key: DestinationId,
        host: &Arc<str>,
        ca_files: &CaFiles,
    ) -> Result<Option<ClientSecurity>, String> {
        let entry = self.entries[key.0 as usize].as_mut().expect("a destination that has connections is known");
        let NextHop::Smtp(smtp) = &entry.next_hop else { return Ok(None) };
        let pem = smtp.security.ca_file.as_ref().map(|file| ca_files.content(file));
        if let Some(secured) = entry.hosts.get_mut(host)
            && secured.pem.as_ref().map(Arc::as_ptr) == pem.as_ref().map(Arc::as_ptr)
        {
            return Ok(secured.security.clone());
        }
        let renewed = smtp.security.client_trusting(host, pem.as_deref().map(Vec::from));
        let Some(secured) = entry.hosts.get_mut(host) else {
            let security = renewed.or_else(|_| smtp.security.client(host)).map_err(|error| error.to_string())?;
            entry.hosts.insert(Arc::clone(host), HostTls { pem, security: security.clone() });
            return Ok(security);
        };
        secured.pem = pem;
        match renewed {
            Ok(security) => secured.security = security,
            // The new content of the CA file cannot be used. This is logged only once for each host, because the next
            // connection finds the same content in `secured.pem` and does not try it again.
            Err(why) => {
                tracing::warn!(target: LOG_TARGET, %why, "the trusted certificates have changed but cannot be used; the old ones stay in \
                                      use")
            }
        }
        Ok(secured.security.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::envelope::DeliveryRefusal;
    use crate::qmgr::{
        ConnectionAction, DeliveryResult, DisconnectReason, EntryProgress, MailQueue, MessageId, MessageKind, NewEntry,
        NextRequest, Options, RecipientNumbers,
    };
    use crate::routing::{NextHopTls, Smtp, SmtpTarget};
    use std::time::Duration;

    fn domain(number: u64) -> NextHop {
        let to = SmtpTarget::Domain { name: format!("d{number}.example").into(), port: 25 };
        NextHop::Smtp(Arc::new(Smtp {
            target: to,
            security: NextHopTls::default(),
            credentials: None,
            connections: None,
        }))
    }

    struct QueueFixture {
        destinations: Destinations,
        queue: MailQueue<()>,
        now: Duration,
        highest: u32,
    }

    impl QueueFixture {
        fn new() -> Self {
            let now = Duration::from_secs(1);
            let queue = MailQueue::new(Options::default(), now);
            Self { destinations: Destinations::default(), queue, now, highest: 0 }
        }

        fn put(&mut self, number: u64) {
            let (destination, _) = self.destinations.id(&domain(number));
            self.highest = self.highest.max(destination.0);
            let arrival = NewEntry {
                id: MessageId(number),
                destination,
                recipients: RecipientNumbers::new(&[0]),
                message: Some(()),
                message_bytes: 1,
                received_unix_s: 0,
                kind: MessageKind::Mail,
                progress: EntryProgress::default(),
            };
            self.queue.put(arrival, self.now);
        }

        fn visit(&mut self, reason: DisconnectReason) {
            let Some(ConnectionAction::Open(mut slot)) = self.queue.next_connection_action(self.now) else {
                panic!("no connection is opened")
            };
            if reason == DisconnectReason::Finished {
                let NextRequest::Deliver(request) = self.queue.take(&mut slot, self.now) else { panic!("no message") };
                assert!(self.queue.finish_delivery(request, DeliveryResult::Delivered, self.now).done);
            }
            self.queue.closed(slot, reason, self.now);
        }

        fn tick(&mut self) {
            self.now += Duration::from_millis(250);
            let queue = &self.queue;
            let now = self.now;
            let forgotten = self.destinations.forget_idle(|key| queue.is_idle(key, now));
            forgotten.into_iter().for_each(|key| self.queue.forget_destination(key));
        }
    }

    #[test]
    fn a_hundred_thousand_domains_one_after_the_other_are_a_few_at_a_time() {
        let mut fixture = QueueFixture::new();
        for number in 0..100_000 {
            fixture.put(number);
            fixture.visit(DisconnectReason::Finished);
            if number % 100 == 0 {
                fixture.tick();
            }
        }
        (0..40).for_each(|_| fixture.tick());
        assert_eq!(fixture.destinations.len(), RETAINED_DESTINATIONS);
        // Twenty ticks check all destinations, so the number of an idle destination is free after at most twenty ticks.
        // In this time, the test adds 2,000 destinations, which need other numbers.
        assert!(fixture.highest < 2 * RETAINED_DESTINATIONS as u32 + 2_000, "{}", fixture.highest);
        assert_eq!(
            fixture.destinations.entries.len(),
            fixture.destinations.len() + fixture.destinations.free_ids.len()
        );
    }

    #[test]
    fn destinations_with_mail_or_in_backoff_are_kept() {
        let mut fixture = QueueFixture::new();
        let many = 2 * RETAINED_DESTINATIONS as u64;
        (0..many).for_each(|number| fixture.put(number));
        (0..100).for_each(|_| fixture.tick());
        assert_eq!(fixture.destinations.len() as u64, many, "all of them have mail");
        let refusal = DeliveryRefusal::new(0, None, "connection refused", "");
        fixture.visit(DisconnectReason::Unreachable(refusal));
        (1..many).for_each(|_| fixture.visit(DisconnectReason::Finished));
        fixture.now += Duration::from_secs(60);
        (0..100).for_each(|_| fixture.tick());
        assert_eq!(fixture.destinations.len(), RETAINED_DESTINATIONS);
        let left = fixture.queue.show(MessageId(0), fixture.now);
        assert_eq!(left.len(), 1);
        assert_eq!(&*fixture.destinations.name(left[0].destination), "mx:d0.example");
        // This destination was idle and has been forgotten. When new mail for it arrives, it must get an entry again.
        let forgotten = (1..many).find(|number| !fixture.destinations.ids.contains_key(&domain(*number))).unwrap();
        fixture.put(forgotten);
        let destination = fixture.queue.show(MessageId(forgotten), fixture.now)[0].destination;
        assert_eq!(*fixture.destinations.name(destination), format!("mx:d{forgotten}.example"));
    }

    #[test]
    fn tls_settings_of_ten_thousand_hosts_are_kept_for_a_few() {
        let mut destinations = Destinations::default();
        let (key, _) = destinations.id(&domain(0));
        for number in 0..10_000 {
            let host: Arc<str> = format!("mx{number}.example").into();
            destinations.security(key, &host, &CaFiles::default()).unwrap();
        }
        assert!((1..=MAX_HOSTS).contains(&destinations.entry(key).hosts.len()));
    }

    #[test]
    fn few_destinations_are_kept() {
        let mut fixture = QueueFixture::new();
        for number in 0..RETAINED_DESTINATIONS as u64 {
            fixture.put(number);
            fixture.visit(DisconnectReason::Finished);
        }
        (0..100).for_each(|_| fixture.tick());
        assert_eq!(fixture.destinations.len(), RETAINED_DESTINATIONS);
    }
}
