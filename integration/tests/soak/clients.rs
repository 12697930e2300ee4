//! Writers, readers of what others wrote, and readers of what they wrote themselves.
//!
//! Two rows are written together, always with the same version, which only goes up and has one
//! writer. So a read that is older than its token shows a lower version, and one that saw half of a
//! transaction two different ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use anyhow::{Context as _, bail, ensure};
use pgdog_integration::client::{Client, Login, describe, sqlstate};
use pgdog_integration::{Cluster, wait_until};
use tokio::sync::{Mutex, mpsc};

use super::tally::{Outcome, Tally};
use super::{LIMIT, PAIRS};

/// A commit and what it wrote.
#[derive(Debug, Clone)]
pub struct Written {
    pair: i64,
    version: i64,
    token: String,
}

/// How long readers wait for replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as anybody who sets nothing.
    Usual,
    /// Much longer than replicas lag without faults.
    Long,
}

/// All clients.
pub struct Clients<'a> {
    cluster: &'a Cluster,
    tally: &'a Tally,
    patience: Patience,
    stop: AtomicBool,
}

/// Versions of all runs of this process: none comes twice.
static VERSION: AtomicI64 = AtomicI64::new(1);

impl<'a> Clients<'a> {
    pub fn new(cluster: &'a Cluster, tally: &'a Tally, patience: Patience) -> Self {
        Self {
            cluster,
            tally,
            patience,
            stop: AtomicBool::new(false),
        }
    }

    /// Everybody finishes what he is at.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    async fn connect(&self, shim: usize, more: &str) -> anyhow::Result<Client> {
        let mut login = self.cluster.login(shim % 2);
        login.options.push_str(more);
        if self.patience == Patience::Long {
            login.options.push_str(" -c pgdog.min_lsn_wait=30s");
        }
        connected(&login).await
    }

    /// Writes pairs of rows and hands out their tokens.
    pub async fn write(&self, writer: i64, hand_out: mpsc::Sender<Written>) -> anyhow::Result<()> {
        let mut client = self.connect(0, "").await?;
        while self.goes_on() {
            let version = VERSION.fetch_add(1, Relaxed);
            let pair = writer * PAIRS + version % PAIRS;
            match write_pair(&client, pair, version).await? {
                Ok(token) => {
                    self.tally.note_commit();
                    let written = Written {
                        pair,
                        version,
                        token,
                    };
                    if hand_out.send(written).await.is_err() {
                        break;
                    }
                }
                // Whether it was written is not known; nobody is told of it.
                Err(()) => client = self.connect(0, "").await?,
            }
        }
        Ok(())
    }

    /// Reads what others have written, under their tokens.
    pub async fn read(
        &self,
        reader: usize,
        take: &Arc<Mutex<mpsc::Receiver<Written>>>,
    ) -> anyhow::Result<()> {
        // Some would rather have the primary's answer than none.
        let more = match reader.is_multiple_of(3) {
            true => " -c pgdog.min_lsn_primary_fallback=on",
            false => "",
        };
        let mut client = self.connect(reader, more).await?;
        loop {
            let next = take.lock().await.recv().await;
            let Some(written) = next else {
                return Ok(());
            };
            let floor = format!("SET pgdog.min_lsn = '{}'", written.token);
            let read = match client.rows(&floor).await {
                Ok(_) => client.rows(&select(written.pair)).await,
                Err(error) => Err(error),
            };
            let outcome = self.judge(&client, read, &written).await?;
            self.tally.note(outcome);
            if outcome == Outcome::Broken {
                client = self.connect(reader, more).await?;
            }
        }
    }

    /// Writes, and reads the same on the same connection, without a word about tokens.
    pub async fn read_own(&self, writer: i64) -> anyhow::Result<()> {
        let more = " -c pgdog.read_your_writes=session";
        let mut client = self.connect(1, more).await?;
        while self.goes_on() {
            let version = VERSION.fetch_add(1, Relaxed);
            let pair = writer * PAIRS + version % PAIRS;
            let Ok(token) = write_pair(&client, pair, version).await? else {
                client = self.connect(1, more).await?;
                continue;
            };
            self.tally.note_commit();
            let written = Written {
                pair,
                version,
                token,
            };
            let read = client.rows(&select(pair)).await;
            let outcome = self.judge(&client, read, &written).await?;
            self.tally.note(outcome);
            // What a failover took stays asked for as long as the session lives.
            if matches!(outcome, Outcome::Broken | Outcome::Lost) {
                client = self.connect(1, more).await?;
            }
        }
        Ok(())
    }

    /// What a read showed, or why it did not.
    async fn judge(
        &self,
        client: &Client,
        read: Result<Vec<Vec<String>>, tokio_postgres::Error>,
        written: &Written,
    ) -> anyhow::Result<Outcome> {
        let rows = match read {
            Ok(rows) => rows,
            Err(error) if sqlstate(&error) == "58000" => {
                let lost = describe(&error).contains("write lost in failover");
                return Ok(if lost {
                    Outcome::Lost
                } else {
                    Outcome::Refused
                });
            }
            Err(error) if is_of_an_outage(&error) => return Ok(Outcome::Broken),
            Err(error) => bail!("a read: {}", describe(&error)),
        };
        ensure!(
            rows.len() == 2 && rows[0].len() == 3,
            "{written:?}: {rows:?}"
        );
        let version = |row: &Vec<String>| row[0].parse::<i64>();
        let (one, other) = (version(&rows[0])?, version(&rows[1])?);
        if one != other || one < written.version {
            let route = client.value("SHOW pgdog.last_route").await;
            self.tally
                .note_stale(format!("{written:?}: {rows:?} from {route:?}"));
        }
        Ok(match rows[0][1].as_str() {
            "t" => Outcome::Replica,
            _ => Outcome::Primary,
        })
    }
}

