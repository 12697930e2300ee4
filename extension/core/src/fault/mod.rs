//! The errors of pgdog: SQLSTATE, message, DETAIL, HINT and whether a retry can help.
//!
//! The variants are here, what each one says is one table in `table.rs`. Codes are PostgreSQL's
//! own. A message is one line, lower case, without a full stop; a hint is a sentence.

mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::ids::{Epoch, ShardNumber, TaskId, Timeline};
use crate::lsn::Lsn;

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// 58000: no replica has replayed the floor, and none will within the time allowed.
    NoReplicaCaughtUp {
        /// Shard that the read belongs to.
        shard: ShardNumber,
        /// What the read asked for.
        floor: Lsn,
        /// The furthest replayed position known, if any replica reported one.
        best: Option<Lsn>,
        /// Estimated time until that replica has replayed the floor.
        eta_ms: Option<u64>,
    },
    /// 58000: the floor lies on a timeline that a failover abandoned.
    WriteLostInFailover {
        /// Shard that the read belongs to.
        shard: ShardNumber,
        /// What the read asked for.
        floor: Lsn,
        /// The timeline that the shard is on now.
        timeline: Timeline,
        /// Where that timeline's history left the one of the floor.
        forked_at: Lsn,
    },
    /// 40001: the statement was routed by an older placement than the node's.
    StaleTopology {
        /// Epoch that the session carried.
        session: Epoch,
        /// Epoch of the node.
        node: Epoch,
    },
    /// 55P03: omni writes of a shard are paused, or somebody holds its gate.
    GateBusy {
        /// Shard whose gate it is.
        shard: ShardNumber,
        /// Pid or gid of the holder, if known.
        holder: Option<String>,
    },
    /// 55000: the object is not in a state that allows this.
    WrongState {
        /// The refused action with its object: `cannot cut over shard 2`.
        what: String,
        /// The fact that stands against it.
        why: String,
        /// What to do.
        hint: Option<String>,
    },
    /// 55000: definitions are frozen while a task copies the schema.
    SchemaFrozen {
        /// The task that froze it.
        task: TaskId,
    },
    /// 55000: a session without an epoch wrote to a table that is placed by pgdog.
    DirectWrite {
        /// The table.
        table: String,
    },
    /// 22023: a parameter's value is malformed; the old value stays.
    BadParameter {
        /// Name of the parameter.
        name: String,
        /// The value that was given.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// 42704: there is no parameter, task, shard or the like of that name.
    UnknownObject {
        /// Kind of the object: `task`, `shard`, `configuration parameter`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// F0000: a configuration file cannot be used.
    BadConfig {
        /// File, line, key: whatever is known.
        place: String,
        /// What is wrong.
        why: String,
        /// What to do.
        hint: Option<String>,
    },
    /// 0A000: a statement that is not supported here.
    Refused {
        /// The statement or its part: `a join of two shards`.
        what: String,
        /// Why it would be wrong to run it.
        why: String,
        /// What to do instead.
        hint: Option<String>,
    },
    /// 0A000: the table is neither sharded nor omnisharded.
    UndeclaredTable {
        /// The table.
        table: String,
    },
    /// 42P01: there is no such table.
    UndefinedTable {
        /// The name as it was written.
        table: String,
    },
    /// 42601: the text is no SQL.
    Syntax {
        /// The parser's words.
        message: String,
        /// 1-based character position in the text.
        position: Option<u32>,
    },
    /// 42501: the user may not do this.
    PermissionDenied {
        /// The refused action.
        what: String,
    },
    /// 23502: a written row has no sharding key.
    NullKey {
        /// The table.
        table: String,
        /// Its sharding key.
        column: String,
    },
    /// 22P02 or 22003: the text is no value of the sharding key's type.
    KeyTypeMismatch {
        /// Name of the type.
        data_type: &'static str,
        /// The text.
        value: String,
        /// True if it is a number that does not fit.
        out_of_range: bool,
    },
    /// 23514: no mapping rule covers the key.
    NoMappingRule {
        /// The key.
        key: String,
    },
    /// 23514: a row would lie on a shard where nobody would look for it.
    MisplacedRow {
        /// The table.
        table: String,
        /// Its sharding key's value.
        key: String,
        /// Shard where the row belongs.
        belongs: ShardNumber,
        /// Shard where it was to be written.
        here: ShardNumber,
    },
    /// 58000: the lookup found no row; a later insert may cure it.
    LookupMissing {
        /// Table that is looked up for.
        table: String,
        /// The key.
        key: String,
    },
    /// 58000: the lookup found NULL.
    LookupNull {
        /// Table that is looked up for.
        table: String,
        /// The key.
        key: String,
    },
    /// 58000: the lookup found more than one row.
    LookupAmbiguous {
        /// Table that is looked up for.
        table: String,
        /// The key.
        key: String,
        /// How many rows were seen.
        rows: usize,
    },
    /// 58000: the lookup's value is not of the type that was declared.
    LookupWrongType {
        /// Table that is looked up for.
        table: String,
        /// The key.
        key: String,
        /// The value that came.
        value: String,
        /// The type that was declared.
        expected: &'static str,
    },
    /// 58000: the lookup names a shard that does not exist.
    LookupOutOfRange {
        /// Table that is looked up for.
        table: String,
        /// The key.
        key: String,
        /// The number that came.
        value: String,
        /// How many shards there are.
        shards: u16,
    },
    /// 58000: the lookup itself failed.
    LookupFailed {
        /// Table that is looked up for.
        table: String,
        /// The node's words.
        why: String,
    },
    /// XX000: shards that must be equal are not.
    ShardsDisagree {
        /// What differs: `row counts of UPDATE`.
        what: String,
        /// What each shard says.
        answers: Vec<(ShardNumber, String)>,
    },
    /// 08007: a two-phase commit whose outcome is not known yet.
    OutcomeUnknown {
        /// Name of the prepared transaction.
        gid: String,
        /// What happened.
        why: String,
    },
    /// XX000: a two-phase commit of which a part was rolled back after it had been decided.
    HalfCommitted {
        /// Name of the prepared transaction.
        gid: String,
        /// Shards on which it is not, and will not be.
        missing: Vec<ShardNumber>,
    },
    /// 25P02: the transaction is aborted already.
    AbortedTransaction,
    /// 25006: a write in a read-only transaction.
    ReadOnlyTransaction {
        /// Command tag of the statement.
        command: String,
    },
    /// 57014: cancelled at the client's request or by a limit.
    Cancelled {
        /// By what: `user request`, `query timeout`.
        by: String,
    },
    /// 57P01: this process or the node is being shut down.
    ShuttingDown {
        /// Who shuts down: `the proxy` or a node's address.
        who: String,
    },
    /// 57P05 or 25P03: the client was idle for too long.
    IdleTimeout {
        /// True inside a transaction block.
        in_transaction: bool,
        /// The limit.
        limit_ms: u64,
    },
    /// 08006: a server connection was lost; what ran on it may or may not have happened.
    ServerLost {
        /// The node's address.
        node: String,
        /// What was seen.
        why: String,
    },
    /// 08001: a node cannot be reached or does not let us in.
    CannotConnect {
        /// The node's address.
        node: String,
        /// What was seen.
        why: String,
    },
    /// 57P03: a shard has no node that may take this now.
    NoNode {
        /// The shard.
        shard: ShardNumber,
        /// `primary` or `replica`.
        role: &'static str,
    },
    /// 53300: a limit of connections or clients is reached.
    TooMany {
        /// What there is too much of.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// 53300: no server connection became free in time.
    PoolTimeout {
        /// Which pool: user and node.
        pool: String,
        /// How long was waited.
        waited_ms: u64,
    },
    /// 28P01 or 28000: the login is refused.
    LoginFailed {
        /// The user.
        user: String,
    },
    /// 28P01: a node keeps another verifier of a role than the one that its user has proved.
    OtherVerifier {
        /// The role.
        user: String,
        /// The node.
        node: String,
    },
    /// 3D000: there is no such database.
    UnknownDatabase {
        /// Its name.
        database: String,
    },
    /// 08P01: the peer broke the protocol.
    ProtocolViolation {
        /// How.
        why: String,
    },
    /// An error of a node, passed on as it came.
    Node(Box<NodeError>),
    /// XX000: a broken invariant of pgdog's own.
    Internal {
        /// What was found.
        why: String,
    },
}

/// What a node said, field by field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeError {
    /// Address of the node, for logs.
    pub node: String,
    /// SQLSTATE.
    pub code: String,
    /// Message.
    pub message: String,
    /// DETAIL.
    pub detail: Option<String>,
    /// HINT.
    pub hint: Option<String>,
    /// Other fields of the protocol by their code.
    pub more: Vec<(u8, String)>,
}

/// What one variant says; the columns of the table.
struct Row {
    code: &'static str,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    retryable: bool,
}

impl Fault {
    /// PostgreSQL's five-character code.
    #[must_use]
    pub fn sqlstate(&self) -> &str {
        match self {
            Fault::Node(error) => &error.code,
            _ => self.row().code,
        }
    }

    /// One line without a full stop.
    #[must_use]
    pub fn message(&self) -> String {
        self.row().message
    }

    /// Facts with numbers.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        self.row().detail
    }

    /// What to do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.row().hint
    }

    /// True if the same statement may succeed later without anybody's help.
    #[must_use]
    pub fn retryable(&self) -> bool {
        self.row().retryable
    }
}

/// Message, DETAIL and HINT in one line, for logs and the command line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.row();
        f.write_str(&row.message)?;
        if let Some(detail) = row.detail {
            write!(f, " | {detail}")?;
        }
        if let Some(hint) = row.hint {
            write!(f, " | {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
