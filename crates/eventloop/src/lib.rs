//! An event loop for network servers and clients. Each worker thread has its own loop with one epoll, and a task runs
//! only on the thread that started it. **Linux only.**
//!
//! ```
//! use mailrun_eventloop::{Acceptor, Socket, listener, worker};
//! # fn main() -> std::io::Result<()> {
//! let listener = listener::listen("127.0.0.1:0".parse().unwrap())?;
//! let address = listener.local_addr()?;
//! let echoed = worker::run(async move {
//!     let acceptor = Acceptor::new(listener)?;
//!     worker::spawn_local(async move {
//!         let Ok((descriptor, _)) = acceptor.accept().await else { return };
//!         let Ok(socket) = Socket::from_accepted(descriptor) else { return };
//!         let mut room = [0; 64];
//!         while let Ok(count @ 1..) = socket.read(&mut room).await {
//!             if socket.write_all(&room[..count]).await.is_err() {
//!                 return;
//!             }
//!         }
//!     });
//!     let socket = Socket::connect(address).await?;
//!     socket.write_all(b"hello").await?;
//!     let mut room = [0; 64];
//!     let count = socket.read(&mut room).await?;
//!     Ok::<_, std::io::Error>(room[..count].to_vec())
//! })??;
//! assert_eq!(echoed, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! The event loop uses epoll, timerfd and eventfd through rustix, so this crate has no unsafe code. A task is an
//! ordinary future and may await anything that wakes it, such as the channels of tokio or futures. A task is never
//! moved to another thread. When an event arrives, the loop directly polls the task that waits for the event, without a
//! queue, a lock or a waker in between. The crate contains no network protocol.
//!
//! | file | what it does |
//! |---|---|
//! | `batch` | reads input for all tasks of a batch before they run, and writes their output after it |
//! | `busy_poll` | looks for events before a worker sleeps |
//! | `clock` | CLOCK_MONOTONIC, which all measured times use |
//! | `endpoint` | a TCP address, or the path of a Unix socket |
//! | `listener` | listening sockets |
//! | `open_files` | raises the process's own limit of open files, and names a resource that ran out |
//! | `reactor` | the event loop of a worker, with one epoll and the tasks that wait for it |
//! | `socket` | reads and writes, with one system call each |
//! | `timer` | a timer of a task, and sleeping |
//! | `timers` | all timers of a worker on one timerfd |
//! | `wake_queue` | wakes tasks for other reasons than events of their sockets |
//! | `worker` | a thread with its event loop |
mod batch;
mod busy_poll;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod clock;
mod endpoint;
pub mod listener;
pub mod open_files;
mod reactor;
mod socket;
mod timer;
mod timers;
mod wake_queue;
pub mod worker;

pub use busy_poll::BusyPoll;
pub use endpoint::Endpoint;
pub use open_files::ResourceExhausted;
pub use reactor::{FdTable, WorkerOptions};
pub use socket::{Acceptor, PageAlignedBuffer, Socket};
pub use timer::{Timer, sleep, sleep_until};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
