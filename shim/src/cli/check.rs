//! `pgdog check`: are the files acceptable?

use crate::config::Config;

/// Prints the warnings and what the files declare. Errors were reported by loading them.
pub(super) fn run(config: &Config) -> anyhow::Result<()> {
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
