//! The hops of a worker, by number: the queue has only the number. Hops of which the queue has nothing to remember are
//! forgotten, and their numbers are given again: domains that mail once went to cost no memory.
use super::queue::HopKey;
use super::routing::{Hop, Security};
use net::{ClientSecurity, FileStamp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Hops that are remembered even if the queue has nothing of them: their TLS sessions spare handshakes.
const KEPT: usize = 1_000;
/// Hops that are looked at in one pass, besides one in `GLANCED_PART` of all: an idle hop is forgotten within twenty
/// passes, and a pass takes a fraction of a millisecond.
const GLANCES: usize = 64;
const GLANCED_PART: usize = 20;

/// This side of TLS with one host of a hop.
struct Secured {
    host: Arc<str>,
    /// The authority's file when it was read.
    stamp: Option<FileStamp>,
    security: Option<ClientSecurity>,
}

/// The hops of a worker.
#[derive(Default)]
pub(super) struct Hops {
    keys: HashMap<Hop, HopKey, foldhash::fast::RandomState>,
    /// By number; `None` for a free number.
    known: Vec<Option<Known>>,
    /// Free numbers: the lowest is given first.
    vacant: BinaryHeap<Reverse<u32>>,
    /// Position from which to look next for hops to forget.
    next: usize,
}

struct Known {
    hop: Hop,
    /// Certificates are read once a host and when they change, not once a connection.
    secured: Vec<Secured>,
    /// Name used in logs and statistics.
    name: Arc<str>,
    /// Time until which it gets one message at a time.
    singly_until: Duration,
}

impl Hops {
    /// The hop's number, and whether it is a new one.
    pub(super) fn key(&mut self, hop: &Hop) -> (HopKey, bool) {
        if let Some(key) = self.keys.get(hop) {
            return (*key, false);
        }
        let known = Some(Known {
            hop: hop.clone(),
            secured: Vec::new(),
            name: hop.to_string().into(),
            singly_until: Duration::ZERO,
        });
        let key = match self.vacant.pop() {
            Some(Reverse(number)) => {
                self.known[number as usize] = known;
                HopKey(number)
            }
            None => {
                self.known.push(known);
                HopKey(u32::try_from(self.known.len() - 1).expect("memory holds fewer hops"))
            }
        };
        self.keys.insert(hop.clone(), key);
        (key, true)
    }

    /// Checks some of the hops, others each time, and forgets those that are idle. Returns the forgotten ones.
    pub(super) fn forget(&mut self, is_idle: impl Fn(HopKey) -> bool) -> Vec<HopKey> {
        let mut forgotten = Vec::new();
        if self.keys.len() <= KEPT {
            return forgotten;
        }
        for _ in 0..GLANCES + self.known.len() / GLANCED_PART {
            self.next = (self.next + 1) % self.known.len();
            let key = HopKey(self.next as u32);
            if let Some(known) = self.known[self.next].take_if(|_| is_idle(key)) {
                self.keys.remove(&known.hop);
                self.vacant.push(Reverse(key.0));
                forgotten.push(key);
            }
            if self.keys.len() <= KEPT {
                break;
            }
        }
        forgotten
    }

    /// Number of hops.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    fn known(&self, key: HopKey) -> &Known {
        self.known[key.0 as usize].as_ref().expect("a hop that is not idle is known")
    }

    /// The hop of that number.
    pub(super) fn hop(&self, key: HopKey) -> Hop {
        self.known(key).hop.clone()
    }

    /// Name of a hop in logs and statistics.
    pub(super) fn name(&self, key: HopKey) -> Arc<str> {
        Arc::clone(&self.known(key).name)
    }

    /// Limits a hop to one message at a time until then.
    pub(super) fn serve_singly(&mut self, key: HopKey, until: Duration) {
        if let Some(known) = &mut self.known[key.0 as usize] {
            known.singly_until = until;
        }
    }

    /// Reports whether a hop may have several messages at a time.
    pub(super) fn may_burst(&self, key: HopKey, now: Duration) -> bool {
        self.known(key).singly_until <= now
    }

    /// This side of TLS with a host of that hop.
    ///
    /// # Errors
    /// If certificates or name cannot be used.
    pub(super) fn security(&mut self, key: HopKey, host: &Arc<str>) -> Result<Option<ClientSecurity>, String> {
        let known = self.known[key.0 as usize].as_mut().expect("a hop that has couriers is known");
        let Hop::Smtp(smtp) = &known.hop else { return Ok(None) };
        let stamp = smtp.security.authority.as_ref().map(|authority| FileStamp::of(&authority.path));
        let at = known.secured.iter().position(|secured| secured.host == *host);
        if let Some(secured) = at.map(|at| &known.secured[at])
            && secured.stamp == stamp
        {
            return Ok(secured.security.clone());
        }
        let renewed = trusting_file(&smtp.security, host);
        let Some(at) = at else {
            let security = renewed.or_else(|_| smtp.security.client(host).map_err(|why| why.to_string()))?;
            known.secured.push(Secured { host: Arc::clone(host), stamp, security: security.clone() });
            return Ok(security);
        };
        let secured = &mut known.secured[at];
        secured.stamp = stamp;
        match renewed {
            Ok(security) => secured.security = security,
            // Logged once: the stamp is that of the file that cannot be used.
            Err(why) => {
                tracing::warn!(%why, "the trusted certificates have changed but cannot be used; the old ones stay in \
                                      use")
            }
        }
        Ok(secured.security.clone())
    }
}

