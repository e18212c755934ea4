//! The protocol of the control socket. A request is one line of JSON. The replies are lines of
//! JSON, of which the last is `end` or `error`.
//!
//! ```text
//! > {"ask":"list","hop":"smtp:127.0.0.1:2526"}
//! < {"is":"entry","id":"0000000000000001","hop":"smtp:127.0.0.1:2526","state":"deferred",…}
//! < {"is":"end"}
//! > {"ask":"order","order":"hold","which":{"id":"0000000000000001"}}
//! < {"is":"changed","messages":1}
//! < {"is":"end"}
//! ```
use crate::message::envelope::DeliveryRefusal;
pub use crate::qmgr::{EntryState, OperatorCommand};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

pub(crate) const MAX_REQUEST_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum ControlRequest {
    /// Lists entries of the queue in no particular order.
    List {
        #[serde(default)]
        hop: Option<String>,
        #[serde(default)]
        state: Option<EntryState>,
        #[serde(default)]
        limit: Option<u64>,
    },
    Show {
        id: QueueId,
    },
    #[serde(rename = "order")]
    Change {
        #[serde(rename = "order")]
        command: OperatorCommand,
        which: CommandScope,
    },
    /// Asks for the totals of all queues, and for the statistics of the next hops with the most entries.
    Stats,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandScope {
    Id(QueueId),
    Hop(String),
    All,
}

/// Number that identifies a message in the queue. Its external form has 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueId(pub u64);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for QueueId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_one = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u64::from_str_radix(text, 16).ok().filter(|_| is_one);
        id.map(Self).ok_or_else(|| format!("{text:?} is not a queue id, which has 16 hexadecimal digits"))
    }
}

impl TryFrom<String> for QueueId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<QueueId> for String {
    fn from(id: QueueId) -> Self {
        id.to_string()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum ControlReply {
    Entry(EntryRow),
    Message(MessageRow),
    Hop(HopRow),
    Totals(TotalsRow),
    Changed { messages: u64 },
    End,
    Error { text: String },
}

/// An entry of the queue: recipients of one message that are delivered to one next hop together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRow {
    pub id: QueueId,
    pub hop: String,
    pub state: EntryState,
    pub recipients: u64,
    pub attempts: u32,
    pub received_unix_s: u64,
    pub age_s: u64,
    /// Unix time of the next attempt, in seconds. For a deferred entry, this is the next attempt to deliver it. For a
    /// ready entry whose next hop could not be reached, it is the next attempt to connect to this next hop. `None` for
    /// all other entries.
    pub next_unix_s: Option<u64>,
    pub expires_unix_s: u64,
    /// Last refusal of the entry, or the reason why the next hop cannot be reached.
    pub refusal: Option<RefusalRow>,
    /// True if the entry is ready, but waits until `next_unix_s` because the last connection to its
    /// next hop failed.
    #[serde(default)]
    pub hop_is_shut: bool,
    /// Addresses of the recipients that this entry of the queue contains. Empty except in the answer to `show`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalRow {
    /// Code of the server's SMTP reply, or 0 if the refusal is the relay's own.
    pub code: u16,
    pub enhanced: Option<String>,
    pub text: String,
    /// Host that replied, or an empty text if the refusal is the relay's own.
    pub by: String,
}

impl From<&DeliveryRefusal> for RefusalRow {
    fn from(refusal: &DeliveryRefusal) -> Self {
        Self {
            code: refusal.reply_code().unwrap_or(0),
            enhanced: refusal.enhanced.map(|enhanced| enhanced.to_string()),
            text: refusal.text.clone(),
            by: refusal.by.clone(),
        }
    }
}

impl fmt::Display for RefusalRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code > 0 {
            write!(f, "{} ", self.code)?;
        }
        match &self.enhanced {
            // Most replies repeat the enhanced status code in their text, so do not write it twice.
            Some(enhanced) if !self.text.starts_with(enhanced.as_str()) => write!(f, "{enhanced} ")?,
            _ => {}
        }
        f.write_str(&self.text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageRow {
    pub id: QueueId,
    /// Sender of the message, which is empty for a DSN.
    pub sender: String,
    pub recipients: u64,
    pub bytes: u64,
    pub received_unix_s: u64,
    pub client_name: String,
    pub client_address: Option<String>,
    pub user: Option<String>,
}

/// Statistics of one next hop, summed over all workers. The fields named after a state, such as `ready`, count the
/// queue entries in that state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopRow {
    pub hop: String,
    pub ready: u64,
    pub deferred: u64,
    pub sending: u64,
    pub held: u64,
    #[serde(rename = "telling")]
    pub awaiting_dsn: u64,
    #[serde(rename = "couriers")]
    pub connections: u64,
    pub(crate) idle: u64,
    /// Unix time at which the relay received the oldest message for this next hop, in seconds.
    pub oldest_unix_s: Option<u64>,
    /// Seconds until the next attempt to connect, if the last attempt failed. `None` if the relay need not wait.
    pub shut_for_s: Option<u64>,
    pub refusal: Option<RefusalRow>,
}

impl HopRow {
    pub fn entries(&self) -> u64 {
        self.by_state().iter().map(|(_, count)| count).sum()
    }

