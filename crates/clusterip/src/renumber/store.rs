//! Stores the record of a renumbering: a ConfigMap in the namespace of the server, which tenants can't write.

use anyhow::{Context, anyhow};
use clusterip_cluster::api_error::{failed, if_found};
use clusterip_moves::renumbering::record::{RECORD, Record};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, Error as KubeError};

use crate::text::joined;

const KEY: &str = "record";
/// The key with [`Record::kept_ranges`], which the ValidatingAdmissionPolicy `old-addresses` reads.
const OLD_RANGES_KEY: &str = "oldRanges";

pub struct Store {
    api: Api<ConfigMap>,
    namespace: String,
    /// The stored object; `None` before it is created.
    stored: Option<ConfigMap>,
}

impl Store {
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client.clone(), namespace), namespace: namespace.to_owned(), stored: None }
    }

    pub async fn read(&mut self) -> anyhow::Result<Option<Record>> {
        let found = self.api.get_opt(RECORD).await.map_err(|error| self.failed("read", &error))?;
        self.stored = found;
        let Some(found) = &self.stored else { return Ok(None) };
        let text = found.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str);
        let record = Record::parse(text).map_err(anyhow::Error::msg);
        record.map(Some).with_context(|| format!("ConfigMap {}/{RECORD} is not a record", self.namespace))
    }

    pub fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// Writes the record. It is an error if another command has written it meanwhile.
    pub async fn write(&mut self, record: &Record) -> anyhow::Result<()> {
        let kept = joined(record.kept_ranges(), ",");
        let data = [(KEY, serde_json::to_string(record)?), (OLD_RANGES_KEY, kept)];
        let data = Some(data.map(|(key, value)| (key.to_owned(), value)).into());
        let written = match self.stored.take() {
            Some(stored) => self.api.replace(RECORD, &PostParams::default(), &ConfigMap { data, ..stored }).await,
            None => {
                let labels = Some([("app.kubernetes.io/name".to_owned(), "clusterip".to_owned())].into());
                let metadata = ObjectMeta { name: Some(RECORD.to_owned()), labels, ..ObjectMeta::default() };
                let object = ConfigMap { metadata, data, ..ConfigMap::default() };
                self.api.create(&PostParams::default(), &object).await
            }
        };
        self.stored = Some(written.map_err(|error| match error {
            KubeError::Api(status) if status.code == 409 => {
                anyhow!("another command has changed ConfigMap {}/{RECORD}: run only one at a time", self.namespace)
            }
            error => self.failed("written", &error),
        })?);
        Ok(())
    }

    pub async fn delete(&mut self) -> anyhow::Result<()> {
        let uid = self.stored.take().and_then(|stored| stored.metadata.uid);
        let this = Preconditions { uid, ..Preconditions::default() };
        let deleted = self.api.delete(RECORD, &DeleteParams::default().preconditions(this)).await;
        if_found(deleted.map(drop)).map_err(|error| self.failed("deleted", &error))
    }

    fn failed(&self, what: &str, error: &KubeError) -> anyhow::Error {
        failed(format!("ConfigMap {}/{RECORD} can't be {what}", self.namespace), error)
    }
}
