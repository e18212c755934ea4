//! An audit of a server: what became of its mail under each kind of fault.
use serde::{Deserialize, Serialize};

/// Maximum number of lost messages that an audit lists.
pub const MAX_LOSSES: usize = 100;

/// An audit of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// The server's own words about its version; empty if its recipe does not say how to ask.
    pub version: String,
    /// SHA-256 of the recipe's text and its variant, 64 hexadecimal digits; `null` in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe_hash: Option<String>,
    /// Seed of the moments of the faults.
    pub seed: u64,
    /// A row for each kind of fault.
    pub faults: Vec<AuditRow>,
    /// Messages that were answered 250 and did not arrive, at most 100.
    pub losses: Vec<AuditLoss>,
}

/// A kind of fault, and what became of the mail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditRow {
    /// Its name, for example `kill`.
    pub fault: String,
    /// Rounds that came to their end.
    pub rounds: u64,
    /// Rounds in which the server did not take mail again after the fault, or ended by itself.
    pub never_back: u64,
    /// Rounds that went wrong after the server had asked for operations that the file system of the fault does not have.
    /// They say nothing of the server.
    #[serde(default)]
    pub not_supported: u64,
    /// Those operations, for example `link`.
    #[serde(default)]
    pub unsupported: Vec<String>,
    /// Messages that were answered 250.
    pub answered: u64,
    /// Messages of them that are neither at the sink nor in the server's queue, which is empty.
    pub lost: u64,
    /// Messages of them that did not arrive, while the server's queue was not empty or could not be asked.
    pub not_delivered: u64,
    /// Arrivals of a message after its first.
    pub duplicates: u64,
    /// Messages that arrived changed.
    pub corrupt: u64,
    /// Arrivals after the server had emptied its queue, and was stopped and started once more without a fault.
    #[serde(default)]
    pub after_restart: u64,
    /// Longest time from a fault to the next greeting, in seconds; `null` if the server never came back.
    pub back_s: Option<f64>,
}

/// A message that was answered 250 and did not arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditLoss {
    /// Number of the round, from 1.
    pub round: u64,
    /// The round's fault.
    pub fault: String,
    /// Number of the message in the round.
    pub message: u64,
    /// Time at which it was answered 250, in seconds since the load of the round began; `null` if unknown.
    pub answered_s: Option<f64>,
    /// Time of the fault, likewise.
    pub fault_s: f64,
    /// The server's reply to it, by which its log has it.
    pub reply: Option<String>,
}
