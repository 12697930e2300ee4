//! What a statement is: facts read from libpg_query's tree, cached by text. Pure.
//!
//! A fact here is about the text alone. Which tables are sharded is the router's business.

pub(crate) mod array;
mod cache;
mod change;
mod copy;
mod definition;
mod explained;
mod expression;
mod facts;
mod function;
mod hint;
mod index;
mod levels;
mod lookup;
mod naming;
mod query;
mod scalar;
mod scope;
mod setting;
mod shape;
pub mod split;
mod statement;
#[cfg(test)]
mod tests;
pub(crate) mod value;

use std::fmt;
use std::ops::Range;

pub use cache::{PlanCache, Planned};
pub use copy::{Columns, CopyFormat, CopyIn};
pub use explained::explained_text;
pub use index::{ConcurrentIndex, concurrent_index};
pub use levels::{Level, Levels, OuterJoin, Place};
pub use lookup::{unfit_lookup, unfit_map};
pub use naming::{behind_prepared_name, rename_prepared};
pub use setting::truth;
pub use shape::Shape;
pub use split::{Column as SplitColumn, Split, SplitCache, Unsplit};
pub use statement::parse;

/// Everything known about one message's SQL text. Empty for an empty query string.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The statements in the order of the text.
    pub statements: Vec<Statement>,
}

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statement {
    /// What kind of statement it is.
    pub kind: Kind,
    /// Where it stands in the text, in bytes.
    pub span: Range<usize>,
    /// Every stored relation that it names, once per appearance; names of CTEs are not here.
    pub relations: Vec<Relation>,
    /// A hint in the text: `/* pgdog_shard: 1 */` or `/* pgdog_sharding_key: x */`.
    pub hint: Option<Hint>,
    /// `/* pgdog_role: primary */` in the text.
    pub role: Option<RoleHint>,
    /// Highest parameter number used (`$n`), 0 for none.
    pub params: usize,
    /// Facts about the functions that it calls.
    pub functions: Functions,
    /// Why the text cannot be judged (nested too deeply, a `DO` block that writes ...): such a
    /// statement runs on one shard that the client names, or not at all when there are several.
    pub opaque: Option<&'static str>,
    /// The statement inside `EXPLAIN (PGDOG)`.
    pub explained: Option<Box<Statement>>,
    /// The name of the temporary table, view or sequence that it creates.
    pub temporary: Option<String>,
    /// The query levels in it.
    pub levels: Levels,
    /// It is an UPDATE, DELETE or TRUNCATE, also below EXPLAIN.
    pub change: Option<Change>,
    /// What it does to SQL-level prepared statements.
    pub prepared: Option<Prepared>,
    /// How the rows of a `COPY ... FROM STDIN` are written.
    pub copy_in: Option<Box<CopyIn>>,
    /// It was read from a text that differs from the one at hand in its constants: values of keys
    /// are that text's, everything else holds for both.
    pub alike: bool,
}

impl Statement {
    /// Whether it reads, and there is nothing about it that anybody but one server must know of.
    pub fn only_reads(&self) -> bool {
        let functions = &self.functions;
        let plain =
            |relation: &Relation| !relation.written && relation.schema.as_deref() != Some("pgdog");
        self.kind == Kind::Read
            && self.hint.is_none()
            && self.role.is_none()
            && functions.called.is_empty()
            && functions.settings.is_empty()
            && !functions.sets
            && functions.shared.is_none()
            && functions.advisory.is_none()
            && self.opaque.is_none()
            && self.explained.is_none()
            && self.temporary.is_none()
            && self.prepared.is_none()
            && self.relations.iter().all(plain)
    }
}

/// An UPDATE, DELETE or TRUNCATE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// What it changes: indexes into `Statement::relations`.
    pub targets: Range<usize>,
    /// It answers rows: RETURNING, or an EXPLAIN around it.
    pub shows: bool,
}

/// SQL-level `PREPARE` and its relatives.
#[derive(Debug, Clone, PartialEq)]
pub enum Prepared {
    /// `PREPARE name AS statement`.
    Prepare {
        /// Its name.
        name: String,
        /// The statement, with parameters.
        statement: Box<Statement>,
    },
    /// `EXECUTE name (arguments)`: to be routed as the prepared statement with `route::Arguments`.
    Execute {
        /// Name of the prepared statement.
        name: String,
        /// The arguments in order.
        arguments: Vec<Value>,
    },
    /// `DEALLOCATE name`, or `None` for `ALL`.
    Deallocate(Option<String>),
}

