//! TLS as a state machine over a connection. It uses rustls' unbuffered interface, so that bytes
//! are read into the worker's buffers and an idle session holds almost no memory.
use crate::tls_setup::{ClientTls, ServerTls};
use mailrun_eventloop::Socket;
use mailrun_eventloop::clock;
use mailrun_tls_verify::HandshakeFault;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{AlertDescription, HandshakeKind};
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Duration;

/// Maximum number of bytes of plaintext that are encrypted together, and then sent by one system call.
const CHUNK_BYTES: usize = 64 * 1024;
const RECORD_BYTES: usize = 16 * 1024;
/// Maximum capacity in bytes that an emptied buffer keeps, so that an idle session holds little memory.
const MAX_KEPT_BYTES: usize = 1024;

/// Parameters that a TLS handshake agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Time from the beginning of the TLS handshake until it was complete on this side.
    pub took: Duration,
    /// Version of TLS that both sides agreed on, such as `TLSv1.3`.
    pub version: String,
    /// Cipher suite, such as `TLS13_AES_256_GCM_SHA384`.
    pub cipher: String,
    /// Set if the handshake resumed an earlier session.
    pub resumed: bool,
}

enum TlsConnection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

pub(crate) struct TlsLayer {
    connection: TlsConnection,
    buffers: TlsBuffers,
}

#[derive(Default)]
struct TlsBuffers {
    /// Beginning of a record that has not arrived completely. Right after the handshake, it may also hold whole
    /// records.
    incoming: Vec<u8>,
    /// Set from the end of the handshake to the next read. The read must then decrypt `incoming` even if the socket has
    /// no input, because the handshake may have left whole records there.
    is_fresh: bool,
    /// Decrypted bytes for which the last read had no space. The next read returns them first.
    plain: Vec<u8>,
    outgoing: OutgoingRecords,
    is_closed: bool,
    /// Set if the peer violated the protocol, or is not trusted.
    has_failed: bool,
}

/// Encrypted bytes that wait to be sent, because the socket has not accepted them yet.
#[derive(Default)]
struct OutgoingRecords {
    /// Memory that the worker lends to this session while bytes are unsent. It is never shortened, because lengthening
    /// it again would first fill the space with zeros.
    memory: Vec<u8>,
    filled: usize,
    sent: usize,
}

thread_local! {
    /// Buffer that a worker's sessions use one after the other to encrypt records. If a session's socket is full, the
    /// session keeps the buffer, and the next session allocates a new one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Buffer of this worker for reading and decrypting records. It is allocated when the first TLS connection reads.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Size in bytes of the buffer for decrypting. The buffer holds the beginning of a record from the previous read,
/// followed by the bytes of the next read.
const SCRATCH_BYTES: usize = 128 * 1024;

pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(SCRATCH_BYTES, 0);
        work(scratch)
    })
}

enum TlsStep {
    /// The state machine may take another step without more input.
    Again,
    NeedsInput,
}

impl TlsLayer {
    pub(crate) fn client(setup: &ClientTls) -> io::Result<Self> {
        let side = UnbufferedClientConnection::new(setup.config(), setup.name()).map_err(tls_error)?;
        Ok(Self { connection: TlsConnection::Client(side), buffers: TlsBuffers::default() })
    }

    pub(crate) fn server(setup: &ServerTls) -> io::Result<Self> {
        let side = UnbufferedServerConnection::new(setup.config()).map_err(tls_error)?;
        Ok(Self { connection: TlsConnection::Server(side), buffers: TlsBuffers::default() })
    }

