//! Handles a batch of events together: reads the input of all tasks of the batch before it polls
//! the first of them, and writes their output after it has polled all of them.
//!
//! ```text
//! epoll ─▶ read, read, read … ─▶ task, task, task … ─▶ write, write, write …
//! ```
//! Reading, polling and writing run different code, most of it in the kernel, and each of them evicts the code of the
//! others from the first-level caches. If the loop finished each session before the next, the processor would have to
//! fetch this code again for each session. With batches, it fetches the code once per batch. Software routers work the
//! same way, for example VPP, which calls it vector packet processing. If a batch has only one event, the loop does not
//! read for the task. The task then reads directly into its own buffer, which saves a copy.
use rustix::fd::OwnedFd;
use std::ops::Range;
use std::rc::Rc;

/// Maximum number of events in a batch. It is so large that fetching the code costs little per event, and so small that
/// the input of a batch stays in the first-level cache.
pub(crate) const BATCH_EVENTS: usize = 64;
/// Maximum number of bytes that the loop reads for a task before it polls the task. If more input arrives, the task
/// then reads directly into its own buffer, so that large messages are not copied twice.
pub(crate) const MAX_READ_AHEAD: usize = 2048;
/// Maximum number of bytes of a write that waits for the other writes of its batch. A longer write
/// is sent at once, which saves copying it.
pub(crate) const MAX_BATCHED_WRITE: usize = 2048;
/// Alignment of reads in bytes: one cache line.
const CACHE_LINE_BYTES: usize = 64;

/// Memory for the input of all sessions in a batch, stored one after another.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    memory: Vec<u8>,
    used: usize,
}

impl ReadAhead {
    /// Begins a new batch and discards the input of the previous batch. Before this call, the tasks must have taken
    /// that input, or the caller must have copied it.
    pub(crate) fn begin(&mut self) {
        self.memory.resize(BATCH_EVENTS * (MAX_READ_AHEAD + CACHE_LINE_BYTES), 0);
        self.used = 0;
    }

    /// Returns free space for one read of the next session in the batch.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.memory[self.used..self.used + MAX_READ_AHEAD]
    }

    /// Records that `count` bytes were read into the free space, and returns their range for [`Self::bytes`].
    pub(crate) fn read(&mut self, count: usize) -> Range<usize> {
        let begins = self.used;
        self.used += count.next_multiple_of(CACHE_LINE_BYTES);
        begins..begins + count
    }

    pub(crate) fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.memory[place]
    }
}

/// Output that the sessions of a batch have written, in the order of their writes.
#[derive(Debug, Default)]
pub(crate) struct WriteBatch {
    bytes: Vec<u8>,
    writes: Vec<PendingWrite>,
}

#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) token: u64,
    /// Keeps the descriptor open until the bytes are written, because the session may end before that.
    pub(crate) descriptor: Rc<OwnedFd>,
    length: usize,
}

