//! TLS as a state machine over a connection: records in and out, by rustls' unbuffered interface, so that a session's
//! bytes are read into the worker's buffers and an idle session holds next to none.
use crate::clock;
use crate::socket::Socket;
use crate::tls_setup::{ClientTls, ServerTls};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{AlertDescription, HandshakeKind};
use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Duration;
use trust::HandshakeFault;

/// Plaintext that is made into records at a time; what one system call then takes.
const CHUNK_BYTES: usize = 64 * 1024;
const RECORD_BYTES: usize = 16 * 1024;
/// What a session keeps of an emptied buffer.
const KEPT_BYTES: usize = 1024;

/// What a handshake agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// How long it took.
    pub took: Duration,
    /// `TLSv1.3`.
    pub version: String,
    /// `TLS13_AES_256_GCM_SHA384`.
    pub cipher: String,
    /// Whether it went on from an earlier session.
    pub resumed: bool,
}

/// One end's state.
enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The TLS on a connection.
pub(crate) struct Tls {
    side: Side,
    buffers: Buffers,
}

/// What is under way.
#[derive(Default)]
struct Buffers {
    /// The beginning of a record whose end has not come; after the handshake, whatever came behind its end.
    incoming: Vec<u8>,
    /// `incoming` is as the handshake left it: there may be whole records in it.
    is_fresh: bool,
    /// Decrypted, and there was no room for it yet.
    plain: Vec<u8>,
    outgoing: Outgoing,
    /// The peer has said that nothing more comes.
    is_closed: bool,
    /// The peer broke the protocol, or is not trusted.
    has_failed: bool,
}

/// Encrypted, not all of it sent.
#[derive(Default)]
struct Outgoing {
    /// Lent by the worker while there is something in it. All of it stays written to: to make room for records anew is
    /// to write zeros where they go.
    memory: Vec<u8>,
    filled: usize,
    sent: usize,
}

