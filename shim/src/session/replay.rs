//! Which commands bring a server connection from the settings that it has to those that a client
//! wants. Pure.

use std::collections::BTreeMap;

use super::params::quoted;

/// Settings by lower-case name, with the command that makes each.
pub type Commands = BTreeMap<String, String>;

/// What undoes every setting of a session.
pub const RESET: [&str; 3] = [
    "RESET ROLE",
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ALL",
];

/// Commands for the difference only; None where nothing but a full reset is safe.
pub fn difference(has: &Commands, wants: &Commands) -> Option<Vec<String>> {
    let differs = |name: &&String| has.get(*name) != wants.get(*name);
    let names = has.keys().chain(wants.keys());
    if names.filter(differs).any(|name| is_entangled(name)) {
        return None;
    }
    let gone = has.keys().filter(|name| !wants.contains_key(*name));
    let mut commands: Vec<String> = gone.map(|name| reset(name)).collect();
    let changed = wants.iter().filter(|(name, _)| differs(name));
    commands.extend(changed.map(|(_, command)| command.clone()));
    Some(commands)
}

/// Commands from a connection that has no settings.
pub fn whole(wants: &Commands) -> Vec<String> {
    // Who one is decides about what one may set, and a new session user takes the role away.
    let last = |name: &str| match name {
        "session_authorization" => 1,
        "role" => 2,
        _ => 0,
    };
    let mut ordered: Vec<_> = wants.iter().collect();
    ordered.sort_by_key(|(name, _)| last(name));
    ordered
        .into_iter()
        .map(|(_, command)| command.clone())
        .collect()
}

/// Parameters whose command sets more than themselves, or decides about others.
fn is_entangled(name: &str) -> bool {
    matches!(name, "role" | "session_authorization") || name.starts_with("default_transaction_")
}

fn reset(name: &str) -> String {
    format!("RESET {}", quoted(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(list: &[(&str, &str)]) -> Commands {
        let pairs = list.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), format!("SET {name} = {value}")))
            .collect()
    }

    #[test]
    fn only_what_differs_is_sent() {
        let has = commands(&[("a", "1"), ("b", "1"), ("app.c", "1")]);
        let wants = commands(&[("a", "1"), ("b", "2"), ("d", "1")]);
        let sent = difference(&has, &wants).unwrap();
        assert_eq!(sent, ["RESET \"app\".\"c\"", "SET b = 2", "SET d = 1"]);
        assert_eq!(difference(&has, &has).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn another_role_takes_a_full_reset_and_comes_last() {
        let wants = commands(&[
            ("role", "r"),
            ("session_authorization", "s"),
            ("work_mem", "1"),
        ]);
        assert_eq!(difference(&Commands::new(), &wants), None);
        assert_eq!(
            whole(&wants),
            [
                "SET work_mem = 1",
                "SET session_authorization = s",
                "SET role = r"
            ]
        );
        assert_eq!(difference(&wants, &wants), Some(vec![]));
    }
}
