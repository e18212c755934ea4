//! Outages of endpoint A (on the sending application's side), of endpoint B (on the receiver's
//! side), or of the network.
use super::quantity;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageTarget {
    /// Endpoint A takes no message from the outbox, and sends no reply or event.
    A,
    /// Endpoint B is offline, and messages for it wait.
    B,
    /// Nothing crosses the network in either direction.
    Network,
}

/// A period in which an endpoint or the network is down, for example `A.down 10s..15s`. The times count from the first
/// message in the outbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Outage {
    target: OutageTarget,
    from: Duration,
    to: Duration,
    text: String,
}

impl Outage {
    /// Reads an outage, for example `A.down 10s..15s`.
    ///
    /// # Errors
    /// Fails if the text is not `A.down`, `B.down` or `net.down` with a time span. The error gives a correct example.
    pub fn parse(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is not a valid outage; use something like 'A.down 10s..15s' (A, B or net)");
        let (what, span) = text.trim().split_once(char::is_whitespace).ok_or_else(error)?;
        let target = match what.to_ascii_lowercase().as_str() {
            "a.down" => OutageTarget::A,
            "b.down" => OutageTarget::B,
            "net.down" => OutageTarget::Network,
            _ => return Err(error()),
        };
        let (from, to) = quantity::span(span.trim())?;
        Ok(Self { target, from, to, text: text.to_owned() })
    }
}

impl TryFrom<String> for Outage {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Outage> for String {
    fn from(outage: Outage) -> Self {
        outage.text
    }
}

/// Returns `at` if the target is up at that time, and otherwise the time at which it is up again.
pub(super) fn up_at(outages: &[Outage], target: OutageTarget, mut at: Duration) -> Duration {
    // The end of an outage may lie within another outage of the target, so repeat the search from there.
    while let Some(outage) =
        outages.iter().find(|outage| outage.target == target && outage.from <= at && at < outage.to)
    {
        at = outage.to;
    }
    at
}

/// Returns when the last outage of the target before `at` ended, or zero if there was none.
pub(super) fn up_since(outages: &[Outage], target: OutageTarget, at: Duration) -> Duration {
    let end_times = outages.iter().filter(|outage| outage.target == target && outage.to <= at).map(|outage| outage.to);
    end_times.max().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_ends_and_may_be_followed_by_another() {
        let s = Duration::from_secs;
        let outages: Vec<Outage> = ["A.down 10s..15s", "A.down 14s..20s", "net.down 12s..13s"]
            .map(|text| Outage::parse(text).unwrap())
            .to_vec();
        for (place, at, up) in [
            (OutageTarget::A, 9, 9),
            (OutageTarget::A, 10, 20),
            (OutageTarget::A, 20, 20),
            (OutageTarget::B, 12, 12),
            (OutageTarget::Network, 12, 13),
        ] {
            assert_eq!(up_at(&outages, place, s(at)), s(up), "{place:?} at {at}");
        }
        assert_eq!(
            (up_since(&outages, OutageTarget::A, s(5)), up_since(&outages, OutageTarget::A, s(21))),
            (s(0), s(20))
        );
    }

    #[test]
    fn nonsense_is_told_apart_from_outages() {
        for text in ["", "A.down", "C.down 1s..2s", "A.up 1s..2s", "A.down 2s..1s", "A.down x"] {
            assert!(Outage::parse(text).is_err(), "{text}");
        }
    }
}
