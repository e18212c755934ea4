//! Parts that every process of a run has: interrupts, progress, result files, figures of the host, a log, HTTP.

/// Writes a line on standard error. If that is full or closed, the line is lost; this is no reason to stop.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($words)*);
    }};
}

pub mod host;
pub mod host_sampler;
pub mod http_client;
pub mod http_server;
pub mod interrupt;
pub mod live;
pub mod live_line;
pub mod live_metrics;
pub mod local_address;
pub mod log_writer;
pub mod misspelling;
pub mod outputs;
pub mod password_file;
pub mod planned_panic;
pub mod position;
pub mod process_usage;
pub mod reason;
pub mod terminal;
pub mod tls_mode;
pub mod usage_sampler;
pub mod users;
