use crate::message::envelope::OriginalAddress;
use jiff::Timestamp;
use mailrun_smtp::dsn::{Notify, Return};
use mailrun_smtp::reply::EnhancedStatusCode;

#[derive(Clone, Copy, Debug)]
pub(crate) struct DsnFacts<'a> {
    /// Queue id, which consists of letters and digits.
    pub(crate) id: &'a str,
    pub(crate) host: &'a str,
    /// Address of the message's sender, which is empty if the message is itself a DSN.
    pub(crate) sender: &'a [u8],
    /// Recipient of the DSN: the sender, or somebody else whom the configuration names. If it is empty, no DSN is
    /// composed.
    pub(crate) addressee: &'a [u8],
    /// The sender's ENVID as received, which is still encoded as xtext.
    pub(crate) envelope_id: Option<&'a [u8]>,
    pub(crate) returns: Option<Return>,
    pub(crate) smtp_utf8: bool,
    pub(crate) received_at: Timestamp,
    /// The message with CRLF and without dot-stuffing. It is empty if the message can no longer be read, and the DSN
    /// then does not return it.
    pub(crate) message: &'a [u8],
}

impl DsnFacts<'_> {
    pub(crate) fn is_to_sender(&self) -> bool {
        self.sender == self.addressee
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DsnRecipient<'a> {
    pub(crate) address: &'a [u8],
    pub(crate) original: Option<&'a OriginalAddress>,
    pub(crate) notify: Option<Notify>,
    pub(crate) action: DsnAction,
    pub(crate) enhanced: Option<EnhancedStatusCode>,
    /// Code of the reply from `remote_mta`, or `None` if this relay itself wrote `text`.
    pub(crate) code: Option<u16>,
    /// Text of the reply, which may contain any bytes, or this relay's own text. It is empty if there is no text.
    pub(crate) text: &'a [u8],
    pub(crate) remote_mta: Option<&'a str>,
    /// Time of the delivery attempt whose result the DSN reports. `None`, for example, if the DSN reports a delay, or
    /// if the message expired between two attempts.
    pub(crate) last_attempt: Option<Timestamp>,
}

/// Actions of RFC 3464 §2.3.3. A DSN lists its recipients in the order of these variants, so that failures come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DsnAction {
    Failed,
    /// The message is not delivered yet, and the relay keeps trying until the time `until`.
    Delayed {
        until: Timestamp,
    },
    /// A next hop that sends no DSNs has accepted the message (RFC 3461 §5.2.2).
    Relayed,
    /// The message went on to the members of an alias, and no further DSN will follow (RFC 3461 §5.2.7).
    Expanded,
    Delivered,
}

impl DsnAction {
    /// Returns the NOTIFY value with which a sender asks for DSNs about this action.
    pub(crate) fn notify_value(self) -> Notify {
        match self {
            Self::Failed => Notify::FAILURE,
            Self::Delayed { .. } => Notify::DELAY,
            Self::Relayed | Self::Expanded | Self::Delivered => Notify::SUCCESS,
        }
    }

    pub(crate) fn subject(self, is_to_sender: bool) -> String {
        let whose = if is_to_sender { "your" } else { "a" };
        match self {
            Self::Failed => format!("Undelivered mail: {whose} message could not be delivered"),
            Self::Delayed { .. } => format!("Delayed mail: {whose} message has not been delivered yet"),
            Self::Relayed => format!("Relayed mail: {whose} message was passed on"),
            Self::Expanded => format!("Relayed mail: {whose} message was passed on to several recipients"),
            Self::Delivered => format!("Delivered mail: {whose} message was delivered"),
        }
    }
}
