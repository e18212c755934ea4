//! The hops that a worker knows, by number: the queue knows no more of a hop than that.
use super::queue::HopKey;
use super::routing::Hop;
use net::ClientSecurity;
use std::collections::HashMap;
use std::sync::Arc;

/// This side of TLS with one host of a hop.
type Secured = (Arc<str>, Option<ClientSecurity>);

/// The hops that a worker knows.
#[derive(Default)]
pub(super) struct Hops {
    keys: HashMap<Hop, HopKey>,
    known: Vec<Known>,
}

struct Known {
    hop: Hop,
    /// Certificates are read once a host, not once a connection.
    secured: Vec<Secured>,
    /// What it was told of as: for logs.
    name: Arc<str>,
}

impl Hops {
    /// The hop's number, and whether it is a new one.
    pub(super) fn key(&mut self, hop: &Hop) -> (HopKey, bool) {
        if let Some(key) = self.keys.get(hop) {
            return (*key, false);
        }
        let key = HopKey(u32::try_from(self.known.len()).expect("memory holds fewer hops"));
        self.known.push(Known { hop: hop.clone(), secured: Vec::new(), name: hop.to_string().into() });
        self.keys.insert(hop.clone(), key);
        (key, true)
    }

    /// The hop of that number.
    pub(super) fn hop(&self, key: HopKey) -> Hop {
        self.known[key.0 as usize].hop.clone()
    }

    /// What it is called in logs and statistics.
    pub(super) fn name(&self, key: HopKey) -> Arc<str> {
        Arc::clone(&self.known[key.0 as usize].name)
    }

    /// This side of TLS with a host of that hop.
    ///
    /// # Errors
    /// If certificates or name cannot be used.
    pub(super) fn security(&mut self, key: HopKey, host: &Arc<str>) -> Result<Option<ClientSecurity>, String> {
        let known = &mut self.known[key.0 as usize];
        let Hop::Smtp(smtp) = &known.hop else { return Ok(None) };
        if let Some((_, security)) = known.secured.iter().find(|(name, _)| name == host) {
            return Ok(security.clone());
        }
        let security = smtp.security.client(host).map_err(|error| error.to_string())?;
        known.secured.push((Arc::clone(host), security.clone()));
        Ok(security)
    }
}
