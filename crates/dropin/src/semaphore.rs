//! Connections are made one at a time, in the order in which their sessions came.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Lets one session at a time connect, in the order in which they came, and the others wait until it is connected, as
/// in the original. Many at once would overflow the server's listen queue, and the kernel's back-off, in seconds, would
/// spoil the measurement.
#[derive(Debug, Default)]
pub(super) struct ConnectSemaphore {
    /// Number of sessions that have come.
    next_ticket: Cell<u64>,
    /// Number of sessions that have gone; the session with this number may connect.
    now_serving: Cell<u64>,
    waiters: RefCell<VecDeque<Waker>>,
}

/// The right to connect.
#[derive(Debug)]
pub(super) struct ConnectPermit<'g>(&'g ConnectSemaphore);

impl ConnectSemaphore {
    pub(super) async fn acquire(&self) -> ConnectPermit<'_> {
        let number = self.next_ticket.replace(self.next_ticket.get() + 1);
        poll_fn(|cx| {
            if self.now_serving.get() == number {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
        ConnectPermit(self)
    }
}

impl Drop for ConnectPermit<'_> {
    fn drop(&mut self) {
        self.0.now_serving.set(self.0.now_serving.get() + 1);
        if let Some(next) = self.0.waiters.borrow_mut().pop_front() {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::time::Duration;

    const YIELD_DELAY: Duration = Duration::from_millis(1);

    #[test]
    fn one_passes_at_a_time_in_the_order_they_came() {
        let order = net::worker::run(|_| async {
            let semaphore = Rc::new(ConnectSemaphore::default());
            let order = Rc::new(RefCell::new(Vec::new()));
            let first = semaphore.acquire().await;
            for number in 0..9 {
                let semaphore = Rc::clone(&semaphore);
                let order = Rc::clone(&order);
                net::worker::spawn_local(async move {
                    let _pass = semaphore.acquire().await;
                    order.borrow_mut().push(number);
                    net::sleep(YIELD_DELAY).await;
                    order.borrow_mut().push(number);
                });
            }
            net::sleep(YIELD_DELAY).await;
            assert_eq!(order.borrow().len(), 0, "the first is inside");
            drop(first);
            while order.borrow().len() < 18 {
                net::sleep(YIELD_DELAY).await;
            }
            order.take()
        });
        let expected: Vec<i32> = (0..9).flat_map(|number| [number, number]).collect();
        assert_eq!(order.unwrap(), expected);
    }
}
