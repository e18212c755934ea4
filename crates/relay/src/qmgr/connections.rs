//! Keeps account of connections: a slot for each connection, the standing of each destination, and
//! lists of destinations for which an action may be due.
use std::collections::VecDeque;

use super::entry::DestinationId;
use crate::message::envelope::DeliveryRefusal;

/// A connection to a destination, or an attempt to connect. Its owner must return it with `closed`.
#[must_use = "a slot that is not given back counts against the limits for ever"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSlot {
    pub(crate) destination: DestinationId,
    pub(super) is_idle: bool,
    pub(super) must_quit: bool,
    /// Set if the connection has sent QUIT. It takes no more messages, but counts towards the
    /// limits until it is closed.
    pub(super) is_quitting: bool,
    /// Standing of the destination when the attempt began. `None` once a session has been
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

/// What is known of a destination from its last attempts. Destinations with an earlier variant get
/// connections first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The destination answered the last time, or is on this host.
    Proven,
    Configured,
    /// A domain to which mail was addressed, and which has not answered yet.
    New,
    Failed,
}

impl Standing {
    pub(super) const ALL: [Self; 4] = [Self::Proven, Self::Configured, Self::New, Self::Failed];

    /// Returns the number of trials at which no destination of this standing may begin another one.
    /// Trials of proven destinations do not count. Worse standings have lower limits, so that some
    /// connections remain for better ones.
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
    /// Close one of the destination's waiting connections, because another destination needs it.
    Close(DestinationId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// The connection had nothing more to do, or its session ended normally.
    Finished,
    /// No session was established, or it ended before anything could be delivered.
    Unreachable(DeliveryRefusal),
}

/// Queues of destinations for which an action may be due. A list contains each destination at most
/// once. A destination is checked again when its turn comes, because its state may have changed.
#[derive(Default)]
pub(super) struct ConnectionLists {
    /// Destinations with mail and an idle connection.
    pub(super) wakeable: VecDeque<DestinationId>,
    /// Destinations with mail but without a connection, by standing.
    pub(super) unserved: [VecDeque<DestinationId>; Standing::ALL.len()],
    /// Set if the next trial of a new destination goes to the newest one instead of the oldest.
    pub(super) prefers_newest: bool,
    pub(super) trials: [u32; Standing::ALL.len()],
    /// Destinations with mail that may need more connections.
    pub(super) scalable: VecDeque<DestinationId>,
    /// Destinations with connections that wait for mail.
    pub(super) idle: VecDeque<DestinationId>,
    pub(super) open: u32,
    /// Number of connections that were told to close.
    pub(super) closing: u32,
}

impl ConnectionLists {
    /// Returns the destination of this standing that has waited longest. For new destinations, this
    /// alternates with the newest one, so that a domain that answers does not have to wait until
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
