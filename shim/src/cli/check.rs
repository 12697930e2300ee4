//! `pgdog check`: are the files acceptable?

use anyhow::{Context as _, bail};

use crate::config::{Config, Lookup};
use crate::nodes::one_of_the_map;
use crate::plan::{unfit_lookup, unfit_map};

/// Prints the warnings and what the files declare. Errors were reported by loading them; those
/// that only a node would find, in the texts of lookups, are found here.
pub(super) fn run(config: &Config) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&config.path)
        .with_context(|| format!("cannot read {}", config.path.display()))?;
    let problems = problems(&Config::lookups(&text));
    if !problems.is_empty() {
        bail!(
            "lookups that the nodes will refuse:\n  - {}",
            problems.join("\n  - ")
        );
    }
    for warning in &config.warnings {
        println!("warning: {warning}");
    }
    for name in config.database_names() {
        let mut serving: Vec<u16> = Vec::new();
        let mut provisioning: Vec<u16> = Vec::new();
        for node in config.nodes(name) {
            let list = match node.provisioning {
                true => &mut provisioning,
                false => &mut serving,
            };
            if !list.contains(&node.shard) {
                list.push(node.shard);
            }
        }
        println!(
            "database {name}: {} nodes, {} shards, {} provisioning, {} users",
            config.nodes(name).count(),
            serving.len(),
            provisioning.len(),
            config
                .users
                .users
                .iter()
                .filter(|u| u.may_use(name))
                .count(),
        );
    }
    println!(
        "{} and {} are fine",
        config.path.display(),
        config.users_path.display()
    );
    Ok(())
}

fn problems(lookups: &[Lookup]) -> Vec<String> {
    let unfit = |lookup: &Lookup| match lookup.is_map {
        true => unfit_map(&lookup.query).or_else(|| unfit_lookup(&one_of_the_map(&lookup.query))),
        false => unfit_lookup(&lookup.query),
    };
    let found = lookups.iter().filter_map(|lookup| {
        let why = unfit(lookup)?;
        Some(format!("{}: {}: {why}", lookup.place, lookup.label))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_are_judged_with_their_places() {
        let text = r#"
[[sharded_tables]]
database = "d"
name = "orders"
column = "k"
lookup_query = "SELECT s FROM m WHERE k = $1 AND at < now()"

[[sharded_tables]]
database = "d"
column = "k"
lookup = "m"
query = """SELECT k
  FROM m"""

[[sharded_tables]]
database = "d"
name = "lines"
column = "k"
lookup_query = "SELECT s FROM m WHERE k = $1"

[[sharded_tables]]
database = "d"
name = "parts"
column = "k"
lookup = "m"
query = "SELECT k, s FROM m -- all"
"#;
        let problems = problems(&Config::lookups(text));
        let [first, second] = problems.as_slice() else {
            panic!("{problems:?}");
        };
        let begins =
            "pgdog.toml, line 6: [[sharded_tables]] orders.k: lookup_query: it calls now()";
        assert!(first.starts_with(begins), "{first}");
        let begins = "pgdog.toml, line 12: [[sharded_tables]] *.k: query: it must answer keys";
        assert!(second.starts_with(begins), "{second}");
    }
}
