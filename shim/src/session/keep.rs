//! Why a statement's effect stays on its server connection, if it does.

use pgdog_core::fault::Fault;

use super::Session;
use super::param_values::{Class, classify};
use super::params::{Scope, reserved};
use super::pin::{CODE, MAYBE, SEED};
use super::steps::Asked;
use super::words::{Stateful, stateful};
use crate::plan::{Kind, SetConfig, Statement, Value, truth};
use crate::proto::spelling::Spelling;
use crate::route::Params;

/// A call of `set_config` whose arguments are known.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// Lower-case name.
    pub name: String,
    /// None: the default.
    pub value: Option<String>,
    /// How long it holds.
    pub scope: Scope,
}

impl Session<'_> {
    /// See the module.
    ///
    /// # Errors
    /// It sets a parameter of the shim to what that does not take, or asks for values of sequences
    /// that are not there.
    pub(super) fn keeps_state(&mut self, asked: &Asked<'_>) -> Result<Option<&'static str>, Fault> {
        let Some(statement) = asked.statement().filter(|_| asked.executes()) else {
            return Ok(None);
        };
        let executed = self.executed(asked);
        let inner = executed.as_deref().and_then(|held| held.plan());
        let runs = inner
            .and_then(|plan| plan.statements.first())
            .unwrap_or(statement);
        self.check_sequences(asked, runs)?;
        for setting in settings(runs, asked.params()) {
            self.check_own(&setting)?;
        }
        if self.sets_beyond_ascii(asked, statement) {
            return Ok(Some(CODE));
        }
        Ok(match statement.kind {
            Kind::Session => match stateful(asked.sql()) {
                Stateful::Keep(why) => Some(why),
                Stateful::Declare { hold, .. } => hold.then_some("cursor WITH HOLD"),
                Stateful::Cursor(_) | Stateful::Execute | Stateful::Nothing => locks(runs),
            },
            Kind::Read | Kind::Write if seeds(runs) => Some(SEED),
            Kind::Read | Kind::Write | Kind::CopyIn | Kind::CopyOut => {
                let keeps = self.services.keepers.runs_some(runs);
                locks(runs).or(keeps.then_some(MAYBE))
            }
            Kind::Set { ref name, .. } if name == "seed" => Some(SEED),
            _ => None,
        })
    }

    /// A setting whose value can't be brought to another connection, as nobody here knows what it
    /// is: it is in the client's encoding, or an encoding follows in which it means something else.
    fn sets_beyond_ascii(&self, asked: &Asked<'_>, statement: &Statement) -> bool {
        let Kind::Set { name, .. } = &statement.kind else {
            return false;
        };
        match name.as_str() {
            "client_encoding" => {
                let mut set = self.params.wanted().values();
                set.any(|command| !command.is_ascii())
            }
            _ => self.client.foreign_encoding().is_some() && !asked.sql().is_ascii(),
        }
    }

    fn check_own(&self, setting: &Setting) -> Result<(), Fault> {
        match classify(&setting.name) {
            Class::Own(own) => self.params.check(own, setting.value.as_deref()),
            Class::Reserved => Err(reserved(&setting.name)),
            Class::Forwarded => Ok(()),
        }
    }
}

/// Whether it makes values of random() foretellable.
fn seeds(statement: &Statement) -> bool {
    statement
        .functions
        .called
        .iter()
        .any(|called| called.name == "setseed")
}

fn locks(statement: &Statement) -> Option<&'static str> {
    let name = statement.functions.advisory.as_deref()?;
    let of_session =
        name.starts_with("pg_advisory_lock") || name.starts_with("pg_try_advisory_lock");
    of_session.then_some("advisory lock")
}

/// What its calls of `set_config` set, as far as the text tells; the server tells of all.
pub fn settings(statement: &Statement, params: &dyn Params) -> Vec<Setting> {
    let calls = statement.functions.settings.iter();
    calls.filter_map(|call| setting(call, params)).collect()
}

fn setting(call: &SetConfig, params: &dyn Params) -> Option<Setting> {
    Some(Setting {
        name: text(&call.name, params)??.to_ascii_lowercase(),
        value: text(&call.value, params)?,
        scope: match flag(&call.local, params)? {
            true => Scope::Local,
            false => Scope::Session,
        },
    })
}

/// A text argument; the inner None is NULL.
fn text(value: &Value, params: &dyn Params) -> Option<Option<String>> {
    match value {
        Value::Text(text) => Some(Some(text.clone())),
        Value::Null => Some(None),
        Value::Param(number) | Value::TypedParam(number, _) => {
            // Text is the same in both formats.
            match params.param(*number)?.value {
                None => Some(None),
                Some(bytes) => Some(Some(Spelling::Utf8.read(bytes).into_owned())),
            }
        }
        Value::Default | Value::ArrayParam(_) | Value::Unknown => None,
    }
}

fn flag(value: &Value, params: &dyn Params) -> Option<bool> {
    match value {
        Value::Text(text) => truth(text),
        Value::Param(number) | Value::TypedParam(number, _) => {
            let bound = params.param(*number)?;
            match (bound.binary, bound.value?) {
                (true, [byte]) => Some(*byte != 0),
                (true, _) => None,
                (false, text) => truth(std::str::from_utf8(text).ok()?),
            }
        }
        Value::Null | Value::Default | Value::ArrayParam(_) | Value::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::parse;
    use crate::route::{Bind, NoParams};

    struct Given(Vec<(&'static [u8], bool)>);

    impl Params for Given {
        fn param(&self, number: usize) -> Option<Bind<'_>> {
            let (value, binary) = self.0.get(number - 1)?;
            Some(Bind {
                value: Some(value),
                binary: *binary,
                type_oid: 0,
            })
        }
    }

    fn statement(sql: &str) -> Statement {
        parse(sql).unwrap().statements.remove(0)
    }

    #[test]
    fn what_set_config_sets_is_known_through_its_parameters() {
        let two = statement("SELECT set_config('App.A', $1, $2), set_config('b', NULL, true)");
        let given = Given(vec![(b"11", false), (&[0], true)]);
        let found = settings(&two, &given);
        let expected = [
            ("app.a", Some("11"), Scope::Session),
            ("b", None, Scope::Local),
        ];
        let expected = expected.map(|(name, value, scope)| Setting {
            name: name.to_owned(),
            value: value.map(str::to_owned),
            scope,
        });
        assert_eq!(found, expected);
        let known = settings(&two, &NoParams);
        assert_eq!(known.len(), 1, "the parameters are not there: {known:?}");
        let sql = Spelling::Bytes.read(b"SELECT set_config('app.name', '\xe9', false)");
        assert!(
            settings(&statement(&sql), &NoParams).is_empty(),
            "it cannot be read"
        );
    }
}
