//! How many of everything the configuration and the system allow.

use std::collections::HashMap;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::{Config, Database, Tcp, User};
use crate::net::{Dialer, TcpSettings};
use crate::server::{Endpoint, PoolLimits, PoolSettings};

/// One in so many file descriptors is not given to clients: servers, files, operators need some.
const SPARED: u64 = 8;

/// What pools need of the configuration.
pub fn pools(config: &Config, dialer: Arc<Dialer>) -> PoolSettings {
    let general = &config.general;
    let base = PoolLimits {
        size: general.default_pool_size,
        min: general.min_pool_size,
        idle_timeout: general.idle_timeout.into(),
        lifetime: general.server_lifetime.into(),
    };
    let mut limits = HashMap::new();
    for node in &config.databases {
        let endpoint = endpoint(node);
        let of_node = of_node(base, node);
        limits.insert((endpoint.clone(), String::new()), of_node);
        let users = config.users.users.iter();
        for user in users.filter(|user| user.may_use(&node.name)) {
            let key = (endpoint.clone(), user.name_on_node().to_owned());
            limits.insert(key, of_user(of_node, user));
        }
    }
    PoolSettings {
        dialer,
        size: base.size,
        min: base.min,
        idle_timeout: base.idle_timeout,
        lifetime: base.lifetime,
        connect_timeout: general.connect_timeout.into(),
        prepared_statements_limit: general.prepared_statements_limit,
        tcp: tcp(&config.tcp),
        limits,
    }
}

fn of_node(base: PoolLimits, node: &Database) -> PoolLimits {
    PoolLimits {
        size: node.pool_size.unwrap_or(base.size),
        min: node.min_pool_size.unwrap_or(base.min),
        idle_timeout: node.idle_timeout.map_or(base.idle_timeout, Into::into),
        lifetime: node.server_lifetime.map_or(base.lifetime, Into::into),
    }
}

fn of_user(base: PoolLimits, user: &User) -> PoolLimits {
    PoolLimits {
        size: user.pool_size.unwrap_or(base.size),
        min: user.min_pool_size.unwrap_or(base.min),
        idle_timeout: user.idle_timeout.map_or(base.idle_timeout, Into::into),
        lifetime: user.server_lifetime.map_or(base.lifetime, Into::into),
    }
}

/// Where a declared node is.
pub fn endpoint(node: &Database) -> Endpoint {
    Endpoint {
        host: node.host.clone(),
        port: node.port,
        database: node.database_on_node().to_owned(),
    }
}

/// Options of the sockets.
pub fn tcp(tcp: &Tcp) -> TcpSettings {
    TcpSettings {
        keepalive: tcp
            .keepalive
            .then(|| (tcp.time.into(), tcp.interval.into(), tcp.retries)),
        user_timeout: tcp.user_timeout.into(),
        congestion_control: tcp.congestion_control.clone(),
    }
}

/// Allows this process all the file descriptors that it may have.
pub fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
}

/// How many clients may be connected: what is configured, and what there are descriptors for.
pub fn clients(config: &Config) -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    let possible = usize::try_from(descriptors - descriptors / SPARED).unwrap_or(usize::MAX);
    config
        .general
        .max_client_conn
        .unwrap_or(possible)
        .min(possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_counts_before_the_node_and_the_node_before_the_default() {
        let files = (
            "[general]\ndefault_pool_size = 7\nmax_client_conn = 3\n\
             [[databases]]\nname = \"a\"\nhost = \"h\"\npool_size = 5\n\
             [[databases]]\nname = \"a\"\nhost = \"i\"\nshard = 1\n",
            "[[users]]\nname = \"u\"\ndatabase = \"a\"\npassword = \"p\"\n\
             [[users]]\nname = \"v\"\ndatabase = \"a\"\npassword = \"p\"\npool_size = 2\n",
        );
        let config = Config::parse(files.0, files.1).expect("acceptable");
        let pools = pools(&config, Arc::default());
        let size =
            |node: usize, user: &str| pools.limits(&endpoint(&config.databases[node]), user).size;
        assert_eq!((size(0, "u"), size(0, "v")), (5, 2));
        assert_eq!((size(1, "u"), size(1, "v")), (7, 2));
        assert_eq!((size(0, "unlisted"), size(1, "unlisted")), (5, 7));
        assert_eq!(clients(&config), 3);
    }
}
