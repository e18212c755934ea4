use std::collections::VecDeque;

use super::entry::DestinationId;
use crate::message::envelope::DeliveryRefusal;

/// A connection to a destination, or an attempt to connect. Its owner must return it to the queue with `closed`.
#[must_use = "a slot that is not given back counts against the limits for ever"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSlot {
    pub(crate) destination: DestinationId,
    pub(super) is_idle: bool,
    pub(super) must_quit: bool,
    /// Set if the connection has sent QUIT. It takes no more messages, but counts towards the
    /// limits until it is closed.
    pub(super) is_quitting: bool,
    /// How likely the destination was to answer when this attempt to connect began. `None` once a session has been
    /// established.
    pub(super) trial: Option<Standing>,
}

impl ConnectionSlot {
    /// Returns true if the destination has neither answered nor failed so far. The attempt should then be short,
    /// because other destinations may be waiting for a connection.
    pub(crate) fn is_first_trial(&self) -> bool {
        matches!(self.trial, Some(Standing::New | Standing::Configured))
    }
}

/// How likely a destination is to answer, judged by the last attempts to connect to it. Connections usually go first to
/// the destinations that are most likely to answer, in the order `Proven`, `Configured`, `New`, `Failed`. While few
/// connections are attempts to reach `Failed` destinations, these come before `New` ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The destination answered the last time, or needs no server, such as a Maildir on this host.
    Proven,
    Configured,
    /// A recipient's domain that has not answered an attempt to connect yet.
    New,
    Failed,
}

impl Standing {
    pub(super) const ALL: [Self; 4] = [Self::Proven, Self::Configured, Self::New, Self::Failed];

    /// Returns the maximum number of attempts to connect that may run at a time, including a new attempt to reach a
    /// destination with this standing. Attempts to reach `Proven` destinations do not count, because such destinations
    /// usually answer soon. Destinations that are less likely to answer have a lower limit, so that connections remain
    /// for the other destinations.
    pub(super) fn trial_limit(self, limit: u32) -> u32 {
        match self {
            Self::Proven => limit,
            Self::Configured => limit - limit / 8,
            Self::New | Self::Failed => limit - limit / 4,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    Open(ConnectionSlot),
    /// Wake one of the destination's idle connections, so that it asks the queue for a message by calling `take`.
    Wake(DestinationId),
    Close(DestinationId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The connection had nothing more to do, or its session ended normally.
    Finished,
    /// No session that could take a message was established.
    Unreachable(DeliveryRefusal),
}

/// Queues of destinations whose connections may have to be opened, woken or closed. Each queue contains a destination
/// at most once. A destination is checked again when its turn comes, because its state may have changed.
#[derive(Default)]
pub(super) struct ConnectionLists {
    /// Destinations with mail and an idle connection, which can be woken.
    pub(super) wakeable: VecDeque<DestinationId>,
    /// Destinations with mail but no connection. Each [`Standing`] (likelihood of an answer) has its own queue.
    pub(super) unserved: [VecDeque<DestinationId>; Standing::ALL.len()],
    /// If set, the next connection for a new destination goes to the destination that was added last. Otherwise it goes
    /// to the destination that has waited longest.
    pub(super) prefers_newest: bool,
    pub(super) trials: [u32; Standing::ALL.len()],
    /// Destinations that have connections, but whose backlog may justify another connection.
    pub(super) scalable: VecDeque<DestinationId>,
    pub(super) idle: VecDeque<DestinationId>,
    pub(super) open: u32,
    pub(super) closing: u32,
}

impl ConnectionLists {
    /// Among the destinations with this [`Standing`], usually returns the one that has waited longest. Among new
    /// destinations, the oldest and the newest take turns, so that a domain whose server answers need not wait until
    /// all earlier domains have failed.
    pub(super) fn next_unserved(&self, standing: Standing) -> Option<DestinationId> {
        let list = &self.unserved[standing as usize];
        if standing == Standing::New && self.prefers_newest { list.back() } else { list.front() }.copied()
    }

    pub(super) fn pop_unserved(&mut self, standing: Standing) {
        let list = &mut self.unserved[standing as usize];
        if standing == Standing::New && self.prefers_newest {
            list.pop_back()
        } else {
            list.pop_front()
        };
    }
}
