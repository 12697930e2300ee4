//! State of a client's transaction, without the connections that take part in it. Pure.
//!
//! ```text
//!            BEGIN (answered by the shim)            failing statement
//!   Idle ───────────────────────────────► Explicit ───────────────────► failed
//!    │ ▲                                     │  ▲                          │
//!    │ └──────── COMMIT / ROLLBACK ──────────┘  └──── ROLLBACK TO ─────────┘
//!    └─► Implicit: the statements of one message (up to Sync) that go to several places;
//!        ends with the message.
//! ```
//! A server joins when the first statement goes there. It is then given the BEGIN and, in order,
//! whatever of the transaction it must have seen: savepoints and SETs.

use pgdog_core::ids::ShardNumber;

/// What kind of transaction is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// None.
    Idle,
    /// Until the end of the client's message.
    Implicit,
    /// Until COMMIT or ROLLBACK.
    Explicit,
}

/// Something that a server which joins late must be told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Replay {
    /// A savepoint.
    Savepoint(String),
    /// A command, such as SET.
    Command(String),
}

/// State of the transaction.
#[derive(Debug)]
pub struct Tx {
    block: Block,
    failed: bool,
    /// A server that took part is lost, and with it what it had done: only the end is left.
    lost_part: bool,
    begin: String,
    read_only: bool,
    /// Maybe serializable, which no standby can be.
    serializable: bool,
    /// Maybe one that is to write, by its own words.
    to_write: bool,
    statements: u64,
    replay: Vec<Replay>,
    /// RESET ALL has run in it: it may have taken along what the shim itself has set.
    has_reset_all: bool,
    /// A read is gathering rows of several shards: it needs a connection to each.
    pub gathers: bool,
}

impl Default for Tx {
    fn default() -> Self {
        Self {
            block: Block::Idle,
            failed: false,
            lost_part: false,
            begin: String::new(),
            read_only: false,
            serializable: false,
            to_write: false,
            statements: 0,
            replay: Vec::new(),
            has_reset_all: false,
            gathers: false,
        }
    }
}

impl Tx {
    /// What is open.
    pub fn block(&self) -> Block {
        self.block
    }

    /// True inside a transaction of either kind.
    pub fn is_open(&self) -> bool {
        self.block != Block::Idle
    }

    /// True between BEGIN and COMMIT.
    pub fn is_explicit(&self) -> bool {
        self.block == Block::Explicit
    }

    /// Nothing but the end of it, or of a savepoint, is accepted.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// BEGIN READ ONLY.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What it has said of itself lets a standby take it. True where nothing was said.
    pub fn may_be_on_standby(&self) -> bool {
        !self.serializable && (self.read_only || !self.to_write)
    }

    /// The command that opens it on a server.
    pub fn begin_text(&self) -> &str {
        &self.begin
    }

    /// True before the first statement that reached a server.
    pub fn is_untouched(&self) -> bool {
        self.statements == 0
    }

    /// A statement ran on a server and its answer went towards the client.
    pub fn note_statement(&mut self) {
        self.statements += 1;
    }

    /// BEGIN as the client wrote it. An implicit transaction becomes explicit.
    pub fn begin(&mut self, text: &str, read_only: bool) {
        if self.block == Block::Idle {
            self.begin = text.to_owned();
            self.read_only = read_only;
            self.statements = 0;
            self.heed(text);
        }
        self.block = Block::Explicit;
    }

    /// A command of it has this text.
    ///
    /// Modes are words of BEGIN, of SET TRANSACTION, and values of settings: looking for the words
    /// finds all of them, and what it finds wrongly goes to the primary, which is always right.
    pub fn heed(&mut self, text: &str) {
        let upper = text.to_ascii_uppercase();
        self.serializable |= upper.contains("SERIALIZABLE");
        self.to_write |= upper.contains("WRITE") || upper.contains("READ_ONLY");
    }

    /// One message's statements go to several places: they become one transaction.
    pub fn begin_implicit(&mut self) {
        if self.block == Block::Idle {
            self.block = Block::Implicit;
            self.begin = "BEGIN".to_owned();
            self.read_only = false;
            self.statements = 0;
        }
    }

    /// An error happened inside.
    pub fn fail(&mut self) {
        if self.is_open() {
            self.failed = true;
        }
    }

    /// A server that took part is gone.
    pub fn lose_part(&mut self) {
        self.lost_part = self.is_open();
        self.fail();
    }

