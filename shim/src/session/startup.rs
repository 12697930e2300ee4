//! From the accepted connection to the first ReadyForQuery.

use std::net::SocketAddr;
use std::sync::Arc;

use pgdog_core::fault::{Fault, NodeError};
use tokio::net::TcpStream;

use super::client::{Client, Gone};
use super::greet::{Database, Guest, greet};
use super::party::{Participant, Place};
use super::services::Services;
use super::settings::Keep;
use super::{Session, admin, faults, startup_options};
use crate::net::Stream;
use crate::nodes::{Cluster, Topology};
use crate::observe::LoginEnd;
use crate::proto::{ErrorFields, Startup, TxStatus, backend};
use crate::server::{Moment, ROLE_SETTINGS, role_settings};

/// Serves one accepted connection to its end.
pub async fn serve(stream: TcpStream, peer: SocketAddr, services: Arc<Services>) {
    // Small answers must not wait for the client's acknowledgement of earlier ones.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    if let Err(error) = services.settings.load().tcp.apply(&stream) {
        tracing::debug!(%peer, %error, "cannot set the options of the socket");
    }
    let mut client = Client::new(Stream::new(stream));
    match converse(&mut client, peer, &services).await {
        Ok(()) | Err(Gone::Left | Gone::Dismissed) => {}
        Err(Gone::Broken(error)) => tracing::debug!(%peer, %error, "client connection broke"),
        Err(Gone::Protocol(error)) => {
            tracing::info!(%peer, %error, "client broke the protocol");
            client.dismiss(&error.fields()).await;
        }
    }
}

async fn converse(
    client: &mut Client,
    peer: SocketAddr,
    services: &Arc<Services>,
) -> Result<(), Gone> {
    let limit = services.settings.load().login_timeout;
    let Ok(greeted) = tokio::time::timeout(limit, greet(client, services)).await else {
        let late = faults::plain("57014", "canceling authentication due to timeout");
        services.logins.note(LoginEnd::TimedOut);
        return Err(client.dismiss(&late).await);
    };
    let guest = match greeted {
        Ok(Some(guest)) => guest,
        Ok(None) => return Ok(()),
        Err(gone) => {
            // A client that was dismissed was counted with the reason.
            if !matches!(gone, Gone::Dismissed) {
                services.logins.note(LoginEnd::Abandoned);
            }
            return Err(gone);
        }
    };
    match &guest.database {
        Database::Admin => {
            services.logins.note(LoginEnd::Accepted);
            admin::serve(client, services).await
        }
        Database::Cluster(cluster) => {
            let cluster = cluster.clone();
            let session = match open(client, peer, services, cluster, &guest).await {
                Ok(session) => session,
                Err(gone) => {
                    services.logins.note(LoginEnd::Refused);
                    return Err(gone);
                }
            };
            services.logins.note(LoginEnd::Accepted);
            run(session).await
        }
    }
}

/// Makes the session and greets the client with the settings that a server reports for it.
async fn open<'a>(
    client: &'a mut Client,
    peer: SocketAddr,
    services: &Arc<Services>,
    cluster: Arc<Cluster>,
    guest: &Guest,
) -> Result<Session<'a>, Gone> {
    let application = guest.startup.get("application_name").unwrap_or_default();
    let database = cluster.name().to_owned();
    let seen = services
        .clients
        .enter(&guest.account.name, &database, peer, application);
    let mut session = Session::new(
        client,
        services.clone(),
        cluster,
        guest.account.clone(),
        seen,
    );
    let settings = services.settings.load();
    session.keep = settings.keep_for(&guest.account, session.cluster.name());
    match session.take_over(&guest.startup).await {
        Ok(()) => {
            session.move_in();
            backend::backend_key_data(&session.cancel_key, &mut session.client.out);
            backend::ready_for_query(TxStatus::Idle, &mut session.client.out);
            session.client.flush().await?;
            Ok(session)
        }
        Err(fault) => Err(session.client.dismiss(&ErrorFields::from(&fault)).await),
    }
}

async fn run(mut session: Session<'_>) -> Result<(), Gone> {
    let ended = session.run().await;
    session.note_traffic();
    match ended {
        Err(Gone::Dismissed) | Ok(()) => Ok(()),
        Err(Gone::Left) => Ok(()),
        Err(other) => Err(other),
    }
}