    pub fn by_state(&self) -> [(EntryState, u64); 5] {
        [
            (EntryState::Ready, self.ready),
            (EntryState::Deferred, self.deferred),
            (EntryState::InFlight, self.sending),
            (EntryState::Held, self.held),
            (EntryState::AwaitingDsn, self.awaiting_dsn),
        ]
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsRow {
    pub durability: String,
    pub(crate) workers: u64,
    pub messages: u64,
    /// Number of queue entries. A message has at least one entry for each of its next hops.
    pub entries: u64,
    #[serde(rename = "couriers")]
    pub connections: u64,
    /// Memory, in bytes, that the messages in the queue occupy.
    #[serde(rename = "letter_bytes")]
    pub message_bytes: u64,
    pub spool_messages: u64,
    pub(crate) spool_bytes: u64,
    pub spool_disk_bytes: u64,
    pub accepted: u64,
    pub delivered: u64,
    pub(crate) deferred: u64,
    pub failed: u64,
    /// Bytes of the messages that clients are sending or that the relay has not answered with 250 yet.
    #[serde(default)]
    pub incoming_bytes: u64,
    #[serde(default)]
    pub(crate) hops: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_what_the_manual_says() {
        let rows: [(&str, ControlRequest); 5] = [
            (r#"{"ask":"list"}"#, ControlRequest::List { hop: None, state: None, limit: None }),
            (
                r#"{"ask":"list","hop":"mx:a.example","state":"held","limit":3}"#,
                ControlRequest::List {
                    hop: Some("mx:a.example".into()),
                    state: Some(EntryState::Held),
                    limit: Some(3),
                },
            ),
            (r#"{"ask":"show","id":"00000000000000ff"}"#, ControlRequest::Show { id: QueueId(255) }),
            (
                r#"{"ask":"order","order":"retry","which":"all"}"#,
                ControlRequest::Change { command: OperatorCommand::Retry, which: CommandScope::All },
            ),
            (
                r#"{"ask":"order","order":"hold","which":{"id":"0000000000000001"}}"#,
                ControlRequest::Change { command: OperatorCommand::Hold, which: CommandScope::Id(QueueId(1)) },
            ),
        ];
        for (line, request) in rows {
            assert_eq!(serde_json::from_str::<ControlRequest>(line).unwrap(), request, "{line}");
            let written = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<ControlRequest>(&written).unwrap(), request, "{written}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for line in [
            "",
            "{}",
            "[]",
            r#"{"ask":"dance"}"#,
            r#"{"ask":"list","colour":"red"}"#,
            r#"{"ask":"show","id":"1"}"#,
            r#"{"ask":"show","id":"+000000000000001"}"#,
            r#"{"ask":"order","order":"eat","which":"all"}"#,
            r#"{"ask":"order","order":"hold","which":"some"}"#,
        ] {
            assert!(serde_json::from_str::<ControlRequest>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_state_is_written_like_its_word() {
        for (state, word) in EntryState::ALL {
            assert_eq!((serde_json::to_string(&state).unwrap(), state.name()), (format!("\"{word}\""), word));
        }
    }

    proptest! {
        #[test]
        fn any_id_is_read_back(id: u64) {
            prop_assert_eq!(QueueId(id).to_string().parse(), Ok(QueueId(id)));
        }

        #[test]
        fn any_hop_makes_one_line_that_is_read_back(hop in ".*", limit: Option<u64>) {
            let request = ControlRequest::List { hop: Some(hop), state: None, limit };
            let line = serde_json::to_string(&request).unwrap();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(serde_json::from_str::<ControlRequest>(&line).unwrap(), request);
        }

        #[test]
        fn any_octets_are_read_or_refused(octets: Vec<u8>) {
            let _ = serde_json::from_slice::<ControlRequest>(&octets);
        }
    }
}
