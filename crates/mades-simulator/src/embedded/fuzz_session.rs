//! A session of the embedded listener without sockets, so that fuzz targets can feed it any bytes.
use super::queues::MemoryQueues;
use super::session::{Admission, BrokerSession};
use bytes::{Buf, BytesMut};
use mailrun_amqp::ListenerAuth;

pub struct FuzzSession {
    session: BrokerSession,
    input: BytesMut,
}

impl FuzzSession {
    /// Creates a session with a peer that must log in as `mechanisms` demands.
    pub fn new(queues: MemoryQueues, mechanisms: ListenerAuth, max_message_bytes: u64) -> Self {
        let session = BrokerSession::new(queues, mechanisms, "rehearsal", max_message_bytes, Admission::Granted);
        Self { session, input: BytesMut::new() }
    }

    pub fn feed(&mut self, octets: &[u8]) -> Vec<u8> {
        if !self.session.connection().is_closed() {
            self.input.extend_from_slice(octets);
            let _ = self.session.process(&mut self.input);
        }
        let waiting = self.session.output().remaining();
        self.session.output().copy_to_bytes(waiting).to_vec()
    }

    pub fn hang_up(self) {
        self.session.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::QueueLimits;
    use std::path::Path;

    /// Returns the name and the content of each seed file for the fuzz target `mades_listener`. A seed is a recorded
    /// conversation, followed by one byte that chooses parameters of the fuzz target.
    fn seeds() -> Vec<(String, Vec<u8>)> {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/mades_listener");
        let files = std::fs::read_dir(place).unwrap().map(|file| file.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        files.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
    }

    #[test]
    fn who_hangs_up_leaves_the_queues_as_they_were() {
        for (name, octets) in seeds() {
            for cut in 0..octets.len() {
                let queues = MemoryQueues::new(QueueLimits { messages: 8, bytes: 10_000 });
                let mut session = FuzzSession::new(queues.clone(), ListenerAuth::Any, 1000);
                octets[..cut].chunks(50).for_each(|piece| drop(session.feed(piece)));
                session.hang_up();
                for queue in queues.names() {
                    let counts = queues.counts(queues.get_or_create(&queue).unwrap());
                    assert_eq!(counts.held, 0, "{name} {cut} {queue}");
                    let settled = counts.accepted + counts.rejected;
                    assert_eq!(counts.put, counts.waiting as u64 + settled, "{name} {cut} {queue}");
                }
            }
        }
    }
}
