//! The queue of one worker, which decides which message is delivered next. The queue itself uses no clock, socket or
//! file: its driver, the worker, passes in the time and performs the actions that the queue requests.
//!
//! ```text
//!  put ──▶ destination 1: ready ▸▸▸▸   slots ●●●    take ──▶ DeliveryRequest ──▶ finish_delivery ──▶ Actions: notes,
//!          destination 2: ready ▸      slots ●                                                          DSNs, done
//!          destination 3: ready ▸▸▸▸▸  in backoff          retries, ages: timer wheels, moved by `tick`
//! ```
//! After each event, the driver must call `tick` if `deadline` has passed, then `next_connection_action` until it
//! returns `None`, and then `messages_to_read`. A slot permits its owner to have one connection to a destination. The
//! owner calls `take` when the connection is open, and again whenever the connection can take another message. A
//! connection may have several messages at a time, because it sends the next MAIL together with the body of the message
//! before.
//!
//! The queue promises the following, and has a test for each promise. No entry is lost. No entry is on two connections
//! at once. The number of connections stays within its limits. A destination that is slow, dead or never answers does
//! not delay others, because it must leave as many connections and as much memory free as it uses (`concurrency`,
//! `memory`). An undelivered entry expires even if it is held or its destination is unreachable.
//!
//! | file | what it is |
//! |---|---|
//! | `queue` | the state of the queue; adds and takes entries |
//! | `entry` | an entry and its states |
//! | `entries` | the table of entries, and the lists through the table |
//! | `timer_wheel` | the timers of entries |
//! | `destination` | the queue's state of a next hop |
//! | `connections` | slots, and the lists of destinations for which an action may be due |
//! | `concurrency` | opens and closes connections, with backoff |
//! | `memory` | decides which messages stay in memory, and which are read |
//! | `moves` | moves an entry from one state to another |
//! | `result` | applies delivery results, and the age of messages |
//! | `commands` | executes an operator's commands: hold, release, remove, retry |
//! | `stats` | the view of the queue that operators get |
mod commands;
mod concurrency;
mod connections;
mod destination;
mod entries;
mod entry;
mod memory;
mod moves;
mod queue;
mod result;
pub(crate) mod retry;
mod stats;
mod timer_wheel;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod model;

pub use commands::OperatorCommand;
pub(crate) use connections::{ConnectionAction, ConnectionSlot, DisconnectReason};
pub(crate) use destination::DestinationOrigin;
pub use entry::EntryState;
pub(crate) use entry::{DestinationId, MessageId, RecipientNumbers};
pub(crate) use queue::{DeliveryRequest, EntryProgress, MailQueue, MessageKind, NewEntry, NextRequest, Options};
pub(crate) use result::{Actions, DeliveryResult, DsnEvent, PendingDsn, RecipientStatus};
pub(crate) use stats::{DestinationStats, ListedEntry, QueueTotals};
