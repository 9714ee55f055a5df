//! Which kubelets give Pods an old DNS address, and since when none does.

use clusterip_moves::renumbering::record::{Phase, Record};
use jiff::Timestamp;

use super::check::check_kubelets;
use super::findings::Findings;
use super::observe::Observer;
use super::store::Store;

impl Observer {
    /// The kubelets that give Pods an old DNS address, and those that can't be asked.
    pub async fn old_kubelets(&mut self, record: &Record) -> anyhow::Result<Vec<String>> {
        if let Some(known) = self.kubelets.take() {
            return Ok(known);
        }
        let mut findings = Findings::default();
        if self.asks_kubelets {
            check_kubelets(&self.client, &record.change, &mut findings).await?;
        }
        let found = findings.into_sorted().into_iter();
        Ok(found.map(|finding| format!("{}: {}", finding.object, finding.message)).collect())
    }
}

/// Records the time at which no kubelet gives Pods an old DNS address any more. Pods that are older may know it.
pub async fn note_kubelets(observer: &mut Observer, store: &mut Store, record: &mut Record) -> anyhow::Result<()> {
    if record.phase == Phase::Switched && record.kubelets_at.is_none() {
        let kubelets = observer.old_kubelets(record).await?;
        if kubelets.is_empty() {
            record.kubelets_at = Some(Timestamp::now().as_second());
            store.write(record).await?;
        }
        observer.kubelets = Some(kubelets);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clusterip_moves::renumbering::change::Change;
    use clusterip_moves::renumbering::step::Goal;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn kubelets_are_asked_once_in_each_look() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        // A cluster that contains only a Node.
        let client = service_fn(move |request: Request<Body>| {
            let list = |items: Value| json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
            let answer = match request.uri().path().rsplit('/').next().unwrap() {
                "configz" => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    json!({"kubeletconfig": {"clusterDNS": ["10.96.0.10"]}})
                }
                "nodes" => list(json!([{"metadata": {"name": "a"}}])),
                _ => list(json!([])),
            };
            async move { Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes()))) }
        });
        let client = Client::new(client, "default");
        let range = |range: &str| vec![range.parse().unwrap()];
        let change = Change::new(&range("10.96.0.0/24"), &range("10.100.0.0/24")).unwrap();
        let mut record = Record { phase: Phase::Switched, ..Record::new(change, range("10.96.0.0/24")) };
        let mut store = Store::new(&client, "clusterip-policy");
        let mut observer = Observer::new(client, "clusterip-policy");
        for look in 1..=2 {
            note_kubelets(&mut observer, &mut store, &mut record).await.unwrap();
            let observed = observer.observe(Goal::Finish { force: false }, &record).await.unwrap();
            assert_eq!(observed.users_of_old, ["Node a: its kubelet gives Pods the DNS address 10.96.0.10"]);
            assert_eq!((asked.load(Ordering::Relaxed), record.kubelets_at), (look, None));
        }
    }
}