thread_local! {
    /// The worker's memory for records on their way out. A session whose socket is full keeps it, and the next finds
    /// other.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What one step of the state machine came to.
enum Step {
    /// There may be another.
    Again,
    /// More has to come first.
    Starved,
}

impl Tls {
    /// The client's side, before the handshake.
    pub(crate) fn client(setup: &ClientTls) -> io::Result<Self> {
        let side = UnbufferedClientConnection::new(setup.config(), setup.name()).map_err(refused)?;
        Ok(Self { side: Side::Client(side), buffers: Buffers::default() })
    }

    /// The server's side, before the handshake.
    pub(crate) fn server(setup: &ServerTls) -> io::Result<Self> {
        let side = UnbufferedServerConnection::new(setup.config()).map_err(refused)?;
        Ok(Self { side: Side::Server(side), buffers: Buffers::default() })
    }

    /// Shakes hands.
    pub(crate) async fn shake_hands(&mut self, socket: &Socket) -> io::Result<Handshake> {
        let began = clock::now();
        loop {
            let mut incoming = std::mem::take(&mut self.buffers.incoming);
            let outcome = self.digest(socket, &mut incoming, &mut []);
            poll_fn(|_| self.poll_flush(socket)).await?;
            let (used, _) = outcome?;
            incoming.drain(..used);
            if !self.is_handshaking() {
                self.buffers.is_fresh = !incoming.is_empty();
                self.buffers.incoming = incoming;
                return Ok(self.handshake(clock::now() - began));
            }
            let held = incoming.len();
            incoming.resize(held + RECORD_BYTES, 0);
            let count = socket.read(&mut incoming[held..]).await?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed during the TLS handshake"));
            }
            incoming.truncate(held + count);
            self.buffers.incoming = incoming;
        }
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(side) => side.is_handshaking(),
            Side::Server(side) => side.is_handshaking(),
        }
    }

    fn handshake(&self, took: Duration) -> Handshake {
        let (version, cipher, kind) = match &self.side {
            Side::Client(side) => (side.protocol_version(), side.negotiated_cipher_suite(), side.handshake_kind()),
            Side::Server(side) => (side.protocol_version(), side.negotiated_cipher_suite(), side.handshake_kind()),
        };
        Handshake {
            took,
            version: version.and_then(|version| version.as_str()).unwrap_or("TLS").replace('_', "."),
            cipher: cipher.and_then(|cipher| cipher.suite().as_str()).unwrap_or("unknown").to_owned(),
            resumed: kind == Some(HandshakeKind::Resumed),
        }
    }

    /// Decrypts `incoming` into `room`, and what does not fit there is kept: how much of `incoming` is done with, and how
    /// much of `room` is filled.
    fn digest(&mut self, socket: &Socket, incoming: &mut [u8], room: &mut [u8]) -> io::Result<(usize, usize)> {
        let (mut used, mut filled) = (0, 0);
        loop {
            let (discard, step) = self.step(&mut incoming[used..], room, &mut filled);
            used += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Starved) => return Ok((used, filled)),
                Err(error) => {
                    self.sound_alert(socket, &mut incoming[used..]);
                    return Err(refused(error));
                }
            }
        }
    }

    fn step(
        &mut self,
        incoming: &mut [u8],
        room: &mut [u8],
        filled: &mut usize,
    ) -> (usize, Result<Step, rustls::Error>) {
        match &mut self.side {
            Side::Client(side) => self.buffers.take(side.process_tls_records(incoming), room, filled),
            Side::Server(side) => self.buffers.take(side.process_tls_records(incoming), room, filled),
        }
    }

    /// After an error: the alert that tells the peer why, as far as it can be sent at once. The state machine is not to
    /// be asked for anything else then, or it panics.
    fn sound_alert(&mut self, socket: &Socket, incoming: &mut [u8]) {
        self.buffers.has_failed = true;
        let has_alert = match &self.side {
            Side::Client(side) => side.wants_write(),
            Side::Server(side) => side.wants_write(),
        };
        if has_alert {
            // Nothing is left to be done about a second error, nor about a peer that is gone.
            let _ = self.step(incoming, &mut [], &mut 0);
            let _ = self.flush(socket);
        }
    }

    /// Reads what has come, decrypted; 0 is the peer's end. `scratch` takes the records.
    pub(crate) fn poll_read(
        &mut self,
        socket: &Socket,
        room: &mut [u8],
        scratch: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let kept = take_front(&mut self.buffers.plain, room);
            if kept > 0 {
                return Poll::Ready(Ok(kept));
            }
            if self.buffers.is_closed || self.buffers.has_failed {
                return Poll::Ready(Ok(0));
            }
            // The handshake's last segment may have brought whole records already.
            let held = self.buffers.incoming.len();
            let brought = match socket.poll_read(&mut scratch[held..]) {
                Poll::Pending if held == 0 || !std::mem::take(&mut self.buffers.is_fresh) => return Poll::Pending,
                Poll::Pending => 0,
                Poll::Ready(outcome) => match outcome? {
                    0 => return Poll::Ready(Ok(0)),
                    count => count,
                },
            };
            self.buffers.is_fresh = false;
            scratch[..held].copy_from_slice(&self.buffers.incoming);
            let filled = self.decrypt(socket, &mut scratch[..held + brought], room)?;
            self.flush(socket)?;
            if filled > 0 {
                return Poll::Ready(Ok(filled));
            }
        }
    }

    /// Decrypts whole records and keeps the beginning of the next.
    fn decrypt(&mut self, socket: &Socket, records: &mut [u8], room: &mut [u8]) -> io::Result<usize> {
        let (used, filled) = self.digest(socket, records, room)?;
        let rest = &records[used..];
        self.buffers.incoming = if rest.is_empty() { Vec::new() } else { rest.to_vec() };
        Ok(filled)
    }

    /// Encrypts and sends what the socket takes of it. What is encrypted counts as written: [`Tls::flush`] tells when
    /// it has all been sent.
    pub(crate) fn try_write(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let chunk = &bytes[..bytes.len().min(CHUNK_BYTES)];
        while let Step::Again = self.encrypt(chunk)? {}
        self.flush(socket)?;
        Ok(chunk.len())
    }

    /// One step of writing: what the state machine has to say itself goes first. It is shown what has come and not
    /// been read, which it may have begun to make sense of.
    fn encrypt(&mut self, chunk: &[u8]) -> io::Result<Step> {
        if self.buffers.has_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut incoming = std::mem::take(&mut self.buffers.incoming);
        let (discard, step) = match &mut self.side {
            Side::Client(side) => self.buffers.encrypt(side.process_tls_records(&mut incoming), chunk),
            Side::Server(side) => self.buffers.encrypt(side.process_tls_records(&mut incoming), chunk),
        };
        incoming.drain(..discard);
        self.buffers.incoming = incoming;
        self.buffers.has_failed |= step.is_err();
        step
    }

    /// Whether nothing that is encrypted waits to be sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.buffers.outgoing.is_empty()
    }

    /// Sends what is encrypted; true once all is.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        self.buffers.outgoing.send(socket)
    }

    fn poll_flush(&mut self, socket: &Socket) -> Poll<io::Result<()>> {
        while !self.flush(socket)? {
            ready!(socket.poll_writable());
        }
        Poll::Ready(Ok(()))
    }

    /// Says that nothing more comes, as far as the socket takes it.
    pub(crate) fn say_goodbye(&mut self, socket: &Socket) {
        if self.buffers.has_failed {
            return;
        }
        let mut incoming = std::mem::take(&mut self.buffers.incoming);
        let said = match &mut self.side {
            Side::Client(side) => self.buffers.goodbye(side.process_tls_records(&mut incoming)),
            Side::Server(side) => self.buffers.goodbye(side.process_tls_records(&mut incoming)),
        };
        if said {
            // Best effort: a peer that is gone needs no goodbye.
            let _ = self.flush(socket);
        }
    }
}

