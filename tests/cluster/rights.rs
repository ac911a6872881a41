//! Every verb on whatever is worth having, asked with an agent's own token.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::cluster::Cluster;
use crate::inside::inside;

const VERBS: &[&str] =
    &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "*"];
/// Group, resource, subresource.
const RESOURCES: &[(&str, &str, &str)] = &[
    ("*", "*", ""),
    ("", "*", ""),
    ("", "nodes", ""),
    ("", "nodes", "status"),
    ("", "nodes", "proxy"),
    ("", "pods", ""),
    ("", "pods", "exec"),
    ("", "pods", "eviction"),
    ("", "pods", "log"),
    ("", "secrets", ""),
    ("", "configmaps", ""),
    ("", "events", ""),
    ("", "serviceaccounts", ""),
    ("", "serviceaccounts", "token"),
    ("", "namespaces", ""),
    ("", "persistentvolumes", ""),
    ("events.k8s.io", "events", ""),
    ("coordination.k8s.io", "leases", ""),
    ("apps", "daemonsets", ""),
    ("batch", "jobs", ""),
    ("resource.k8s.io", "resourceslices", ""),
    ("rbac.authorization.k8s.io", "clusterroles", ""),
    ("rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
];
/// The first is all of them.
const NAMESPACES: &[&str] = &["", "default", "gdr-system", "kube-system"];

/// What is allowed: `get nodes`, with the namespace where it is not allowed in all.
pub(crate) fn allowed(cluster: &Cluster, token: &str) -> Vec<String> {
    let config: Kubeconfig = serde_json::from_value(cluster.kubeconfig(token)).expect("a kubeconfig");
    let asked = inside(cluster, move || async move {
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect("a config");
        let client = Client::try_from(config).expect("a client");
        let mut allowed = Vec::new();
        for &resource in RESOURCES {
            for verb in VERBS {
                let everywhere = may(&client, verb, resource, "").await;
                let what = format!("{verb} {}", name(resource));
                if everywhere {
                    allowed.push(what);
                    continue;
                }
                for namespace in &NAMESPACES[1..] {
                    if may(&client, verb, resource, namespace).await {
                        allowed.push(format!("{what} in {namespace}"));
                    }
                }
            }
        }
        allowed
    });
    asked.join().expect("the API server answers each")
}

fn name((group, resource, part): (&str, &str, &str)) -> String {
    let group = if group.is_empty() { String::new() } else { format!("{group}/") };
    let part = if part.is_empty() { String::new() } else { format!("/{part}") };
    format!("{group}{resource}{part}")
}

async fn may(client: &Client, verb: &str, (group, resource, part): (&str, &str, &str), namespace: &str) -> bool {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: given(verb),
        group: Some(group.to_owned()),
        resource: given(resource),
        subresource: given(part),
        namespace: given(namespace),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await.expect("an answer");
    answer.status.expect("a verdict").allowed
}
