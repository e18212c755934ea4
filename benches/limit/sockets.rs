//! Sockets of the raw pair: an epoll instance, and a table of sessions indexed by descriptor.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mailrun_eventloop::PageAlignedBuffer;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Maximum number of readable sockets that one `epoll_wait` reports.
const EVENTS: usize = 1024;

/// What a side does while no socket is readable: it sleeps in the kernel, or it polls again at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    Sleeps,
    Spins,
}

pub(super) struct Connection<S> {
    pub(super) socket: OwnedFd,
    pub(super) session: S,
}

/// Open connections, indexed by the number of their descriptor.
pub(super) struct Sockets<S> {
    epoll: OwnedFd,
    waiting: Waiting,
    table: Vec<Option<Connection<S>>>,
}

impl<S> Sockets<S> {
    pub(super) fn new(waiting: Waiting) -> anyhow::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, waiting, table: Vec::new() })
    }

    /// Watches a listener or a connection for input. Each event has the number of the descriptor as its key. The caller
    /// recognizes a listener by this key, because only connections have an entry in the table.
    pub(super) fn watch(&self, socket: &(impl AsFd + AsRawFd)) -> anyhow::Result<()> {
        let key = epoll::EventData::new_u64(u64::from(socket.as_raw_fd().cast_unsigned()));
        Ok(epoll::add(&self.epoll, socket.as_fd(), key, epoll::EventFlags::IN)?)
    }

    pub(super) fn insert(&mut self, socket: OwnedFd, session: S) -> anyhow::Result<()> {
        self.watch(&socket)?;
        let key = usize::try_from(socket.as_raw_fd())?;
        if self.table.len() <= key {
            self.table.resize_with(key + 1, || None);
        }
        self.table[key] = Some(Connection { socket, session });
        Ok(())
    }

    /// Closes a connection. Closing the last descriptor of a socket also removes the socket from
    /// the epoll instance.
    pub(super) fn close(&mut self, key: usize) {
        self.table[key] = None;
    }

    pub(super) fn connection(&mut self, key: usize) -> Option<&mut Connection<S>> {
        self.table.get_mut(key)?.as_mut()
    }

    /// Waits until a socket is readable, and stores the numbers of the readable descriptors in `ready`. The list
    /// `ready` may stay empty, because a side that spins does not wait, and because a signal ends the wait.
    pub(super) fn wait(&self, ready: &mut Ready) -> anyhow::Result<()> {
        ready.0.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = (self.waiting == Waiting::Spins).then_some(&at_once);
        match epoll::wait(&self.epoll, spare_capacity(&mut ready.0), limit) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

pub(super) struct Ready(Vec<epoll::Event>);

impl Ready {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(EVENTS))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|event| event.data.u64() as usize)
    }
}

/// Reads once, without waiting, and returns the octets. Returns an empty slice if the connection is closed or broken,
/// and `None` if there was nothing to read.
pub(super) fn receive<'a>(socket: &OwnedFd, scratch: &'a mut PageAlignedBuffer) -> Option<&'a [u8]> {
    let room = scratch.bytes();
    match rustix::net::recv(socket, &mut *room, RecvFlags::empty()) {
        Ok((_, octets)) => Some(&room[..octets]),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(_) => Some(&[]),
    }
}

/// Writes all octets. While the kernel's buffer is full, yields the processor to the other side. Returns silently if
/// the connection is broken, because the next read notices that.
pub(super) fn send(socket: &OwnedFd, mut octets: &[u8]) {
    while !octets.is_empty() {
        match rustix::net::send(socket, octets, SendFlags::NOSIGNAL) {
            Ok(sent) => octets = &octets[sent..],
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            Err(_) => return,
        }
    }
}
