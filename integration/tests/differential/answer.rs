//! Statements put to a server, and what is compared of its answers.

use bytes::{Buf as _, BufMut as _, BytesMut};
use pgdog_integration::wire::{Batch, Fields, Message, Wire};

use crate::make::Param;
use crate::select::Alike;

/// How a statement is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As a simple query.
    Simple,
    /// Parse, Bind, Describe, Execute in one batch.
    Extended {
        /// Parameters and results are binary where they can be.
        binary: bool,
        /// Parse names the types of the parameters.
        declared: bool,
    },
    /// Parse and Describe first, and Bind and Execute in a batch of their own.
    Prepared {
        /// As above.
        binary: bool,
    },
    /// As extended, where the portal is executed twice: for a row, and for all others.
    Portions,
}

/// A statement, as it is sent.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Text.
    pub sql: String,
    /// Parameters.
    pub params: Vec<Param>,
    /// How it is sent.
    pub mode: Mode,
    /// What must be the same.
    pub alike: Alike,
    /// What it is.
    pub kind: &'static str,
}

type Cells = Vec<Option<Vec<u8>>>;

/// What came of a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Types of parameters, where they were asked for.
    params: Vec<Vec<u8>>,
    /// Name, type, modifier and format of each column, once for each description.
    columns: Vec<Vec<(String, u32, i32, i16)>>,
    rows: Vec<Cells>,
    tags: Vec<String>,
    /// SQLSTATE and message.
    pub error: Option<(String, String)>,
    /// Of the transaction.
    pub status: char,
    /// Types of messages, without those of rows.
    shape: String,
}

impl Answer {
    /// Whether it was refused.
    pub fn is_refused(&self) -> bool {
        self.error.as_ref().is_some_and(|(code, _)| code == "0A000")
    }

    /// The words of the refusal or the error.
    pub fn text(&self) -> String {
        match &self.error {
            Some((code, message)) => format!("{code} {message}"),
            None => self.tags.join(" "),
        }
    }

    fn take(&mut self, message: &Message) {
        let mut body = &message.body[..];
        match message.tag {
            'D' => return self.rows.push(cells(body)),
            // A line of COPY.
            'd' => return self.rows.push(vec![Some(message.body.clone())]),
            't' => self.params.push(message.body.clone()),
            'T' => self.columns.push(columns(body)),
            'C' => self.tags.push(word(&mut body)),
            'E' => {
                let fields = Fields::of(message);
                let detail = format!("{} ({})", fields.get('M'), fields.get('D'));
                self.error = Some((fields.get('C').to_owned(), detail));
            }
            'Z' => self.status = char::from(message.body[0]),
            'N' => return,
            _ => {}
        }
        self.shape.push(message.tag);
    }

    /// What differs from the answer that is right.
    pub fn difference(&self, right: &Answer, alike: &Alike) -> Option<String> {
        let code = |answer: &Answer| answer.error.as_ref().map(|(code, _)| code.clone());
        if self.status != right.status {
            return Some("the status of the transaction".to_owned());
        }
        if code(self) != code(right) {
            return Some("the error".to_owned());
        }
        if self.error.is_some() {
            return None;
        }
        if self.params != right.params {
            return Some("the types of the parameters".to_owned());
        }
        if self.columns != right.columns {
            return Some("the columns".to_owned());
        }
        if self.tags != right.tags {
            return Some("the tag".to_owned());
        }
        if self.shape != right.shape {
            return Some("the messages".to_owned());
        }
        if self.rows.len() != right.rows.len() {
            return Some("the number of rows".to_owned());
        }
        let types = right.columns.last().map_or(&[][..], Vec::as_slice);
        let of = |answer: &Answer, places: &[usize]| -> Vec<Cells> {
            let numeric = |at: usize| types.get(at).is_some_and(|column| column.1 == NUMERIC);
            let key = |row: &Cells, at: usize| match &row[at] {
                Some(cell) if numeric(at) => Some(unscaled(cell)),
                cell => cell.clone(),
            };
            let keys = |row: &Cells| places.iter().map(|at| key(row, *at)).collect();
            answer.rows.iter().map(keys).collect()
        };
        let sorted = |answer: &Answer| {
            let mut rows = answer.rows.clone();
            rows.sort();
            rows
        };
        let (same, what) = match alike {
            Alike::Count => (true, ""),
            Alike::Order => (self.rows == right.rows, "rows or their order"),
            Alike::Rows => (sorted(self) == sorted(right), "rows"),
            Alike::Keys(places) => (of(self, places) == of(right, places), "order"),
            Alike::Sorted(places) => (
                sorted(self) == sorted(right) && of(self, places) == of(right, places),
                "rows or their order",
            ),
        };
        (!same).then(|| what.to_owned())
    }

