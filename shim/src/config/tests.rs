//! What is shown: files in PgDog's form are read with PgDog's meaning, and a mistake is answered
//! with the place, the reason and the remedy.

use super::*;

const NODES: &str = r#"
[[databases]]
name = "prod"
host = "10.0.0.1"
[[databases]]
name = "prod"
host = "10.0.0.11"
role = "replica"
[[databases]]
name = "prod"
host = "10.0.0.2"
shard = 1
"#;

const USERS: &str = r#"
[[users]]
name = "app"
database = "prod"
password = "s3cret"
[[users]]
name = "boss"
database = "prod"
password = "b"
schema_admin = true
"#;

fn parse(extra: &str) -> Result<Config, ConfigError> {
    Config::parse(&format!("{extra}\n{NODES}"), USERS)
}

fn with(extra: &str) -> Result<Config, ConfigError> {
    Config::parse(&format!("{NODES}\n{extra}"), USERS)
}

fn problem_of(result: Result<Config, ConfigError>) -> String {
    result.expect_err("must be refused").problems.join("\n")
}

#[test]
fn defaults_are_those_of_pgdog() {
    let config = parse("").unwrap();
    assert_eq!(config.general.port, 6432);
    assert_eq!(config.general.default_pool_size, 10);
    assert_eq!(config.general.checkout_timeout, Ms(5_000));
    assert_eq!(config.general.pooler_mode, PoolerMode::Transaction);
    assert_eq!(config.databases[0].port, 5432);
    assert_eq!(config.databases[0].database_on_node(), "prod");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn a_pgdog_file_with_idle_keys_is_accepted_with_one_warning_each() {
    let config = parse(
        "[general]\nhealthcheck_interval = 30000\nban_timeout = 1\nport = 6400\n\
         [plugins]\nname = 'p'\n[memory]\nnet_buffer = 1\n",
    )
    .unwrap();
    assert_eq!(config.general.port, 6400);
    assert_eq!(config.warnings.len(), 4, "{:?}", config.warnings);
    assert!(config.warnings[0].contains("[memory]") || config.warnings[0].contains("[plugins]"));
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    let problem = problem_of(parse("[general]\ndefault_poolsize = 3"));
    assert!(
        problem.contains("unknown key default_poolsize"),
        "{problem}"
    );
    assert!(
        problem.contains("did you mean default_pool_size?"),
        "{problem}"
    );
    let problem = problem_of(with("[[sharded_table]]\ndatabase = 'prod'"));
    assert!(
        problem.contains("did you mean sharded_tables?"),
        "{problem}"
    );
    let users = "[[users]]\nname = 'a'\ndatabase = 'prod'\npasword = 'x'";
    let problem = problem_of(Config::parse(NODES, users));
    assert!(problem.contains("did you mean password?"), "{problem}");
}

#[test]
fn keys_that_cannot_be_ignored_are_refused_with_the_reason() {
    let problem = problem_of(with("[[sharded_schemas]]\nname = 'x'"));
    assert!(problem.contains("names no database"), "{problem}");
    let schema = "[[sharded_schemas]]\ndatabase = 'prod'\nname = 'x'\nshard = 0";
    let problem = problem_of(with(schema));
    assert!(problem.contains("placement by schema"), "{problem}");
    let table = "[[sharded_tables]]\ndatabase='prod'\ncolumn='v'\ncentroids=[[1.0]]";
    assert!(problem_of(with(table)).contains("vectors"));
}

#[test]
fn a_database_that_cannot_be_served_does_not_keep_the_others_from_it() {
    for (more, why) in [
        (
            "[[sharded_schemas]]\ndatabase = 'other'\nname = 'x'\nshard = 0",
            "placement by schema",
        ),
        (
            "[[sharded_tables]]\ndatabase = 'other'\ncolumn = 'v'\ncentroids = [[1.0]]",
            "vectors",
        ),
        (
            "[[databases]]\nname = 'other'\nhost = 'i'\nuser = 'u'",
            "server_user",
        ),
    ] {
        // Both shards in one database: that is only for schemas.
        let other = "[[databases]]\nname = 'other'\nhost = 'h'\n\
                     [[databases]]\nname = 'other'\nhost = 'h'\nshard = 1\n";
        let config = with(&format!("{other}{more}")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.database_names(), ["prod"]);
        assert!(
            config.unserved["other"].contains(why),
            "{:?}",
            config.unserved
        );
        let told = |w: &String| w.contains("database other is not served") && w.contains(why);
        assert!(config.warnings.iter().any(told), "{:?}", config.warnings);
    }
    let config = with("[[databases]]\nname = '*'\nhost = 'h'").unwrap();
    assert_eq!(config.database_names(), ["prod"]);
    assert!(config.unserved["*"].contains("one by one"));
}

#[test]
fn a_user_of_a_database_that_is_not_there_is_a_warning() {
    let users = format!("{USERS}[[users]]\nname = 'c'\ndatabase = 'gone'\npassword = 'p'\n");
    let config = Config::parse(NODES, &users).unwrap();
    let told = |w: &String| w.contains("[[users]] c: database gone");
    assert!(config.warnings.iter().any(told), "{:?}", config.warnings);
}

#[test]
fn a_wrong_type_is_refused() {
    assert!(problem_of(parse("[general]\nport = 'many'")).contains("pgdog.toml"));
    assert!(problem_of(parse("[general]\nmin_lsn_wait = -1")).contains("pgdog.toml"));
    assert!(problem_of(parse("[general")).contains("line 1"));
}

#[test]
fn lookup_and_query_go_together() {
    let table = "[[sharded_tables]]\ndatabase='prod'\ncolumn='a'\n";
    assert!(problem_of(with(&format!("{table}lookup='accounts'"))).contains("go together"));
    assert!(problem_of(with(&format!("{table}query='SELECT 1, 2'"))).contains("go together"));
    assert!(with(&format!("{table}lookup='accounts'\nquery='SELECT 1, 2'")).is_ok());
}

#[test]
fn a_lookup_query_refers_to_its_key_and_excludes_a_mapping() {
    let table = "[[sharded_tables]]\ndatabase='prod'\nname='o'\ncolumn='a'\n";
    let problem = problem_of(with(&format!("{table}lookup_query='SELECT 1'")));
    assert!(problem.contains("$1"), "{problem}");
    let both = format!(
        "{table}lookup_query='SELECT $1'\nlookup_result='shard'\n\
         mapping=[{{kind='list', values=[1], shard=0}}]"
    );
    assert!(problem_of(with(&both)).contains("exclude each other"));
    let shard = problem_of(with(&format!("{table}lookup_result='shard'")));
    assert!(shard.contains("needs a lookup_query"), "{shard}");
}

#[test]
fn mappings_of_pgdog_go_to_their_table() {
    let text = "[[sharded_tables]]\ndatabase='prod'\ncolumn='a'\n\
        [[sharded_mappings]]\ndatabase='prod'\ncolumn='a'\nkind='list'\nvalues=[1,'x']\nshard=1\n\
        [[sharded_mappings]]\ndatabase='prod'\ncolumn='a'\nkind='default'\nshard=0";
    let config = with(text).unwrap();
    let mapping = &config.sharded_tables[0].mapping;
    assert_eq!(mapping.len(), 2);
    assert_eq!(
        mapping[0].values,
        vec![Key::Number(1), Key::Text("x".to_owned())]
    );
    assert!(problem_of(with(&text.replace("shard=1", "shard=9"))).contains("shard 9"));
    let orphan = text.replacen("column='a'", "column='b'", 1);
    assert!(problem_of(with(&orphan)).contains("no [[sharded_tables]] entry"));
}

#[test]
fn shards_are_numbered_without_a_gap_and_have_one_primary() {
    let node = |shard: u16, more: &str| {
        format!("[[databases]]\nname='prod'\nhost='10.0.1.{shard}'\nshard={shard}\n{more}")
    };
    assert!(problem_of(with(&node(1, ""))).contains("2 primaries"));
    assert!(problem_of(with(&node(3, ""))).contains("shard 2 has no node"));
    assert!(problem_of(with(&node(2, "role='replica'"))).contains("no primary"));
    assert!(with(&node(2, "provisioning=true")).is_ok());
    let gap = format!("{}\n{}", node(2, "provisioning=true"), node(3, ""));
    assert!(problem_of(with(&gap)).contains("higher shard 3"));
    let twice = "[[databases]]\nname='prod'\nhost='10.0.0.11'\nrole='replica'";
    assert!(problem_of(with(twice)).contains("listed twice"));
    let both = "[[databases]]\nname='prod'\nhost='10.0.0.11'\nrole='primary'\nshard=2\n\
                [[databases]]\nname='prod'\nhost='10.0.0.11'\nrole='replica'\nshard=2";
    let config = with(&both.replace("10.0.0.11", "10.0.0.3")).unwrap();
    assert_eq!(
        config.databases.len(),
        4,
        "as PgDog's examples have it: one node"
    );
    assert!(config.warnings.iter().any(|w| w.contains("it is one node")));
    let loopback = both.replacen("10.0.0.11", "127.0.0.1", 1);
    let config = with(&loopback.replace("10.0.0.11", "localhost")).unwrap();
    assert_eq!(config.databases.len(), 4, "two names of this machine");
}

#[test]
fn an_admin_section_without_a_password_disables_the_admin_database() {
    let config = parse("[admin]\nuser = 'root'").unwrap();
    assert!(
        config
            .warnings
            .iter()
            .any(|w| w.contains("no admin database"))
    );
    let config = parse("[admin]\npassword = 'p'").unwrap();
    assert_eq!(config.admin.user, "admin");
    let users = format!("{USERS}[admin]\npassword = 'q'");
    let both = format!("[admin]\npassword = 'p'\n{NODES}");
    let config = Config::parse(&both, &users).unwrap();
    assert_eq!(config.admin.password.as_deref(), Some("q"));
}

#[test]
fn a_table_is_sharded_or_omnisharded_once() {
    let text = "[[sharded_tables]]\ndatabase='prod'\nname='o'\ncolumn='a'\n\
                [[omnisharded_tables]]\ndatabase='prod'\ntables=['o', 'p', 'p']";
    let problem = problem_of(with(text));
    assert!(
        problem.contains("both sharded and omnisharded"),
        "{problem}"
    );
    assert!(problem.contains("p is listed twice"), "{problem}");
    let problem = problem_of(with(
        "[[omnisharded_tables]]\ndatabase='nope'\ntables=['x']",
    ));
    assert!(problem.contains("not in [[databases]]"), "{problem}");
}

#[test]
fn users_have_a_database_and_a_password_and_keep_it_out_of_debug() {
    let closed = format!("[general]\npassthrough_auth = 'disabled'\n{NODES}");
    let problem = problem_of(Config::parse(&closed, "[[users]]\nname='a'"));
    assert!(
        problem.contains("no database") && problem.contains("no password"),
        "{problem}"
    );
    let config = parse("").unwrap();
    assert!(!format!("{:?}", config.users).contains("s3cret"));
    assert_eq!(config.control_user("prod").unwrap().name, "boss");
    assert!(config.user("app", "other").is_none());
}

#[test]
fn files_are_read_from_disk_and_users_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pgdog.toml");
    let missing = Config::load(&path, &path).unwrap_err();
    assert!(missing.to_string().contains("cannot read"));
    std::fs::write(&path, NODES).unwrap();
    let config = Config::load(&path, &dir.path().join("users.toml")).unwrap();
    assert_eq!(config.path, path);
    assert_eq!(config.users.users, vec![]);
}