impl Buffers {
    /// One step of reading.
    fn take<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
        room: &mut [u8],
        filled: &mut usize,
    ) -> (usize, Result<Step, rustls::Error>) {
        let UnbufferedStatus { mut discard, state } = status;
        let step = match state {
            Err(error) => Err(error),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    None => break Ok(Step::Again),
                    Some(Err(error)) => break Err(error),
                    Some(Ok(record)) => {
                        discard += record.discard;
                        *filled += self.place(record.payload, &mut room[*filled..]);
                    }
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                self.outgoing
                    .append(|outgoing| match data.encode(outgoing) {
                        Ok(count) => Ok(Ok(count)),
                        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                            Err(required_size)
                        }
                        Err(EncodeError::AlreadyEncoded) => Ok(Ok(0)),
                    })
                    .expect("encoding fails for want of room only");
                Ok(Step::Again)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is in `outgoing`, which is sent before anything else.
                data.done();
                Ok(Step::Again)
            }
            Ok(ConnectionState::PeerClosed) => {
                self.is_closed = true;
                Ok(Step::Again)
            }
            Ok(ConnectionState::Closed) => {
                self.is_closed = true;
                Ok(Step::Starved)
            }
            Ok(_) => Ok(Step::Starved),
        };
        (discard, step)
    }

    /// As much of `payload` as there is room for; what is behind other plaintext waits behind it.
    fn place(&mut self, payload: &[u8], room: &mut [u8]) -> usize {
        let count = if self.plain.is_empty() { payload.len().min(room.len()) } else { 0 };
        room[..count].copy_from_slice(&payload[..count]);
        self.plain.extend_from_slice(&payload[count..]);
        count
    }

    /// One step of writing.
    fn encrypt<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>, chunk: &[u8]) -> (usize, io::Result<Step>) {
        let UnbufferedStatus { discard, state } = status;
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            let (discard, step) = self.take(UnbufferedStatus { discard, state }, &mut [], &mut 0);
            let step = match step {
                Ok(Step::Again) => Ok(Step::Again),
                Ok(Step::Starved) => Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) => Err(refused(error)),
            };
            return (discard, step);
        };
        let written = self.outgoing.append(|outgoing| match traffic.encrypt(chunk, outgoing) {
            Ok(count) => Ok(Ok(count)),
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => Err(required_size),
            Err(error) => Ok(Err(io::Error::other(error))),
        });
        (discard, written.map(|()| Step::Starved))
    }

    fn goodbye<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>) -> bool {
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else { return false };
        self.outgoing
            .append(|outgoing| match traffic.queue_close_notify(outgoing) {
                Ok(count) => Ok(Ok(count)),
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => Err(required_size),
                Err(_) => Ok(Ok(0)),
            })
            .is_ok()
    }
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Appends what `write` makes, which says how much room it wants where there is too little.
    fn append(&mut self, mut write: impl FnMut(&mut [u8]) -> Result<io::Result<usize>, usize>) -> io::Result<()> {
        if self.is_empty() {
            self.memory = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        loop {
            match write(&mut self.memory[self.filled..]) {
                Err(wanted) => self.memory.resize(self.filled + wanted, 0),
                Ok(outcome) => {
                    self.filled += *outcome.as_ref().unwrap_or(&0);
                    if self.is_empty() {
                        self.give_back();
                    }
                    return outcome.map(|_| ());
                }
            }
        }
    }

    /// Hands it to the socket; true once all is.
    fn send(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.sent < self.filled {
            match socket.try_write(&self.memory[self.sent..self.filled]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if !self.is_empty() {
            self.give_back();
        }
        Ok(true)
    }

    fn give_back(&mut self) {
        (self.filled, self.sent) = (0, 0);
        let memory = std::mem::take(&mut self.memory);
        // A thread that ends has no use for it.
        let _ = SPARE.try_with(|spare| {
            let other = spare.take();
            spare.set(if other.len() > memory.len() { other } else { memory });
        });
    }
}

/// Moves what fits from the front of `from` into `room`.
fn take_front(from: &mut Vec<u8>, room: &mut [u8]) -> usize {
    let count = from.len().min(room.len());
    room[..count].copy_from_slice(&from[..count]);
    from.drain(..count);
    from.shrink_to(KEPT_BYTES);
    count
}

/// What is wrong in TLS itself: always of the kind [`io::ErrorKind::InvalidData`], by which a caller tells it from a
/// connection that broke.
fn refused(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsRefusal(error))
}

/// The error of a handshake with that server, with a [`HandshakeFault`] in it where it is one.
pub(crate) fn of_server(error: io::Error, setup: &ClientTls) -> io::Error {
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsRefusal>());
    match refusal.and_then(|refusal| HandshakeFault::of(&refusal.0, &setup.name().to_str())) {
        Some(fault) => io::Error::new(io::ErrorKind::InvalidData, fault),
        None => error,
    }
}

