//! Connections are made one at a time, in the order in which their sessions came.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Lets one session at a time connect, in the order in which they came, and the others wait until it is connected, as
/// in the original. Many at once would overflow the server's listen queue, and the kernel's back-off, in seconds, would
/// spoil the measurement.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Number of sessions that have come.
    came: Cell<u64>,
    /// Number of sessions that have gone; the session with this number may connect.
    gone: Cell<u64>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// The right to connect.
#[derive(Debug)]
pub(super) struct Pass<'g>(&'g Gate);

impl Gate {
    pub(super) async fn enter(&self) -> Pass<'_> {
        let number = self.came.replace(self.came.get() + 1);
        poll_fn(|cx| {
            if self.gone.get() == number {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.gone.set(self.0.gone.get() + 1);
        if let Some(next) = self.0.waiting.borrow_mut().pop_front() {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::time::Duration;

    const BREATH: Duration = Duration::from_millis(1);

    #[test]
    fn one_passes_at_a_time_in_the_order_they_came() {
        let order = net::worker::run(|_| async {
            let gate = Rc::new(Gate::default());
            let order = Rc::new(RefCell::new(Vec::new()));
            let first = gate.enter().await;
            for number in 0..9 {
                let gate = Rc::clone(&gate);
                let order = Rc::clone(&order);
                net::worker::spawn_local(async move {
                    let _pass = gate.enter().await;
                    order.borrow_mut().push(number);
                    net::sleep(BREATH).await;
                    order.borrow_mut().push(number);
                });
            }
            net::sleep(BREATH).await;
            assert_eq!(order.borrow().len(), 0, "the first is inside");
            drop(first);
            while order.borrow().len() < 18 {
                net::sleep(BREATH).await;
            }
            order.take()
        });
        let expected: Vec<i32> = (0..9).flat_map(|number| [number, number]).collect();
        assert_eq!(order.unwrap(), expected);
    }
}
