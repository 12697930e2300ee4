//! pgbench as a client of the cluster.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::cluster::Cluster;

/// Runs pgbench as the application on a port of the cluster; tells what it printed.
///
/// # Errors
/// When it fails, or a transaction does.
pub fn pgbench(cluster: &Cluster, port: u16, arguments: &[&str]) -> anyhow::Result<String> {
    pgbench_as(cluster, (port, ""), arguments)
}

/// As [`pgbench`], with startup options.
///
/// # Errors
/// As [`pgbench`].
pub fn pgbench_as(
    cluster: &Cluster,
    (port, options): (u16, &str),
    arguments: &[&str],
) -> anyhow::Result<String> {
    let d = cluster.description();
    let output = Command::new(programs()?.join("pgbench"))
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", &d.user])
        .args(arguments)
        .arg(&d.database)
        .env("PGPASSWORD", &d.password)
        .env("PGOPTIONS", options)
        .output()
        .context("cannot run pgbench")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pgbench {arguments:?}: {errors}");
    let printed = String::from_utf8(output.stdout)?;
    if printed.contains(FAILED) {
        let failed = number_after(&printed, FAILED)?;
        ensure!(failed == 0.0, "pgbench {arguments:?}:\n{printed}{errors}");
    }
    Ok(printed)
}

const FAILED: &str = "number of failed transactions:";

/// The number behind a label in what pgbench printed.
///
/// # Errors
/// When there is none.
pub fn number_after(printed: &str, label: &str) -> anyhow::Result<f64> {
    let found = printed.lines().find_map(|line| line.strip_prefix(label));
    let word = found.and_then(|rest| rest.split_whitespace().next());
    let number = word.and_then(|word| word.split('/').next()?.parse().ok());
    number.with_context(|| format!("pgbench did not say \"{label}\":\n{printed}"))
}

/// Where PostgreSQL's programs are.
///
/// # Errors
/// When `pg_config` cannot be run.
pub fn programs() -> anyhow::Result<PathBuf> {
    let pg_config = std::env::var("PG_CONFIG").unwrap_or("/usr/bin/pg_config".to_owned());
    let output = Command::new(&pg_config)
        .arg("--bindir")
        .output()
        .with_context(|| format!("cannot run {pg_config}"))?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_labels() {
        let printed = "a: 1\nnumber of transactions actually processed: 40/40\ntps = 12.5 (x)\n";
        assert_eq!(number_after(printed, "tps =").unwrap(), 12.5);
        let processed = "number of transactions actually processed:";
        assert_eq!(number_after(printed, processed).unwrap(), 40.0);
        assert!(number_after(printed, "latency").is_err());
    }
}
