//! Opening a connection: TCP, startup, authentication, up to the first ReadyForQuery.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pgdog_core::fault::Fault;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use tokio::net::TcpStream;

use super::conn::Conn;
use super::prepared::Moment;
use super::settings::PoolSettings;
use super::{Endpoint, Login, ServerError, faults};
use crate::net::{Stream, TcpSettings};
use crate::proto::backend::tag;
use crate::proto::{ErrorFields, Frame, answer, frontend, md5, startup};

/// Statements that one connection keeps prepared, unless told otherwise.
pub(super) const PREPARED_LIMIT: usize = 500;

/// Settings that a login takes over from its role and database, the strongest last.
pub const ROLE_SETTINGS: &str = "SELECT s.setting FROM ( \
       SELECT pg_catalog.unnest(setconfig) AS setting, setrole, setdatabase \
       FROM pg_catalog.pg_db_role_setting \
       WHERE setdatabase IN (0, (SELECT oid FROM pg_catalog.pg_database \
                                 WHERE datname = pg_catalog.current_database())) \
         AND setrole IN (0, (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = session_user)) \
     ) AS s ORDER BY s.setrole <> 0, s.setdatabase <> 0, s.setting";

/// Names what [`ROLE_SETTINGS`] found; 0 for nothing.
pub fn role_settings(rows: &[Vec<Option<String>>]) -> u64 {
    if rows.is_empty() {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    rows.hash(&mut hasher);
    hasher.finish().max(1)
}

impl Conn {
    /// Connects and logs in.
    ///
    /// # Errors
    /// When the server can't be reached within `limit` or refuses the login; the fault carries
    /// the server's own message.
    pub async fn connect(
        endpoint: &Endpoint,
        login: &Login,
        limit: Duration,
    ) -> Result<Self, Fault> {
        let settings = PoolSettings::default();
        Self::open(Arc::new(endpoint.clone()), login, limit, &settings).await
    }

    pub(super) async fn open(
        endpoint: Arc<Endpoint>,
        login: &Login,
        limit: Duration,
        settings: &PoolSettings,
    ) -> Result<Self, Fault> {
        let opened = tokio::time::timeout(limit, async {
            let io = dial(&endpoint, &settings.tcp)
                .await
                .map_err(|error| faults::cannot_connect(&endpoint, error))?;
            let mut conn = Conn::new(
                Stream::new(io),
                endpoint.clone(),
                settings.prepared_statements_limit,
            );
            conn.log_in(login).await.map_err(faults::during_login)?;
            Ok(conn)
        });
        match opened.await {
            Ok(result) => result,
            Err(_) => {
                let why = faults::took_too_long("the login", limit);
                Err(faults::cannot_connect(&endpoint, why))
            }
        }
    }

    /// Remembers which settings of role and database this session began with. They may have changed
    /// a moment ago; the next who looks finds out.
    pub(super) async fn note_role_settings(&mut self, limit: Duration) -> Result<(), Fault> {
        match tokio::time::timeout(limit, self.simple(ROLE_SETTINGS)).await {
            Ok(Ok(rows)) => self.role_settings = role_settings(&rows),
            // Who may not read them finds no difference either.
            Ok(Err(ServerError::Sql(_))) => {}
            Ok(Err(ServerError::Fault(fault))) => return Err(fault),
            Err(_) => {
                let why = faults::took_too_long("reading the settings of the role", limit);
                return Err(faults::cannot_connect(self.endpoint(), why));
            }
        }
        self.opened = Moment::now();
        Ok(())
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), Fault> {
        let mut out = BytesMut::with_capacity(256);
        let database = self.endpoint().database.clone();
        let own = [
            ("user", login.user.as_str()),
            ("database", database.as_str()),
            ("pgdog.report_commit_lsn", "on"),
        ];
        let given = login
            .params
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        startup::startup_message(own.into_iter().chain(given), &mut out);
        self.write(&out).await?;
        self.ledger.expect_login();

        self.authenticate(login).await?;
        loop {
            let frame = self.recv_login().await?;
            match frame.tag() {
                tag::BACKEND_KEY_DATA => {
                    let key = answer::backend_key_data(&frame.body_bytes());
                    self.key = Arc::new(self.parsed(key)?);
                }
                tag::READY => break,
                tag::PARAMETER_STATUS | tag::NOTICE | tag::NEGOTIATE => {}
                _ => return Err(self.desynchronized("an unexpected message after the login")),
            }
        }
        self.info
            .set_identity(self.key.pid, self.incarnation.clone());
        Ok(())
    }

    async fn authenticate(&mut self, login: &Login) -> Result<(), Fault> {
        loop {
            let frame = self.recv_login().await?;
            match frame.tag() {
                tag::AUTHENTICATION => {}
                tag::NOTICE | tag::NEGOTIATE => continue,
                _ => return Err(self.desynchronized("an unexpected message during the login")),
            }
            let mut body = frame.body();
            let code = if body.len() < 4 {
                u32::MAX
            } else {
                body.get_u32()
            };
            let mut out = BytesMut::new();
            match (code, body.first_chunk::<4>()) {
                (0, _) => return Ok(()),
                (3, _) => frontend::password(self.password(login)?, &mut out),
                (5, Some(salt)) => {
                    let answer = md5::answer(&login.user, self.password(login)?, *salt);
                    frontend::password(&answer, &mut out);
                }
                (10, _) => {
                    self.scram(login, body).await?;
                    continue;
                }
                _ => return Err(self.desynchronized("asks for an unknown authentication")),
            }
            self.write(&out).await?;
        }
    }

    async fn scram(&mut self, login: &Login, mechanisms: &[u8]) -> Result<(), Fault> {
        let offered = mechanisms.split(|byte| *byte == 0);
        if !offered
            .into_iter()
            .any(|name| name == SCRAM_SHA_256.as_bytes())
        {
            return Err(self.desynchronized("offers no SASL mechanism that is known here"));
        }
        let password = self.password(login)?.as_bytes();
        let mut exchange = ScramSha256::new(password, ChannelBinding::unsupported());
        let mut out = BytesMut::new();
        frontend::sasl_initial_response(SCRAM_SHA_256, exchange.message(), &mut out);
        self.write(&out).await?;

        let first = self.sasl_message(11).await?;
        self.sasl_step(exchange.update(&first))?;
        let mut out = BytesMut::new();
        frontend::sasl_response(exchange.message(), &mut out);
        self.write(&out).await?;

        let last = self.sasl_message(12).await?;
        self.sasl_step(exchange.finish(&last))
    }

    async fn sasl_message(&mut self, expected: u32) -> Result<bytes::Bytes, Fault> {
        let frame = self.recv_login().await?;
        let mut body = frame.body_bytes();
        let fits = frame.tag() == tag::AUTHENTICATION && body.len() >= 4;
        if !fits || body.get_u32() != expected {
            return Err(self.desynchronized("an unexpected message during SCRAM"));
        }
        Ok(body)
    }

    fn sasl_step(&mut self, step: io::Result<()>) -> Result<(), Fault> {
        step.map_err(|error| faults::lost(self.endpoint(), error))
    }

    fn password<'a>(&self, login: &'a Login) -> Result<&'a str, Fault> {
        login.password.as_deref().ok_or_else(|| {
            let why = format!("asks for a password, and none is known for {}", login.user);
            faults::lost(self.endpoint(), why)
        })
    }

    /// The next message; an error of the server ends the login.
    async fn recv_login(&mut self) -> Result<Frame, Fault> {
        let frame = self.recv().await?;
        if frame.tag() != tag::ERROR {
            return Ok(frame);
        }
        let error = ErrorFields::parse(frame.body());
        let error = self.parsed(error)?;
        Err(faults::from_node(self.endpoint(), &error))
    }
}

async fn dial(endpoint: &Endpoint, tcp: &TcpSettings) -> io::Result<TcpStream> {
    let io = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    io.set_nodelay(true)?;
    tcp.apply(&io)?;
    Ok(io)
}
