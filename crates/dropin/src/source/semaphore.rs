//! Lets one session connect at a time, in the order in which they asked.
use tokio::sync::{Semaphore, SemaphorePermit};

/// Lets one session connect at a time, as in the original. Many connections at once would overflow
/// the server's listen queue. The kernel's back-off, which takes seconds, would then spoil the
/// measurement.
#[derive(Debug)]
pub(crate) struct ConnectSemaphore(Semaphore);

impl Default for ConnectSemaphore {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl ConnectSemaphore {
    pub(crate) async fn acquire(&self) -> SemaphorePermit<'_> {
        self.0.acquire().await.expect("it is never closed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    const YIELD_DELAY: Duration = Duration::from_millis(1);

    #[test]
    fn one_passes_at_a_time_in_the_order_they_came() {
        let order = mailrun_net::worker::run(|_| async {
            let semaphore = Rc::new(ConnectSemaphore::default());
            let order = Rc::new(RefCell::new(Vec::new()));
            let first = semaphore.acquire().await;
            for number in 0..9 {
                let semaphore = Rc::clone(&semaphore);
                let order = Rc::clone(&order);
                mailrun_net::worker::spawn_local(async move {
                    let _pass = semaphore.acquire().await;
                    order.borrow_mut().push(number);
                    mailrun_net::sleep(YIELD_DELAY).await;
                    order.borrow_mut().push(number);
                });
            }
            mailrun_net::sleep(YIELD_DELAY).await;
            assert_eq!(order.borrow().len(), 0, "the first is inside");
            drop(first);
            while order.borrow().len() < 18 {
                mailrun_net::sleep(YIELD_DELAY).await;
            }
            order.take()
        });
        let expected: Vec<i32> = (0..9).flat_map(|number| [number, number]).collect();
        assert_eq!(order.unwrap(), expected);
    }
}