    /// Whether a server that took part is gone: no savepoint can be gone back to.
    pub fn has_lost_part(&self) -> bool {
        self.lost_part
    }

    /// Committed or rolled back.
    pub fn end(&mut self) {
        *self = Tx::default();
    }

    /// Commands that a server which joins now must run after BEGIN.
    pub fn prologue(&self) -> impl Iterator<Item = String> {
        self.replay.iter().map(|item| match item {
            Replay::Savepoint(name) => format!("SAVEPOINT {}", identifier(name)),
            Replay::Command(text) => text.clone(),
        })
    }

    /// A SET that every participant must have.
    pub fn note_command(&mut self, text: &str) {
        if self.is_open() {
            self.heed(text);
            self.replay.push(Replay::Command(text.to_owned()));
        }
    }

    /// RESET ALL went through.
    pub fn note_reset_all(&mut self) {
        self.has_reset_all = self.is_open();
    }

    /// Whether RESET ALL has run in it, on whichever server.
    pub fn has_reset_all(&self) -> bool {
        self.has_reset_all
    }

    /// SAVEPOINT.
    pub fn savepoint(&mut self, name: &str) {
        self.replay.push(Replay::Savepoint(name.to_owned()));
    }

    /// Whether a savepoint of that name is there.
    pub fn has_savepoint(&self, name: &str) -> bool {
        self.position_of(name).is_some()
    }

    /// ROLLBACK TO: what came after it is forgotten, the transaction is healthy again.
    pub fn rollback_to(&mut self, name: &str) {
        if let Some(at) = self.position_of(name).filter(|_| !self.lost_part) {
            self.replay.truncate(at + 1);
            self.failed = false;
        }
    }

    /// RELEASE: the savepoint and those inside it go, SETs stay.
    pub fn release(&mut self, name: &str) {
        if let Some(at) = self.position_of(name) {
            let tail = self.replay.split_off(at);
            let kept = tail.into_iter().filter(|r| matches!(r, Replay::Command(_)));
            self.replay.extend(kept);
        }
    }

    fn position_of(&self, name: &str) -> Option<usize> {
        self.replay
            .iter()
            .rposition(|r| matches!(r, Replay::Savepoint(n) if n == name))
    }
}

/// How a transaction is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitPlan {
    /// No server took part.
    Nothing,
    /// COMMIT on one server, then on those that only read.
    Single {
        /// The only one that wrote, or the first that read.
        shard: ShardNumber,
        /// The others.
        readers: Vec<ShardNumber>,
    },
    /// COMMIT one after the other: `two_phase_commit = false`.
    Sequential(Vec<ShardNumber>),
    /// PREPARE on the first, then on the rest; COMMIT PREPARED on the first is the decision.
    TwoPhase {
        /// The lowest that wrote.
        decider: ShardNumber,
        /// The others that wrote.
        others: Vec<ShardNumber>,
        /// Those that only read.
        readers: Vec<ShardNumber>,
    },
}

/// Chooses the way to commit from (shard, wrote), ascending by shard.
pub fn commit_plan(participants: &[(ShardNumber, bool)], two_phase: bool) -> CommitPlan {
    let pick = |wrote: bool| -> Vec<ShardNumber> {
        let of_kind = participants.iter().filter(|p| p.1 == wrote);
        of_kind.map(|p| p.0).collect()
    };
    let writers = pick(true);
    let mut readers = pick(false);
    match writers.as_slice() {
        [] if readers.is_empty() => CommitPlan::Nothing,
        [] => CommitPlan::Single {
            shard: readers.remove(0),
            readers,
        },
        [only] => CommitPlan::Single {
            shard: *only,
            readers,
        },
        [decider, others @ ..] if two_phase => CommitPlan::TwoPhase {
            decider: *decider,
            others: others.to_vec(),
            readers,
        },
        _ => CommitPlan::Sequential(participants.iter().map(|p| p.0).collect()),
    }
}

