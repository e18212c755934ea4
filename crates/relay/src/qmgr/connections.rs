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
    /// Standing that the destination had when this attempt to connect began. `None` once a session has been
    /// established.
    pub(super) trial: Option<Standing>,
}

impl ConnectionSlot {
    /// Returns true if the destination has neither answered nor failed so far. The attempt should
    /// then be short, because other destinations wait.
    pub(crate) fn is_first_trial(&self) -> bool {
        matches!(self.trial, Some(Standing::New | Standing::Configured))
    }
}

/// What the last attempts to connect have shown about a destination. Destinations with an earlier variant get
/// connections first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The destination answered the last time, or is on this host.
    Proven,
    Configured,
    /// A recipient's domain that has not answered an attempt to connect yet.
    New,
    Failed,
}

impl Standing {
    pub(super) const ALL: [Self; 4] = [Self::Proven, Self::Configured, Self::New, Self::Failed];

    /// Returns the number of attempts to connect at which no destination of this standing may begin another one.
    /// Attempts to reach proven destinations do not count. Worse standings have lower limits, so that some connections
    /// remain for better ones.
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
    /// Wake one of the destination's waiting connections, which then calls `take`.
    Wake(DestinationId),
    Close(DestinationId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The connection had nothing more to do, or its session ended normally.
    Finished,
    /// No session was established, or it ended before anything could be delivered.
    Unreachable(DeliveryRefusal),
}

/// Queues of destinations whose connections may have to be opened, woken or closed. Each queue contains a destination
/// at most once. A destination is checked again when its turn comes, because its state may have changed.
#[derive(Default)]
pub(super) struct ConnectionLists {
    /// Destinations with mail and an idle connection, which can be woken.
    pub(super) wakeable: VecDeque<DestinationId>,
    /// Destinations with mail but without a connection, in one queue for each [`Standing`].
    pub(super) unserved: [VecDeque<DestinationId>; Standing::ALL.len()],
    /// Set if the next trial of a new destination goes to the newest one instead of the oldest.
    pub(super) prefers_newest: bool,
    pub(super) trials: [u32; Standing::ALL.len()],
    /// Destinations with mail that may need more connections.
    pub(super) scalable: VecDeque<DestinationId>,
    pub(super) idle: VecDeque<DestinationId>,
    pub(super) open: u32,
    pub(super) closing: u32,
}

impl ConnectionLists {
    /// Returns the destination of this standing that has waited longest. Among destinations that have not answered yet,
    /// it alternates between the oldest and the newest, so that a domain that answers does not have to wait until all
    /// earlier domains have failed.
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
