//! Buffers for received messages and for a connection's output. A message stays in the pieces in which it was read, so
//! that large payloads are not copied. Only small pieces are copied.
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Minimum size of a piece that the output keeps without copying it. A smaller piece is copied, because that costs less
/// than writing it separately and keeping its read buffer in memory.
const MIN_PIECE_BYTES: usize = 16 << 10;
/// If at least this many bytes of a message arrive at once, the message shares the read buffer instead of copying them.
/// Smaller input is copied, because a shared piece of 16 KiB would keep a read buffer of up to 320 KiB in memory.
const MIN_SHARED_BYTES: usize = 64 << 10;

/// An encoded message, kept in the pieces in which it was read, so that large payloads need not be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedMessage {
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl EncodedMessage {
    /// Returns the total length of all pieces in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the pieces of the message in order. No piece is empty.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Appends a piece without copying it, unless the piece is empty.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Appends bytes that were read, and joins short pieces, because a message in frames of one byte each would
    /// otherwise take many times its size in memory.
    pub(crate) fn append(&mut self, octets: &Bytes) {
        if octets.len() >= MIN_SHARED_BYTES {
            return self.push(octets.clone());
        }
        match self.pieces.pop_if(|last| last.len() < MIN_SHARED_BYTES).map(Bytes::try_into_mut) {
            Some(Ok(mut last)) => {
                last.extend_from_slice(octets);
                self.bytes += octets.len();
                return self.pieces.push(last.freeze());
            }
            Some(Err(shared)) => self.pieces.push(shared),
            None => {}
        }
        self.push(Bytes::copy_from_slice(octets));
    }

    /// Returns the whole message in one piece. Copies the bytes only if the message has several pieces.
    pub fn whole(&self) -> Bytes {
        match self.pieces.as_slice() {
            [] => Bytes::new(),
            [piece] => piece.clone(),
            pieces => pieces.concat().into(),
        }
    }

    /// Removes the first `limit` bytes, or all if there are fewer, and returns them without copying.
    pub fn cut(&mut self, limit: usize) -> Self {
        let mut first = Self::default();
        let mut piece_count = 0;
        while first.bytes < limit && piece_count < self.pieces.len() {
            let piece = &mut self.pieces[piece_count];
            let part = piece.split_to(piece.len().min(limit - first.bytes));
            piece_count += usize::from(piece.is_empty());
            first.push(part);
        }
        self.pieces.drain(..piece_count);
        self.bytes -= first.bytes;
        first
    }
}

impl From<Bytes> for EncodedMessage {
    fn from(octets: Bytes) -> Self {
        let mut message = Self::default();
        message.push(octets);
        message
    }
}

impl From<Vec<u8>> for EncodedMessage {
    fn from(octets: Vec<u8>) -> Self {
        Bytes::from(octets).into()
    }
}

/// Output of a connection that waits to be written to the socket. Large pieces are queued without being copied, and
/// everything else is copied into `tail`.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    /// Output that was queued before the bytes in `tail`, oldest piece first. The socket gets these pieces first.
    pieces: VecDeque<Bytes>,
    /// End of the output, into which small pieces are copied. The first `tail_written` bytes have already been sent.
    tail: Vec<u8>,
    tail_written: usize,
    piece_bytes: usize,
}

impl OutputBuffer {
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    pub(crate) fn push(&mut self, message: EncodedMessage) {
        message.pieces.into_iter().for_each(|piece| self.push_piece(piece));
    }

    pub(crate) fn push_piece(&mut self, piece: Bytes) {
        if piece.len() < MIN_PIECE_BYTES {
            self.tail.extend_from_slice(&piece);
        } else {
            self.freeze_tail();
            self.piece_bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    fn freeze_tail(&mut self) {
        if self.tail_written < self.tail.len() {
            let mut piece = Bytes::from(std::mem::take(&mut self.tail));
            piece.advance(std::mem::take(&mut self.tail_written));
            self.piece_bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl Buf for OutputBuffer {
    fn remaining(&self) -> usize {
        self.piece_bytes + self.tail.len() - self.tail_written
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail[self.tail_written..], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = &self.tail[self.tail_written..];
        let all = self.pieces.iter().map(|piece| &piece[..]).chain((!tail.is_empty()).then_some(tail));
        slices.iter_mut().zip(all).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.front_mut().filter(|_| count > 0) {
            let part = piece.len().min(count);
            piece.advance(part);
            self.piece_bytes -= part;
            count -= part;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        self.tail_written += count;
        if self.tail_written == self.tail.len() {
            self.tail.clear();
            self.tail_written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(lengths: &[usize]) -> EncodedMessage {
        let mut message = EncodedMessage::default();
        let mut octets = (0..=u8::MAX).cycle();
        for length in lengths {
            message.push(octets.by_ref().take(*length).collect());
        }
        message
    }

    proptest! {
        #[test]
        fn what_is_appended_is_there_in_few_pieces(
            lengths in proptest::collection::vec(prop_oneof![0usize..100, 0usize..100_000], 0..40), clone_at in 0usize..40,
        ) {
            let mut message = EncodedMessage::default();
            let mut all = Vec::new();
            let mut kept = EncodedMessage::default();
            for (number, length) in lengths.iter().enumerate() {
                let octets = vec![number as u8; *length];
                message.append(&Bytes::from(octets.clone()));
                all.extend(octets);
                if number == clone_at {
                    kept = message.clone();
                }
            }
            prop_assert_eq!((&message.whole()[..], message.bytes()), (&all[..], all.len()));
            prop_assert!(all.starts_with(&kept.whole()), "a clone stays as it was");
            let large = lengths.iter().filter(|length| **length >= MIN_SHARED_BYTES).count();
            prop_assert!(message.pieces().len() <= 2 * large + 2 + all.len() / MIN_SHARED_BYTES);
        }

        #[test]
        fn what_is_cut_is_what_was_there(lengths in proptest::collection::vec(0usize..300, 0..6), max in 1usize..200) {
            let whole = message(&lengths).whole();
            let mut rest = message(&lengths);
            let mut parts = Vec::new();
            while rest.bytes() > 0 {
                let part = rest.cut(max);
                prop_assert!(part.bytes() <= max && part.bytes() == part.whole().len());
                prop_assert!(part.bytes() == max || rest.bytes() == 0);
                parts.extend_from_slice(&part.whole());
            }
            prop_assert_eq!(&parts[..], &whole[..]);
        }

        #[test]
        fn a_rope_gives_what_was_put_on_it(
            steps in proptest::collection::vec((0usize..40_000, 0usize..40_000), 0..20),
        ) {
            let mut buffer = OutputBuffer::default();
            let mut put = Vec::new();
            let mut got = Vec::new();
            for (length, read) in steps {
                buffer.tail().extend_from_slice(b"head");
                let message = message(&[length]);
                put.extend_from_slice(b"head");
                put.extend_from_slice(&message.whole());
                buffer.push(message);
                let mut slices = [IoSlice::new(&[]); 64];
                let filled = buffer.chunks_vectored(&mut slices);
                let all: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
                prop_assert_eq!(all, buffer.remaining());
                let read = read.min(buffer.remaining());
                let mut part = vec![0; read];
                buffer.copy_to_slice(&mut part);
                got.extend(part);
                prop_assert_eq!(buffer.remaining(), put.len() - got.len());
            }
            let rest = buffer.copy_to_bytes(buffer.remaining());
            got.extend_from_slice(&rest);
            prop_assert_eq!(got, put);
        }
    }
}