/// A name in double quotes.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(list: &[u16]) -> Vec<ShardNumber> {
        list.iter().copied().map(ShardNumber).collect()
    }

    fn prologue(tx: &Tx) -> Vec<String> {
        tx.prologue().collect()
    }

    #[test]
    fn what_a_transaction_says_of_itself_keeps_it_from_standbys() {
        let mut tx = Tx::default();
        for (begin, read_only, set, may) in [
            ("BEGIN", false, "", true),
            ("BEGIN ISOLATION LEVEL REPEATABLE READ", false, "", true),
            ("begin read only", true, "", true),
            ("start transaction read write", false, "", false),
            ("BEGIN ISOLATION LEVEL SERIALIZABLE", false, "", false),
            (
                "BEGIN READ ONLY, ISOLATION LEVEL serializable",
                true,
                "",
                false,
            ),
            ("BEGIN", false, "SET TRANSACTION READ  WRITE", false),
            ("BEGIN", false, "SET transaction_read_only TO off", false),
            ("BEGIN", false, "SET LOCAL lock_timeout = 5", true),
            ("BEGIN READ ONLY", true, "SET LOCAL x.y = 'write'", true),
        ] {
            tx.begin(begin, read_only);
            tx.note_command(set);
            assert_eq!(tx.may_be_on_standby(), may, "{begin}; {set}");
            tx.end();
            assert!(tx.may_be_on_standby());
        }
    }

    #[test]
    fn late_participants_replay_savepoints_and_sets_in_order() {
        let mut tx = Tx::default();
        tx.begin("BEGIN", false);
        tx.note_command("SET a = 1");
        tx.savepoint("s");
        tx.note_command("SET b = 2");
        tx.savepoint("T\"x");
        assert_eq!(
            prologue(&tx),
            [
                "SET a = 1",
                "SAVEPOINT \"s\"",
                "SET b = 2",
                "SAVEPOINT \"T\"\"x\""
            ]
        );
        tx.rollback_to("s");
        assert_eq!(prologue(&tx), ["SET a = 1", "SAVEPOINT \"s\""]);
        tx.note_command("SET c = 3");
        tx.release("s");
        assert_eq!(prologue(&tx), ["SET a = 1", "SET c = 3"]);
    }

    #[test]
    fn the_innermost_savepoint_of_a_name_counts() {
        let mut tx = Tx::default();
        tx.begin("BEGIN", false);
        tx.savepoint("s");
        tx.savepoint("s");
        tx.release("s");
        assert!(tx.has_savepoint("s"));
        tx.release("s");
        assert!(!tx.has_savepoint("s"));
    }

    #[test]
    fn rollback_to_heals_a_failed_transaction_and_unknown_names_do_not() {
        let mut tx = Tx::default();
        tx.begin("BEGIN", false);
        tx.savepoint("s");
        tx.fail();
        tx.rollback_to("unknown");
        assert!(tx.is_failed());
        tx.rollback_to("s");
        assert!(!tx.is_failed());
    }

    #[test]
    fn no_savepoint_heals_a_transaction_that_lost_a_server() {
        let mut tx = Tx::default();
        tx.begin("BEGIN", false);
        tx.savepoint("s");
        tx.lose_part();
        tx.rollback_to("s");
        assert!(tx.is_failed() && tx.has_lost_part());
        tx.end();
        tx.lose_part();
        assert!(
            !tx.has_lost_part(),
            "outside a transaction nothing was lost"
        );
    }

    #[test]
    fn errors_outside_a_transaction_leave_nothing_behind() {
        let mut tx = Tx::default();
        tx.fail();
        assert!(!tx.is_failed());
        tx.begin_implicit();
        tx.fail();
        tx.end();
        assert_eq!((tx.block(), tx.is_failed()), (Block::Idle, false));
    }

    #[test]
    fn begin_inside_an_implicit_transaction_makes_it_explicit() {
        let mut tx = Tx::default();
        tx.begin_implicit();
        tx.begin("BEGIN READ ONLY", true);
        assert!(tx.is_explicit());
        assert_eq!(tx.begin_text(), "BEGIN", "servers have seen this one");
    }

    #[test]
    fn two_writers_commit_in_two_phases_with_the_lowest_as_decider() {
        let s = ShardNumber;
        assert_eq!(commit_plan(&[], true), CommitPlan::Nothing);
        assert_eq!(
            commit_plan(&[(s(0), false), (s(1), true)], true),
            CommitPlan::Single {
                shard: s(1),
                readers: shards(&[0])
            }
        );
        assert_eq!(
            commit_plan(&[(s(0), false), (s(1), true), (s(2), true)], true),
            CommitPlan::TwoPhase {
                decider: s(1),
                others: shards(&[2]),
                readers: shards(&[0])
            }
        );
        assert_eq!(
            commit_plan(&[(s(1), true), (s(2), true)], false),
            CommitPlan::Sequential(shards(&[1, 2]))
        );
        assert_eq!(
            commit_plan(&[(s(1), false), (s(2), false)], true),
            CommitPlan::Single {
                shard: s(1),
                readers: shards(&[2])
            }
        );
    }
}
