//! Code that all processes of a run share, for signals, progress lines and events, result files, facts about the host,
//! the log, and HTTP.
#![allow(missing_docs)] // only crates that other programs embed document every public item

/// Writes a line to standard error. While a dashboard is on the screen, the line is kept until the dashboard is closed.
/// If standard error is full or closed, the line is lost, because the process must not stop for that.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::alternate_screen::tell(format_args!($($words)*))
    };
}

pub mod alternate_screen;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod chrony;
pub mod clock_exchange;
pub mod cpus;
pub mod dialogue_output;
pub mod event_output;
pub mod host;
mod host_processes;
pub mod host_sampler;
pub mod host_watch;
pub mod http_client;
pub mod http_server;
pub mod interrupt;
mod journal;
pub mod keep_awake;
pub mod live;
pub mod live_line;
pub mod live_metrics;
pub mod local_address;
pub mod log_writer;
pub mod output_file;
pub mod outputs;
pub mod party_options;
pub mod planned_panic;
pub mod proc_stat;
pub mod process_usage;
pub mod reason;
pub mod server_cores;
mod server_processes;
pub mod start_wait;
pub mod terminal;
pub mod text_file;
pub mod tls_mode;
pub mod toml_file;
pub mod usage_sampler;
pub mod users;
