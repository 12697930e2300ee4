//! Databases that are configured and cannot be served: their clients are told why, the others are
//! served nevertheless, and it is tried again. So it is with the certificate for clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgdog_core::fault::Fault;

use super::host::Process;
use super::tls::{self, Missing};
use crate::config::Config;
use crate::nodes::Cluster;

/// Pause before the first attempt and, as it grows from one to the next, the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Databases that are not served, with what their clients are told.
pub type Absent = HashMap<String, Fault>;

/// Those that the configuration itself keeps from it.
pub fn by_configuration(config: &Config) -> Absent {
    let refused = |(name, why): (&String, &String)| {
        let fault = Fault::Refused {
            what: format!("database \"{name}\""),
            why: why.clone(),
            hint: Some("Connect to its nodes, or change its declaration.".to_owned()),
        };
        (name.clone(), fault)
    };
    config.unserved.iter().map(refused).collect()
}

impl Process {
    /// Tries again and again to start what is absent, for as long as the process runs.
    pub fn look_for_absent(self: &Arc<Self>) {
        let process = self.clone();
        tokio::spawn(async move {
            let mut pause = PAUSES.0;
            while !process.services().shutdown.is_cancelled() {
                // A node that was away does not tell when it is back.
                tokio::time::sleep(pause).await;
                process.try_absent().await;
                process.try_certificate().await;
                pause = match process.is_whole() {
                    true => PAUSES.0,
                    false => (2 * pause).min(PAUSES.1),
                };
            }
        });
    }

    async fn try_absent(&self) {
        let config = self.config();
        for name in config.database_names() {
            if !self.is_absent(name) {
                continue;
            }
            let started = self.start_database(&config, name).await;
            let _reloading = self.reloading.lock().await;
            if !Arc::ptr_eq(&config, &self.config()) {
                // The files were read again meanwhile, and that has tried it too.
                if let Ok(cluster) = started {
                    cluster.stop().await;
                }
                return;
            }
            let mut absent = (**self.services().absent.load()).clone();
            match started {
                Ok(cluster) => {
                    tracing::info!(database = name, "served from now on");
                    absent.remove(name);
                    self.serve(cluster);
                }
                Err(fault) => {
                    absent.insert(name.to_owned(), fault);
                }
            }
            self.services().absent.store(Arc::new(absent));
        }
    }

    /// Serves clients with TLS if what that takes is there by now.
    async fn try_certificate(&self) {
        let _reloading = self.reloading.lock().await;
        if !self.is_bare() {
            return;
        }
        // Why not was told when it was missed first.
        if let Ok(Some(inbound)) = tls::inbound(&self.config().general, Missing::IsWrong) {
            tracing::info!("certificate found: clients are served with TLS from now on");
            self.services().tls.store(Some(Arc::new(inbound)));
        }
    }

    /// Whether clients are served without TLS for want of the certificate that is named.
    pub(super) fn is_bare(&self) -> bool {
        tls::is_named(&self.config().general) && self.services().tls.load().is_none()
    }

    /// Starts one of the configured databases.
    ///
    /// # Errors
    /// As [`Cluster::start`]; or nobody is listed to look after it.
    pub(super) async fn start_database(
        &self,
        config: &Config,
        name: &str,
    ) -> Result<Arc<Cluster>, Fault> {
        Cluster::start(self.cluster_settings(config, name)?).await
    }

    /// Lets clients in.
    pub(super) fn serve(&self, cluster: Arc<Cluster>) {
        self.drive_tasks(&cluster);
        let mut clusters = (**self.services().clusters.load()).clone();
        clusters.insert(cluster.name().to_owned(), cluster);
        self.services().clusters.store(Arc::new(clusters));
    }

    /// Whether everything that can be served is.
    fn is_whole(&self) -> bool {
        if self.is_bare() {
            return false;
        }
        let config = self.config();
        let mut names = config.database_names().into_iter();
        !names.any(|name| self.is_absent(name))
    }

    /// Whether a database is configured and not served.
    pub(super) fn is_absent(&self, name: &str) -> bool {
        self.services().absent.load().contains_key(name)
    }

    /// The databases that are not served, with the reasons, by name.
    pub(super) fn absent(&self) -> Vec<(String, String)> {
        let absent = self.services().absent.load();
        let mut list: Vec<_> = absent
            .iter()
            .map(|(name, fault)| (name.clone(), fault.to_string()))
            .collect();
        list.sort();
        list
    }
}
