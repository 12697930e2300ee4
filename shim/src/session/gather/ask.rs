//! What is asked of servers besides rows, and numbers of rows. Helpers of [`super::job`].

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::super::client::Client;
use super::super::faults;
use super::part::{End, Part};
use super::rows::{Described, described};
use super::unsplit;
use crate::plan::{Unsplit, Value};
use crate::proto::frontend::{self, Subject};
use crate::route::Params;
use crate::server::ServerError;

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
