//! Settings follow their client: through transactions, roles, resets and start-up, and never reach
//! the next one.

mod modes;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use pgdog_integration::client::{Client, Login};
use pgdog_integration::fixture::{configure, direct, plain, wire};
use pgdog_integration::wire::{Batch, Wire, ask, expect, shape};
use pgdog_integration::{Cluster, Shape, claims, suite};

use modes::{
    session_mode_keeps_everything_and_leaves_nothing, statement_mode_refuses_transactions,
};

/// A shim with one server connection.
const ONE: usize = 0;
/// As [`ONE`], in session mode.
const SESSION: usize = 1;
/// As [`ONE`], in statement mode.
const STATEMENT: usize = 2;

fn main() -> ExitCode {
    let shape = Shape::shards(1).shims(3);
    suite::run(
        shape,
        ("prepare", |cluster| Box::pin(prepare(cluster))),
        claims![
            r037_roles_do_not_reach_the_next_client,
            r038_a_custom_setting_belongs_to_its_client,
            r039_local_settings_end_and_session_settings_stay,
            r040_a_reset_goes_back_with_its_transaction,
            r041_an_aborted_client_leaves_nothing,
            r042_options_and_start_up_keys_hold_in_every_transaction,
            r043_login_reports_the_same_settings,
            r044_equal_application_names_are_reported_to_both,
            r045_bad_settings_are_refused_and_leave_no_trace,
            set_config_is_tracked_whatever_its_form,
            a_reset_finds_what_the_client_brought,
            a_rollback_is_reported,
            a_setting_made_by_a_function_stays_with_its_client,
            changed_role_settings_reach_new_clients,
            current_setting_shows_the_shims_own,
            session_mode_keeps_everything_and_leaves_nothing,
            statement_mode_refuses_transactions,
        ],
    )
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    configure(cluster, ONE, &["default_pool_size = 1"]).await?;
    for (shim, mode) in [(SESSION, "session"), (STATEMENT, "statement")] {
        let mode = format!("pooler_mode = \"{mode}\"");
        configure(cluster, shim, &["default_pool_size = 1", &mode]).await?;
    }
    let node = Client::connect(&direct(cluster, 0)?).await?;
    for sql in [
        "CREATE ROLE low",
        "GRANT low TO app",
        "CREATE SCHEMA s9 AUTHORIZATION app",
    ] {
        node.batch_execute(sql).await.context(sql)?;
    }
    let client = cluster.connect().await?;
    client
        .batch_execute("CREATE TABLE public.t (a int); INSERT INTO t VALUES (1)")
        .await?;
    Ok(())
}

/// The login of the servers' superuser, through a shim.
fn superuser(cluster: &Cluster, shim: usize) -> Login {
    let account = &cluster.description().superuser;
    Login {
        user: account.user.clone(),
        password: account.password.clone(),
        ..plain(cluster, shim)
    }
}

async fn r037_roles_do_not_reach_the_next_client(cluster: &Cluster) -> anyhow::Result<()> {
    let who = "select current_user || ' ' || session_user";
    for by_reset in [false, true] {
        let mut a = wire(cluster, ONE).await?;
        a.query("select pg_advisory_lock(5)").await?;
        a.query("set role low").await?;
        expect(&mut a, who, "low app").await?;
        match by_reset {
            true => a.reset()?,
            false => drop(a),
        }
        let mut b = wire(cluster, ONE).await?;
        expect(&mut b, who, "app app").await?;
        expect(&mut b, "select pg_try_advisory_lock(5)", "t").await?;
        b.query("select pg_advisory_unlock(5)").await?;
    }
    // Not pinned: the next client gets the connection while the first one is still there.
    let mut a = wire(cluster, ONE).await?;
    a.query("set role low").await?;
    let mut b = wire(cluster, ONE).await?;
    expect(&mut b, who, "app app").await?;
    expect(&mut a, who, "low app").await?;

    let admin = superuser(cluster, ONE);
    let mut a = Wire::connect(&admin).await?;
    a.query("set work_mem = '3MB'; set session authorization app; set role low")
        .await?;
    let mut b = Wire::connect(&admin).await?;
    let own = format!("{0} {0}", admin.user);
    expect(&mut b, who, &own).await?;
    expect(&mut a, who, "low app").await?;
    expect(&mut a, "show work_mem", "3MB").await?;
    drop(a);
    expect(&mut b, who, &own).await
}

