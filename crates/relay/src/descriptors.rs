//! Computes how many file descriptors a relay needs, and which limits apply if the system grants
//! fewer.
//!
//! Descriptors for the spool, the workers and HTTP are reserved. Sessions and connections to next
//! hops share the rest. If the rest is too small for the configured limits, the relay reports the
//! lower limits when it starts.
use crate::config::{Config, DurabilityLevel};
use anyhow::{Result, bail};
use mailrun_process::http_server::CONNECTION_LIMIT;
use std::path::Path;

/// Descriptors reserved for everything that is not counted individually: standard streams, signals,
/// DNS, the control socket, Maildirs, and configuration files that are read again.
const RESERVE: u64 = 128;
/// Descriptors reserved for each worker: its event loop, timers, wake-up and copy of the listening
/// socket, and four more in reserve.
const PER_WORKER: u64 = 8;
/// Size of a spool segment in bytes. A small spool has smaller segments, each an eighth of the
/// spool.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Minimum number of descriptors for sessions and connections to next hops. If fewer are left after the reserve, the
/// relay refuses to start.
const MIN_CONNECTIONS: u64 = 32;

/// The configured limits, reduced if the system grants too few file descriptors for them. The configuration keeps the
/// original limits, so that a reload can tell whether the user has changed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedLimits {
    /// Maximum number of simultaneous sessions per listener.
    pub(crate) sessions: usize,
    /// Maximum number of simultaneous connections to next hops.
    pub(crate) deliveries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DescriptorNeed {
    segments: u64,
    /// Number of descriptors reserved for everything except sessions and connections to next hops, including one for
    /// each segment of the spool.
    reserved: u64,
    listeners: u64,
    sessions: u64,
    deliveries: u64,
}

impl DescriptorNeed {
    fn of(config: &Config, segments_there: u64) -> Self {
        let listeners = config.listeners().count() as u64;
        let workers = config.workers_per_listener() as u64;
        let size = config.spool.max_bytes;
        let segments = match config.spool.durability {
            DurabilityLevel::Memory => 0,
            DurabilityLevel::Sync | DurabilityLevel::Write => {
                (size.div_ceil(SEGMENT_BYTES.min(size / 8).max(1)) + 2).max(segments_there)
            }
        };
        let http = config.http.map_or(0, |_| CONNECTION_LIMIT as u64);
        let set_aside = segments + http + PER_WORKER * workers * listeners + RESERVE;
        let sessions = config.limits.sessions as u64;
        let deliveries = u64::from(config.delivery.overall);
        Self { segments, reserved: set_aside, listeners, sessions, deliveries }
    }

    fn total(&self) -> u64 {
        self.reserved + self.listeners * self.sessions + self.deliveries
    }

    /// Returns how many sessions per listener and how many connections to next hops `granted` descriptors permit, or
    /// `None` if fewer than `MIN_CONNECTIONS` descriptors would be left for both.
    fn share_out(&self, granted: u64) -> Option<(u64, u64)> {
        if granted >= self.total() {
            return Some((self.sessions, self.deliveries));
        }
        let rest = granted.checked_sub(self.reserved).filter(|rest| *rest >= MIN_CONNECTIONS)?;
        // Sessions and deliveries share the `rest` of the descriptors. Deliveries may use a quarter of it, or all that
        // the sessions leave if this is more.
        let left_by_sessions = rest.saturating_sub(self.listeners * self.sessions);
        let deliveries = self.deliveries.min(left_by_sessions.max(rest / 4));
        let sessions = self.sessions.min((rest - deliveries) / self.listeners.max(1));
        Some((sessions.max(1), deliveries))
    }
}