/// This side of TLS with a host, trusting the certificates that the authority's file has now.
fn trusting_file(security: &Security, host: &str) -> Result<Option<ClientSecurity>, String> {
    let Some(authority) = &security.authority else {
        return security.client(host).map_err(|why| why.to_string());
    };
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", authority.path.display());
    let pem = std::fs::read(&authority.path).map_err(|why| named(&why))?;
    security.client_trusting(host, Some(pem)).map_err(|why| named(&why))
}

#[cfg(test)]
mod tests {
    use super::super::envelope::Refusal;
    use super::super::queue::{
        Arrival, Before, Call, Closing, Kind, MessageId, Options, Outcome, Queue, Recipients, Taken,
    };
    use super::*;
    use crate::relay::routing::{Smtp, To};
    use std::time::Duration;

    fn domain(number: u64) -> Hop {
        let to = To::Domain { name: format!("d{number}.example").into(), port: 25 };
        Hop::Smtp(Arc::new(Smtp { to, security: Security::default(), credentials: None, connections: None }))
    }

    /// The hops and the queue of a worker, without its office.
    struct Desk {
        hops: Hops,
        queue: Queue<()>,
        now: Duration,
        /// The highest number that was given.
        highest: u32,
    }

    impl Desk {
        fn new() -> Self {
            let queue = Queue::new(Options::default());
            Self { hops: Hops::default(), queue, now: Duration::from_secs(1), highest: 0 }
        }

        fn put(&mut self, number: u64) {
            let (hop, _) = self.hops.key(&domain(number));
            self.highest = self.highest.max(hop.0);
            let arrival = Arrival {
                id: MessageId(number),
                hop,
                recipients: Recipients::new(&[0]),
                letter: Some(()),
                letter_bytes: 1,
                received_unix_s: 0,
                kind: Kind::Mail,
                before: Before::default(),
            };
            self.queue.put(arrival, self.now);
        }

        /// Has the next message delivered; or its hop found to be unreachable.
        fn visit(&mut self, closing: Closing) {
            let Some(Call::Open(mut courier)) = self.queue.wants_courier(self.now) else { panic!("nobody is called") };
            if closing == Closing::Finished {
                let Taken::Message(assignment) = self.queue.take(&mut courier, self.now) else { panic!("no message") };
                assert!(self.queue.outcome(assignment, Outcome::Delivered, self.now).done);
            }
            self.queue.closed(courier, closing, self.now);
        }

        fn tick(&mut self) {
            self.now += Duration::from_millis(250);
            let (queue, now) = (&self.queue, self.now);
            let forgotten = self.hops.forget(|key| queue.is_idle(key, now));
            forgotten.into_iter().for_each(|key| self.queue.forget_hop(key));
        }
    }

    #[test]
    fn a_hundred_thousand_domains_one_after_the_other_are_a_few_at_a_time() {
        let mut desk = Desk::new();
        for number in 0..100_000 {
            desk.put(number);
            desk.visit(Closing::Finished);
            if number % 100 == 0 {
                desk.tick();
            }
        }
        (0..40).for_each(|_| desk.tick());
        assert_eq!(desk.hops.len(), KEPT);
        // A hop is forgotten within twenty passes, of a hundred messages each.
        assert!(desk.highest < 2 * KEPT as u32 + 2_000, "{}", desk.highest);
        assert_eq!(desk.hops.known.len(), desk.hops.len() + desk.hops.vacant.len());
    }

    #[test]
    fn who_has_mail_or_cannot_be_reached_is_not_forgotten() {
        let mut desk = Desk::new();
        let many = 2 * KEPT as u64;
        (0..many).for_each(|number| desk.put(number));
        (0..100).for_each(|_| desk.tick());
        assert_eq!(desk.hops.len() as u64, many, "all of them have mail");
        let refusal = Refusal::new(0, None, "connection refused", "");
        desk.visit(Closing::Unreachable(refusal));
        (1..many).for_each(|_| desk.visit(Closing::Finished));
        desk.now += Duration::from_secs(60);
        (0..100).for_each(|_| desk.tick());
        assert_eq!(desk.hops.len(), KEPT);
        let left = desk.queue.show(MessageId(0), desk.now);
        assert_eq!(left.len(), 1);
        assert_eq!(&*desk.hops.name(left[0].hop), "mx:d0.example");
        // What comes for one that was forgotten finds its way.
        let forgotten = (1..many).find(|number| !desk.hops.keys.contains_key(&domain(*number))).unwrap();
        desk.put(forgotten);
        let hop = desk.queue.show(MessageId(forgotten), desk.now)[0].hop;
        assert_eq!(*desk.hops.name(hop), format!("mx:d{forgotten}.example"));
    }

    #[test]
    fn few_hops_are_left_alone() {
        let mut desk = Desk::new();
        for number in 0..KEPT as u64 {
            desk.put(number);
            desk.visit(Closing::Finished);
        }
        (0..100).for_each(|_| desk.tick());
        assert_eq!(desk.hops.len(), KEPT);
    }
}