    pub(crate) async fn complete_handshake(&mut self, socket: &Socket) -> io::Result<Handshake> {
        let start = clock::now();
        loop {
            let mut incoming = std::mem::take(&mut self.buffers.incoming);
            let outcome = self.process_records(socket, &mut incoming, &mut []);
            // Send the output even after an error, because the output then contains the alert with the reason.
            poll_fn(|_| self.poll_flush(socket)).await?;
            let (used, _) = outcome?;
            incoming.drain(..used);
            if !self.is_handshaking() {
                self.buffers.is_fresh = !incoming.is_empty();
                self.buffers.incoming = incoming;
                return Ok(self.handshake(clock::now() - start));
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
        match &self.connection {
            TlsConnection::Client(side) => side.is_handshaking(),
            TlsConnection::Server(side) => side.is_handshaking(),
        }
    }

    fn handshake(&self, took: Duration) -> Handshake {
        let (version, cipher, kind) = match &self.connection {
            TlsConnection::Client(side) => {
                (side.protocol_version(), side.negotiated_cipher_suite(), side.handshake_kind())
            }
            TlsConnection::Server(side) => {
                (side.protocol_version(), side.negotiated_cipher_suite(), side.handshake_kind())
            }
        };
        Handshake {
            took,
            version: version.and_then(|version| version.as_str()).unwrap_or("TLS").replace('_', "."),
            cipher: cipher.and_then(|cipher| cipher.suite().as_str()).unwrap_or("unknown").to_owned(),
            resumed: kind == Some(HandshakeKind::Resumed),
        }
    }

    /// Decrypts `incoming` into `room`, and keeps decrypted bytes that do not fit. Returns how many bytes of `incoming`
    /// it used, and how many it wrote to `room`.
    fn process_records(&mut self, socket: &Socket, incoming: &mut [u8], room: &mut [u8]) -> io::Result<(usize, usize)> {
        let mut used = 0;
        let mut filled = 0;
        loop {
            let (discard, step) = self.step(&mut incoming[used..], room, &mut filled);
            used += discard;
            match step {
                Ok(TlsStep::Again) => {}
                Ok(TlsStep::NeedsInput) => return Ok((used, filled)),
                Err(error) => {
                    self.send_alert(socket, &mut incoming[used..]);
                    return Err(tls_error(error));
                }
            }
        }
    }

    fn step(
        &mut self,
        incoming: &mut [u8],
        room: &mut [u8],
        filled: &mut usize,
    ) -> (usize, Result<TlsStep, rustls::Error>) {
        match &mut self.connection {
            TlsConnection::Client(side) => self.buffers.process(side.process_tls_records(incoming), room, filled),
            TlsConnection::Server(side) => self.buffers.process(side.process_tls_records(incoming), room, filled),
        }
    }

    /// Sends the alert that tells the peer the reason for an error, if the socket accepts the alert at once. The state
    /// machine must not be used afterwards, because it would panic.
    fn send_alert(&mut self, socket: &Socket, incoming: &mut [u8]) {
        self.buffers.has_failed = true;
        let has_alert = match &self.connection {
            TlsConnection::Client(side) => side.wants_write(),
            TlsConnection::Server(side) => side.wants_write(),
        };
        if has_alert {
            // Ignore further errors, because the session has failed already, and the peer may be gone.
            let _ = self.step(incoming, &mut [], &mut 0);
            let _ = self.flush(socket);
        }
    }

    /// Reads and decrypts available bytes, with `scratch` as space for the records. Returns 0 at the end of the
    /// connection.
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
            // Decrypt the held bytes even if the socket has no more bytes. The last segment of the handshake may have
            // contained whole records.
            let held = self.buffers.incoming.len();
            // Read at most one record or the size of `room`, whichever is more. The session has to buffer all plaintext
            // that does not fit into `room`.
            let end = scratch.len().min(held + room.len().max(RECORD_BYTES));
            let brought = match socket.poll_read(&mut scratch[held..end]) {
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

    /// Decrypts whole records, and keeps the beginning of the next record until the rest of it arrives.
    fn decrypt(&mut self, socket: &Socket, records: &mut [u8], room: &mut [u8]) -> io::Result<usize> {
        let (used, filled) = self.process_records(socket, records, room)?;
        let rest = &records[used..];
        self.buffers.incoming = if rest.is_empty() { Vec::new() } else { rest.to_vec() };
        Ok(filled)
    }

    /// Encrypts and sends as much as the socket accepts. Encrypted bytes count as written, but only [`TlsLayer::flush`]
    /// tells whether they have been sent.
    pub(crate) fn try_write(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let chunk = &bytes[..bytes.len().min(CHUNK_BYTES)];
        while let TlsStep::Again = self.encrypt(chunk)? {}
        self.flush(socket)?;
        Ok(chunk.len())
    }

    /// Queues what rustls itself has to send, such as an alert, or otherwise encrypts `chunk`. Passes the bytes in
    /// `incoming` to rustls again, because rustls may have begun to process them and needs them until it discards them.
    fn encrypt(&mut self, chunk: &[u8]) -> io::Result<TlsStep> {
        if self.buffers.has_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut incoming = std::mem::take(&mut self.buffers.incoming);
        let (discard, step) = match &mut self.connection {
            TlsConnection::Client(side) => self.buffers.encrypt(side.process_tls_records(&mut incoming), chunk),
            TlsConnection::Server(side) => self.buffers.encrypt(side.process_tls_records(&mut incoming), chunk),
        };
        incoming.drain(..discard);
        self.buffers.incoming = incoming;
        self.buffers.has_failed |= step.is_err();
        step
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.buffers.outgoing.is_empty()
    }

    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        self.buffers.outgoing.send(socket)
    }

    fn poll_flush(&mut self, socket: &Socket) -> Poll<io::Result<()>> {
        while !self.flush(socket)? {
            ready!(socket.poll_writable());
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn send_close_notify(&mut self, socket: &Socket) {
        if self.buffers.has_failed {
            return;
        }
        let mut incoming = std::mem::take(&mut self.buffers.incoming);
        let has_alert = match &mut self.connection {
            TlsConnection::Client(side) => self.buffers.queue_close_notify(side.process_tls_records(&mut incoming)),
            TlsConnection::Server(side) => self.buffers.queue_close_notify(side.process_tls_records(&mut incoming)),
        };
        if has_alert {
            // Ignore an error, because a peer that is gone needs no alert.
            let _ = self.flush(socket);
        }
    }
}

impl TlsBuffers {
    fn process<Data>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Data>,
        room: &mut [u8],
        filled: &mut usize,
    ) -> (usize, Result<TlsStep, rustls::Error>) {
        let UnbufferedStatus { mut discard, state } = status;
        let step = match state {
            Err(error) => Err(error),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    None => break Ok(TlsStep::Again),
                    Some(Err(error)) => break Err(error),
                    Some(Ok(record)) => {
                        discard += record.discard;
                        *filled += self.store_plaintext(record.payload, &mut room[*filled..]);
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
                Ok(TlsStep::Again)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // Send nothing here, because `outgoing` already holds the record and is sent first.
                data.done();
                Ok(TlsStep::Again)
            }
            Ok(ConnectionState::PeerClosed) => {
                self.is_closed = true;
                Ok(TlsStep::Again)
            }
            Ok(ConnectionState::Closed) => {
                self.is_closed = true;
                Ok(TlsStep::NeedsInput)
            }
            Ok(_) => Ok(TlsStep::NeedsInput),
        };
        (discard, step)
    }

    /// Copies as much of `payload` into `room` as fits, keeps the rest in `plain`, and returns the copied length. If
    /// `plain` already holds bytes, copies nothing, because these bytes must be read first.
    fn store_plaintext(&mut self, payload: &[u8], room: &mut [u8]) -> usize {
        let count = if self.plain.is_empty() { payload.len().min(room.len()) } else { 0 };
        room[..count].copy_from_slice(&payload[..count]);
        self.plain.extend_from_slice(&payload[count..]);
        count
    }

    fn encrypt<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>, chunk: &[u8]) -> (usize, io::Result<TlsStep>) {
        let UnbufferedStatus { discard, state } = status;
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            let (discard, step) = self.process(UnbufferedStatus { discard, state }, &mut [], &mut 0);
            let step = match step {
                Ok(TlsStep::Again) => Ok(TlsStep::Again),
                Ok(TlsStep::NeedsInput) => Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) => Err(tls_error(error)),
            };
            return (discard, step);
        };
        let written = self.outgoing.append(|outgoing| match traffic.encrypt(chunk, outgoing) {
            Ok(count) => Ok(Ok(count)),
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => Err(required_size),
            Err(error) => Ok(Err(io::Error::other(error))),
        });
        (discard, written.map(|()| TlsStep::NeedsInput))
    }