    /// On a few lines.
    pub fn describe(&self) -> String {
        let mut text = format!("{} {} {}\n", self.shape, self.status, self.text());
        for columns in &self.columns {
            text += &format!("      {columns:?}\n");
        }
        for row in self.rows.iter().take(12) {
            let cells: Vec<String> = row.iter().map(readable).collect();
            text += &format!("      {}\n", cells.join(" | "));
        }
        if self.rows.len() > 12 {
            text += &format!("      ... {} rows\n", self.rows.len());
        }
        text
    }
}

/// `pg_type.oid` of `numeric`.
const NUMERIC: u32 = 1700;

/// A number without its scale: 1.5 and 1.50 may stand in either order.
fn unscaled(cell: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(cell) {
        Ok(text) if text.contains('.') && text.is_ascii() && !text.contains(char::is_control) => {
            text.trim_end_matches('0')
                .trim_end_matches('.')
                .as_bytes()
                .to_vec()
        }
        _ => {
            let mut binary = cell.to_vec();
            // Digits, weight, sign, and the scale.
            if let Some(scale) = binary.get_mut(6..8).filter(|_| cell.contains(&0)) {
                scale.fill(0);
            }
            binary
        }
    }
}

fn readable(cell: &Option<Vec<u8>>) -> String {
    match cell {
        None => "NULL".to_owned(),
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains(char::is_control) => format!("{text:?}"),
            _ => format!("{bytes:02x?}"),
        },
    }
}

fn word(body: &mut &[u8]) -> String {
    let end = body
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(body.len());
    let text = String::from_utf8_lossy(&body[..end]).into_owned();
    body.advance((end + 1).min(body.len()));
    text
}

fn columns(mut body: &[u8]) -> Vec<(String, u32, i32, i16)> {
    let count = body.get_u16();
    (0..count)
        .map(|_| {
            let name = word(&mut body);
            // The table and the column there are of another database.
            body.advance(6);
            let r#type = body.get_u32();
            body.advance(2);
            (name, r#type, body.get_i32(), body.get_i16())
        })
        .collect()
}

fn cells(mut body: &[u8]) -> Cells {
    let count = body.get_u16();
    (0..count)
        .map(|_| match body.get_i32() {
            -1 => None,
            length => Some(body.copy_to_bytes(length as usize).to_vec()),
        })
        .collect()
}

impl Statement {
    /// Asks a server.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn ask(&self, server: &mut Wire) -> anyhow::Result<Answer> {
        let mut answer = Answer::default();
        for batch in self.batches() {
            for message in server.ask(&batch).await? {
                answer.take(&message);
            }
            if answer.error.is_some() {
                break;
            }
        }
        Ok(answer)
    }

    fn batches(&self) -> Vec<Batch> {
        let types: Vec<u32> = self.params.iter().map(|param| param.r#type.oid()).collect();
        match self.mode {
            Mode::Simple => vec![Batch::new().query(&self.sql)],
            Mode::Extended { binary, declared } => {
                let types: &[u32] = if declared { &types } else { &[] };
                let batch = Batch::new().parse_typed("", &self.sql, types);
                let batch = self.bind(batch, "", binary).describe_portal();
                vec![batch.execute(0).sync()]
            }
            Mode::Portions => {
                let batch = Batch::new().parse_typed("", &self.sql, &types);
                let batch = self.bind(batch, "", false).describe_portal();
                vec![batch.execute(1).execute(0).sync()]
            }
            Mode::Prepared { binary } => {
                let first = Batch::new().close("s").parse_typed("s", &self.sql, &types);
                let second = self.bind(Batch::new(), "s", binary);
                vec![first.describe("s").sync(), second.execute(0).sync()]
            }
        }
    }

    fn bind(&self, batch: Batch, name: &str, binary: bool) -> Batch {
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_slice(name.as_bytes());
        body.put_u8(0);
        let values: Vec<(Option<Vec<u8>>, bool)> = self
            .params
            .iter()
            .map(|param| match &param.value {
                None => (None, false),
                Some(text) => match param.r#type.binary(text).filter(|_| binary) {
                    Some(bytes) => (Some(bytes), true),
                    None => (Some(text.as_bytes().to_vec()), false),
                },
            })
            .collect();
        body.put_u16(values.len() as u16);
        values
            .iter()
            .for_each(|(_, binary)| body.put_u16(u16::from(*binary)));
        body.put_u16(values.len() as u16);
        for (value, _) in &values {
            match value {
                None => body.put_i32(-1),
                Some(bytes) => {
                    body.put_u32(bytes.len() as u32);
                    body.put_slice(bytes);
                }
            }
        }
        match binary {
            true => body.put_slice(&[0, 1, 0, 1]),
            false => body.put_u16(0),
        }
        batch.message(b'B', &body)
    }

    /// On a few lines.
    pub fn describe(&self) -> String {
        let params = self.params.iter().map(|param| match &param.value {
            Some(text) => format!("{:?} {text:?}", param.r#type),
            None => format!("{:?} NULL", param.r#type),
        });
        let params: Vec<String> = params.collect();
        format!(
            "{}\n      {:?} [{}] {:?}",
            self.sql,
            self.mode,
            params.join(", "),
            self.alike
        )
    }
}