async fn r038_a_custom_setting_belongs_to_its_client(cluster: &Cluster) -> anyhow::Result<()> {
    let tenant = "select coalesce(current_setting('app.tenant', true), '')";
    let mut a = wire(cluster, ONE).await?;
    a.query("set app.tenant = '11'").await?;
    let mut b = wire(cluster, ONE).await?;
    for _ in 0..3 {
        expect(&mut b, tenant, "").await?;
        expect(&mut a, tenant, "11").await?;
    }
    drop(a);
    expect(&mut b, tenant, "").await?;
    let mut c = wire(cluster, ONE).await?;
    expect(&mut c, tenant, "").await
}

async fn r039_local_settings_end_and_session_settings_stay(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (mut a, mut b) = (wire(cluster, ONE).await?, wire(cluster, ONE).await?);
    let default = ask(&mut a, "show statement_timeout").await?;
    a.query("BEGIN").await?;
    a.query("set local statement_timeout = 1234").await?;
    a.query("select 1").await?;
    a.query("set work_mem = '128MB'").await?;
    a.query("COMMIT").await?;
    for _ in 0..10 {
        expect(&mut a, "show work_mem", "128MB").await?;
        expect(&mut a, "show statement_timeout", &default).await?;
        expect(&mut b, "show work_mem", "4MB").await?;
    }
    // A local value covers the session's until the end of the transaction only.
    a.query("BEGIN; set work_mem = '64MB'; set local work_mem = '32MB'")
        .await?;
    expect(&mut a, "show work_mem", "32MB").await?;
    a.query("COMMIT").await?;
    expect(&mut b, "show work_mem", "4MB").await?;
    expect(&mut a, "show work_mem", "64MB").await?;
    a.query("set work_mem = '16MB'; select 1/0").await?;
    expect(&mut a, "show work_mem", "64MB").await
}

async fn r040_a_reset_goes_back_with_its_transaction(cluster: &Cluster) -> anyhow::Result<()> {
    let (mut a, mut b) = (wire(cluster, ONE).await?, wire(cluster, ONE).await?);
    a.query("set search_path to ''").await?;
    a.query("BEGIN").await?;
    a.query("reset search_path").await?;
    a.query("ROLLBACK").await?;
    expect(&mut b, "select a from t", "1").await?;
    expect(&mut a, "show search_path", "\"\"").await?;
    a.query("BEGIN; savepoint s; set search_path = s9; rollback to s; COMMIT")
        .await?;
    expect(&mut a, "show search_path", "\"\"").await
}

async fn r041_an_aborted_client_leaves_nothing(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, ONE).await?;
    let default = ask(&mut a, "show search_path").await?;
    a.query("BEGIN").await?;
    a.query("set local search_path = s9").await?;
    a.query("create temp table left_behind (a int)").await?;
    drop(a);
    let mut b = wire(cluster, ONE).await?;
    expect(&mut b, "show search_path", &default).await?;
    let left = "select count(*) from pg_class where relname = 'left_behind'";
    expect(&mut b, left, "0").await?;
    let status = shape(&b.query("select 1").await?);
    ensure!(status.ends_with("Z(I)"), "{status}");
    Ok(())
}

async fn r042_options_and_start_up_keys_hold_in_every_transaction(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let options = "-c search_path=s9 -c extra_float_digits=3 -c statement_timeout=5s";
    let keys = [
        ("search_path", "s9"),
        ("extra_float_digits", "3"),
        ("statement_timeout", "5s"),
    ];
    let by_options = Login {
        options: options.to_owned(),
        ..plain(cluster, ONE)
    };
    let mut other = wire(cluster, ONE).await?;
    let mut one = Wire::connect(&by_options).await?;
    let mut two = Wire::connect_with(&plain(cluster, ONE), &keys).await?;
    for client in [&mut one, &mut two] {
        for _ in 0..10 {
            for (name, expected) in keys {
                expect(client, &format!("show {name}"), expected).await?;
            }
            expect(&mut other, "show statement_timeout", "0").await?;
        }
    }
    Ok(())
}

async fn r043_login_reports_the_same_settings(cluster: &Cluster) -> anyhow::Result<()> {
    let account = superuser(cluster, ONE);
    let direct = Wire::connect(&direct(cluster, 0)?).await?;
    let shim = Wire::connect(&account).await?;
    let names = |wire: &Wire| -> BTreeSet<String> {
        let of_extension = |name: &&String| !name.starts_with("pgdog.");
        wire.settings.keys().filter(of_extension).cloned().collect()
    };
    ensure!(
        names(&direct) == names(&shim),
        "{:?} {:?}",
        names(&direct),
        names(&shim)
    );
    let shown: Vec<_> = shim
        .settings
        .keys()
        .filter(|name| name.starts_with("pgdog."))
        .collect();
    ensure!(shown.is_empty(), "{shown:?}");
    for name in names(&direct) {
        ensure!(direct.settings[&name] == shim.settings[&name], "{name}");
    }
    Ok(())
}

