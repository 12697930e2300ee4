//! What a client asked of several shards, and how it is carried out on lent connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pgdog_core::fault::Fault;

use super::super::batch::Message;
use super::super::client::Client;
use super::super::steps::Asked;
use super::ask::{
    Bound, COLLECTED_BYTES, Failed, INT8, Shape, check_aliases, count, describe, internal,
    other_columns, own_array_type, too_many,
};
use super::keys::Kind;
use super::merge::{self, Order, Window};
use super::part::{End, Part};
use super::rows::{Collected, Described, put_bind, put_described};
use super::unsplit;
use crate::plan::split::{FINISHED, SortKey, array_type};
use crate::plan::{Split, SplitColumn, Unsplit};
use crate::proto::backend;
use crate::proto::frontend::{self, Format, Param, Subject};
use crate::server::CancelToken;

/// How long a cancel request to a server may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// See the module.
pub struct Job<'a> {
    asked: Asked<'a>,
    split: Arc<Split>,
    window: Window,
    /// The client's portal, which ends with the read.
    pub portal: Option<&'a str>,
    /// When connections to all shards were there.
    pub started: Instant,
    /// How many Parses the client was told of.
    parsed: AtomicUsize,
}

/// What came of it.
pub struct Ran {
    /// How many rows there were.
    pub rows: u64,
    /// In a few words, how they were merged.
    pub how: &'static str,
}

impl<'a> Job<'a> {
    /// What is asked, by a statement that was split.
    ///
    /// # Errors
    /// It is asked for in parts, or with a LIMIT that PostgreSQL refuses.
    pub fn new(asked: &Asked<'a>, split: Arc<Split>) -> Result<Self, Fault> {
        let mut portal = None;
        if let Asked::Extended(step) = asked {
            let refused = |why: &str| {
                Err(unsplit(&Unsplit {
                    why: why.to_owned(),
                    hint: None,
                }))
            };
            let Some(bind) = step.bind.filter(|_| step.executes) else {
                return refused("its portal is bound and executed in different batches");
            };
            if step.again {
                return refused("its portal was executed before in the same batch");
            }
            portal = Some(bind.portal);
            let limited = step.messages.iter().any(|message| match message {
                Message::Execute { frame } => frame.body().last_chunk::<4>() != Some(&[0; 4]),
                _ => false,
            });
            if limited {
                return refused("its rows are asked for in portions");
            }
        }
        let params = asked.params();
        let window = Window {
            offset: count(split.bounds.offset.as_ref(), params, Bound::Offset)?.unwrap_or(0),
            limit: count(split.bounds.limit.as_ref(), params, Bound::Limit)?,
            with_ties: split.bounds.with_ties,
        };
        Ok(Self {
            asked: *asked,
            split,
            window,
            portal,
            started: Instant::now(),
            parsed: AtomicUsize::new(0),
        })
    }

