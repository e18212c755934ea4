//! Does the tasks that a worker asks for: deliveries and DSNs.
use crate::worker::{RelayWorker, WorkerTask, WorkerTasks};
use crate::{delivery, dsn};
use std::rc::Rc;

/// Starts a task for each delivery and each DSN, for as long as the worker lives.
pub(crate) async fn serve(worker: Rc<RelayWorker>, mut tasks: WorkerTasks) {
    while let Some(task) = tasks.recv().await {
        match task {
            WorkerTask::Deliver(slot) => {
                mailrun_net::worker::spawn_local(delivery::run(Rc::clone(&worker), slot));
            }
            WorkerTask::SendDsn(id, event, message) => dsn::generate::send(&worker, id, event, message),
        }
    }
}