    fn queue_close_notify<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>) -> bool {
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

impl OutgoingRecords {
    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Appends the records that `write` puts into the free part of `memory`. If this part is too small, `write` must
    /// return the number of bytes that it needs as an error. `write` is then called again with that much space.
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
                        self.return_memory();
                    }
                    return outcome.map(|_| ());
                }
            }
        }
    }

    fn send(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.sent < self.filled {
            match socket.try_write(&self.memory[self.sent..self.filled]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if !self.is_empty() {
            self.return_memory();
        }
        Ok(true)
    }

    fn return_memory(&mut self) {
        (self.filled, self.sent) = (0, 0);
        let memory = std::mem::take(&mut self.memory);
        // Ignore an error, because it means that the thread is ending and needs no buffer.
        let _ = SPARE.try_with(|spare| {
            // Keep the larger buffer, because it has to grow less often.
            let other = spare.take();
            spare.set(if other.len() > memory.len() { other } else { memory });
        });
    }
}

/// Moves as many bytes as fit from the front of `from` into `room`. Frees unused memory of `from`,
/// so that an idle session holds little.
fn take_front(from: &mut Vec<u8>, room: &mut [u8]) -> usize {
    let count = from.len().min(room.len());
    room[..count].copy_from_slice(&from[..count]);
    from.drain(..count);
    from.shrink_to(MAX_KEPT_BYTES);
    count
}

/// Wraps an error of TLS itself in the kind [`io::ErrorKind::InvalidData`], so that callers can distinguish it from a
/// broken connection.
fn tls_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsError(error))
}