#[test]
fn users_without_a_password_are_known_to_the_nodes() {
    let users = "[[users]]\nname = 'a'\ndatabase = 'prod'\n\
                 [[users]]\nname = 'b'\ndatabase = 'prod'\npassword = 'x'\n";
    let config = Config::parse(NODES, users).unwrap();
    assert_eq!(config.general.passthrough_auth, Passthrough::Enabled);
    let control = config.control_user("prod").unwrap();
    assert_eq!(control.name, "b", "somebody who can log in by himself");
    let hashed = "md5d41d8cd98f00b204e9800998ecf8427e";
    let users = format!(
        "[[users]]\nname = 'a'\ndatabase = 'prod'\npassword = '{hashed}'\nserver_user = 's'\n\
         [[users]]\nname = 'b'\ndatabase = 'prod'\npassword = '{hashed}'\nschema_admin = true\n"
    );
    let problem = problem_of(Config::parse(NODES, &users));
    assert!(
        problem.contains("a: server_user needs a server_password"),
        "{problem}"
    );
    assert!(
        problem.contains("b: a schema_admin logs in by itself"),
        "{problem}"
    );
}

#[test]
fn certificates_and_keys_come_in_pairs_and_tls_is_not_promised_without() {
    let problem = problem_of(parse("[general]\ntls_private_key = 'x'\n"));
    assert!(problem.contains("without tls_certificate"), "{problem}");
    let problem = problem_of(parse("[general]\ntls_server_certificate = 'x'\n"));
    assert!(
        problem.contains("without tls_server_private_key"),
        "{problem}"
    );
    let text = "[general]\ntls_client_required = true\ntls_client_ca_certificate = 'x'\n";
    let problem = problem_of(parse(text));
    assert!(
        problem.contains("tls_client_required: TLS is not served"),
        "{problem}"
    );
    assert!(
        problem.contains("tls_client_ca_certificate: TLS"),
        "{problem}"
    );
    for (text, mode) in [
        ("disabled", TlsVerify::Disabled),
        ("disable", TlsVerify::Disabled),
        ("require", TlsVerify::Require),
        ("verify-ca", TlsVerify::VerifyCa),
        ("verify_full", TlsVerify::VerifyFull),
    ] {
        let config = parse(&format!("[general]\ntls_verify = '{text}'\n")).unwrap();
        assert_eq!(config.general.tls_verify, mode);
    }
}

