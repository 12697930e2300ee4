use super::*;
use crate::session::param_values::RoleChoice;

fn role(params: &Params) -> RoleChoice {
    params.own().role
}

fn set(params: &mut Params, value: &str, scope: Scope) {
    params.set(Name::Role, Some(value), scope).unwrap();
}

#[test]
fn set_in_a_transaction_goes_back_with_it() {
    let mut p = Params::new(Values::default(), "anna");
    p.begin();
    set(&mut p, "replica", Scope::Session);
    assert_eq!(role(&p), RoleChoice::Replica);
    p.rollback();
    assert_eq!(role(&p), RoleChoice::Auto);
    p.begin();
    set(&mut p, "replica", Scope::Session);
    p.commit();
    assert_eq!(role(&p), RoleChoice::Replica);
}

#[test]
fn local_ends_with_the_transaction_and_uncovers_the_session_value() {
    let mut p = Params::new(Values::default(), "anna");
    set(&mut p, "primary", Scope::Local);
    assert_eq!(role(&p), RoleChoice::Auto, "no transaction, no effect");
    p.begin();
    set(&mut p, "primary", Scope::Session);
    set(&mut p, "replica", Scope::Local);
    assert_eq!(role(&p), RoleChoice::Replica);
    p.commit();
    assert_eq!(role(&p), RoleChoice::Primary);
}

#[test]
fn rollback_to_a_savepoint_restores_both_layers_and_keeps_it() {
    let mut p = Params::new(Values::default(), "anna");
    p.begin();
    set(&mut p, "primary", Scope::Session);
    p.savepoint("a");
    set(&mut p, "replica", Scope::Session);
    p.savepoint("b");
    set(&mut p, "auto", Scope::Local);
    p.rollback_to("a");
    assert_eq!(role(&p), RoleChoice::Primary);
    set(&mut p, "replica", Scope::Local);
    p.rollback_to("a");
    assert_eq!(role(&p), RoleChoice::Primary);
    p.savepoint("c");
    set(&mut p, "replica", Scope::Session);
    p.release("c");
    p.commit();
    assert_eq!(role(&p), RoleChoice::Replica);
}

#[test]
fn reset_goes_back_to_the_start_up_value() {
    let mut p = Params::new(Values::default(), "anna");
    p.set_default("pgdog.role", "primary").unwrap();
    p.set_default("timezone", "UTC").unwrap();
    let at_login = p.fingerprint();
    set(&mut p, "replica", Scope::Session);
    p.note_set("timezone", "SET timezone = 'CET'");
    assert_ne!(p.fingerprint(), at_login);
    p.set(Name::Role, None, Scope::Session).unwrap();
    p.note_reset("timezone");
    assert_eq!(role(&p), RoleChoice::Primary);
    assert_eq!(p.fingerprint(), at_login);
    p.note_set("work_mem", "SET work_mem = '1GB'");
    p.reset_all();
    assert_eq!(p.fingerprint(), at_login);
    assert_eq!(p.wanted().len(), 1);
}

#[test]
fn late_connections_see_the_state_before_the_transaction() {
    let mut p = Params::new(Values::default(), "anna");
    p.begin();
    p.note_set("timezone", "SET timezone = 'CET'");
    assert_eq!(p.wanted().len(), 0);
    assert_eq!(p.fingerprint(), 0);
    p.commit();
    assert_eq!(
        p.wanted().values().collect::<Vec<_>>(),
        ["SET timezone = 'CET'"]
    );
    assert_ne!(p.fingerprint(), 0);
}

#[test]
fn the_search_path_goes_back_as_any_other_parameter() {
    let path = |p: &Params| p.search_path().join(",");
    let mut p = Params::new(Values::default(), "anna");
    p.set_default_path("search_path", "login");
    p.begin();
    p.note_path("search_path", Some("a"), Scope::Local);
    assert_eq!(path(&p), "a");
    p.commit();
    assert_eq!(path(&p), "login");
    p.begin();
    p.note_path("search_path", Some("b"), Scope::Session);
    p.rollback();
    assert_eq!(path(&p), "login");
    p.note_path("search_path", Some("c"), Scope::Session);
    assert_eq!(path(&p), "c");
    p.note_path("search_path", None, Scope::Session);
    assert_eq!(path(&p), "login");
    p.note_path("search_path", Some("d"), Scope::Local);
    assert_eq!(path(&p), "login", "no transaction, no effect");
}

#[test]
fn literals_survive_quotes_and_backslashes() {
    assert_eq!(literal("o'x"), "'o''x'");
    assert_eq!(literal(r"a\'b"), r"E'a\\''b'");
}

#[test]
fn a_role_of_the_transaction_is_taken_again_and_given_back() {
    let mut p = Params::new(Values::default(), "anna");
    let mut local = |begin: &[(&str, Option<&str>)], role: &str| {
        p.discard_all();
        for (command, value) in begin {
            p.note_set("role", command);
            p.note_path("role", *value, Scope::Session);
        }
        p.begin();
        p.note_local("role", "SET LOCAL ROLE ...");
        p.note_path("role", Some(role), Scope::Local);
        let found = p.local_role();
        p.commit();
        assert_eq!(p.local_role(), None);
        found.map(|role| (role.take, role.give_back))
    };
    let take = |role: &str| format!("SELECT pg_catalog.set_config('role', '{role}', false)");
    assert_eq!(
        local(&[], "bert"),
        Some((take("bert"), "RESET ROLE".to_owned()))
    );
    let carl = ("SET ROLE carl", Some("carl"));
    assert_eq!(
        local(&[carl], "bert"),
        Some((take("bert"), carl.0.to_owned()))
    );
    assert_eq!(
        local(&[carl], "none"),
        Some((take("none"), carl.0.to_owned()))
    );
    assert_eq!(local(&[carl], "carl"), None);
}

#[test]
fn a_session_user_takes_the_role_away() {
    let mut p = Params::new(Values::default(), "anna");
    p.note_set("role", "SET ROLE bert");
    p.note_set("session_authorization", "SET SESSION AUTHORIZATION carl");
    assert_eq!(
        p.wanted().keys().collect::<Vec<_>>(),
        ["session_authorization"]
    );
    p.note_set("role", "SET ROLE bert");
    p.note_reset("session_authorization");
    assert!(p.wanted().is_empty());
}
