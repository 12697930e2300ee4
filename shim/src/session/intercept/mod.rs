//! Statements that the shim answers itself: parameters `pgdog.*`, EXPLAIN (PGDOG), DEALLOCATE of
//! a protocol-level statement.

mod explain;

use pgdog_core::fault::Fault;

use super::client::Gone;
use super::dispatch::Flow;
use super::local::Local;
use super::param_values::{Class, Name, classify};
use super::params::{Scope, reserved};
use super::steps::Asked;
use super::{Session, forward};
use crate::plan::{self, Kind};

impl Session<'_> {
    /// Whether the shim answers this itself.
    pub(super) fn is_own(&self, kind: &Kind, asked: &Asked<'_>) -> bool {
        match kind {
            Kind::Set { name, .. } | Kind::Reset(Some(name)) => {
                !matches!(classify(name), Class::Forwarded)
            }
            Kind::Show(name) => matches!(classify(name), Class::Own(_)),
            Kind::SetServerTimestamp(_) | Kind::ExplainRoute => true,
            Kind::Current(name) => matches!(classify(name), Class::Own(_)),
            Kind::Discard { all } => *all && self.pin.is_none(),
            Kind::Session => !self.names.own && deallocated(asked).is_some(),
            _ => false,
        }
    }

    /// Answers it.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn intercept(
        &mut self,
        asked: &Asked<'_>,
        at: usize,
        kind: &Kind,
    ) -> Result<Flow, Gone> {
        let answer = match asked.executes() {
            true => self.answer(asked, kind).await,
            false => Ok(shape(kind)),
        };
        match answer {
            Ok(answer) => {
                answer.write(asked, &mut self.client.out);
                Ok(Flow::Next(at + 1))
            }
            Err(fault) => Ok(self.fault(&fault).await),
        }
    }

    async fn answer(&mut self, asked: &Asked<'_>, kind: &Kind) -> Result<Local, Fault> {
        match kind {
            Kind::Set {
                name,
                value,
                local,
                as_select,
            } => {
                let scope = if *local { Scope::Local } else { Scope::Session };
                let own = self.own_name(name)?;
                self.set_own(own, value.as_deref(), scope)?;
                Ok(match as_select {
                    true => Local::value("set_config", self.show(own), "SELECT 1"),
                    false => Local::tag("SET"),
                })
            }
            Kind::Reset(Some(name)) => {
                let own = self.own_name(name)?;
                self.set_own(own, None, Scope::Session)?;
                Ok(Local::tag("RESET"))
            }
            Kind::Show(name) => {
                let own = self.own_name(name)?;
                Ok(Local::value(own.as_str(), self.show(own), "SHOW"))
            }
            Kind::SetServerTimestamp(text) => {
                self.set_own(Name::MinCommitTimestamp, Some(text), Scope::Session)?;
                Ok(Local::tag("SET"))
            }
            Kind::Current(name) => {
                let own = self.own_name(name)?;
                Ok(Local::value("current_setting", self.show(own), "SELECT 1"))
            }
            Kind::ExplainRoute => self.explain(asked).await,
            Kind::Discard { .. } => self.discard_all().await,
            _ => self.deallocate(deallocated(asked).flatten()),
        }
    }

    fn own_name(&self, name: &str) -> Result<Name, Fault> {
        match classify(name) {
            Class::Own(own) => Ok(own),
            Class::Reserved | Class::Forwarded => Err(reserved(name)),
        }
    }

    fn set_own(&mut self, name: Name, value: Option<&str>, scope: Scope) -> Result<(), Fault> {
        if scope == Scope::Local && !self.tx.is_open() {
            let text = "SET LOCAL can only be used in transaction blocks";
            forward::warn(self.client, "25P01", text);
        }
        self.params.set(name, value, scope)
    }

    fn show(&self, name: Name) -> String {
        match name {
            Name::LastRoute => self.last_route.to_string(),
            Name::CommitLsn => self.commit_token.to_string(),
            other => self.params.own().show(other),
        }
    }
}

/// Columns of the answer, for a Describe without an Execute.
fn shape(kind: &Kind) -> Local {
    let columns: Vec<String> = match kind {
        Kind::Show(name) => vec![name.clone()],
        Kind::Current(_) => vec!["current_setting".to_owned()],
        Kind::Set {
            as_select: true, ..
        } => vec!["set_config".to_owned()],
        Kind::ExplainRoute => vec!["QUERY PLAN".to_owned()],
        _ => Vec::new(),
    };
    Local {
        columns,
        ..Local::default()
    }
}

/// The name in a DEALLOCATE; the inner None is ALL.
fn deallocated<'a>(asked: &Asked<'a>) -> Option<Option<&'a str>> {
    match &asked.statement()?.prepared {
        Some(plan::Prepared::Deallocate(name)) => Some(name.as_deref()),
        Some(plan::Prepared::Prepare { .. } | plan::Prepared::Execute { .. }) | None => None,
    }
}
