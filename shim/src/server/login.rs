//! Opening a connection: TCP, startup, authentication, up to the first ReadyForQuery.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pgdog_core::fault::Fault;

use super::conn::Conn;
use super::prepared::Moment;
use super::settings::PoolSettings;
use super::{Endpoint, Login, Secret, ServerError, faults};
use crate::net::Encryption;
use crate::proto::backend::tag;
use crate::proto::scram::{self, ScramError};
use crate::proto::scram_client::{Attempt, Challenge, Channel, Keys};
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
            let first = Self::attempt(&endpoint, login, settings, Encryption::ByRule).await;
            match first {
                // As libpq: pg_hba.conf may have an entry for clear text alone.
                Err(Fault::Node(said))
                    if said.code == "28000" && settings.dialer.may_fall_back() =>
                {
                    Self::attempt(&endpoint, login, settings, Encryption::Off).await
                }
                other => other,
            }
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

    async fn attempt(
        endpoint: &Arc<Endpoint>,
        login: &Login,
        settings: &PoolSettings,
        encryption: Encryption,
    ) -> Result<Self, Fault> {
        let dialed = settings
            .dialer
            .connect(&endpoint.host, endpoint.port, encryption)
            .await
            .and_then(|io| settings.tcp.apply(io.tcp()).map(|()| io));
        let io = dialed.map_err(|error| faults::cannot_connect(endpoint, error))?;
        let mut conn = Conn::new(io, endpoint.clone(), settings);
        conn.log_in(login).await.map_err(faults::during_login)?;
        Ok(conn)
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
                (3, _) => frontend::password(self.clear_text(login)?, &mut out),
                (5, Some(salt)) => {
                    let answer = self.md5_hash(login)?.answer(*salt);
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
        let offers = |wanted: &str| {
            let mut names = mechanisms.split(|byte| *byte == 0);
            names.any(|name| name == wanted.as_bytes())
        };
        let channel = match self.io.end_point() {
            Some(hash) if offers(scram::MECHANISM_PLUS) => Channel::EndPoint(hash.to_vec()),
            Some(_) => Channel::NotOffered,
            None => Channel::Unbound,
        };
        if !offers(scram::MECHANISM) && !matches!(channel, Channel::EndPoint(_)) {
            return Err(self.desynchronized("offers no SASL mechanism that is known here"));
        }
        let attempt = Attempt::new(&channel);
        let mut out = BytesMut::new();
        frontend::sasl_initial_response(attempt.mechanism(), &attempt.first(), &mut out);
        self.write(&out).await?;

        let first = self.sasl_message(11).await?;
        let challenge = self.sasl_step(attempt.challenge(&first))?;
        let keys = self.keys(login, &challenge).await?;
        let (message, answered) = challenge.answer(&keys);
        let mut out = BytesMut::new();
        frontend::sasl_response(&message, &mut out);
        self.write(&out).await?;

        let last = self.sasl_message(12).await?;
        self.sasl_step(answered.check(&last))
    }

    /// What answers the server's challenge.
    async fn keys(&self, login: &Login, challenge: &Challenge) -> Result<Arc<Keys>, Fault> {
        let (salt, iterations) = (&challenge.salt, challenge.iterations);
        match &login.secret {
            Secret::Keys(keys) if keys.fit(salt, iterations) => Ok(keys.clone()),
            Secret::Keys(_) => Err(Fault::OtherVerifier {
                user: login.user.clone(),
                node: self.endpoint().to_string(),
            }),
            Secret::Password(password) => {
                if let Some(known) = password.known_keys(salt, iterations) {
                    return Ok(known);
                }
                let (password, salt) = (password.clone(), salt.clone());
                let work = move || password.keys(&salt, iterations);
                let derived = tokio::task::spawn_blocking(work).await;
                derived.map_err(|_| faults::internal("deriving keys was cut off"))
            }
            Secret::None | Secret::Md5(_) => Err(self.without_password(login)),
        }
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

    fn sasl_step<T>(&mut self, step: Result<T, ScramError>) -> Result<T, Fault> {
        step.map_err(|error| match error {
            ScramError::Malformed(what) => {
                let why = format!("malformed SCRAM message ({what})");
                faults::lost(self.endpoint(), why)
            }
            ScramError::ChannelBinding | ScramError::WrongPassword => {
                faults::lost(self.endpoint(), "the server can't prove that it knows us")
            }
        })
    }

    fn clear_text<'a>(&self, login: &'a Login) -> Result<&'a str, Fault> {
        match &login.secret {
            Secret::Password(password) => Ok(password.as_str()),
            Secret::None | Secret::Keys(_) | Secret::Md5(_) => Err(self.without_password(login)),
        }
    }

    fn md5_hash(&self, login: &Login) -> Result<md5::Stored, Fault> {
        match &login.secret {
            Secret::Password(password) => {
                Ok(md5::Stored::from_password(&login.user, password.as_str()))
            }
            Secret::Md5(stored) => Ok(stored.clone()),
            Secret::None | Secret::Keys(_) => Err(self.without_password(login)),
        }
    }

    fn without_password(&self, login: &Login) -> Fault {
        let why = format!(
            "asks for a password, and none that would do is known for {}",
            login.user
        );
        faults::lost(self.endpoint(), why)
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