    /// Runs it.
    ///
    /// # Errors
    /// On which of the parts, and what.
    pub async fn run(
        &self,
        parts: &mut [Part],
        client: &mut Client,
        limit: Option<Duration>,
    ) -> Result<Ran, Failed> {
        let Some(limit) = limit else {
            return self.run_on(parts, client).await;
        };
        let tokens: Vec<Arc<CancelToken>> = parts
            .iter()
            .map(|part| part.participant.lease.cancel_token())
            .collect();
        let running = self.run_on(parts, client);
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => ended,
            () = tokio::time::sleep(limit) => {
                tracing::info!(limit_ms = limit.as_millis(), "query timeout");
                let cancels = tokens.iter().map(|token| token.cancel(CANCEL_LIMIT));
                futures_util::future::join_all(cancels).await;
                running.await
            }
        }
    }

    /// How many Parses the client was told of.
    pub fn parsed(&self) -> usize {
        self.parsed.load(Ordering::Relaxed)
    }

    async fn run_on(&self, parts: &mut [Part], client: &mut Client) -> Result<Ran, Failed> {
        self.parsed.store(0, Ordering::Relaxed);
        let ordered = !self.split.keys.is_empty();
        let own = match self.split.must_finish || ordered || self.describes_statement() {
            true => Some(self.describe_own(parts, client).await?),
            false => None,
        };
        let ran = self.run_described(parts, client, own.as_ref()).await;
        // The shards have another text than the client.
        ran.map_err(|(at, end)| (at, end.unplaced()))
    }

    async fn run_described(
        &self,
        parts: &mut [Part],
        client: &mut Client,
        own: Option<&Shape>,
    ) -> Result<Ran, Failed> {
        let ran = |rows: u64, how: &'static str| Ran { rows, how };
        let own = match own {
            Some(own) if self.split.must_finish || !self.split.keys.is_empty() => own,
            own => {
                let rows = self.side_by_side(parts, client, own).await?;
                return Ok(ran(rows, self.split.how()));
            }
        };
        check_aliases(parts, client, (&self.split, &own.types)).await?;
        let types = self.types(Some(&own.types));
        let asked = describe(parts, client, (&self.split.sql, &types)).await?;
        let keys = self.comparable(&asked.columns, client);
        match keys.filter(|_| !self.split.must_finish) {
            Some(keys) => {
                let rows = self.in_order(parts, client, (own, &types, &keys)).await?;
                Ok(ran(rows, self.split.how()))
            }
            None => {
                let rows = self.finished(parts, client, (own, &types, &asked)).await?;
                Ok(ran(rows, FINISHED))
            }
        }
    }

    /// The statement as the client wrote it, described by shard 0, which also finds its mistakes.
    async fn describe_own(&self, parts: &mut [Part], client: &mut Client) -> Result<Shape, Failed> {
        let asked = (self.asked.sql(), self.asked.declared());
        let own = describe(parts, client, asked).await?;
        if let Asked::Extended(step) = self.asked
            && let Some(subject) = &step.subject
        {
            subject.note_described(own.types.clone());
        }
        Ok(own)
    }

    /// Rows one after the other, in the form that the client wants.
    async fn side_by_side(
        &self,
        parts: &mut [Part],
        client: &mut Client,
        own: Option<&Shape>,
    ) -> Result<u64, Failed> {
        let types = self.types(own.map(|own| own.types.as_slice()));
        let formats = self.formats();
        self.start(parts, (&types, &formats)).await?;
        let columns = self.agreed(parts, client).await?;
        self.put_beginning(client, own, &columns);
        merge::side_by_side(parts, client, self.window).await
    }

    /// Rows merged by the columns behind the client's.
    async fn in_order(
        &self,
        parts: &mut [Part],
        client: &mut Client,
        (own, types, keys): (&Shape, &[u32], &[(SortKey, Kind)]),
    ) -> Result<u64, Failed> {
        let visible = own.columns.len();
        let mut formats: Vec<Format> = (0..visible).map(|place| self.format(place)).collect();
        formats.resize(visible + self.split.finish.extra(), Format::Binary);
        self.start(parts, (types, &formats)).await?;
        self.agreed(parts, client).await?;
        self.put_beginning(client, Some(own), &own.columns);
        let order = Order { visible, keys };
        merge::in_order(parts, client, self.window, &order).await
    }

    /// Rows collected, and the answer made of them by shard 0.
    async fn finished(
        &self,
        parts: &mut [Part],
        client: &mut Client,
        (own, types, asked): (&Shape, &[u32], &Shape),
    ) -> Result<u64, Failed> {
        self.start(parts, (types, &[Format::Binary])).await?;
        self.agreed(parts, client).await?;
        let mut all = Collected::new(asked.columns.len());
        merge::collect(parts, client, |row| {
            if all.bytes() > COLLECTED_BYTES {
                return Err(End::Own(too_many()));
            }
            all.add(row.body()).map_err(End::Lost)
        })
        .await?;
        let columns = self.column_types(parts, &asked.columns).await?;
        let text = self
            .split
            .finish
            .text(&columns, self.split.params)
            .map_err(|why| (0, End::Own(unsplit(&why))))?;
        let mut types = types[..self.split.params].to_vec();
        types.extend(columns.iter().map(|column| column.array_oid));
        let arrays = all.arrays(&columns);
        let mut params = self.params();
        params.extend(arrays.iter().map(|array| Param {
            format: Format::Binary,
            value: Some(array),
        }));
        let formats: Vec<_> = (0..own.columns.len()).map(|at| self.format(at)).collect();
        let mut batch = BytesMut::new();
        frontend::parse("", &text, &types, &mut batch);
        put_run(&params, &formats, &mut batch);
        drop(arrays);
        let first = &mut parts[..1];
        first[0].send(&batch).await.map_err(|end| (0, end))?;
        drop(batch);
        let columns = self.agreed(first, client).await?;
        let same = columns.len() == own.columns.len()
            && columns
                .iter()
                .zip(&own.columns)
                .all(|(one, other)| one.type_oid == other.type_oid);
        if !same {
            return Err((0, internal("the last step gives columns of other types")));
        }
        self.put_beginning(client, Some(own), &own.columns);
        let all = Window {
            offset: 0,
            limit: None,
            with_ties: false,
        };
        merge::side_by_side(first, client, all).await
    }

    /// Sends the shards' query to all of them at once.
    async fn start(
        &self,
        parts: &mut [Part],
        (types, formats): (&[u32], &[Format]),
    ) -> Result<(), Failed> {
        let mut params = self.params();
        let most = self.window.limit.map(|limit| {
            let most = limit.saturating_add(self.window.offset);
            i64::try_from(most).unwrap_or(i64::MAX).to_string()
        });
        if self.split.counted {
            params.push(Param {
                format: Format::Text,
                value: most.as_deref().map(str::as_bytes),
            });
        }
        let mut batch = BytesMut::new();
        frontend::parse("", &self.split.sql, types, &mut batch);
        put_run(&params, formats, &mut batch);
        let sent = parts.iter_mut().map(|part| part.send(&batch));
        let sent = futures_util::future::join_all(sent).await;
        for (at, sent) in sent.into_iter().enumerate() {
            sent.map_err(|end| (at, end))?;
        }
        Ok(())
    }

    /// Waits until all parts have described their rows, which must be the same.
    async fn agreed(
        &self,
        parts: &mut [Part],
        client: &mut Client,
    ) -> Result<Vec<Described>, Failed> {
        let mut first: Option<Vec<Described>> = None;
        for (at, part) in parts.iter_mut().enumerate() {
            let columns = part.described(client).await.map_err(|end| (at, end))?;
            match &first {
                None => first = Some(columns),
                Some(known) => {
                    let same = known.len() == columns.len()
                        && known
                            .iter()
                            .zip(&columns)
                            .all(|(one, other)| one.fits(other));
                    if !same {
                        return Err((at, End::Own(other_columns())));
                    }
                }
            }
        }
        Ok(first.unwrap_or_default())
    }

    /// What the client hears before the rows.
    fn put_beginning(&self, client: &mut Client, own: Option<&Shape>, columns: &[Described]) {
        let out = &mut client.out;
        let mut parsed = 0;
        let Asked::Extended(step) = self.asked else {
            return put_described(columns, |_| Format::Text, out);
        };
        for message in &step.messages {
            match message {
                Message::Parse { .. } => {
                    backend::parse_complete(out);
                    parsed += 1;
                    self.parsed.store(parsed, Ordering::Relaxed);
                }
                Message::Bind { .. } => backend::bind_complete(out),
                Message::DescribeStatement { .. } => {
                    let types = own.map(|own| own.types.as_slice()).unwrap_or_default();
                    backend::parameter_description(types, out);
                    put_described(columns, |_| Format::Text, out);
                }
                Message::DescribePortal { .. } => {
                    put_described(columns, |place| self.format(place), out);
                }
                Message::Execute { .. } => return,
                Message::CloseStatement
                | Message::CloseOwn { .. }
                | Message::ClosePortal { .. } => backend::close_complete(out),
            }
        }
    }

    /// What the client hears behind the rows.
    pub fn put_end(&self, rows: u64, client: &mut Client) {
        client.note_completion();
        backend::command_complete(&format!("SELECT {rows}"), &mut client.out);
        if let Asked::Extended(step) = self.asked {
            let is_execute = |message: &&Message<'_>| matches!(message, Message::Execute { .. });
            let behind = step.messages.iter().rev().take_while(|m| !is_execute(m));
            behind.for_each(|_| backend::close_complete(&mut client.out));
        }
    }

    fn describes_statement(&self) -> bool {
        match self.asked {
            Asked::Simple { .. } => false,
            Asked::Extended(step) => step
                .messages
                .iter()
                .any(|message| matches!(message, Message::DescribeStatement { .. })),
        }
    }

    /// The client's parameters.
    fn params(&self) -> Vec<Param<'a>> {
        match self.asked {
            Asked::Simple { .. } => Vec::new(),
            Asked::Extended(step) => step.bind.iter().flat_map(|bind| bind.params()).collect(),
        }
    }

    /// The format in which the client wants a column.
    fn format(&self, place: usize) -> Format {
        match self.asked {
            Asked::Simple { .. } => Format::Text,
            Asked::Extended(step) => {
                let bind = step.bind.as_ref();
                bind.map_or(Format::Text, |bind| bind.result_format(place))
            }
        }
    }

    fn formats(&self) -> Vec<Format> {
        match self.asked {
            Asked::Simple { .. } => Vec::new(),
            Asked::Extended(step) => {
                let bind = step.bind.iter();
                bind.flat_map(|bind| bind.result_formats()).collect()
            }
        }
    }

    /// Types of the parameters of the shards' query.
    fn types(&self, described: Option<&[u32]>) -> Vec<u32> {
        let mut types = described.unwrap_or(self.asked.declared()).to_vec();
        types.resize(self.split.params, 0);
        for number in &self.split.counts {
            // It is in no text that the shards see.
            if let Some(unknown @ 0) = types.get_mut(number - 1) {
                *unknown = INT8;
            }
        }
        types.extend(self.split.counted.then_some(INT8));
        types
    }

    /// How rows are compared, if that can be done here.
    fn comparable(&self, columns: &[Described], client: &Client) -> Option<Vec<(SortKey, Kind)>> {
        // Texts come in the client's encoding, and are ordered by their bytes in the database's.
        let foreign = client.is_foreign();
        let hidden = columns.len().checked_sub(self.split.finish.extra())?;
        let keys = self.split.keys.iter().zip(&columns[hidden..]);
        keys.map(|(key, column)| {
            let kind = Kind::of(column.type_oid, key.bytewise && !foreign)?;
            Some((*key, kind))
        })
        .collect()
    }

    /// The types of columns and of arrays of them, on shard 0.
    async fn column_types(
        &self,
        parts: &mut [Part],
        columns: &[Described],
    ) -> Result<Vec<SplitColumn>, Failed> {
        let mut types = Vec::with_capacity(columns.len());
        for column in columns {
            let type_oid = column.type_oid;
            let array_oid = match array_type(type_oid) {
                Some(array_oid) => array_oid,
                None => own_array_type(&mut parts[0], type_oid)
                    .await
                    .map_err(|end| (0, end))?,
            };
            types.push(SplitColumn {
                type_oid,
                array_oid,
            });
        }
        Ok(types)
    }
}

/// Bind, Describe, Execute, Sync.
fn put_run(params: &[Param<'_>], formats: &[Format], out: &mut BytesMut) {
    put_bind(params, formats, out);
    frontend::describe(Subject::Portal(""), out);
    frontend::execute("", 0, out);
    frontend::sync(out);
}
