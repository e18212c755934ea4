//! Work that a task held goes back to the queue if the task panics. So a message does not stay in flight until a
//! restart, and a connection does not count against the limits for ever.
//!
//! A panic may come from anywhere, the queue itself included. So nothing is done while it unwinds: a task of its own
//! gives the work back. At the end of a worker, tasks are dropped without a panic, and their messages stay in the
//! spool.
use super::envelope::Refusal;
use super::letter::Letter;
use super::office::Office;
use super::queue::{Assignment, Closing, Courier, MessageId, Notice, Outcome};
use super::telling;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// The reason that operators and senders see.
const WHY: &str = "the delivery failed because of a bug in mailrun";
/// The same of notices.
const WHY_UNTOLD: &str = "writing its notification failed because of a bug in mailrun";

/// Does something in a task of its own, if this task is panicking.
pub(super) fn after_panic(office: &Rc<Office>, work: impl FnOnce(&Rc<Office>) + 'static) {
    if std::thread::panicking() {
        let office = Rc::clone(office);
        net::worker::spawn_local(async move { work(&office) });
    }
}

/// Work given to a delivery task that asks for it.
pub(super) enum Work {
    Message(InHand),
    /// Nothing now: it is called when there is something.
    Wait,
    /// Others have waited for a connection.
    Leave,
}

/// An assignment in a task's hands.
pub(super) struct InHand {
    office: Rc<Office>,
    assignment: Option<Assignment<Letter>>,
}

impl InHand {
    pub(super) fn new(office: &Rc<Office>, assignment: Assignment<Letter>) -> Self {
        Self { office: Rc::clone(office), assignment: Some(assignment) }
    }

    /// Hands it on: its new owner gives it back.
    pub(super) fn release(mut self) -> Assignment<Letter> {
        self.assignment.take().expect("it is released once, and by value")
    }
}

impl Deref for InHand {
    type Target = Assignment<Letter>;

    fn deref(&self) -> &Assignment<Letter> {
        self.assignment.as_ref().expect("it is released once, and by value")
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        let Some(assignment) = self.assignment.take() else { return };
        after_panic(&self.office, move |office| {
            tracing::error!(id = %assignment.id, "{WHY}: the message goes back to the queue");
            let outcome = Outcome::Panicked(Refusal::new(0, None, WHY, ""));
            office.outcome(Self::new(office, assignment), outcome);
        });
    }
}

/// A courier in its task's hands.
pub(super) struct CourierInHand {
    office: Rc<Office>,
    courier: Option<Courier>,
}

impl CourierInHand {
    pub(super) fn new(office: &Rc<Office>, courier: Courier) -> Self {
        Self { office: Rc::clone(office), courier: Some(courier) }
    }

    /// Hands it on.
    pub(super) fn release(mut self) -> Courier {
        self.courier.take().expect("it is released once, and by value")
    }
}

impl Deref for CourierInHand {
    type Target = Courier;

    fn deref(&self) -> &Courier {
        self.courier.as_ref().expect("it is released once, and by value")
    }
}

impl DerefMut for CourierInHand {
    fn deref_mut(&mut self) -> &mut Courier {
        self.courier.as_mut().expect("it is released once, and by value")
    }
}

impl Drop for CourierInHand {
    fn drop(&mut self) {
        let Some(courier) = self.courier.take() else { return };
        after_panic(&self.office, move |office| {
            // The hop is left alone for a while, so that its behaviour does not make one task after the other panic.
            let closing = Closing::Unreachable(Refusal::new(0, None, WHY, ""));
            office.closed(Self::new(office, courier), closing);
        });
    }
}

/// A notice whose message stays in the spool until the notice is stored.
pub(super) struct NoticeInHand {
    office: Rc<Office>,
    id: MessageId,
    notice: Option<Notice>,
}

impl NoticeInHand {
    pub(super) fn new(office: &Rc<Office>, id: MessageId, notice: Notice) -> Self {
        Self { office: Rc::clone(office), id, notice: Some(notice) }
    }

    /// Hands it on.
    pub(super) fn release(mut self) -> Notice {
        self.notice.take().expect("it is released once, and by value")
    }
}

impl Deref for NoticeInHand {
    type Target = Notice;

    fn deref(&self) -> &Notice {
        self.notice.as_ref().expect("it is released once, and by value")
    }
}

impl Drop for NoticeInHand {
    fn drop(&mut self) {
        let Some(notice) = self.notice.take() else { return };
        let id = self.id;
        after_panic(&self.office, move |office| telling::cannot_tell(office, id, notice, WHY_UNTOLD));
    }
}
