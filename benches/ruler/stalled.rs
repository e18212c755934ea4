//! A server that receives the first message of each session and never replies to it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PATIENCE: Duration = Duration::from_secs(15);
const BACKLOG: i32 = 4096;

/// A server whose sessions all wait for the reply to their first message.
pub(crate) struct Stalled {
    pub(crate) address: SocketAddr,
    thread: JoinHandle<anyhow::Result<Vec<TcpStream>>>,
}

impl Stalled {
    /// Starts a thread that serves `sessions` sessions one after the other, each up to the end of its message. The
    /// receiver gets a notice when all sessions wait for the reply to their message.
    pub(crate) fn listen(sessions: usize) -> anyhow::Result<(Self, Receiver<()>)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        rustix::net::listen(&listener, BACKLOG)?;
        let address = listener.local_addr()?;
        let (all_stalled, wait) = channel();
        let thread = std::thread::spawn(move || {
            let mut stalled = Vec::with_capacity(sessions);
            while stalled.len() < sessions {
                stalled.extend(stall(accept(&listener)?)?);
            }
            // Ignore the error, because the bench may no longer be waiting for this notice.
            let _ = all_stalled.send(());
            Ok(stalled)
        });
        Ok((Self { address, thread }, wait))
    }

    /// Waits for the thread and returns the open sessions. Fails with the reason if fewer sessions came than requested.
    pub(crate) fn sessions(self) -> anyhow::Result<Vec<TcpStream>> {
        self.thread.join().map_err(|_| anyhow::anyhow!("the stalled server panicked"))?
    }
}

fn accept(listener: &TcpListener) -> anyhow::Result<TcpStream> {
    let timeout = Timespec { tv_sec: i64::try_from(PATIENCE.as_secs())?, tv_nsec: 0 };
    anyhow::ensure!(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout))? > 0, "no further session came");
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Serves a session up to the end of its message. Returns `None` if the client closes the connection before that.
fn stall(mut stream: TcpStream) -> anyhow::Result<Option<TcpStream>> {
    stream.write_all(b"220 stalled ESMTP\r\n")?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = Vec::new();
    let mut in_data = false;
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        match line.first().map(u8::to_ascii_uppercase) {
            _ if in_data && line == b".\r\n" => return Ok(Some(stream)),
            _ if in_data => {}
            Some(b'E' | b'H') => stream.write_all(b"250-stalled\r\n250-PIPELINING\r\n250 8BITMIME\r\n")?,
            Some(b'D') => {
                in_data = true;
                stream.write_all(b"354 Go ahead\r\n")?;
            }
            _ => stream.write_all(b"250 2.0.0 Ok\r\n")?,
        }
    }
}
