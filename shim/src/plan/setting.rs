//! SET, RESET, SHOW and `set_config`, and the statement of our own among them.

use pg_query::NodeEnum;
use pg_query::protobuf::{
    Node, SelectStmt, SetOperation, VariableSetKind, VariableSetStmt, a_const,
};

use super::value::{string, value as value_of};
use super::{Kind, SetConfig, Value};

/// `SET SERVER XACT TIMESTAMP '...'`, which PostgreSQL's grammar does not know.
pub(super) fn server_timestamp(sql: &str) -> Option<String> {
    let mut rest = skip_blank(sql);
    for word in ["set", "server", "xact", "timestamp"] {
        let head = rest.get(..word.len())?;
        if !head.eq_ignore_ascii_case(word) {
            return None;
        }
        rest = &rest[word.len()..];
        let after = skip_blank(rest);
        // Words must be apart; the string may follow at once.
        if after.len() == rest.len() && !after.starts_with('\'') {
            return None;
        }
        rest = after;
    }
    let mut value = String::new();
    let mut chars = rest.strip_prefix('\'')?.chars();
    loop {
        match chars.next()? {
            '\'' => match chars.as_str().strip_prefix('\'') {
                Some(after) => {
                    value.push('\'');
                    chars = after.chars();
                }
                None => break,
            },
            other => value.push(other),
        }
    }
    let rest = skip_blank(chars.as_str());
    let rest = skip_blank(rest.strip_prefix(';').unwrap_or(rest));
    rest.is_empty().then_some(value)
}

/// Without white space and comments in front.
fn skip_blank(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let after = if let Some(line) = rest.strip_prefix("--") {
            line.find('\n').map_or("", |end| &line[end..])
        } else if let Some(block) = rest.strip_prefix("/*") {
            match block.find("*/") {
                Some(end) => &block[end + 2..],
                None => return rest,
            }
        } else {
            return rest;
        };
        rest = after.trim_start();
    }
}

/// The kind of a SET or RESET.
pub(super) fn set(stmt: &VariableSetStmt) -> Kind {
    let name = stmt.name.to_ascii_lowercase();
    match VariableSetKind::try_from(stmt.kind) {
        Ok(VariableSetKind::VarReset) => Kind::Reset(Some(name)),
        Ok(VariableSetKind::VarResetAll) => Kind::Reset(None),
        Ok(VariableSetKind::VarSetMulti) => transaction_modes(&name, &stmt.args),
        Ok(VariableSetKind::VarSetValue) => {
            let value = Some(list(&name, &stmt.args));
            Kind::Set {
                name,
                value,
                local: stmt.is_local,
                as_select: false,
            }
        }
        // FROM CURRENT exists only inside CREATE FUNCTION.
        Ok(
            VariableSetKind::VarSetDefault
            | VariableSetKind::VarSetCurrent
            | VariableSetKind::Undefined,
        )
        | Err(_) => Kind::Set {
            name,
            value: None,
            local: stmt.is_local,
            as_select: false,
        },
    }
}

/// `SET TRANSACTION ...` and `SET SESSION CHARACTERISTICS AS TRANSACTION ...` under the name of
/// the parameter that they set; READ ONLY is told first since it alone changes the route.
fn transaction_modes(name: &str, options: &[Node]) -> Kind {
    let session = name == "session characteristics";
    let prefix = if session { "default_" } else { "" };
    let chosen = options
        .iter()
        .filter_map(|option| match &option.node {
            Some(NodeEnum::DefElem(element)) => Some(element),
            _ => None,
        })
        .min_by_key(|element| element.defname != "transaction_read_only");
    let Some(element) = chosen else {
        let value = options.first().and_then(constant_text);
        return Kind::Set {
            name: name.to_owned(),
            value,
            local: true,
            as_select: false,
        };
    };
    let value = element.arg.as_deref().and_then(constant_text);
    let value = match (element.defname.as_str(), value.as_deref()) {
        ("transaction_isolation", _) => value,
        (_, Some("0" | "false")) => Some("off".to_owned()),
        (_, Some(_)) => Some("on".to_owned()),
        (_, None) => None,
    };
    let name = format!("{prefix}{}", element.defname);
    Kind::Set {
        name,
        value,
        local: !session,
        as_select: false,
    }
}

/// `READ ONLY` or `READ WRITE` among the options of BEGIN.
pub(super) fn read_only(options: &[Node]) -> Option<bool> {
    match transaction_modes("transaction", options) {
        Kind::Set {
            name,
            value: Some(value),
            ..
        } if name == "transaction_read_only" => Some(value == "on"),
        _ => None,
    }
}

