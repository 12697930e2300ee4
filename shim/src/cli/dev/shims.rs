//! The shims of a local cluster: started as processes of their own, waited for.

use std::fs::File;
use std::process::Stdio;

use anyhow::{Context as _, bail};
use futures_util::future::try_join_all;
use tokio::process::{Child, Command};

use super::layout::{APP_USER, DATABASE, Layout};
use super::postgres::{self, Installation};
use super::{connect, wait_for};

/// Starts every shim and returns the pids once each one answers a query.
///
/// The first one comes alone: it declares the nodes' shard numbers, which the others then find.
pub(super) async fn start_all(
    layout: &Layout,
    installation: &Installation,
) -> anyhow::Result<Vec<u32>> {
    let mut pids = vec![start(layout, installation, 0).await?];
    let others = (1..layout.shim_ports.len()).map(|shim| start(layout, installation, shim));
    pids.extend(try_join_all(others).await?);
    Ok(pids)
}

async fn start(layout: &Layout, installation: &Installation, shim: usize) -> anyhow::Result<u32> {
    let path = layout.dir.join(format!("shim-{shim}.log"));
    let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let this = std::env::current_exe().context("cannot find this program's file")?;
    // pg_dump of the same version as the servers comes first in the search path.
    let mut search = installation.bin.clone().into_os_string();
    search.push(":");
    search.push(std::env::var_os("PATH").unwrap_or_default());
    let mut child = Command::new(this)
        .arg("run")
        .arg("--config")
        .arg(layout.config_path(shim))
        .arg("--users")
        .arg(layout.users_path())
        .env("PATH", search)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A group of its own: Ctrl-C at the terminal is not for the shim.
        .process_group(0)
        .spawn()
        .context("cannot start the shim")?;
    let pid = child.id().context("the shim ended at once")?;
    wait_until_it_answers(layout, shim, &mut child)
        .await
        .with_context(|| postgres::tail(&path))?;
    Ok(pid)
}

async fn wait_until_it_answers(
    layout: &Layout,
    shim: usize,
    child: &mut Child,
) -> anyhow::Result<()> {
    let port = layout.shim_ports[shim];
    let answer = wait_for("the shim's first answer", || async {
        let client = connect(port, APP_USER, &layout.app_password, DATABASE).await?;
        client
            .simple_query("SELECT 1")
            .await
            .context("SELECT 1 through the shim")?;
        Ok(())
    });
    tokio::select! {
        answer = answer => answer,
        status = child.wait() => bail!("the shim ended with {}", status?),
    }
}