/// What the functions called by a statement mean for its route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Functions {
    /// The first one whose value differs from server to server (`now`, `random` ...).
    pub divergent: Option<String>,
    /// The first one whose effect must be seen by every client whatever its shard
    /// (`nextval`, `pg_advisory_lock`, `pg_notify`, `lo_create` ...); also `LISTEN`, `NOTIFY`.
    pub shared: Option<String>,
    /// The first advisory lock function, those that lock for the session before all others.
    pub advisory: Option<String>,
    /// Calls of `set_config` as targets of a plain SELECT, in order: each runs once.
    pub settings: Vec<SetConfig>,
    /// `set_config` is called in any other way: what it sets is not known.
    pub sets: bool,
    /// It calls `currval` or `lastval`, which answer from what their connection remembers.
    pub remembers: bool,
    /// A constant decides what it does or who answers: that of `current_setting`, or an option of
    /// `EXPLAIN`.
    pub by_constants: bool,
    /// All functions but those that are named as `pg_catalog`'s, each spelling once.
    pub called: Vec<Called>,
}

/// A function as a statement calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// Schema, if the call names it.
    pub schema: Option<String>,
    /// Name.
    pub name: String,
    /// How many arguments it is given.
    pub arguments: usize,
}

/// `set_config(name, value, local)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetConfig {
    /// Name of the parameter.
    pub name: Value,
    /// Its value.
    pub value: Value,
    /// Whether it ends with the transaction.
    pub local: Value,
}

/// Manual routing written in a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// To this shard.
    Shard(u16),
    /// To the shard of this key.
    Key(String),
    /// Two hints that say different things, or one that cannot be read: the text as it stands.
    Invalid(String),
}

/// The kind of node that a comment asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleHint {
    /// `/* pgdog_role: primary */`
    Primary,
    /// `/* pgdog_role: replica */`
    Replica,
}

/// The kinds of statement that are told apart.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Kind {
    /// A SELECT, VALUES, TABLE or EXPLAIN that changes nothing.
    #[default]
    Read,
    /// INSERT, UPDATE, DELETE, MERGE, SELECT FOR UPDATE/SHARE, SELECT of functions known to
    /// write (nextval, setval, pg_advisory_*, lo_*, `pgdog.next_id` ...), data-modifying CTEs,
    /// CALL, DO, and everything else that must run on a primary.
    Write,
    /// A SELECT that calls `pgdog.shard_table`, `pgdog.omni_table` or `pgdog.unshard_table`: it
    /// must run on every shard in one transaction.
    Placement,
    /// A definition: runs on every shard.
    Ddl {
        /// False for CREATE INDEX CONCURRENTLY, VACUUM and the like.
        transactional: bool,
    },
    /// `COPY ... FROM STDIN`.
    CopyIn,
    /// `COPY ... TO STDOUT`.
    CopyOut,
    /// `BEGIN` / `START TRANSACTION`.
    Begin {
        /// `READ ONLY` or `READ WRITE` when the text says so.
        read_only: Option<bool>,
    },
    /// `COMMIT` / `END`; `chain` for `AND CHAIN`.
    Commit {
        /// `AND CHAIN`.
        chain: bool,
    },
    /// `ROLLBACK` / `ABORT`.
    Rollback {
        /// `AND CHAIN`.
        chain: bool,
    },
    /// `SAVEPOINT name`.
    Savepoint(String),
    /// `ROLLBACK TO name`.
    RollbackTo(String),
    /// `RELEASE name`.
    Release(String),
    /// `PREPARE TRANSACTION`, `COMMIT PREPARED`, `ROLLBACK PREPARED`: a client's own two-phase
    /// commit.
    TwoPhase,
    /// `SET [LOCAL|SESSION] name = value`, also `set_config('name', 'value', local)` as the only
    /// target of a SELECT with constant arguments. `None` is `DEFAULT`.
    Set {
        /// Lower-case name.
        name: String,
        /// The value as text; lists are joined with `, `.
        value: Option<String>,
        /// `LOCAL`.
        local: bool,
        /// True when it was written as `SELECT set_config(...)`.
        as_select: bool,
    },
    /// `SET SERVER XACT TIMESTAMP '...'` — this product's own statement.
    SetServerTimestamp(String),
    /// `RESET name`, or `None` for `RESET ALL`.
    Reset(Option<String>),
    /// `SHOW name`, lower case.
    Show(String),
    /// `SELECT current_setting('pgdog.name')`, lower case.
    Current(String),
    /// `DISCARD ALL`, `DISCARD PLANS` ...; true for ALL.
    Discard {
        /// `DISCARD ALL`.
        all: bool,
    },
    /// SQL-level `PREPARE`, `EXECUTE`, `DEALLOCATE`, `LISTEN`, `UNLISTEN`, `NOTIFY`,
    /// `DECLARE CURSOR`, `FETCH`, `MOVE`, `CLOSE`, `LOCK`, `LOAD` and temporary tables: bound to
    /// one server connection.
    Session,
    /// `EXPLAIN (PGDOG) statement`: the inner statement is in `Statement::explained`.
    ExplainRoute,
}