#[test]
fn every_problem_is_told_at_once_with_its_line() {
    let text = "[general]\nport = 'many'\nworkerz = 1\nmin_lsn_wait = -1\n\
                [[databases]]\nname = 'prod'\nhost = 7\n[admn]\n";
    let users = "[[users]]\nname = 'a'\npasword = 'x'\n";
    let problems = Config::parse(text, users).unwrap_err().problems;
    let told = |line: &str, what: &str| {
        problems
            .iter()
            .any(|p| p.starts_with(line) && p.contains(what))
    };
    assert!(told("pgdog.toml, line 2:", "expected u16"), "{problems:?}");
    assert!(
        told("pgdog.toml, line 3:", "did you mean workers?"),
        "{problems:?}"
    );
    assert!(told("pgdog.toml, line 4:", "expected u64"), "{problems:?}");
    assert!(
        told("pgdog.toml, line 7:", "expected a string"),
        "{problems:?}"
    );
    assert!(
        told("pgdog.toml, line 8:", "did you mean admin?"),
        "{problems:?}"
    );
    assert!(
        told("users.toml, line 3:", "did you mean password?"),
        "{problems:?}"
    );
}

/// The keys that PgDog's own example files have, with values of the kind that stands there.
#[test]
fn the_keys_of_pgdogs_examples_are_accepted() {
    let general = "[general]\nhost = '0.0.0.0'\nport = 6432\nworkers = 2\n\
        default_pool_size = 10\nmin_pool_size = 1\npooler_mode = 'transaction'\n\
        healthcheck_interval = 30_000\nidle_healthcheck_interval = 30_000\n\
        idle_healthcheck_delay = 5_000\nhealthcheck_timeout = 5_000\nban_timeout = 300_000\n\
        rollback_timeout = 5_000\nload_balancing_strategy = 'random'\n\
        read_write_strategy = 'conservative'\nshutdown_timeout = 60_000\n\
        shutdown_termination_timeout = 60_000\nopenmetrics_port = 9090\n\
        openmetrics_namespace = 'pgdog_'\nprepared_statements = 'extended'\n\
        prepared_statements_limit = 1_000\nquery_cache_limit = 1_000\n\
        passthrough_auth = 'disabled'\nconnect_timeout = 5_000\nconnect_attempts = 1\n\
        connect_attempt_delay = 1_000\nquery_timeout = 60_000\ncheckout_timeout = 5_000\n\
        dry_run = false\nidle_timeout = 60_000\nclient_idle_timeout = 60_000\n\
        mirror_queue = 128\nauth_type = 'scram'\ncross_shard_disabled = false\n\
        dns_ttl = 5_000\ntls_client_required = false\n";
    let rest = "[admin]\nname = 'admin'\npassword = 'p'\nuser = 'admin'\n\
        [tcp]\nretries = 3\ntime = 1000\ninterval = 1000\nuser_timeout = 1000\n\
        connect_retries = 3\ncongestion_control = 'reno'\n\
        [[databases]]\nname = 'prod'\nhost = '10.0.0.12'\nrole = 'replica'\nread_only = true\n\
        [[sharded_tables]]\ndatabase = 'prod'\nname = 's'\ncolumn = 'id'\n\
        data_type = 'bigint'\nprimary = true\n\
        [[sharded_mappings]]\ndatabase = 'prod'\ntable = 's'\ncolumn = 'id'\nkind = 'list'\n\
        values = [1, 2]\nshard = 0\n\
        [[sharded_tables]]\ndatabase = 'prod'\ncolumn = 'tenant_id'\n\
        [[sharded_tables.mapping]]\nvalues = [3]\nshard = 1\n\
        [[omnisharded_tables]]\ndatabase = 'prod'\ntables = ['o']\n\
        [[manual_queries]]\nfingerprint = 'e78f'\n\
        [otel]\nendpoint = 'x'\n[memory]\nnet_buffer = 1\n[rewrite]\nenabled = false\n";
    let config = Config::parse(&format!("{general}{NODES}{rest}"), USERS).unwrap();
    assert_eq!(config.tcp.user_timeout, Ms(1_000));
    assert_eq!(config.sharded_tables[1].mapping[0].kind, MappingKind::List);
    let twice = config
        .warnings
        .iter()
        .filter(|w| w.contains("dns_ttl"))
        .count();
    assert_eq!(twice, 1, "{:?}", config.warnings);
}