fn select(pair: i64) -> String {
    format!(
        "SELECT version, pg_is_in_recovery(), current_setting('port') FROM notes \
         WHERE id IN ({0} * 2, {0} * 2 + 1)",
        pair
    )
}

/// The token of the commit; an error means that the connection is to be given up.
async fn write_pair(
    client: &Client,
    pair: i64,
    version: i64,
) -> anyhow::Result<Result<String, ()>> {
    let update =
        |row: &str| format!("UPDATE notes SET version = {version} WHERE id = {pair} * 2{row}");
    // As one statement, as two of a message, as a transaction.
    let sql = match version % 3 {
        0 => format!("UPDATE notes SET version = {version} WHERE id / 2 = {pair}"),
        1 => format!("{}; {}", update(""), update(" + 1")),
        _ => format!("BEGIN; {}; {}; COMMIT", update(""), update(" + 1")),
    };
    match client.rows(&sql).await {
        Ok(_) => {}
        Err(error) if is_of_an_outage(&error) => return Ok(Err(())),
        Err(error) => bail!("a write: {}", describe(&error)),
    }
    // Without a round trip a driver has it already; here it saves the wait for another task.
    match client.rows("SHOW pgdog.commit_lsn").await {
        Ok(rows) => Ok(Ok(rows.concat().concat())),
        Err(_) => Ok(Err(())),
    }
}

/// What clients may be told while servers come and go.
fn is_of_an_outage(error: &tokio_postgres::Error) -> bool {
    let code = sqlstate(error);
    // 25006: the primary of a moment ago, in the moment of a promotion.
    error.is_closed()
        || code == "25006"
        || ["08", "57", "53", "58", "XX"].contains(&code.get(..2).unwrap_or_default())
}

/// Nobody can log in as long as there is no primary.
async fn connected(login: &Login) -> anyhow::Result<Client> {
    let last = std::sync::Mutex::new(None);
    wait_until("a connection", LIMIT, || async {
        match Client::connect(login).await {
            Ok(client) => Ok(Some(client)),
            Err(error) => {
                *last.lock().expect("nobody panics with it") = Some(error);
                Ok(None)
            }
        }
    })
    .await
    .with_context(|| format!("{last:?}"))
}
