//! Result of an audit, in which a server suffers faults such as power cuts while it handles mail.
use serde::{Deserialize, Serialize};

pub const MAX_LOSSES: usize = 100;

/// Result of an audit: the version of the server that was tested, and a row for each kind of fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// Version of the server, as the server itself reports it. Empty if the recipe, the file that describes how to run
    /// the server, does not say how to ask for the version.
    pub version: String,
    /// SHA-256 of the text and the variant of the recipe (the file that describes how to run the server), as 64
    /// hexadecimal digits. It tells apart audits of the same program with different settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe_hash: Option<String>,
    /// Seed of the random numbers that decided when the faults struck. The same seed gives the same numbers again.
    pub seed: u64,
    /// A row for each kind of fault that was tested.
    pub faults: Vec<AuditRow>,
    /// Kinds of faults that were requested but could not be caused, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// What is wrong with the recipe's command that reads the server's queue, or `null` if the command works. The audit
    /// tries the command before any fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_complaint: Option<String>,
    /// Messages that were answered 250 but did not arrive, at most 100.
    pub losses: Vec<AuditLoss>,
    /// Run IDs of the rounds that lost messages. The IDs distinguish these rounds from rounds of older audits in the
    /// same directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lossy_rounds: Vec<String>,
}

/// A kind of fault, and the fates of the mail during such faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditRow {
    /// Name of the fault, for example `kill`. For a power cut, it includes the file system that the simulated disk
    /// imitated, for example `power-cut on ext4`.
    pub fault: String,
    /// True if this kind of fault was tested only for information, so that lost mail neither changes the verdict nor
    /// counts in the record's `ledger`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_remark: bool,
    /// Number of rounds that count. A round counts if the server accepted mail before the fault, the fault struck, and
    /// the round was completed.
    pub rounds: u64,
    /// Number of rounds, included in `rounds`, in which the server got only a single message before the fault. In these
    /// rounds, no later message makes the server sync what it has written.
    pub quiet: u64,
    /// Number of rounds, included in `rounds`, in which the fault was repeated while the server recovered from it.
    pub in_recovery: u64,
    /// Upper bound of the share of faults of this kind that lose mail, with a confidence of 95 %. `null` if mail was
    /// lost, not delivered or changed, if no round counts, or if `not_supported` is not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Rounds that do not count, for example because the fault did not reach a process of the server.
    pub void: u64,
    /// Reasons why rounds do not count, each listed once.
    pub void_reasons: Vec<String>,
    /// Rounds in which the server did not accept mail again after the fault, or ended by itself.
    pub never_back: u64,
    /// Rounds that failed or lost mail, but perhaps not because of the server. The server did not start on the file
    /// system that simulates the fault, or needed an operation that this file system does not have.
    pub not_supported: u64,
    /// Operations, such as `link`, that the server needed and the file system that simulates the fault does not have.
    pub unsupported: Vec<String>,
    /// Messages that the server answered with 250.
    pub answered: u64,
    /// Messages that were answered 250 but are neither at the sink nor in the server's queue, which is empty.
    pub lost: u64,
    /// Messages that were answered 250 but did not arrive, while the server's queue was not empty or could not be read.
    pub not_delivered: u64,
    /// Arrivals of a message after its first arrival.
    pub duplicates: u64,
    /// Messages that arrived with a changed body.
    pub corrupt: u64,
    /// Messages that were answered 250 but did not arrive, because the server gave them back with a notification.
    #[serde(default)]
    pub bounced: u64,
    /// Messages that arrived late: only after the server's queue was empty and the server had been restarted without a
    /// fault.
    pub after_restart: u64,
    /// Longest time from the end of the server to its next greeting, in seconds; 0 if no fault ended the server; `null`
    /// if the server never came back.
    pub back_s: Option<f64>,
}

/// A message that was answered 250 but did not arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditLoss {
    /// Number of the round of the audit in which the message did not arrive, counted from 1.
    pub round: u64,
    /// Name of the fault that struck in this round, for example `kill`.
    pub fault: String,
    /// Number of the message within its round, as in the message's trace header (`X-Mailrun`).
    pub message: u64,
    /// Time of the 250, in seconds since the load of the round began; `null` if unknown.
    pub answered_s: Option<f64>,
    /// Time of the fault, in seconds since the load of the round began.
    pub fault_s: f64,
    /// The server's reply to the message, by which the message can be found in the server's log.
    pub reply: Option<String>,
}

const CONFIDENCE: f64 = 0.95;

/// Returns an upper bound of the share of faults that lose mail, with a confidence of 95 %, if none of `rounds` rounds
/// has lost mail. This is the upper limit of the one-sided Clopper-Pearson interval for zero losses. Returns `None` if
/// there was no round.
pub fn loss_bound(rounds: u64) -> Option<f64> {
    (rounds > 0).then(|| 1.0 - (1.0 - CONFIDENCE).powf(1.0 / rounds as f64))
}

/// Formats a bound in percent, for example `18.2 %`. The bound is rounded up, so that "fewer than 18.2 %" stays true.
pub fn bound_text(bound: f64) -> String {
    format!("{:.1} %", (bound * 1000.0).ceil() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_without_a_loss_bound_the_share_of_faults_that_lose_mail() {
        for (rounds, text) in [(1, "95.0 %"), (5, "45.1 %"), (15, "18.2 %"), (59, "5.0 %"), (200, "1.5 %")] {
            assert_eq!(loss_bound(rounds).map(bound_text).as_deref(), Some(text), "{rounds}");
        }
        assert_eq!(loss_bound(0), None);
    }
}