async fn r044_equal_application_names_are_reported_to_both(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let (mut a, mut b) = (wire(cluster, ONE).await?, wire(cluster, ONE).await?);
    for client in [&mut a, &mut b] {
        ensure!(client.settings["application_name"].is_empty());
        client.query("set application_name = 'App'").await?;
        ensure!(client.settings["application_name"] == "App");
    }
    for _ in 0..3 {
        expect(&mut a, "show application_name", "App").await?;
        expect(&mut b, "show application_name", "App").await?;
    }
    Ok(())
}

async fn r045_bad_settings_are_refused_and_leave_no_trace(cluster: &Cluster) -> anyhow::Result<()> {
    for (options, code) in [
        ("-c work_mem=banana", "22023"),
        ("-c no_such_setting=1", "42704"),
    ] {
        let login = Login {
            options: format!("-c lock_timeout=7 {options}"),
            ..plain(cluster, ONE)
        };
        let refused = Wire::connect(&login).await.err().context("let in")?;
        ensure!(
            format!("{refused:#}").contains(code),
            "{options}: {refused:#}"
        );
        let fatal = Client::connect(&login).await.err().context("let in")?;
        ensure!(format!("{fatal:#}").contains("FATAL"), "{fatal:#}");
        let mut b = wire(cluster, ONE).await?;
        expect(&mut b, "show lock_timeout", "0").await?;
    }
    let mut a = wire(cluster, ONE).await?;
    let bad = shape(&a.query("set work_mem = 'banana'").await?);
    ensure!(bad == "E(22023) Z(I)", "{bad}");
    let mut b = wire(cluster, ONE).await?;
    expect(&mut b, "show work_mem", "4MB").await?;
    expect(&mut a, "show work_mem", "4MB").await
}

async fn set_config_is_tracked_whatever_its_form(cluster: &Cluster) -> anyhow::Result<()> {
    let (mut a, mut b) = (wire(cluster, ONE).await?, wire(cluster, ONE).await?);
    let tenant = "select coalesce(current_setting('app.tenant', true), '')";
    let bound = Batch::new()
        .run("select set_config('app.tenant', $1, false)", &["11"])
        .sync();
    let several =
        "select set_config('app.tenant', '12', false), set_config('work_mem', '9MB', true)";
    let unknown = "select set_config('app.tenant', x, false) from (values ('13')) as v (x)";
    for (how, expected) in [(bound, "11"), (Batch::new().query(several), "12")] {
        a.ask(&how).await?;
        expect(&mut b, tenant, "").await?;
        expect(&mut a, tenant, expected).await?;
        expect(&mut a, "show work_mem", "4MB").await?;
    }
    let local = Batch::new()
        .run("select set_config('app.tenant', $1, true)", &["14"])
        .sync();
    a.query("BEGIN").await?;
    a.ask(&local).await?;
    expect(&mut a, tenant, "14").await?;
    a.query("COMMIT").await?;
    expect(&mut a, tenant, "12").await?;
    // Only the server knows what this one sets, and tells.
    a.query(unknown).await?;
    expect(&mut b, tenant, "").await?;
    expect(&mut a, tenant, "13").await?;
    ensure!(pinned(cluster, ONE).await?.is_empty());
    drop((a, b));
    let mut c = wire(cluster, ONE).await?;
    expect(&mut c, tenant, "").await
}

/// Why clients are pinned, as `SHOW CLIENTS` says.
async fn pinned(cluster: &Cluster, shim: usize) -> anyhow::Result<Vec<String>> {
    let admin = cluster.admin(shim).await?;
    let rows = admin.rows("SHOW CLIENTS").await?;
    let reasons = rows.into_iter().filter_map(|row| row.last().cloned());
    Ok(reasons.filter(|why| !why.is_empty()).collect())
}

async fn a_reset_finds_what_the_client_brought(cluster: &Cluster) -> anyhow::Result<()> {
    let login = Login {
        options: "-c work_mem=8MB -c app.tenant=5".to_owned(),
        ..plain(cluster, ONE)
    };
    let mut a = Wire::connect(&login).await?;
    let mut b = wire(cluster, ONE).await?;
    for reset in [
        "reset work_mem",
        "set work_mem to default",
        "reset all",
        "discard all",
    ] {
        a.query("set work_mem = '1GB'").await?;
        a.query(reset).await?;
        expect(&mut b, "show work_mem", "4MB").await?;
        expect(&mut a, "show work_mem", "8MB").await?;
        if reset != "discard all" {
            a.query(&format!("BEGIN; set work_mem = '1GB'; {reset}"))
                .await?;
            expect(&mut a, "show work_mem", "8MB").await?;
            a.query("COMMIT").await?;
            expect(&mut a, "show work_mem", "8MB").await?;
        }
        expect(&mut a, "show app.tenant", "5").await?;
    }
    Ok(())
}