/// One appearance of a stored relation in a statement.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Relation {
    /// Schema, when the text names one.
    pub schema: Option<String>,
    /// Name as PostgreSQL folds it.
    pub name: String,
    /// True when rows of it are written, or the relation is altered, dropped or locked as a whole.
    pub written: bool,
    /// `column = value` facts that every touched row of this appearance fulfils (top-level ANDs
    /// only; several values mean "one of": IN, = ANY, rows of a VALUES list).
    pub bound: Vec<(String, Vec<Value>)>,
    /// `column = other.column` facts: (own column, index into `relations`, other's column).
    pub joined: Vec<(String, usize, String)>,
    /// INSERT without a column list: one row of values per inserted row, by position.
    pub positional: Option<Vec<Vec<Value>>>,
    /// `INSERT ... SELECT` and MERGE's INSERT: where the values of each position come from. Each
    /// origin alone tells all of them; an empty list means that it cannot be told.
    pub selected: Option<Vec<Vec<Origin>>>,
    /// `INSERT ... SELECT` that may give more columns than `selected` has positions.
    pub selected_more: bool,
    /// `INSERT ... SELECT *` from one stored relation: its index.
    pub selected_star: Option<usize>,
    /// Columns assigned by an UPDATE (or ON CONFLICT DO UPDATE / MERGE), with the value where it is
    /// plain. Assignments that keep a row on its shard whatever its value (`k = k`,
    /// `k = excluded.k`) are left out.
    pub assigned: Vec<(String, Option<Value>)>,
    /// `OVERRIDING USER VALUE`: identity columns get other values than the given ones.
    pub overrides_user: bool,
    /// Columns given to an INSERT in order, empty when it has no list.
    pub insert_columns: Vec<String>,
}

/// Where the values of an inserted column come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// One of these.
    Values(Vec<Value>),
    /// A column of the relation with this index.
    Column(usize, String),
}

/// Whether a text has characters that stand for bytes which could not be read: whatever they are,
/// no value, name or key equals them.
pub fn is_unread(text: &str) -> bool {
    text.contains(|character| UNREAD.contains(&character))
}

/// See [`is_unread`].
const UNREAD: std::ops::RangeInclusive<char> = '\u{ec00}'..='\u{ecff}';

/// A value as the text has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A constant, in PostgreSQL's text form.
    Text(String),
    /// `NULL`.
    Null,
    /// `DEFAULT`: what the catalog of the server says.
    Default,
    /// A bind parameter, 1-based.
    Param(usize),
    /// A bind parameter, 1-based, with a cast that tells its type on the wire.
    TypedParam(usize, ParamType),
    /// An array bind parameter (`= ANY($1)`), 1-based.
    ArrayParam(usize),
    /// Something that cannot be known from the text.
    Unknown,
}

/// Types of parameters whose value is known through a cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamType {
    /// `smallint`, `integer`, `bigint`.
    Integer,
    /// `numeric`.
    Numeric,
    /// `text`, `varchar`.
    Text,
    /// A text that is cast on, to a number or uuid: its spelling is lost.
    Spelling,
    /// `uuid`.
    Uuid,
}

/// A text that PostgreSQL's grammar does not know. Any server reports it better than we could.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The parser's message.
    pub message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PlanError {}
