//! Facts that a notification is written from: the message, and the outcome for each recipient.
use jiff::Timestamp;
use mailrun_smtp::dsn::{Notify, Return};
use mailrun_smtp::reply::EnhancedStatusCode;

/// Facts about the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DsnFacts<'a> {
    /// The queue id; of letters and digits.
    pub(crate) id: &'a str,
    /// Name of this relay.
    pub(crate) host: &'a str,
    /// The reverse-path; empty for notifications.
    pub(crate) sender: &'a [u8],
    /// Address that receives the DSN: the sender, or somebody in its place. Empty if nobody receives it.
    pub(crate) addressee: &'a [u8],
    /// ENVID as it came: xtext.
    pub(crate) envelope_id: Option<&'a [u8]>,
    /// RET.
    pub(crate) returns: Option<Return>,
    /// Tells whether MAIL had SMTPUTF8.
    pub(crate) smtp_utf8: bool,
    pub(crate) received_at: Timestamp,
    /// The message, CRLF, dots unstuffed; empty if it can no longer be read, and so does not come back.
    pub(crate) message: &'a [u8],
}

impl DsnFacts<'_> {
    /// Reports whether the DSN goes to the sender.
    pub(crate) fn is_to_sender(&self) -> bool {
        self.sender == self.addressee
    }
}

/// The outcome for a recipient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DsnRecipient<'a> {
    pub(crate) address: &'a [u8],
    /// ORCPT as it came: `rfc822;` and xtext.
    pub(crate) original: Option<&'a [u8]>,
    /// NOTIFY.
    pub(crate) notify: Option<Notify>,
    pub(crate) action: DsnAction,
    pub(crate) enhanced: Option<EnhancedStatusCode>,
    /// The code of the reply that `text` is from; `None` if `text` is this relay's own.
    pub(crate) code: Option<u16>,
    /// Text of the reply, any bytes; empty if there was none.
    pub(crate) text: &'a [u8],
    /// The next hop that the reply is from.
    pub(crate) remote_mta: Option<&'a str>,
    pub(crate) last_attempt: Option<Timestamp>,
}

/// Actions of RFC 3464 §2.3.3, in the order in which a person reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DsnAction {
    /// It will not be delivered.
    Failed,
    /// It has not been delivered yet; it is tried until then.
    Delayed { until: Timestamp },
    /// A next hop has it that does not notify (RFC 3461 §5.2.2).
    Relayed,
    /// The message went on to the members of an alias, and there will be no more DSNs (RFC 3461 §5.2.7).
    Expanded,
    /// It is in the mailbox.
    Delivered,
}

impl DsnAction {
    /// The NOTIFY value by which a sender asks for DSNs of this action.
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
