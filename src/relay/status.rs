//! Metrics, health and readiness over HTTP, from a thread of its own that no session waits for.
//!
//! | path | what |
//! |---|---|
//! | `/metrics` | numbers, for Prometheus (`metrics`) |
//! | `/health` | 200, or 503 once the spool has failed: only a restart helps |
//! | `/ready` | 200 once it listens and has taken up what a former run has left; 503 before |
use super::metrics::{self, Figures};
use super::setting::Setting;
use super::survey::survey;
use crate::reason::reason;
use anyhow::{Context, Result, anyhow};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use net::clock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Whoever asks for metrics waits for the workers; so many may wait at a time.
const ASKERS: usize = 4;

/// Serves on `address` until the process ends; gives the address, for port 0.
///
/// # Errors
/// If it cannot listen there.
pub(super) fn serve(address: SocketAddr, setting: &Arc<Setting>) -> Result<SocketAddr> {
    let listener = net::listener::listen(address)
        .map_err(|error| anyhow!("cannot listen on {address} (http): {}", reason(&error)))?;
    let address = listener.local_addr()?;
    let began = clock::now();
    let routes = Router::new()
        .route("/", get(async || "mailrun relay: /metrics, /health, /ready\n"))
        .route("/metrics", get(move |setting| figures(setting, began)))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .with_state(Arc::clone(setting));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(ASKERS)
        .build()
        .context("cannot serve HTTP")?;
    std::thread::Builder::new().name("status".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, routes).await
        })
    })?;
    Ok(address)
}

async fn figures(State(setting): State<Arc<Setting>>, began: Duration) -> Response {
    let asked = tokio::task::spawn_blocking(move || {
        let survey = survey(&setting)?;
        Ok::<_, super::inquiry::Silent>(metrics::text(&Figures {
            survey: &survey,
            census: &setting.census.rows(),
            spool: &setting.spool.usage(),
            unlogged: setting.press.unlogged(),
            incoming_limit: setting.intake.most_bytes(),
            has_failed: setting.has_failed(),
            hostname: &setting.config().hostname,
            uptime_s: clock::now().saturating_sub(began).as_secs_f64(),
        }))
    });
    match asked.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Ok(Err(silent)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silent}\n")).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn health(State(setting): State<Arc<Setting>>) -> (StatusCode, &'static str) {
    if setting.has_failed() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the spool has failed\n");
    }
    (StatusCode::OK, "ok\n")
}

async fn ready(State(setting): State<Arc<Setting>>) -> (StatusCode, &'static str) {
    if setting.has_failed() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the spool has failed\n");
    }
    if !setting.is_open() {
        return (StatusCode::SERVICE_UNAVAILABLE, "not listening\n");
    }
    if !setting.is_taken_up() {
        return (StatusCode::SERVICE_UNAVAILABLE, "taking up what a former run has left\n");
    }
    (StatusCode::OK, "ok\n")
}