/// Wraps an error of rustls' blocking streams like [`tls_error`], so that blocking and non-blocking clients fail alike.
pub(crate) fn blocking_tls_error(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(fault) => tls_error(fault.clone()),
        None => error,
    }
}

/// If the user can repair the fault behind a failed handshake, replaces the error with a [`HandshakeFault`], which
/// names the remedy.
pub(crate) fn with_handshake_fault(error: io::Error, setup: &ClientTls) -> io::Error {
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match refusal.and_then(|refusal| HandshakeFault::of(&refusal.0, &setup.name().to_str())) {
        Some(fault) => io::Error::new(io::ErrorKind::InvalidData, fault),
        None => error,
    }
}

#[derive(Debug)]
struct TlsError(rustls::Error);

impl Error for TlsError {}

impl fmt::Display for TlsError {
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

/// Returns true if an alert is about a certificate, or about a missing certificate (RFC 8446 §6.2).
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

    fn write(outgoing: &mut OutgoingRecords, octets: &[u8]) {
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
        let mut first = OutgoingRecords::default();
        let mut second = OutgoingRecords::default();
        write(&mut first, b"abc");
        write(&mut second, &[7; 5000]);
        write(&mut first, b"defg");
        assert_eq!(&first.memory[..first.filled], b"abcdefg");
        assert_eq!(&second.memory[..second.filled], [7; 5000]);
        let lent = second.memory.as_ptr();
        second.return_memory();
        first.return_memory();
        assert!(first.is_empty() && first.memory.is_empty() && second.memory.is_empty());
        write(&mut first, b"h");
        assert_eq!((first.filled, first.memory.as_ptr()), (1, lent), "the larger of the two was kept");
    }

    #[test]
    fn what_cannot_be_written_holds_no_memory() {
        let mut outgoing = OutgoingRecords::default();
        write(&mut outgoing, &[1; 100]);
        outgoing.return_memory();
        let failed = outgoing.append(|_| Ok(Err(io::ErrorKind::BrokenPipe.into())));
        assert!(failed.is_err() && outgoing.memory.is_empty());
        assert!(SPARE.take().len() >= 100);
    }
}
