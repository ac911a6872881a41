//! `/healthz`, `/readyz`, `/metrics`, and nothing else.

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use tokio::{net::TcpListener, sync::watch};

use super::metrics::Metrics;
use crate::{
    agent::Published,
    report::{Reason, State as NodeState, Who},
};

#[derive(Clone)]
struct Shared {
    state: watch::Receiver<Arc<Published>>,
    metrics: Arc<Metrics>,
}

/// Serves until the process ends. An address that is taken is a warning, and tried again: the old
/// agent of a rollout may still have it.
pub async fn serve(listen: String, state: watch::Receiver<Arc<Published>>, metrics: Arc<Metrics>) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(text))
        .with_state(Shared { state, metrics });
    let mut warned = false;
    loop {
        match TcpListener::bind(&listen).await {
            Ok(listener) => {
                if let Err(error) = axum::serve(listener, router.clone()).await {
                    tracing::warn!(%error, "the HTTP server ended");
                }
            }
            Err(error) if !warned => {
                tracing::warn!(%error, listen, "can't listen for health and metrics; going on without, and trying again");
                warned = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The loop turns: its sender is alive.
async fn healthz(State(shared): State<Shared>) -> impl IntoResponse {
    if shared.state.has_changed().is_ok() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the agent's loop has ended\n")
    }
}

/// The first check has finished, or there is nothing to do, and it is not the agent's own sandbox
/// that kept it from checking. Never the verdict: a broken node must not stop a rollout.
async fn readyz(State(shared): State<Shared>) -> impl IntoResponse {
    let published = shared.state.borrow().clone();
    let verdict = &published.report.verdict;
    if !published.checked && verdict.state != NodeState::NotApplicable {
        return (StatusCode::SERVICE_UNAVAILABLE, "no check has finished yet\n".to_owned());
    }
    let sandbox = published.report.findings.first().filter(|f| {
        verdict.state == NodeState::Unknown
            && f.who == Who::Agent
            && !matches!(f.reason, Reason::ProbeTimeout | Reason::ProbeCrashed)
    });
    match sandbox {
        Some(finding) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}: {}\n", finding.reason, finding.message)),
        None => (StatusCode::OK, "ok\n".to_owned()),
    }
}

async fn text(State(shared): State<Shared>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], shared.metrics.text())
}
