//! Reads the configuration again when the relay receives SIGHUP. If the new configuration has
//! errors, the relay logs them and keeps the old configuration.
use super::fault_log::LOG_TARGET;
use crate::config::Config;
use crate::context::RelayContext;
use crate::service_manager;
use anyhow::{Context, Result};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub type ConfigLoader = Box<dyn Fn() -> Result<Config> + Send>;

/// Starts a thread that reloads the configuration at each SIGHUP, until the process ends.
pub(super) fn watch(context: &Arc<RelayContext>, reread: Option<ConfigLoader>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.context("cannot watch for signals")?;
    let hangups = {
        let _context = runtime.enter();
        signal(SignalKind::hangup()).context("cannot watch for signals")?
    };
    let context = Arc::clone(context);
    std::thread::Builder::new()
        .name("reload".to_owned())
        .spawn(move || runtime.block_on(reload_on_hangup(hangups, &context, reread.as_ref())))
        .context("cannot start a thread")?;
    Ok(())
}

async fn reload_on_hangup(mut hangups: Signal, context: &RelayContext, reread: Option<&ConfigLoader>) {
    while hangups.recv().await.is_some() {
        match reread {
            Some(reread) => {
                service_manager::notify_reloading();
                service_manager::notify_reloaded(apply_reload(context, reread()));
            }
            None => tracing::warn!(target: LOG_TARGET, "SIGHUP: no configuration file to reload"),
        }
    }
}

/// Activates the new configuration if it is valid, and otherwise logs its mistakes. Returns a status text for the
/// service manager.
fn apply_reload(context: &RelayContext, result: Result<Config>) -> &'static str {
    match result {
        Err(error) => {
            // Each line of the text describes one mistake, with its position in the file, so log each line as a
            // separate error.
            format!("{error:#}").lines().for_each(|complaint| tracing::error!(target: LOG_TARGET, "{complaint}"));
            tracing::error!(target: LOG_TARGET, "the configuration is unchanged");
            "takes mail; the last reload failed, and the configuration is unchanged"
        }
        Ok(mut config) => {
            let later = context.initial_config().needs_restart(&config);
            // Keep the old settings of the spool, because new settings take effect only after a restart. Until then,
            // the greeting must not promise clients the durability of the new settings.
            config.spool = context.initial_config().spool.clone();
            if let (Some(first), Some(new)) = (&context.initial_config().tls, &config.tls) {
                first.setup.renew(&new.setup);
            }
            config.warnings().iter().for_each(|warning| tracing::warn!(target: LOG_TARGET, "{warning}"));
            context.reload(config);
            tracing::info!(target: LOG_TARGET, "the configuration was reloaded");
            if !later.is_empty() {
                tracing::warn!(target: LOG_TARGET, keys = later.join(", "), "these keys require a restart");
            }
            "takes mail"
        }
    }
}
