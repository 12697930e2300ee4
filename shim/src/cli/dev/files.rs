//! The files of a local cluster: `pgdog.toml`, `users.toml`, `dev.json`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::layout::{ADMIN, APP_USER, DATABASE, Layout, SUPERUSER, Server, Shard};
use super::postgres;

/// Writes the configuration of every shim.
pub(super) fn write_config(layout: &Layout) -> anyhow::Result<()> {
    for (shim, port) in layout.shim_ports.iter().enumerate() {
        write_private(&layout.config_path(shim), &config(layout, *port))?;
    }
    write_private(&layout.users_path(), &users(layout))
}

/// Writes `dev.json` and returns its text.
pub(super) fn write_summary(layout: &Layout, pids: &[u32]) -> anyhow::Result<String> {
    let shims: Vec<Value> = layout
        .shim_ports
        .iter()
        .zip(pids)
        .enumerate()
        .map(|(n, (port, pid))| json!({"port": port, "pid": pid, "config": layout.config_path(n)}))
        .collect();
    let summary = json!({
        "port": layout.shim_ports.first(),
        "database": DATABASE,
        "user": APP_USER,
        "password": layout.app_password,
        "admin": {"database": ADMIN, "user": ADMIN, "password": layout.admin_password},
        "superuser": {"user": SUPERUSER, "password": layout.superuser_password},
        "shards": layout.serving().map(shard).collect::<anyhow::Result<Vec<_>>>()?,
        "spares": layout.spares().map(spare).collect::<anyhow::Result<Vec<_>>>()?,
        "config": layout.config_path(0),
        "users": layout.users_path(),
        "pid": pids.first(),
        "shims": shims,
    });
    let text = serde_json::to_string_pretty(&summary)?;
    write_private(&layout.dir.join("dev.json"), &text)?;
    Ok(text)
}

fn shard(shard: &Shard) -> anyhow::Result<Value> {
    Ok(json!({
        "shard": shard.number,
        "primary": server(&shard.primary)?,
        "replicas": shard.replicas.iter().map(server).collect::<anyhow::Result<Vec<_>>>()?,
    }))
}

/// A spare is one server; it is also written in the form of a shard, which it is going to be.
fn spare(spare: &Shard) -> anyhow::Result<Value> {
    let mut value = shard(spare)?;
    if let (Value::Object(fields), Value::Object(server)) = (&mut value, server(&spare.primary)?) {
        fields.extend(server);
    }
    Ok(value)
}

fn server(server: &Server) -> anyhow::Result<Value> {
    Ok(json!({
        "host": "127.0.0.1",
        "port": server.port,
        "pid": postgres::pid(server)?,
        "data": server.data,
    }))
}

fn config(layout: &Layout, port: u16) -> String {
    let mut text = format!(
        "# Written by `pgdog dev`.

[general]
host = \"127.0.0.1\"
port = {port}
workers = 2
default_pool_size = 20
auth_type = \"scram\"
read_write_split = \"exclude_primary\"
lsn_check_interval = 250
# A laptop that compiles meanwhile lets a login wait.
connect_timeout = 15000

[admin]
name = \"{ADMIN}\"
user = \"{ADMIN}\"
password = \"{}\"
",
        layout.admin_password
    );
    for shard in &layout.shards {
        let provisioning = match shard.spare {
            true => "provisioning = true\n",
            false => "",
        };
        text.push_str(&node(shard.number, &shard.primary, "primary", provisioning));
        for replica in &shard.replicas {
            text.push_str(&node(shard.number, replica, "replica", ""));
        }
    }
    text
}

fn node(shard: u16, server: &Server, role: &str, provisioning: &str) -> String {
    format!(
        "
[[databases]]
name = \"{DATABASE}\"
host = \"127.0.0.1\"
port = {}
shard = {shard}
role = \"{role}\"
{provisioning}",
        server.port
    )
}

fn users(layout: &Layout) -> String {
    let mut text = "# Written by `pgdog dev`.\n".to_owned();
    let users = [
        (APP_USER, &layout.app_password, ""),
        (
            SUPERUSER,
            &layout.superuser_password,
            "schema_admin = true\n",
        ),
    ];
    for (name, password, more) in users {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "\n[[users]]\nname = \"{name}\"\ndatabase = \"{DATABASE}\"\n\
             password = \"{password}\"\n{more}"
        );
    }
    text
}

/// The files hold passwords.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(())
}
