//! Names, ports and passwords of everything in a local cluster, decided before anything starts.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rand::RngExt as _;

use super::Args;
use super::postgres::Installation;

/// Superuser of every server.
pub(super) const SUPERUSER: &str = "pgdog_admin";
/// Application user, owner of the database.
pub(super) const APP_USER: &str = "app";
/// The database.
pub(super) const DATABASE: &str = "app";
/// The admin database and its user.
pub(super) const ADMIN: &str = "admin";

/// File that marks a directory as ours to empty.
const MARKER: &str = ".pgdog-dev";

/// The whole cluster.
pub(super) struct Layout {
    /// Canonical path of its directory.
    pub(super) dir: PathBuf,
    /// Serving shards, then spares.
    pub(super) shards: Vec<Shard>,
    /// Ports of the shims.
    pub(super) shim_ports: Vec<u16>,
    /// Password of the superuser.
    pub(super) superuser_password: String,
    /// Password of the application user.
    pub(super) app_password: String,
    /// Password of the operator.
    pub(super) admin_password: String,
}

/// One shard, or one spare.
pub(super) struct Shard {
    /// Its number.
    pub(super) number: u16,
    /// Declared only.
    pub(super) spare: bool,
    /// Takes the writes.
    pub(super) primary: Server,
    /// Follow the primary.
    pub(super) replicas: Vec<Server>,
}

/// One server.
pub(super) struct Server {
    /// Name of its directory, its log and its replication slot.
    pub(super) name: String,
    /// Where it listens, on 127.0.0.1.
    pub(super) port: u16,
    /// Its data directory.
    pub(super) data: PathBuf,
}

impl Layout {
    /// Decides everything.
    pub(super) fn plan(dir: PathBuf, args: &Args) -> anyhow::Result<Self> {
        let servers = args.shards * (1 + args.replicas) + args.spares;
        let mut ports = choose_ports(args.port, args.shims + servers)?.into_iter();
        let mut server = |name: String| -> anyhow::Result<Server> {
            let port = ports.next().context("as many ports as servers")?;
            Ok(Server {
                data: dir.join(&name),
                name,
                port,
            })
        };
        let mut shim_ports = Vec::new();
        for n in 0..args.shims {
            shim_ports.push(server(format!("shim-{n}"))?.port);
        }
        let mut shards = Vec::new();
        for number in 0..args.shards + args.spares {
            let spare = number >= args.shards;
            let primary = server(format!("shard-{number}"))?;
            let replicas = match spare {
                true => Vec::new(),
                false => (1..=args.replicas)
                    .map(|n| server(format!("shard-{number}-replica-{n}")))
                    .collect::<anyhow::Result<_>>()?,
            };
            shards.push(Shard {
                number,
                spare,
                primary,
                replicas,
            });
        }
        Ok(Self {
            dir,
            shards,
            shim_ports,
            superuser_password: password(),
            app_password: password(),
            admin_password: password(),
        })
    }

    /// The shards that serve.
    pub(super) fn serving(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(|s| !s.spare)
    }

    /// The empty servers.
    pub(super) fn spares(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(|s| s.spare)
    }

    /// Configuration file of a shim.
    pub(super) fn config_path(&self, shim: usize) -> PathBuf {
        match shim {
            0 => self.dir.join("pgdog.toml"),
            n => self.dir.join(format!("shim-{n}.toml")),
        }
    }

    /// Users file of every shim.
    pub(super) fn users_path(&self) -> PathBuf {
        self.dir.join("users.toml")
    }
}

impl Server {
    /// The server's log.
    pub(super) fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// Name of the replication slot that a replica uses on its primary.
    pub(super) fn slot(&self) -> String {
        self.name.replace('-', "_")
    }
}

/// Makes the directory, or empties it when it is from an earlier run that has ended.
pub(super) fn prepare_directory(
    dir: &Path,
    installation: &Installation,
) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", dir.display()))?;
    if let Some(process) = super::stop::processes_of(&dir)?.first() {
        bail!(
            "process {} runs from {}; stop it with `pgdog dev --stop --dir {}`",
            process.pid,
            dir.display(),
            dir.display()
        );
    }
    let is_empty = dir.read_dir().map(|mut entries| entries.next().is_none())?;
    if !is_empty && !dir.join(MARKER).exists() {
        bail!(
            "{} is not empty and not from `pgdog dev`; choose another one",
            dir.display()
        );
    }
    for entry in dir.read_dir()? {
        let path = entry?.path();
        match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        }
        .with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::write(
        dir.join(MARKER),
        "made by `pgdog dev`, which may remove everything here\n",
    )?;
    if let Some(owner) = &installation.run_as {
        // Others may pass through to their servers' logs; the secrets inside have mode 0600.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        std::os::unix::fs::chown(&dir, Some(owner.uid.as_raw()), Some(owner.gid.as_raw()))
            .with_context(|| format!("cannot give {} to {}", dir.display(), owner.name))?;
        installation.check_reach(&dir)?;
    }
    Ok(dir)
}

/// Consecutive free ports, from `first` or from a place where nobody listens.
fn choose_ports(first: Option<u16>, count: u16) -> anyhow::Result<Vec<u16>> {
    let range = |first: u16| first..first.saturating_add(count);
    if let Some(first) = first {
        if first.checked_add(count).is_none() {
            bail!("{count} ports from {first} on do not exist");
        }
        if let Some(busy) = range(first).find(|port| !is_free(*port)) {
            bail!("port {busy} is in use; {count} free ports from --port on are needed");
        }
        return Ok(range(first).collect());
    }
    // Below the range that Linux takes for outgoing connections.
    for _ in 0..200 {
        let first = rand::rng().random_range(10_000..32_000);
        if range(first).all(is_free) {
            return Ok(range(first).collect());
        }
    }
    bail!("found no {count} consecutive free ports; give --port")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn password() -> String {
    format!("{:024x}", rand::rng().random::<u128>() >> 32)
}
