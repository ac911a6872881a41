//! `/healthz`, `/readyz`, `/metrics`, and nothing else.

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use tokio::{net::TcpListener, sync::watch};

use super::metrics::Metrics;
use crate::{
    agent::{FirstCheck, Published},
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

async fn readyz(State(shared): State<Shared>) -> impl IntoResponse {
    let published = Arc::clone(&shared.state.borrow());
    match keeps_from_checking(&published) {
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        None => (StatusCode::OK, "ok\n".to_owned()),
    }
}

/// Why a rollout shall wait for this agent: its own first check has not finished, or its own sandbox kept it from
/// checking. Never the verdict: a broken node must not stop a rollout; nor what an earlier agent found.
fn keeps_from_checking(published: &Published) -> Option<String> {
    let report = &published.report;
    match published.first_check {
        FirstCheck::NotDue => None,
        FirstCheck::Pending => {
            let has_work = report.verdict.state != NodeState::NotApplicable;
            has_work.then(|| "no check has finished yet".to_owned())
        }
        FirstCheck::Over if report.verdict.state != NodeState::Unknown => None,
        // What was known stays for some checks that see nothing.
        FirstCheck::Over | FirstCheck::Blind => {
            let of_child = |reason| matches!(reason, Reason::ProbeTimeout | Reason::ProbeCrashed);
            let finding = report.findings.first().filter(|f| f.who == Who::Agent && !of_child(f.reason))?;
            Some(format!("{}: {}", finding.reason, finding.message))
        }
    }
}

async fn text(State(shared): State<Shared>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], shared.metrics.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Finding,
        verdict::fixture::{Scene, finding},
    };

    /// Whether a rollout waits for an agent that tells this.
    fn waits(first_check: FirstCheck, state: NodeState, reason: Reason, who: Who) -> bool {
        let mut report = Scene::new().report();
        (report.verdict.state, report.verdict.reason) = (state, reason);
        report.findings = vec![Finding { who, ..finding(reason) }];
        keeps_from_checking(&Published { first_check, ..Published::of(report) }).is_some()
    }

    #[test]
    fn a_rollout_waits_for_the_agents_own_check_and_for_no_verdict() {
        use FirstCheck::{Blind, NotDue, Over, Pending};
        use NodeState::{Degraded, NotApplicable, NotReady, Ready, Unknown};
        let shut = (Reason::UverbsPermission, Who::Agent);
        for (first_check, state, (reason, who), wanted) in [
            (Pending, Ready, (Reason::AllRailsVerified, Who::Node), true),
            (Pending, NotApplicable, (Reason::NoGpu, Who::Node), false),
            (NotDue, Unknown, shut, false), // an earlier agent's
            (Over, Unknown, shut, true),
            (Over, Degraded, shut, false),
            (Blind, Ready, shut, true),
            (Blind, Ready, (Reason::ProbeTimeout, Who::Agent), false),
            (Blind, Unknown, (Reason::DriverAbsent, Who::Driver), false),
            (Over, Unknown, (Reason::ProbeTimeout, Who::Agent), false),
            (Over, Unknown, (Reason::ProbeCrashed, Who::Agent), false),
            (Over, Unknown, (Reason::CudaFailed, Who::Driver), false),
            (Over, NotReady, (Reason::PortDown, Who::Hardware), false),
        ] {
            assert_eq!(waits(first_check, state, reason, who), wanted, "{first_check:?} {state} {reason}");
        }
    }
}
