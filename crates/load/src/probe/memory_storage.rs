//! Storage in memory for a journal, so that tests can simulate full disks and restarts.
use super::journal::Storage;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

#[derive(Clone, Default)]
pub(super) struct MemoryStorage {
    pub(super) content: Rc<RefCell<Option<Vec<u8>>>>,
    /// Number of bytes that can still be written before the disk counts as full, or `None` for no limit.
    pub(super) room: Rc<Cell<Option<usize>>>,
}

impl MemoryStorage {
    fn take(&self, wanted: usize) -> (usize, io::Result<()>) {
        let Some(room) = self.room.get() else { return (wanted, Ok(())) };
        let taken = wanted.min(room);
        self.room.set(Some(room - taken));
        (taken, if taken < wanted { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) })
    }
}

impl Storage for MemoryStorage {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.content.borrow().clone())
    }

    fn replace(&mut self, content: &[u8]) -> io::Result<()> {
        self.take(content.len()).1?;
        *self.content.borrow_mut() = Some(content.to_vec());
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (taken, result) = self.take(bytes.len());
        self.content.borrow_mut().get_or_insert_default().extend_from_slice(&bytes[..taken]);
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}