/// Raises the process's limit of open files to the number that the relay needs, or as far as the system permits. If
/// that is not enough, returns lower limits than the configured ones, and a warning for the log.
///
/// # Errors
/// Fails if there are too few descriptors for a relay to be useful. The error says how to raise the limit.
pub(super) fn raise_limit(config: &Config) -> Result<(GrantedLimits, Option<String>)> {
    let need = DescriptorNeed::of(config, count_segments(&config.spool.directory));
    let granted = mailrun_net::open_files::raise(need.total());
    let wanted = need.total();
    let Some((sessions, deliveries)) = need.share_out(granted) else {
        bail!(
            "the limit of open files (ulimit -n) is {granted}, but {} are required before the first session, {} of \
             them for the spool. Raise the limit (LimitNOFILE= of a service), or use a smaller spool.max_size.",
            need.reserved + MIN_CONNECTIONS,
            need.segments
        );
    };
    let limits = GrantedLimits {
        sessions: usize::try_from(sessions).unwrap_or(usize::MAX),
        deliveries: u32::try_from(deliveries).unwrap_or(u32::MAX),
    };
    let warning = (granted < wanted).then(|| {
        format!(
            "the limit of open files (ulimit -n) is {granted}, but up to {wanted} are required: {sessions} concurrent \
             sessions on each listener, and {deliveries} connections to next hops. Raise the limit (LimitNOFILE= of a \
             service), or use smaller limits.max_sessions and delivery.overall"
        )
    });
    Ok((limits, warning))
}

/// Counts the segment files in the spool's directory. There may be more than the configured size of the spool permits,
/// because an earlier configuration may have permitted a larger spool.
fn count_segments(directory: &Path) -> u64 {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"segment-")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEED: DescriptorNeed =
        DescriptorNeed { segments: 162, reserved: 400, listeners: 2, sessions: 10_000, deliveries: 1_000 };

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
            assert_eq!(NEED.share_out(granted), shares, "{granted}");
        }
        // Two listeners with 50 sessions each need only 100 of the 600 unreserved descriptors, so
        // deliveries get the other 500.
        assert_eq!(DescriptorNeed { sessions: 50, ..NEED }.share_out(1_000), Some((50, 500)));
    }

    #[test]
    fn the_spools_segments_are_counted() {
        let place = tempfile::tempdir().unwrap();
        let spool = place.path().join("spool");
        let config =
            |text: &str| Config::read_text(&format!("spool.directory = '{}'\nworkers = 2\n{text}", spool.display()));
        let plain = DescriptorNeed::of(&config(""), 0);
        assert_eq!((plain.segments, plain.listeners, plain.reserved), (162, 1, 162 + 16 + RESERVE));
        assert_eq!(DescriptorNeed::of(&config("spool.max_size = '8M'"), 0).segments, 10);
        assert_eq!(DescriptorNeed::of(&config("spool.max_size = '1024G'"), 0).segments, 16_386);
        assert_eq!(DescriptorNeed::of(&config(""), 500).segments, 500);
        assert_eq!(DescriptorNeed::of(&config("spool.durability = 'memory'"), 500).segments, 0);
        let http = DescriptorNeed::of(&config("http = '127.0.0.1:0'"), 0);
        assert_eq!(http.reserved, plain.reserved + CONNECTION_LIMIT as u64);
        assert_eq!(count_segments(&spool), 0);
        std::fs::create_dir(&spool).unwrap();
        for name in ["segment-00000000", "segment-00000001", "lock"] {
            std::fs::write(spool.join(name), "").unwrap();
        }
        assert_eq!(count_segments(&spool), 2);
    }

    proptest! {
        /// Sessions, deliveries and the reserve together must never use more descriptors than were granted, and at
        /// least one session and one delivery must be possible.
        #[test]
        fn shares_never_exceed_what_is_granted(
            set_aside in 0_u64..5_000,
            listeners in 1_u64..9,
            sessions in 1_u64..20_000,
            deliveries in 1_u64..5_000,
            granted in 0_u64..100_000,
        ) {
            let need = DescriptorNeed { segments: 0, reserved: set_aside, listeners, sessions, deliveries };
            if let Some((some, others)) = need.share_out(granted) {
                prop_assert!(set_aside + listeners * some + others <= granted, "{some} {others}");
                prop_assert!(some >= 1 && others >= 1 && some <= sessions && others <= deliveries);
            }
        }
    }
}