async fn a_rollback_is_reported(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, ONE).await?;
    let zone = a.settings["TimeZone"].clone();
    a.query("BEGIN").await?;
    a.query("set timezone = 'Asia/Tokyo'").await?;
    ensure!(a.settings["TimeZone"] == "Asia/Tokyo");
    a.query("ROLLBACK").await?;
    ensure!(a.settings["TimeZone"] == zone, "{}", a.settings["TimeZone"]);
    a.query("BEGIN; savepoint s").await?;
    a.query("set timezone = 'Asia/Tokyo'").await?;
    a.query("rollback to s").await?;
    ensure!(a.settings["TimeZone"] == zone);
    a.query("COMMIT").await?;
    a.query("set timezone = 'Asia/Tokyo'").await?;
    a.query("discard all").await?;
    ensure!(a.settings["TimeZone"] == zone);
    let mut b = wire(cluster, ONE).await?;
    expect(&mut b, "show timezone", &zone).await
}

async fn a_setting_made_by_a_function_stays_with_its_client(
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut a = wire(cluster, ONE).await?;
    let block = "DO $$ BEGIN PERFORM set_config('app.made', '21', false); END $$";
    let made = "select coalesce(current_setting('app.made', true), '')";
    let mut b = wire(cluster, ONE).await?;
    a.query(block).await?;
    expect(&mut b, made, "").await?;
    expect(&mut a, made, "21").await?;
    ensure!(pinned(cluster, ONE).await?.is_empty(), "it travels");
    let undone = block.replace("21", "22");
    a.query(&format!("BEGIN; {undone}; ROLLBACK")).await?;
    expect(&mut b, made, "").await?;
    expect(&mut a, made, "21").await?;
    a.query("discard all").await?;
    expect(&mut a, made, "").await?;
    expect(&mut b, made, "").await?;
    ensure!(pinned(cluster, ONE).await?.is_empty());
    a.query("DO $$ BEGIN PERFORM 1; END $$").await?;
    ensure!(pinned(cluster, ONE).await?.is_empty(), "nothing is left");
    Ok(())
}

async fn changed_role_settings_reach_new_clients(cluster: &Cluster) -> anyhow::Result<()> {
    let node = Client::connect(&direct(cluster, 0)?).await?;
    let mut before = wire(cluster, ONE).await?;
    expect(&mut before, "show lock_timeout", "0").await?;
    for (change, expected) in [
        ("ALTER ROLE app SET lock_timeout = '9s'", "9s"),
        (
            "ALTER ROLE app IN DATABASE app SET lock_timeout = '8s'",
            "8s",
        ),
        ("ALTER ROLE app IN DATABASE app RESET lock_timeout", "9s"),
        ("ALTER ROLE app RESET lock_timeout", "0"),
        ("ALTER DATABASE app SET lock_timeout = '6s'", "6s"),
        ("ALTER DATABASE app RESET lock_timeout", "0"),
    ] {
        node.batch_execute(change).await.context(change)?;
        let mut after = wire(cluster, ONE).await?;
        expect(&mut after, "show lock_timeout", expected)
            .await
            .context(change)?;
    }
    node.batch_execute("ALTER ROLE app SET search_path = s9")
        .await?;
    let mut after = wire(cluster, ONE).await?;
    expect(&mut after, "show search_path", "s9").await?;
    node.batch_execute("ALTER ROLE app RESET search_path")
        .await?;
    Ok(())
}

async fn current_setting_shows_the_shims_own(cluster: &Cluster) -> anyhow::Result<()> {
    let mut a = wire(cluster, ONE).await?;
    a.query("set pgdog.role = 'primary'").await?;
    expect(&mut a, "select current_setting('pgdog.role')", "primary").await?;
    expect(
        &mut a,
        "select current_setting('pgdog.role', true)",
        "primary",
    )
    .await?;
    let bound = Batch::new().run("select set_config('pgdog.role', $1, false)", &["replica"]);
    a.ask(&bound.sync()).await?;
    expect(&mut a, "show pgdog.role", "replica").await?;
    let bad = Batch::new().run("select set_config('pgdog.role', $1, false)", &["nonsense"]);
    let refused = shape(&a.ask(&bad.sync()).await?);
    ensure!(refused.ends_with("E(22023) Z(I)"), "{refused}");
    expect(&mut a, "show pgdog.role", "replica").await
}