/// `SELECT set_config('name', 'value', local)` with constants and nothing else.
pub(super) fn set_config(select: &SelectStmt) -> Option<Kind> {
    let [target] = select.target_list.as_slice() else {
        return None;
    };
    let [name, value, local] = arguments(select, target, "set_config")? else {
        return None;
    };
    let name = constant_text(name)?.to_ascii_lowercase();
    let value = match value_of(value) {
        Value::Null => None,
        Value::Text(text) => Some(text),
        _ => return None,
    };
    let local = truth(&constant_text(local)?)?;
    Some(Kind::Set {
        name,
        value,
        local,
        as_select: true,
    })
}

/// Every `set_config` that is a target of a plain SELECT.
pub(super) fn set_configs(select: &SelectStmt) -> Vec<SetConfig> {
    let targets = select.target_list.iter();
    let calls = targets.filter_map(|target| arguments(select, target, "set_config"));
    let whole = calls.filter_map(|arguments| match arguments {
        [name, value, local] => Some(SetConfig {
            name: value_of(name),
            value: value_of(value),
            local: constant_text(local).map_or_else(|| value_of(local), Value::Text),
        }),
        _ => None,
    });
    whole.collect()
}

/// `SELECT current_setting('pgdog.name')` and nothing else.
pub(super) fn current_setting(select: &SelectStmt) -> Option<Kind> {
    let [target] = select.target_list.as_slice() else {
        return None;
    };
    let [name, ..] = arguments(select, target, "current_setting")? else {
        return None;
    };
    let name = constant_text(name)?.to_ascii_lowercase();
    let unnamed =
        matches!(&target.node, Some(NodeEnum::ResTarget(target)) if target.name.is_empty());
    (name.starts_with("pgdog.") && unnamed).then_some(Kind::Current(name))
}

/// Arguments of a function of PostgreSQL's that is a target of a SELECT without anything else.
fn arguments<'a>(select: &SelectStmt, target: &'a Node, function: &str) -> Option<&'a [Node]> {
    let plain = select.op == SetOperation::SetopNone as i32
        && select.from_clause.is_empty()
        && select.where_clause.is_none()
        && select.group_clause.is_empty()
        && select.having_clause.is_none()
        && select.sort_clause.is_empty()
        && select.limit_count.is_none()
        && select.limit_offset.is_none()
        && select.with_clause.is_none()
        && select.into_clause.is_none()
        && select.distinct_clause.is_empty();
    let Some(NodeEnum::ResTarget(target)) = &target.node else {
        return None;
    };
    let Some(NodeEnum::FuncCall(call)) = target.val.as_ref().and_then(|v| v.node.as_ref()) else {
        return None;
    };
    let names: Vec<&str> = call.funcname.iter().filter_map(string).collect();
    let named = match names.as_slice() {
        [name] | ["pg_catalog", name] => *name == function,
        _ => false,
    };
    (plain && named).then_some(call.args.as_slice())
}

/// A boolean constant.
pub fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "on" | "1" | "yes" | "y" => Some(true),
        "false" | "f" | "off" | "0" | "no" | "n" => Some(false),
        _ => None,
    }
}

fn list(name: &str, args: &[Node]) -> String {
    // For these PostgreSQL keeps a list of quoted identifiers.
    let quoted = matches!(
        name,
        "search_path"
            | "temp_tablespaces"
            | "session_preload_libraries"
            | "local_preload_libraries"
            | "shared_preload_libraries"
    );
    let texts = args.iter().filter_map(constant_text);
    let texts: Vec<String> = texts
        .map(|text| {
            if quoted {
                quote_identifier(&text)
            } else {
                text
            }
        })
        .collect();
    texts.join(", ")
}

fn quote_identifier(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain {
        text.to_owned()
    } else {
        format!("\"{}\"", text.replace('"', "\"\""))
    }
}

fn constant_text(node: &Node) -> Option<String> {
    match &node.node {
        Some(NodeEnum::AConst(constant)) => match &constant.val {
            Some(a_const::Val::Ival(number)) => Some(number.ival.to_string()),
            Some(a_const::Val::Fval(number)) => Some(number.fval.clone()),
            Some(a_const::Val::Boolval(value)) => Some(value.boolval.to_string()),
            Some(a_const::Val::Sval(text)) => Some(text.sval.clone()),
            Some(a_const::Val::Bsval(bits)) => Some(bits.bsval.clone()),
            None => None,
        },
        Some(NodeEnum::TypeCast(cast)) => constant_text(cast.arg.as_deref()?),
        Some(NodeEnum::String(text)) => Some(text.sval.clone()),
        Some(NodeEnum::Integer(number)) => Some(number.ival.to_string()),
        _ => None,
    }
}