/// What rustls complains about, or the peer's side of TLS.
#[derive(Debug)]
struct TlsRefusal(rustls::Error);

impl Error for TlsRefusal {}

impl fmt::Display for TlsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            rustls::Error::AlertReceived(alert @ AlertDescription::DecryptError) => {
                write!(f, "TLS: the peer rejects the certificate of this side, or a signature (alert {alert:?})")
            }
            rustls::Error::AlertReceived(alert) if is_about_certificate(*alert) => {
                write!(f, "TLS: the peer rejects the certificate of this side (alert {alert:?})")
            }
            error => write!(f, "TLS: {error}"),
        }
    }
}

/// Alerts that a certificate, or the lack of one, brings about (RFC 8446 §6.2).
fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(outgoing: &mut Outgoing, octets: &[u8]) {
        let fill = |room: &mut [u8]| match room.get_mut(..octets.len()) {
            Some(room) => {
                room.copy_from_slice(octets);
                Ok(Ok(octets.len()))
            }
            None => Err(octets.len()),
        };
        outgoing.append(fill).unwrap();
    }

    #[test]
    fn a_workers_memory_is_lent_to_one_session_at_a_time() {
        let (mut first, mut second) = (Outgoing::default(), Outgoing::default());
        write(&mut first, b"abc");
        write(&mut second, &[7; 5000]);
        write(&mut first, b"defg");
        assert_eq!(&first.memory[..first.filled], b"abcdefg");
        assert_eq!(&second.memory[..second.filled], [7; 5000]);
        let lent = second.memory.as_ptr();
        second.give_back();
        first.give_back();
        assert!(first.is_empty() && first.memory.is_empty() && second.memory.is_empty());
        write(&mut first, b"h");
        assert_eq!((first.filled, first.memory.as_ptr()), (1, lent), "the larger of the two was kept");
    }

    #[test]
    fn what_cannot_be_written_holds_no_memory() {
        let mut outgoing = Outgoing::default();
        write(&mut outgoing, &[1; 100]);
        outgoing.give_back();
        let failed = outgoing.append(|_| Ok(Err(io::ErrorKind::BrokenPipe.into())));
        assert!(failed.is_err() && outgoing.memory.is_empty());
        assert!(SPARE.take().len() >= 100);
    }
}