impl Session<'_> {
    /// A connection to the session's own shard or, as long as that one cannot be reached, to
    /// another one: what lives there can be served.
    async fn first_of(&mut self, topology: &Topology) -> Result<Participant, Fault> {
        let home = usize::from(self.home(topology)?.0);
        let (before, from) = topology.shards.split_at(home);
        let mut first = None;
        for nodes in from.iter().chain(before) {
            match self.lend(nodes.shard, &nodes.primary, Place::Primary).await {
                Err(fault) if fault.sqlstate().starts_with("08") => {
                    first.get_or_insert(fault);
                }
                lent => return lent,
            }
        }
        Err(first.unwrap_or_else(|| faults::fault("08006", "no shard can be reached")))
    }

    /// Reads the settings that the user brings (ALTER ROLE, ALTER DATABASE, startup packet), and
    /// tells the client what a server reports once they are applied.
    async fn take_over(&mut self, startup: &Startup) -> Result<(), Fault> {
        let mut asked = settings_of(startup)?;
        // Those that a session can only begin with need connections of their own.
        let begin_with = asked.extract_if(.., |(name, _)| BEGIN_WITH.contains(&name.as_str()));
        self.login.params.extend(begin_with);
        let topology = self.cluster.topology();
        let mut first = self.first_of(&topology).await?;
        let (shard, address) = (first.shard, first.address.clone());
        let asked_of_node = format!("{LETS_IN};\n{ROLE_SETTINGS}");
        let mut rows = match first.lease.simple(&asked_of_node).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(%error, "cannot read the settings of the role");
                Vec::new()
            }
        };
        for rules in rows.extract_if(.., |row| row.len() == RULES) {
            if let Some(refused) = self.refused(&rules) {
                self.give_back(first);
                return Err(refused);
            }
            self.note_path(rules.last());
        }
        self.role_settings = Some((role_settings(&rows), Moment::now()));
        if self.is_of_old_role(&first.lease) {
            self.throw_away(first);
            first = self.lend(shard, &address, Place::Primary).await?;
            // What the other one had begun with is not what anybody begins with now.
            let rows = first.lease.simple(PATH).await.unwrap_or_default();
            self.note_path(rows.first().and_then(|row| row.last()));
        }
        self.take_role_settings(rows.into_iter().flatten().flatten());
        for (name, value) in asked {
            self.params.set_default(&name, &value)?;
            self.params.set_default_path(&name, &value);
        }
        self.adapt(&mut first.lease).await?;
        for (name, value) in first.lease.parameters() {
            self.client.tell_setting(name, value);
        }
        if self.params.own().report_commit_lsn {
            backend::parameter_status("pgdog.commit_lsn", "", &mut self.client.out);
        }
        self.give_back(first);
        Ok(())
    }

    /// Where a session begins to look for names.
    fn note_path(&mut self, told: Option<&Option<String>>) {
        if let Some(Some(path)) = told {
            self.params.set_default_path("search_path", path);
        }
    }

    /// In session mode the server is the client's: under its process id, and with the names that
    /// the client gives, as long as there is one place for everything.
    fn move_in(&mut self) {
        if let (Keep::Session, Some(kept)) = (self.keep, &mut self.pinned) {
            let pid = kept.lease.pid();
            self.services.name_cancel(&mut self.cancel_key, pid);
            if self.cluster.topology().is_undivided() {
                kept.lease.keep_all_prepared();
                self.names.own = true;
            }
        }
    }

    /// What the server would say to a new connection: the one that is lent may be older than its
    /// rules.
    fn refused(&self, rules: &[Option<String>]) -> Option<Fault> {
        let broken = rules.iter().position(|rule| rule.as_deref() == Some("f"))?;
        let database = rules.get(DATABASE).cloned().flatten().unwrap_or_default();
        let (code, message) = match broken {
            0 => (
                "28000",
                format!("role \"{}\" is not permitted to log in", self.login.user),
            ),
            1 => (
                "55000",
                format!("database \"{database}\" is not currently accepting connections"),
            ),
            _ => (
                "42501",
                format!("permission denied for database \"{database}\""),
            ),
        };
        let detail = "User does not have CONNECT privilege.";
        Some(Fault::Node(Box::new(NodeError {
            code: code.to_owned(),
            message,
            detail: (code == "42501").then(|| detail.to_owned()),
            ..NodeError::default()
        })))
    }

    /// The server has set them by itself; the shim must know its own and the router's too.
    fn take_role_settings(&mut self, settings: impl Iterator<Item = String>) {
        for setting in settings {
            let Some((name, value)) = setting.split_once('=') else {
                continue;
            };
            self.params.set_default_path(name, value);
            if name.starts_with("pgdog.")
                && let Err(fault) = self.params.set_default(name, value)
            {
                // PostgreSQL too lets somebody in whose ALTER ROLE ... SET is wrong.
                tracing::warn!(%fault, "a setting of the role is not used");
            }
        }
    }
}

/// Whether role and database still let anybody in, in the order in which a server asks; and where
/// a session of theirs looks for names.
const LETS_IN: &str = "SELECT r.rolcanlogin, d.datallowconn, \
       pg_catalog.has_database_privilege(session_user, d.oid, 'CONNECT'), d.datname, \
       (SELECT s.reset_val FROM pg_catalog.pg_settings s WHERE s.name = 'search_path') \
  FROM pg_catalog.pg_roles r, pg_catalog.pg_database d \
 WHERE r.rolname = session_user AND d.datname = pg_catalog.current_database()";

/// The last column of [`LETS_IN`] alone.
const PATH: &str = "SELECT s.reset_val FROM pg_catalog.pg_settings s WHERE s.name = 'search_path'";

/// Columns of [`LETS_IN`].
const RULES: usize = 5;
/// The one with the database's name.
const DATABASE: usize = 3;

/// Settings that cannot be changed once a session has begun.
const BEGIN_WITH: [&str; 6] = [
    "ignore_system_indexes",
    "jit_debugging_support",
    "jit_profiling_support",
    "log_connections",
    "log_disconnections",
    "post_auth_delay",
];

/// Every setting in the packet, in order, lower case.
fn settings_of(startup: &Startup) -> Result<Vec<(String, String)>, Fault> {
    let mut settings = Vec::new();
    for (name, value) in &startup.params {
        match name.as_str() {
            "user" | "database" => {}
            "options" => {
                let parsed = startup_options::parse(value).map_err(|switch| {
                    faults::fault("42601", format!("invalid command-line argument: {switch}"))
                })?;
                settings.extend(parsed);
            }
            "replication" if matches!(value.as_str(), "false" | "off" | "no" | "0") => {}
            "replication" => {
                return Err(Fault::Refused {
                    what: "a replication connection".to_owned(),
                    why: "the shim speaks for several servers".to_owned(),
                    hint: Some("Connect to the node itself.".to_owned()),
                });
            }
            name if name.starts_with("_pq_.") => {}
            name => settings.push((name.to_ascii_lowercase(), value.clone())),
        }
    }
    Ok(settings)
}
