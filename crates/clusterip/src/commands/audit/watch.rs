//! `clusterip audit --watch`: prints the report again each time it changes.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clusterip_cluster::api_error::error_chain;
use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::live_settings::{self, LiveSettings, WrittenSettings};
use clusterip_cluster::permissions::{self, Duties};
use clusterip_cluster::shutdown::shutdown_signal;
use clusterip_cluster::terminal::harmless_json;
use clusterip_cluster::watch::kinds;
use clusterip_cluster::watch::service_ranges::ServiceRanges;
use clusterip_cluster::watch::stores::{Change, Stores};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{AuditArguments, Connection, Output};
use crate::audit::model::Audit;
use crate::audit::services::AuditCache;
use crate::audit::{AuditInput, source};
use crate::commands::terminal::warn_lines;
use crate::report::audit_parts::value_name;
use crate::report::map::About;

/// How long changes are collected before the next audit, so that a rollout is not reported in a hundred steps.
const COLLECT: Duration = Duration::from_secs(1);
/// How often the cluster is audited without a change: Leases and settings are not watched, and heartbeats age.
const REFRESH: Duration = Duration::from_secs(10);

pub fn run(command: &AuditArguments) -> anyhow::Result<ExitCode> {
    if !matches!(command.output, Output::Table | Output::Wide | Output::Name | Output::Json) {
        bail!("--watch can't be printed as {}: use -o table, wide, name or json", value_name(&command.output));
    }
    crate::commands::block_on(watch(command))
}

async fn watch(command: &AuditArguments) -> anyhow::Result<ExitCode> {
    let namespace = command.namespace();
    let (mut cluster, mut changes) = WatchedCluster::start(command).await?;
    command.scope.check(&cluster.stores.read_snapshot(), namespace.as_deref(), None)?;
    let mut shutdown = pin!(shutdown_signal());
    let (mut shown, mut status): (Option<String>, _) = (None, ExitCode::SUCCESS);
    loop {
        let audit = tokio::select! {
            biased;
            () = &mut shutdown => return Ok(status),
            audit = cluster.audit(namespace.as_deref()) => audit,
        };
        // In JSON each report is on a line of its own, for programs that read line by line.
        let text = match command.output {
            Output::Json => harmless_json(&serde_json::to_string(&audit)?) + "\n",
            _ => command.render(&audit, About::default())?,
        };
        status = command.status(&audit);
        if shown.as_ref() != Some(&text) {
            let separator = match command.output {
                _ if shown.is_none() => String::new(),
                Output::Json => String::new(),
                Output::Name => "\n".to_owned(),
                _ => format!("\n{}\n", Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC")),
            };
            if !crate::commands::output((separator + &text).as_bytes())? {
                return Ok(status);
            }
            shown = Some(text);
        }
        tokio::select! {
            () = &mut shutdown => return Ok(status),
            () = next_change(&mut changes) => {}
        }
    }
}

/// Waits until the next audit is due. The audit sees all changes until then.
async fn next_change(changes: &mut watch::Receiver<()>) {
    tokio::select! {
        Ok(()) = changes.changed() => sleep(COLLECT).await,
        () = sleep(REFRESH) => {}
    }
    changes.mark_unchanged();
}

struct SettingsInForce {
    written: WrittenSettings,
    ranges: ServiceRanges,
    live: LiveSettings,
    refused: bool,
}

struct WatchedCluster<'c> {
    command: &'c AuditArguments,
    connection: Connection,
    stores: Stores,
    settings: SettingsInForce,
    /// Why the latest version of the settings is not used, as last printed.
    problem: Option<String>,
    cache: AuditCache,
}

impl<'c> WatchedCluster<'c> {
    async fn start(command: &'c AuditArguments) -> anyhow::Result<(Self, watch::Receiver<()>)> {
        let connection = command.connect().await?;
        let metrics = ClusterMetrics::default();
        let (changed, changes) = watch::channel(());
        let changed = move |_: &Change<'_>| changed.send_replace(());
        let stores = Stores::new(connection.client.clone(), metrics.clone(), |_| (), changed);
        stores.ask_for_service_cidrs().await;
        let settings = read_settings(command, &connection, &stores, None).await?;
        let settings = settings.context("the settings are unknown")?;
        // If these objects can't be listed, the audit has a note about it. So this permission is not required.
        stores.control_plane_services().watch(&connection.client, &metrics);
        stores.control_plane_services().wait_until_listed().await;
        let (problem, cache) = (None, AuditCache::default());
        Ok((Self { command, connection, stores, settings, problem, cache }, changes))
    }

    /// Reads the settings again, and audits. If the new version can't be used, the one before stays in use, as in a
    /// server.
    async fn audit(&mut self, namespace: Option<&str>) -> Audit {
        let read = read_settings(self.command, &self.connection, &self.stores, Some(&self.settings)).await;
        let problem = match read {
            Ok(changed) => {
                changed.into_iter().for_each(|changed| self.settings = changed);
                None
            }
            Err(error) => Some(error_chain(&*error)),
        };
        if let Some(problem) = problem.as_ref().filter(|_| self.problem != problem) {
            warn_lines(&format!("the audit keeps using the previous settings: {problem}"));
        }
        self.problem = problem;
        let SettingsInForce { written, live, refused, .. } = &self.settings;
        let Connection { client, namespaces, .. } = &self.connection;
        let cluster = source::of_stores(client, &self.stores, &live.settings, namespaces).await;
        let objects = written.objects.clone().unwrap_or_default();
        let input = AuditInput { settings: live, objects, cluster: &cluster, ledger: false, refused: *refused };
        let audit = input.audit(&mut self.cache);
        input.only_of(audit, namespace, self.command.scope.selector.as_ref())
    }
}

/// The settings in force, and a watch of their kinds; `None` if they are those `before`.
async fn read_settings(
    command: &AuditArguments,
    Connection { client, settings, namespaces }: &Connection,
    stores: &Stores,
    before: Option<&SettingsInForce>,
) -> anyhow::Result<Option<SettingsInForce>> {
    let written = live_settings::written(settings, client).await?;
    let ranges = stores.service_cidrs().borrow().clone();
    if before.is_some_and(|before| before.ranges == ranges && before.written == written) {
        return Ok(None);
    }
    let (live, refused) = command.in_force(&written, &ranges)?;
    // A watch that is not permitted would never be complete.
    let duties = Duties { namespace: namespaces.server.clone().unwrap_or_default(), ..Duties::default() };
    permissions::check(client, &live.settings, &duties).await?;
    stores.watch_kinds(kinds::asked(&live.settings));
    stores.completed().await;
    Ok(Some(SettingsInForce { written, ranges, live, refused }))
}
