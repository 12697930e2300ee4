//! What is asked of servers besides rows, and numbers of rows. Helpers of [`super::job`].

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::super::client::Client;
use super::super::faults;
use super::part::{End, Part};
use super::rows::{Described, described};
use super::unsplit;
use crate::plan::split::Alias;
use crate::plan::{Split, Unsplit, Value};
use crate::proto::frontend::{self, Subject};
use crate::route::Params;
use crate::server::ServerError;

/// Most bytes of rows that are kept for the server that finishes.
pub const COLLECTED_BYTES: usize = 16 << 20;

/// `pg_type.oid` of `boolean`.
const BOOL: u32 = 16;

/// `pg_type.oid` of `bigint`, in which rows are counted.
pub const INT8: u32 = 20;

/// Which of the parts ended, and how.
pub type Failed = (usize, End);

/// What shard 0 told about a statement.
pub struct Shape {
    /// Types of its parameters.
    pub types: Vec<u32>,
    /// Its columns.
    pub columns: Vec<Described>,
}

/// Lets shard 0 describe a statement.
///
/// # Errors
/// The statement is wrong, or the connection is lost.
pub async fn describe(
    parts: &mut [Part],
    client: &mut Client,
    (sql, types): (&str, &[u32]),
) -> Result<Shape, Failed> {
    let part = &mut parts[0];
    let mut batch = BytesMut::new();
    frontend::parse("", sql, types, &mut batch);
    frontend::describe(Subject::Statement(""), &mut batch);
    frontend::sync(&mut batch);
    part.send(&batch).await.map_err(|end| (0, end))?;
    part.finish(client).await.map_err(|end| (0, end))?;
    let types = part.types.take().unwrap_or_default();
    let (oids, _) = types.get(2..).unwrap_or_default().as_chunks::<4>();
    let types = oids.iter().map(|oid| u32::from_be_bytes(*oid)).collect();
    let columns = match part.told.take() {
        Some(body) => described(&body).map_err(|fault| (0, End::Lost(fault)))?,
        None => Vec::new(),
    };
    Ok(Shape { types, columns })
}

/// Makes sure that names in GROUP BY mean what they were taken for.
///
/// # Errors
/// They do not, or as [`describe`].
pub async fn check_aliases(
    parts: &mut [Part],
    client: &mut Client,
    (split, types): (&Split, &[u32]),
) -> Result<(), Failed> {
    for Alias { name, probe } in &split.aliases {
        let probed = describe(parts, client, (probe, types)).await;
        let probed = probed.map_err(|(at, end)| (at, end.unplaced()))?;
        let found: Vec<u32> = probed
            .columns
            .iter()
            .map(|column| column.type_oid)
            .collect();
        if found != [BOOL, INT8] {
            let fault = unsplit(&Unsplit {
                why: format!("GROUP BY {name} means a column of a table, not of the result"),
                hint: Some("Group by the expression, or by its position."),
            });
            return Err((0, End::Own(fault)));
        }
    }
    Ok(())
}

/// Asks a server for the array type of a type that is not PostgreSQL's own.
///
/// # Errors
/// There is none, or the connection is lost.
pub async fn own_array_type(part: &mut Part, type_oid: u32) -> Result<u32, End> {
    let sql = format!("SELECT typarray FROM pg_catalog.pg_type WHERE oid = {type_oid}");
    let rows = match part.participant.lease.simple(&sql).await {
        Ok(rows) => rows,
        Err(ServerError::Fault(fault)) => return Err(End::Lost(fault)),
        Err(ServerError::Sql(fields)) => return Err(End::Sql(Box::new(fields))),
    };
    let oid = rows.first().and_then(|row| row.first().cloned().flatten());
    match oid.and_then(|oid| oid.parse().ok()) {
        Some(0) | None => Err(End::Own(unsplit(&Unsplit {
            why: "it must be finished by one server, and has a column of an array or of another \
                  type of which there are no arrays"
                .to_owned(),
            hint: None,
        }))),
        Some(oid) => Ok(oid),
    }
}

/// LIMIT or OFFSET.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// `LIMIT`
    Limit,
    /// `OFFSET`
    Offset,
}

/// A number of rows; none for all.
///
/// # Errors
/// It is negative, or no integer.
pub fn count(
    value: Option<&Value>,
    params: &(dyn Params + Sync),
    bound: Bound,
) -> Result<Option<u64>, Fault> {
    let unclear = || {
        unsplit(&Unsplit {
            why: "LIMIT or OFFSET is not an integer".to_owned(),
            hint: Some("Write an integer, or send a bigint parameter."),
        })
    };
    let number = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Text(text)) => text.parse::<i64>().map_err(|_| unclear())?,
        Some(Value::Param(number) | Value::TypedParam(number, _)) => {
            let param = params.param(*number).ok_or_else(unclear)?;
            let Some(bytes) = param.value else {
                return Ok(None);
            };
            let number = match (param.binary, bytes) {
                (true, &[a, b]) => Some(i16::from_be_bytes([a, b]).into()),
                (true, &[a, b, c, d]) => Some(i32::from_be_bytes([a, b, c, d]).into()),
                (true, bytes) => bytes.try_into().ok().map(i64::from_be_bytes),
                (false, text) => std::str::from_utf8(text)
                    .ok()
                    .and_then(|text| text.trim().parse().ok()),
            };
            number.ok_or_else(unclear)?
        }
        Some(Value::Default | Value::ArrayParam(_) | Value::Unknown) => return Err(unclear()),
    };
    u64::try_from(number).map(Some).map_err(|_| match bound {
        Bound::Limit => faults::fault("2201W", "LIMIT must not be negative"),
        Bound::Offset => faults::fault("2201X", "OFFSET must not be negative"),
    })
}

/// There are too many rows to finish.
pub fn too_many() -> Fault {
    let mebibytes = COLLECTED_BYTES >> 20;
    faults::fault(
        "53200",
        format!("rows of several shards that one server must finish take more than {mebibytes} MB"),
    )
}

/// Shards do not agree on what there is.
pub fn other_columns() -> Fault {
    faults::fault("XX000", "shards have different columns for this read")
}

/// A mistake of the shim.
pub fn internal(why: &str) -> End {
    End::Own(Fault::Internal {
        why: why.to_owned(),
    })
}
