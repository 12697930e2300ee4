//! Rows are cut as PostgreSQL cuts them.

use anyhow::ensure;
use pgdog_integration::Cluster;
use pgdog_integration::fixture::{direct, full_size};
use pgdog_integration::wire::{Wire, rows, shape};

use super::{Way, connect, copy};

/// Pieces of which lines are made that are hard to read.
const PIECES: [&str; 22] = [
    "a", "b", "7", "\t", "\t", ",", ",", "\n", "\n", "\n", "\r\n", "\r", "\\", "\\N", "\\t", "\\.",
    "\"", "\"\"", "\\x41", "é", " ", "\\\n",
];

/// Lines of two fields, most of them good.
fn lines(random: &mut impl rand::RngExt, csv: bool) -> String {
    let delimiter = if csv { ',' } else { '\t' };
    let mut out = String::new();
    let end = ["\n", "\r\n", "\r"][random.random_range(0..3)];
    for nth in 0..random.random_range(0..6) {
        let mut piece = || PIECES[random.random_range(0..PIECES.len())];
        let odd: String = (0..3).map(|_| piece()).collect();
        match (nth % 3, csv) {
            (0, true) => out.push_str(&format!("\"{}\",k{nth}", odd.replace('"', "\"\""))),
            (0, false) => out.push_str(&format!("v{delimiter}k{nth}\\t\\\\")),
            (1, _) => out.push_str(&format!("v{delimiter}{odd}")),
            _ => out.push_str(&format!("v{nth}{delimiter}k")),
        }
        out.push_str(end);
    }
    out
}

/// Random data, read by PostgreSQL directly and through the shim.
pub async fn copied_rows_are_those_that_postgresql_reads(cluster: &Cluster) -> anyhow::Result<()> {
    use rand::SeedableRng as _;
    let mut random = rand::rngs::StdRng::seed_from_u64(27);
    let mut client = connect(cluster).await?;
    let mut nodes = Vec::new();
    for shard in 0..2 {
        nodes.push(Wire::connect(&direct(cluster, shard)?).await?);
    }
    nodes[0]
        .query("CREATE TABLE odd_here (LIKE odd INCLUDING ALL)")
        .await?;
    let rounds = if full_size() { 3000 } else { 60 };
    let mut good = 0;
    for round in 0..rounds {
        let csv = round % 2 == 0;
        let option = match (round % 5, csv) {
            (0, true) => "(FORMAT csv, HEADER, FORCE_NULL (k), NULL 'k')",
            (1, true) => "(FORMAT csv, ESCAPE '\\')",
            (_, true) => "(FORMAT csv)",
            (0, false) => "(HEADER)",
            (_, false) => "",
        };
        let data = lines(&mut random, csv);
        let asked = |table: &str| format!("COPY {table} FROM STDIN {option}");
        let ours = copy(&mut client, &asked("odd"), (data.as_bytes(), Way::Query)).await?;
        let data_again = (data.as_bytes(), Way::Query);
        let theirs = copy(&mut nodes[0], &asked("odd_here"), data_again).await?;
        let (ours, theirs) = (shape(&ours), shape(&theirs));
        let mut found = Vec::new();
        for (shard, node) in nodes.iter_mut().enumerate() {
            let sql = "DELETE FROM odd RETURNING v, k, pgdog.shard_for('odd', k)";
            for mut row in rows(&node.query(sql).await?) {
                let belongs = row.pop().flatten();
                let here = belongs == Some(shard.to_string());
                ensure!(here, "{data:?}: {row:?} on shard {shard}");
                found.push(row);
            }
        }
        let sql = "DELETE FROM odd_here RETURNING v, k";
        let mut expected = rows(&nodes[0].query(sql).await?);
        found.sort();
        expected.sort();
        // PostgreSQL before 18 takes an end behind a row's beginning: data after it is lost.
        let torn = ours.starts_with("E(22P04)") && data.contains("\\.");
        if !torn {
            let alike = ours.starts_with('E') == theirs.starts_with('E');
            ensure!(alike, "{option} {data:?}: {ours}, not {theirs}");
            ensure!(
                found == expected,
                "{option} {data:?}: {found:?}, not {expected:?}"
            );
        }
        good += usize::from(!found.is_empty());
    }
    ensure!(good > rounds / 4, "only {good} were good");
    Ok(())
}
