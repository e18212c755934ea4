//! Descriptors: the number that a relay may need, and its limits if it is granted fewer.
//!
//! The needs of the spool, the workers and HTTP are set aside; sessions and connections to next hops share the rest. A
//! relay that would run out of descriptors while it works reports its lower limits at the start.
use super::config::{Config, Durability};
use crate::http_server::CONNECTION_LIMIT;
use anyhow::{Result, bail};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Set aside for all that is not counted one by one: standard streams, signals, DNS, the control socket, Maildirs,
/// configuration files that are read again.
const RESERVE: u64 = 128;
/// An event loop, its timers, its bell and its copy of the listening socket, with as many to spare.
const PER_WORKER: u64 = 8;
/// The size of a segment, unless the spool is so small that it has smaller ones: an eighth of it each.
const SEGMENT_BYTES: u64 = 64 << 20;
/// The fewest sessions and connections to next hops, together, with which a relay is of any use.
const LEAST_CONNECTIONS: u64 = 32;

/// Descriptors that a relay may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    segments: u64,
    /// Descriptors that are set aside, those of the spool included.
    set_aside: u64,
    listeners: u64,
    /// Sessions of each listener.
    sessions: u64,
    /// Connections to next hops.
    deliveries: u64,
}

impl Need {
    fn of(config: &Config, segments_there: u64) -> Self {
        let listeners = config.listeners().count() as u64;
        let workers = config.workers.unwrap_or_else(net::worker::default_count) as u64;
        let size = config.spool.most_bytes;
        let segments = match config.spool.durability {
            Durability::Memory => 0,
            Durability::Sync | Durability::Write => {
                (size.div_ceil(SEGMENT_BYTES.min(size / 8).max(1)) + 2).max(segments_there)
            }
        };
        let http = config.http.map_or(0, |_| CONNECTION_LIMIT as u64);
        let set_aside = segments + http + PER_WORKER * workers * listeners + RESERVE;
        let (sessions, deliveries) = (config.limits.sessions as u64, u64::from(config.delivery.overall));
        Self { segments, set_aside, listeners, sessions, deliveries }
    }

    fn in_all(&self) -> u64 {
        self.set_aside + self.listeners * self.sessions + self.deliveries
    }

    /// Sessions of a listener and deliveries for which `granted` descriptors suffice; `None` if there are next to none.
    fn within(&self, granted: u64) -> Option<(u64, u64)> {
        if granted >= self.in_all() {
            return Some((self.sessions, self.deliveries));
        }
        let rest = granted.checked_sub(self.set_aside).filter(|rest| *rest >= LEAST_CONNECTIONS)?;
        // Deliveries have a quarter, and whatever sessions leave.
        let left_by_sessions = rest.saturating_sub(self.listeners * self.sessions);
        let deliveries = self.deliveries.min(left_by_sessions.max(rest / 4));
        let sessions = self.sessions.min((rest - deliveries) / self.listeners.max(1));
        Some((sessions.max(1), deliveries))
    }
}

/// Raises this process's limit as far as it may, and fits the configuration to it; returns a warning if that is less
/// than was configured.
///
/// # Errors
/// If there are too few for any use, with what to do.
pub(super) fn provide(config: &mut Config) -> Result<Option<String>> {
    let need = Need::of(config, segments_in(&config.spool.directory));
    let granted = net::open_files::raise(need.in_all());
    let wanted = need.in_all();
    let Some((sessions, deliveries)) = need.within(granted) else {
        bail!(
            "the limit of open files (ulimit -n) is {granted}, but {} are required before the first session, {} of \
             them for the spool. Raise the limit (LimitNOFILE= of a service), or use a smaller spool.max_size.",
            need.set_aside + LEAST_CONNECTIONS,
            need.segments
        );
    };
    apply(config, sessions, deliveries);
    Ok((granted < wanted).then(|| {
        format!(
            "the limit of open files (ulimit -n) is {granted}, but up to {wanted} are required: {sessions} concurrent \
             sessions on each listener, and {deliveries} connections to next hops. Raise the limit (LimitNOFILE= of a \
             service), or use smaller limits.max_sessions and delivery.overall"
        )
    }))
}

/// Fits a reloaded configuration to the number granted at the start.
pub(super) fn fit(config: &mut Config) {
    let need = Need::of(config, segments_in(&config.spool.directory));
    let granted = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if let Some((sessions, deliveries)) = need.within(granted) {
        apply(config, sessions, deliveries);
    }
}

fn apply(config: &mut Config, sessions: u64, deliveries: u64) {
    config.limits.sessions = usize::try_from(sessions).unwrap_or(usize::MAX);
    config.delivery.overall = u32::try_from(deliveries).unwrap_or(u32::MAX);
}

/// Segments that a spool has already: more than its size allows now, if that was larger once.
fn segments_in(directory: &Path) -> u64 {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"segment-")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEED: Need = Need { segments: 162, set_aside: 400, listeners: 2, sessions: 10_000, deliveries: 1_000 };

    #[test]
    fn all_is_granted_or_shared_out() {
        for (granted, shares) in [
            (u64::MAX, Some((10_000, 1_000))),
            (21_400, Some((10_000, 1_000))),
            (21_399, Some((9_999, 1_000))),
            (4_096, Some((1_386, 924))),
            (1_024, Some((234, 156))),
            (432, Some((12, 8))),
            (431, None),
            (0, None),
        ] {
            assert_eq!(NEED.within(granted), shares, "{granted}");
        }
        // Few sessions leave the rest to deliveries.
        assert_eq!(Need { sessions: 50, ..NEED }.within(1_000), Some((50, 500)));
    }

    #[test]
    fn the_spools_segments_are_counted() {
        let place = tempfile::tempdir().unwrap();
        let spool = place.path().join("spool");
        let config =
            |text: &str| Config::read_text(&format!("spool.directory = '{}'\nworkers = 2\n{text}", spool.display()));
        let plain = Need::of(&config(""), 0);
        assert_eq!((plain.segments, plain.listeners, plain.set_aside), (162, 1, 162 + 16 + RESERVE));
        assert_eq!(Need::of(&config("spool.max_size = '8M'"), 0).segments, 10);
        assert_eq!(Need::of(&config("spool.max_size = '1024G'"), 0).segments, 16_386);
        assert_eq!(Need::of(&config(""), 500).segments, 500);
        assert_eq!(Need::of(&config("spool.durability = 'memory'"), 500).segments, 0);
        let http = Need::of(&config("http = '127.0.0.1:0'"), 0);
        assert_eq!(http.set_aside, plain.set_aside + CONNECTION_LIMIT as u64);
        assert_eq!(segments_in(&spool), 0);
        std::fs::create_dir(&spool).unwrap();
        for name in ["segment-00000000", "segment-00000001", "lock"] {
            std::fs::write(spool.join(name), "").unwrap();
        }
        assert_eq!(segments_in(&spool), 2);
    }

    proptest! {
        /// Tests that no more is given away than there is, and that each share is usable.
        #[test]
        fn shares_never_exceed_what_is_granted(
            set_aside in 0_u64..5_000,
            listeners in 1_u64..9,
            sessions in 1_u64..20_000,
            deliveries in 1_u64..5_000,
            granted in 0_u64..100_000,
        ) {
            let need = Need { segments: 0, set_aside, listeners, sessions, deliveries };
            if let Some((some, others)) = need.within(granted) {
                prop_assert!(set_aside + listeners * some + others <= granted, "{some} {others}");
                prop_assert!(some >= 1 && others >= 1 && some <= sessions && others <= deliveries);
            }
        }
    }
}
