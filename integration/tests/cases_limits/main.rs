//! What the configuration bounds, how it is changed while clients work, and what operators see.

mod admin;
mod files;
mod reload;
mod storms;

use std::process::ExitCode;

use pgdog_integration::fixture::create;
use pgdog_integration::{Cluster, Shape, claims, suite};

use admin::*;
use files::*;
use reload::*;
use storms::*;

fn main() -> ExitCode {
    let shape = Shape::shards(2).spares(1).shims(2);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(create(cluster))),
        claims![
            r145_reloads_disturb_nobody,
            r146_different_declarations_are_shown_and_nothing_grows,
            a_bad_file_changes_nothing,
            a_database_in_service_is_not_set_aside,
            sizes_and_users_and_databases_change_at_reload,
            r147_a_small_pool_serves_many_clients,
            r148_clients_beyond_the_limit_are_told_at_once,
            r149_clients_that_leave_in_any_way_leave_nothing,
            r150_logins_are_served_by_one_thread_and_by_four,
            r151_texts_without_end_do_not_fill_the_memory,
            idle_clients_are_sent_away,
            many_idle_clients_hold,
            r152_the_oldest_wait_is_the_present_one,
            r153_the_admin_database_answers_every_form_of_a_command,
            operators_choose_columns_and_set_settings,
            r154_replication_connections_are_refused_with_a_text,
            a_pause_holds_new_transactions_only,
            a_stop_lets_transactions_end,
            files_of_pgdog_start_the_shim,
        ],
    )
}

/// The lines of a shim's configuration, changed and written without telling the shim.
pub fn rewrite(
    cluster: &Cluster,
    shim: usize,
    change: impl FnOnce(&str) -> String,
) -> anyhow::Result<String> {
    let path = &cluster.description().shims[shim].config;
    let before = std::fs::read_to_string(path)?;
    std::fs::write(path, change(&before))?;
    Ok(before)
}

/// A setting of `[general]` in place of the one that stands there, if any.
pub fn with_general(text: &str, key: &str, value: &str) -> String {
    let kept = text
        .lines()
        .filter(|line| !line.starts_with(&format!("{key} =")));
    let text = kept.collect::<Vec<_>>().join("\n") + "\n";
    text.replacen("[general]\n", &format!("[general]\n{key} = {value}\n"), 1)
}
