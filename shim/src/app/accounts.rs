//! What sessions need of the configuration.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::limits;
use crate::config::{
    AuthType, BalancingStrategy, Config, Passthrough, PoolerMode, ReadWriteSplit,
    ReadWriteStrategy, User,
};
use crate::server::{Password, Secret};
use crate::session::{Account, Auth, Balancing, Keep, Known, Reads, Settings, Values};

/// The part of the configuration that sessions see.
pub fn settings(config: &Config) -> Settings {
    let general = &config.general;
    let password = config.admin.password.as_ref();
    let admin = password.filter(|p| !p.is_empty()).map(|password| Account {
        known: Known::Password(Arc::new(Password::new(password))),
        databases: Some(vec![config.admin.name.clone()]),
        ..Account::unlisted(&config.admin.user)
    });
    Settings {
        number: 0,
        admin,
        admin_database: config.admin.name.clone(),
        accounts: config.users.users.iter().map(account).collect(),
        auth: match general.auth_type {
            AuthType::Scram => Auth::Scram,
            AuthType::Md5 => Auth::Md5,
            AuthType::Plain => Auth::Plain,
            AuthType::Trust => Auth::Trust,
        },
        keep: keep(general.pooler_mode),
        keep_of_database: keep_of_database(config),
        asks_nodes: general.passthrough_auth == Passthrough::Enabled,
        tls_required: general.tls_client_required,
        mock_secret: mock_secret(config),
        reads: match general.read_write_split {
            ReadWriteSplit::IncludePrimary => Reads::AnyNode,
            ReadWriteSplit::ExcludePrimary => Reads::Replicas,
            ReadWriteSplit::PreferPrimary => Reads::Primary,
        },
        first_decides: general.read_write_strategy == ReadWriteStrategy::Aggressive,
        balancing: match general.load_balancing_strategy {
            BalancingStrategy::Random => Balancing::Random,
            BalancingStrategy::RoundRobin => Balancing::RoundRobin,
            BalancingStrategy::LeastActiveConnections => Balancing::LeastActive,
            BalancingStrategy::WeightedRoundRobin => Balancing::Weighted,
        },
        two_phase: general.two_phase_commit,
        values: Values {
            min_lsn_wait_ms: general.min_lsn_wait.0,
            primary_fallback: general.min_lsn_primary_fallback,
            ..Values::default()
        },
        checkout_timeout: general.checkout_timeout.into(),
        login_timeout: general.client_login_timeout.into(),
        max_clients: limits::clients(config),
        idle_timeout: general.client_idle_timeout.map(Into::into),
        idle_in_transaction_timeout: general.client_idle_in_transaction_timeout.map(Into::into),
        tcp: limits::tcp(&config.tcp),
        query_timeout: general.query_timeout.map(Into::into),
    }
}

/// What a user's server connections start with.
fn params(user: &User) -> Vec<(String, String)> {
    let ms = |value: Option<u64>| value.map(|ms| ms.to_string());
    let read_only = user.read_only.unwrap_or_default().then(|| "on".to_owned());
    let given = [
        ("default_transaction_read_only", read_only),
        ("lock_timeout", ms(user.lock_timeout)),
        ("statement_timeout", ms(user.statement_timeout)),
    ];
    let given = given.into_iter();
    given
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

fn keep(mode: PoolerMode) -> Keep {
    match mode {
        PoolerMode::Transaction => Keep::Transaction,
        PoolerMode::Session => Keep::Session,
        PoolerMode::Statement => Keep::Statement,
    }
}

/// Every node of a database may say it; the first one that does counts.
fn keep_of_database(config: &Config) -> HashMap<String, Keep> {
    let mut modes = HashMap::new();
    for node in &config.databases {
        if let Some(mode) = node.pooler_mode {
            modes.entry(node.name.clone()).or_insert(keep(mode));
        }
    }
    modes
}

fn account(user: &User) -> Account {
    let mut databases = user.databases.clone();
    databases.extend(user.database.clone());
    let known = match &user.password {
        Some(text) => Known::listed(text),
        None => Known::Nothing,
    };
    let server_secret = match (&user.server_password, &known) {
        (Some(password), _) => Some(Secret::password(password)),
        // One and the same, so that keys derived from it are found again.
        (None, Known::Password(password)) => Some(Secret::Password(password.clone())),
        (None, Known::Nothing | Known::Scram(_) | Known::Md5(_)) => None,
    };
    Account {
        name: user.name.clone(),
        known,
        databases: (!user.all_databases).then_some(databases),
        server_user: user.name_on_node().to_owned(),
        server_secret,
        params: params(user),
        idle_timeout: user.client_idle_timeout.map(Into::into),
        keep: user.pooler_mode.map(keep),
        identity: user.identity.as_ref().unwrap_or(&user.name).clone(),
        needs_certificate: user.tls_client_certificate_required,
    }
}

/// Known to who knows the passwords, the same in all shims with these files: a salt that changes
/// from one shim or start to the next would be known as made up.
fn mock_secret(config: &Config) -> Option<[u8; 32]> {
    let of_users = config.users.users.iter();
    let passwords: Vec<&String> = of_users
        .flat_map(|user| [&user.password, &user.server_password])
        .chain([&config.admin.password])
        .flatten()
        .collect();
    let mut hash = Sha256::new_with_prefix("salts of users that do not exist");
    for password in &passwords {
        hash.update(password.len().to_be_bytes());
        hash.update(password);
    }
    (!passwords.is_empty()).then(|| hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: (&str, &str) = (
        "[general]\nport = 1\nauth_type = \"trust\"\nmin_lsn_wait = 7\n\
         [[databases]]\nname = \"a\"\nhost = \"127.0.0.1\"\n",
        "[[users]]\nname = \"u\"\ndatabase = \"a\"\npassword = \"p\"\nserver_user = \"s\"\n",
    );

    #[test]
    fn a_user_may_use_his_databases_only() {
        let settings = settings(&Config::parse(FILES.0, FILES.1).unwrap());
        assert_eq!(settings.account("u", "a").unwrap().server_user, "s");
        assert!(settings.account("u", "b").is_none());
        assert!(settings.account("v", "a").is_none());
        assert_eq!(settings.auth, Auth::Trust);
        assert!(settings.asks_nodes && !settings.tls_required);
        let other = Config::parse(FILES.0, FILES.1).unwrap();
        assert_eq!(
            settings.mock_secret,
            mock_secret(&other),
            "the same in all shims"
        );
        assert_eq!(settings.values.min_lsn_wait_ms, 7);
        assert!(settings.admin.is_none(), "no password, no admin database");
    }

    #[test]
    fn the_mode_of_the_user_counts_before_the_databases() {
        let (toml, users) = FILES;
        let toml = format!("{toml}pooler_mode = \"session\"\n");
        let users = format!(
            "{users}[[users]]\nname = \"v\"\ndatabase = \"a\"\npassword = \"p\"\n\
             pooler_mode = \"statement\"\n"
        );
        let settings = settings(&Config::parse(&toml, &users).unwrap());
        let keep = |user: &str| settings.keep_for(settings.account(user, "a").unwrap(), "a");
        assert_eq!((keep("u"), keep("v")), (Keep::Session, Keep::Statement));
        assert_eq!(settings.keep, Keep::Transaction);
    }
}
