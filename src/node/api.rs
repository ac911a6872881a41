//! Calls to the API server: each with a deadline, and an error that says what was tried, what was
//! answered, and what that asks for.

use std::{error::Error, time::Duration};

use axum::{
    body::Body,
    http::{
        HeaderValue, Response,
        header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
    },
};
use kube::{
    Client,
    client::{ClientBuilder, DynBody},
};
use serde_json::json;
use tokio::time::timeout;
use tower::util::MapResponseLayer;

/// For one call.
const CALL: Duration = Duration::from_secs(15);
/// A server that asks for more is asked again all the same.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A client from the pod's service account, or from a kubeconfig. Token and certificate authority are read
/// anew for each.
pub(super) async fn client() -> Result<Client, CallError> {
    let trouble = |text: String| CallError { text, trouble: Trouble::NoAnswer };
    let mut config = kube::Config::infer().await.map_err(|e| trouble(format!("no way to the API server: {e}")))?;
    config.default_retry = false; // our own clock tries again
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("gdr-agent/", env!("CARGO_PKG_VERSION")))));
    let builder = ClientBuilder::try_from(config).map_err(|e| trouble(format!("can't make a client: {e}")))?;
    Ok(builder.with_layer(&MapResponseLayer::new(with_its_time)).build())
}

/// A server that is busy answers by a plain text, and says for how long in a header alone (API Priority and Fairness),
/// which the client's error would not carry: it is made the Status that any other refusal is.
fn with_its_time(response: Response<Box<DynBody>>) -> Response<Body> {
    let code = response.status();
    let header = |name| response.headers().get(name)?.to_str().ok();
    let asked: Option<u32> = header(RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
    let is_status = header(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
    let (mut head, body) = response.into_parts();
    match asked {
        Some(seconds) if !is_status && (code.is_client_error() || code.is_server_error()) => {
            let details = json!({ "retryAfterSeconds": seconds });
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                "message": code.canonical_reason(), "details": details,
            });
            head.headers.clear(); // of another body
            Response::from_parts(head, Body::from(status.to_string()))
        }
        _ => Response::from_parts(head, Body::new(body)),
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallError {
    /// What was tried and what happened.
    pub(super) text: String,
    /// What to do about it.
    pub(super) trouble: Trouble,
}

/// What a failure asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The object is another one than it was, or gone: read it again.
    Recreated,
    /// No answer, or none that could be trusted: begin with a new connection, a new token and a new
    /// certificate authority.
    NoAnswer,
    /// Later, and if the server says so not before this.
    Later(Option<Duration>),
    /// The list from which this is the next page is not kept any more (410).
    Expired,
    /// The same again would be refused again.
    Refused,
}

/// One call with its deadline. `right`: what the caller must be allowed to do, for one that is not.
pub(super) async fn call<T>(
    what: &str,
    right: &str,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match timeout(CALL, future).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(refused(what, right, &status)),
        Ok(Err(error)) => {
            Err(CallError { text: format!("can't {what}: {}", with_causes(&error)), trouble: Trouble::NoAnswer })
        }
        Err(_) => {
            let text = format!("can't {what}: no answer within {} s", CALL.as_secs());
            Err(CallError { text, trouble: Trouble::NoAnswer })
        }
    }
}

/// That nobody listens, or that a certificate is wrong, says only the last of them.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

fn refused(what: &str, right: &str, status: &kube::core::Status) -> CallError {
    let details = status.details.as_ref();
    let another = details.is_some_and(|d| d.causes.iter().any(|cause| cause.field == "metadata.uid"));
    let trouble = match status.code {
        404 | 409 => Trouble::Recreated,
        422 if another => Trouble::Recreated,
        401 => Trouble::NoAnswer,
        410 => Trouble::Expired,
        429 | 500.. => {
            let asked = details.map_or(0, |d| d.retry_after_seconds);
            Trouble::Later((asked > 0).then(|| Duration::from_secs(u64::from(asked)).min(LONGEST_WAIT)))
        }
        _ => Trouble::Refused,
    };
    let hint = match status.code {
        401 => "; the token is old or foreign, and is read again".to_owned(),
        403 => format!("; it needs the right to {right}, which the chart's roles grant the agent (rbac.yaml)"),
        _ => String::new(),
    };
    CallError { text: format!("can't {what}: {} {}{hint}", status.code, status.message), trouble }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, details: &serde_json::Value) -> CallError {
        let status: kube::core::Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "code": code, "message": "no", "reason": "x", "details": details,
        }))
        .unwrap();
        refused("patch the node", "patch nodes/status", &status)
    }

    #[test]
    fn each_answer_asks_for_something_else() {
        let uid = serde_json::json!({ "causes": [ { "field": "metadata.uid", "reason": "FieldValueInvalid" } ] });
        let other = serde_json::json!({ "causes": [ { "field": "spec", "reason": "FieldValueInvalid" } ] });
        let after = serde_json::json!({ "retryAfterSeconds": 7 });
        let hour = serde_json::json!({ "retryAfterSeconds": 3600 });
        let none = serde_json::Value::Null;
        for (code, details, trouble) in [
            (404, &none, Trouble::Recreated),
            (409, &none, Trouble::Recreated),
            (422, &uid, Trouble::Recreated),
            (422, &other, Trouble::Refused),
            (410, &none, Trouble::Expired),
            (403, &none, Trouble::Refused),
            (401, &none, Trouble::NoAnswer),
            (429, &after, Trouble::Later(Some(Duration::from_secs(7)))),
            (429, &hour, Trouble::Later(Some(LONGEST_WAIT))),
            (500, &none, Trouble::Later(None)),
            (503, &none, Trouble::Later(None)),
        ] {
            assert_eq!(answered(code, details).trouble, trouble, "{code}");
        }
        let forbidden = answered(403, &none).text;
        for part in ["can't patch the node: 403 no", "the right to patch nodes/status", "the chart's roles grant"] {
            assert!(forbidden.contains(part), "no `{part}` in {forbidden}");
        }
        assert_eq!(answered(422, &other).text, "can't patch the node: 422 no", "what the server says");
    }

    #[tokio::test]
    async fn the_last_cause_is_told() {
        let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let api: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(Client::try_from(nobody).unwrap());
        let error = call("get the node", "get nodes", api.get("n1")).await.unwrap_err();
        assert!(error.text.contains("onnection refused"), "{}", error.text);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_is_not_waited_for() {
        let hangs = std::future::pending::<kube::Result<()>>();
        let error = call("get the node", "get nodes", hangs).await.unwrap_err();
        assert_eq!(error.trouble, Trouble::NoAnswer);
        assert!(error.text.contains("15 s"), "{}", error.text);
    }
}
