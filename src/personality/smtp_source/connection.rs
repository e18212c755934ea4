//! Making connections: the original's socket options, its count of attempts, and one at a time.
use super::address::Target;
use super::complaints::{Fatal, Remark};
use super::course::Course;
use crate::reason::reason;
use net::{Socket, clock};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Before the next attempt.
const BREATH: Duration = Duration::from_micros(10);
/// Before the next attempt where a unix-domain server's queue was full.
const QUEUE_BREATH: Duration = Duration::from_millis(1);

/// Lets one at a time make its connection, in the order they came, and the others wait until it stands: as in the
/// original. Many at once would overflow the server's listen queue, and the kernel's back-off, in seconds, would spoil
/// the measurement.
#[derive(Debug, Default)]
pub(in crate::personality) struct Gate {
    /// How many have come.
    came: Cell<u64>,
    /// How many have gone; whose number this is may make its connection.
    gone: Cell<u64>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// The right to make a connection.
#[derive(Debug)]
pub(in crate::personality) struct Pass<'g>(&'g Gate);

impl Gate {
    pub(in crate::personality) async fn enter(&self) -> Pass<'_> {
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

/// Connects. `attempts` are those that a session has for its whole life, as in the original.
pub(super) async fn open(course: &Course, attempts: &mut u32) -> Result<Socket, Fatal> {
    let _pass = course.gate.enter().await;
    let patient_until = clock::now() + course.options.patience;
    loop {
        let descriptor = socket(course).map_err(|error| Fatal(format!("socket: {}", reason(&error.into()))))?;
        let error = match connect(&course.target, descriptor).await {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::WouldBlock && clock::now() < patient_until {
            net::sleep(QUEUE_BREATH).await;
            continue;
        }
        let text = format!("connect: {}", reason(&error));
        if *attempts == 1 {
            return Err(Fatal(text));
        }
        *attempts -= 1;
        course.voice.remark(&Remark::Warning(text));
        net::sleep(BREATH).await;
    }
}

/// A socket that cuts the connection when it is closed, so that no port is left in TIME_WAIT.
fn socket(course: &Course) -> rustix::io::Result<OwnedFd> {
    let family = match &course.target {
        Target::Inet(address) if address.is_ipv4() => AddressFamily::INET,
        Target::Inet(_) => AddressFamily::INET6,
        Target::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&descriptor, Some(Duration::ZERO))?;
    if family != AddressFamily::UNIX {
        // The last segment of a long message is not to wait for a delayed acknowledgement.
        sockopt::set_tcp_nodelay(&descriptor, true)?;
    }
    if let Some(bytes) = course.options.window {
        sockopt::set_socket_send_buffer_size(&descriptor, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(&descriptor, bytes as usize)?;
    }
    Ok(descriptor)
}

async fn connect(target: &Target, descriptor: OwnedFd) -> io::Result<Socket> {
    let outcome = match target {
        Target::Inet(address) => rustix::net::connect(&descriptor, address),
        Target::Unix(path) => rustix::net::connect(&descriptor, &unix_address(path)?),
    };
    match outcome {
        Ok(()) | Err(Errno::INPROGRESS) => Socket::from_connecting(descriptor).await,
        Err(error) => Err(error.into()),
    }
}

/// An empty path is the abstract name of nothing but zeros, as it is to the original: nobody listens there.
fn unix_address(path: &str) -> rustix::io::Result<SocketAddrUnix> {
    if path.is_empty() { SocketAddrUnix::new_abstract_name(&[0; 107]) } else { SocketAddrUnix::new(path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn one_passes_at_a_time_in_the_order_they_came() {
        let order = net::worker::run(|_| async {
            let gate = Rc::new(Gate::default());
            let order = Rc::new(RefCell::new(Vec::new()));
            let first = gate.enter().await;
            for number in 0..9 {
                let (gate, order) = (Rc::clone(&gate), Rc::clone(&order));
                net::worker::spawn_local(async move {
                    let _pass = gate.enter().await;
                    order.borrow_mut().push(number);
                    net::sleep(BREATH).await;
                    order.borrow_mut().push(number);
                });
            }
            net::sleep(QUEUE_BREATH).await;
            assert_eq!(order.borrow().len(), 0, "the first is inside");
            drop(first);
            while order.borrow().len() < 18 {
                net::sleep(QUEUE_BREATH).await;
            }
            order.take()
        });
        let expected: Vec<i32> = (0..9).flat_map(|number| [number, number]).collect();
        assert_eq!(order.unwrap(), expected);
    }
}
