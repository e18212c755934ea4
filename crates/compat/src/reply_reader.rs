//! Collects the lines of a reply from blocks of input. The caller decides which line is the last.

/// Maximum length of a reply in bytes, including all its lines. The imitated programs have no limit, so a server could
/// exhaust their memory.
pub(crate) const MAX_REPLY_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTooLong;

#[derive(Debug, Default)]
pub(crate) struct ReplyReader {
    /// Bytes that have arrived of a reply that is not complete yet.
    partial: Vec<u8>,
    /// Position in `partial` at which the second line starts, or 0 if the first line is still incomplete. `open_line`
    /// is the position at which the incomplete last line starts.
    second_line: usize,
    open_line: usize,
    is_consumed: bool,
}

impl ReplyReader {
    /// Takes a whole reply from the front of `input`. If the reply is incomplete, stores its bytes until the next call,
    /// and returns `None`.
    ///
    /// # Errors
    ///
    /// Fails if the reply is too long. The connection is then unusable, because the start of the next reply is unknown.
    pub(crate) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        is_last: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Result<Option<&'s [u8]>, ReplyTooLong> {
        if self.is_consumed {
            *self = Self::default();
        }
        if self.partial.is_empty()
            && let Some(length) = complete_reply(input, &is_last)
        {
            let (reply, rest) = input.split_at(length);
            *input = rest;
            return if length > MAX_REPLY_BYTES { Err(ReplyTooLong) } else { Ok(Some(reply)) };
        }
        while !input.is_empty() {
            let end = memchr::memchr(b'\n', input).map_or(input.len(), |at| at + 1);
            let (piece, rest) = input.split_at(end);
            *input = rest;
            if self.partial.len() + piece.len() > MAX_REPLY_BYTES {
                return Err(ReplyTooLong);
            }
            self.partial.extend_from_slice(piece);
            if !piece.ends_with(b"\n") {
                break;
            }
            if self.second_line == 0 {
                self.second_line = self.partial.len();
            }
            let line = &self.partial[std::mem::replace(&mut self.open_line, self.partial.len())..];
            if is_last(&self.partial[..self.second_line], line) {
                self.is_consumed = true;
                return Ok(Some(&self.partial));
            }
        }
        Ok(None)
    }
}

/// Returns the length of the reply at the start of `bytes`, or `None` if the reply is incomplete.
fn complete_reply(bytes: &[u8], is_last: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
    let first = &bytes[..=memchr::memchr(b'\n', bytes)?];
    let mut start = 0;
    while let Some(at) = memchr::memchr(b'\n', &bytes[start..]) {
        let end = start + at + 1;
        if is_last(first, &bytes[start..end]) {
            return Some(end);
        }
        start = end;
    }
    None
}