impl WriteBatch {
    pub(crate) fn push(&mut self, name: u64, descriptor: &Rc<OwnedFd>, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.writes.last_mut() {
            // Join successive writes of a session, so that one system call sends them.
            Some(last) if last.token == name => last.length += bytes.len(),
            _ => self.writes.push(PendingWrite { token: name, descriptor: Rc::clone(descriptor), length: bytes.len() }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Calls `write` for each pending write, in the order in which the sessions wrote, and empties
    /// the batch.
    pub(crate) fn drain(&mut self, mut write: impl FnMut(&PendingWrite, &[u8])) {
        let mut rest = self.bytes.as_slice();
        for piece in self.writes.drain(..) {
            let (bytes, later) = rest.split_at(piece.length);
            write(&piece, bytes);
            rest = later;
        }
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BATCHED_WRITE, MAX_READ_AHEAD};
    use crate::reactor::{Reactor, WorkerOptions};
    use crate::socket::Socket;
    use crate::timer::sleep;
    use proptest::prelude::*;
    use rustix::fd::OwnedFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::io;
    use std::rc::Rc;
    use std::task::Poll;
    use std::time::Duration;

    /// Makes two connected sockets with small buffers, so that writes sometimes find no space.
    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        sockopt::set_socket_send_buffer_size(&one, 4096).expect("a small buffer");
        sockopt::set_socket_send_buffer_size(&other, 4096).expect("a small buffer");
        (one, other)
    }

    async fn write_all(socket: &Socket, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match socket.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => poll_fn(|_| socket.poll_writable()).await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn echo(descriptor: OwnedFd, room: usize) {
        let socket = Socket::from_accepted(descriptor).expect("watched");
        let mut room = vec![0; room];
        loop {
            let count = socket.read(&mut room).await.expect("read");
            if count == 0 {
                return;
            }
            write_all(&socket, &room[..count]).await;
        }
    }

    /// Writes `piece` to an echo task, and reads the same number of bytes back. Does both at once, because otherwise
    /// each side could wait for the other to read first. Writes at most `segment` bytes each time the task is polled.
    async fn exchange(socket: &Socket, mut piece: &[u8], segment: usize, room: &mut [u8]) -> Vec<u8> {
        let all = piece.len();
        let mut back = Vec::new();
        poll_fn(|_| {
            let mut left = segment;
            loop {
                let before = (piece.len(), back.len());
                let length = piece.len().min(left);
                if length > 0 && socket.poll_writable().is_ready() {
                    match socket.try_write(&piece[..length]) {
                        Ok(count) => {
                            piece = &piece[count..];
                            left -= count;
                        }
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                    }
                }
                if let Poll::Ready(count) = socket.poll_read(room) {
                    let count = count.expect("read");
                    assert_ne!(count, 0, "the end came early");
                    back.extend_from_slice(&room[..count]);
                }
                if back.len() >= all {
                    return Poll::Ready(());
                }
                if before == (piece.len(), back.len()) {
                    if left == 0 && !piece.is_empty() {
                        Reactor::current().poll_again();
                    }
                    return Poll::Pending;
                }
            }
        })
        .await;
        back
    }

    /// Sends pieces of these lengths in writes of `segment` bytes, and reads each echo before sending the next piece.
    /// Increments `count` when all pieces have come back.
    async fn talk(descriptor: OwnedFd, lengths: Vec<usize>, segment: usize, salt: usize, count: Rc<RefCell<usize>>) {
        let socket = Socket::from_accepted(descriptor).expect("watched");
        let mut room = vec![0; 8192];
        for (number, length) in lengths.into_iter().enumerate() {
            let piece: Vec<u8> = (0..length).map(|at| (at * 7 + number + salt) as u8).collect();
            let back = exchange(&socket, &piece, segment, &mut room).await;
            assert_eq!(back, piece);
        }
        *count.borrow_mut() += 1;
    }

    /// Exchanges pieces of these lengths with an echo task, on one connection for each list of lengths. Returns the
    /// number of connections on which all pieces came back.
    fn conversations(lists: Vec<Vec<usize>>, segment: usize, room: usize) -> usize {
        let message_count = Rc::new(RefCell::new(0));
        let count = Rc::clone(&message_count);
        Reactor::run(WorkerOptions::default(), async move {
            let all = lists.len();
            for (salt, lengths) in lists.into_iter().enumerate() {
                let (one, other) = pair();
                Reactor::current().spawn(echo(one, room));
                Reactor::current().spawn(talk(other, lengths, segment, salt, Rc::clone(&count)));
            }
            // Wait up to a minute, because the machine may be busy.
            for _ in 0..12_000 {
                if *count.borrow() == all {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        })
        .expect("a loop");
        *message_count.borrow()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// All bytes must come back in order, for any length of the pieces and any size of the writes and reads.
        #[test]
        fn nothing_is_lost_between_batch_and_task(
            lists in prop::collection::vec(
                prop::collection::vec(prop_oneof![
                    1..40usize,
                    MAX_READ_AHEAD - 2..MAX_READ_AHEAD + 3,
                    MAX_BATCHED_WRITE - 2..MAX_BATCHED_WRITE + 3,
                    1..20_000usize,
                ], 1..6),
                1..90,
            ),
            segment in prop_oneof![500..MAX_READ_AHEAD, Just(usize::MAX)],
            room in prop_oneof![1..10usize, 100..5000usize],
        ) {
            // With a tiny buffer, a long piece takes up to 20,000 reads, so shorten the pieces to keep the test fast.
            let longest = if room < 10 { 3000 } else { usize::MAX };
            let lists: Vec<Vec<usize>> =
                lists.into_iter().map(|list| list.into_iter().map(|length| length.min(longest)).collect()).collect();
            let all = lists.len();
            prop_assert_eq!(conversations(lists, segment, room), all);
        }
    }

    #[test]
    fn a_session_that_reads_little_gets_its_input_in_order() {
        // An echo task reads at most 64 × 10 bytes per turn, so it cannot read a whole segment of 1,500 bytes. The next
        // segment must not overtake the unread rest.
        for room in [1, 5, 10] {
            assert_eq!(conversations(vec![vec![3000; 2]; 8], 1500, room), 8, "{room}");
        }
    }

    #[test]
    fn what_was_said_last_is_written_though_its_session_ended() {
        let (one, other) = pair();
        let replies = Reactor::run(WorkerOptions::default(), async move {
            Reactor::current().spawn(async move {
                let socket = Socket::from_accepted(one).expect("watched");
                write_all(&socket, b"221 Bye\r\n").await;
            });
            let socket = Socket::from_accepted(other).expect("watched");
            let mut room = [0; 64];
            let count = socket.read(&mut room).await.expect("read");
            (room[..count].to_vec(), socket.read(&mut room).await.expect("read"))
        });
        assert_eq!(replies.expect("a loop"), (b"221 Bye\r\n".to_vec(), 0));
    }

    #[test]
    fn a_write_that_fails_later_is_told_by_the_next_read() {
        let (one, other) = pair();
        let outcome = Reactor::run(WorkerOptions::default(), async move {
            let socket = Socket::from_accepted(one).expect("watched");
            socket.time_writes();
            drop(other);
            write_all(&socket, b"MAIL FROM:<>\r\n").await;
            let read = socket.read(&mut [0; 64]).await;
            (read, socket.written_at())
        });
        let (read, written_at) = outcome.expect("a loop");
        assert_eq!(read.expect_err("nobody is there").kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(written_at, None, "it was never handed to the kernel");
    }

    #[test]
    fn a_write_is_timed_when_the_socket_has_taken_all_of_it() {
        let (one, other) = pair();
        let work = async move {
            let socket = Socket::from_accepted(one).expect("watched");
            socket.time_writes();
            // Fill the socket's buffer, so that a part of the last write has to wait for the peer.
            let mut count = 0;
            while socket.is_flushed() {
                count += socket.try_write(&[b'x'; MAX_BATCHED_WRITE]).expect("written");
                socket.flush_batch();
            }
            assert_eq!(socket.written_at(), None, "a part still waits");
            let peer = Socket::from_accepted(other).expect("watched");
            let mut room = [0; 8192];
            while count > 0 {
                count -= peer.read(&mut room).await.expect("read");
            }
            socket.written_at().is_some()
        };
        assert!(Reactor::run(WorkerOptions::default(), work).expect("a loop"));
    }
}