#[test]
fn an_idle_key_is_not_one_that_is_read() {
    let read: Vec<&str> = [
        (keys::fields_of::<General>(), known::IDLE_GENERAL),
        (keys::fields_of::<Database>(), known::IDLE_DATABASE),
        (keys::fields_of::<User>(), known::IDLE_USER),
        (keys::fields_of::<Config>(), known::IDLE_TOP),
    ]
    .into_iter()
    .flat_map(|(fields, idle)| idle.iter().copied().filter(|key| fields.contains(key)))
    .collect();
    assert!(read.is_empty(), "{read:?}");
    assert!(
        parse("[general]\nmax_pool_size = 3")
            .unwrap()
            .general
            .default_pool_size
            == 3
    );
}

#[test]
fn a_setting_of_the_operator_counts_before_the_file() {
    let with = |name: &str, value: &str| {
        let set = [(name.to_owned(), value.to_owned())];
        let text = format!("[general]\nport = 1\ncheckout_timeout = 5\n{NODES}");
        Config::parse_with(&text, USERS, &set)
    };
    let config = with("checkout_timeout", "7").unwrap();
    assert_eq!(
        (config.general.checkout_timeout, config.general.port),
        (Ms(7), 1)
    );
    let split = with("read_write_split", "exclude_primary").unwrap();
    assert_eq!(
        split.general.read_write_split,
        ReadWriteSplit::ExcludePrimary
    );
    assert!(problem_of(with("checkout_timeot", "7")).contains("did you mean checkout_timeout?"));
    assert!(problem_of(with("checkout_timeout", "soon")).contains("invalid type"));
    let shown = split.entries();
    let value = |name: &str| {
        shown
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    };
    assert_eq!(value("read_write_split"), Some("exclude_primary"));
    assert_eq!(value("query_timeout"), Some("default"));
    assert_eq!(value("tcp_retries"), Some("3"));
}
