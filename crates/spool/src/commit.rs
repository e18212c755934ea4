//! The commit thread: takes the gathered messages, writes and syncs them, resolves the receipts, makes room.
use crate::inbox::{Inbox, Meanwhile, Taken};
use crate::log::Log;
use crate::tidying::Progress;
use crate::{Error, Id};
use std::io;
use std::sync::Arc;

/// Runs until the spool is closed or its disk fails. `unproven` are messages of a former run that are written anew
/// before anything else.
pub(crate) fn run(inbox: &Arc<Inbox>, mut log: Log, unproven: Vec<Id>) {
    let _guard = Guard(Arc::clone(inbox));
    if let Err(error) = log.write_anew(unproven).and_then(|()| until_closed(inbox, &mut log)) {
        inbox.stop(Error::poisoned(&error));
    }
}

fn until_closed(inbox: &Inbox, log: &mut Log) -> io::Result<()> {
    let mut taken = Taken::default();
    let mut meanwhile = Meanwhile::Chores;
    loop {
        inbox.take(&mut taken, meanwhile);
        if !taken.is_empty() {
            match log.commit(&mut taken) {
                Ok(refused) => taken.settle(Ok(refused)),
                Err(error) => {
                    taken.settle(Err(Error::poisoned(&error)));
                    return Err(error);
                }
            }
        }
        if taken.is_last {
            return log.close();
        }
        meanwhile = match log.tidy()? {
            Progress::More => Meanwhile::Chores,
            Progress::Nothing => Meanwhile::Nothing,
        };
    }
}

/// Ends all waits when the thread ends, for whatever reason. `Taken` answers for what the thread had taken.
struct Guard(Arc<Inbox>);

impl Drop for Guard {
    fn drop(&mut self) {
        let reason =
            if std::thread::panicking() { Error::Poisoned("the commit thread failed".into()) } else { Error::Closed };
        self.0.end(reason);
    }
}
