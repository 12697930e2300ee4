//! What the demonstration prints: headings, commands with their answers, claims that were checked.

use anyhow::ensure;
use pgdog_integration::client::{Client, describe};

/// Prints, and counts the claims.
#[derive(Default)]
pub struct Transcript {
    step: usize,
    claims: usize,
}

impl Transcript {
    /// A heading.
    pub fn step(&mut self, title: &str) {
        self.step += 1;
        println!(
            "\n── {}. {title} {}",
            self.step,
            "─".repeat(76 - title.chars().count().min(70))
        );
    }

    /// A remark.
    pub fn note(&self, text: &str) {
        println!("   {text}");
    }

    /// A claim, printed only when it holds.
    ///
    /// # Errors
    /// When it does not.
    pub fn claim(&mut self, holds: bool, claim: &str) -> anyhow::Result<()> {
        ensure!(holds, "this does not hold: {claim}");
        self.claims += 1;
        println!("   ✓ {claim}");
        Ok(())
    }

    /// How many claims held.
    pub fn claims(&self) -> usize {
        self.claims
    }

    /// Runs a statement at a prompt and prints it with its answer.
    ///
    /// # Errors
    /// When it fails.
    pub async fn run(
        &self,
        prompt: &str,
        client: &Client,
        sql: &str,
    ) -> anyhow::Result<Vec<Vec<String>>> {
        println!("{prompt}=> {sql};");
        match client.rows(sql).await {
            Ok(rows) => {
                print_rows(&rows);
                Ok(rows)
            }
            Err(error) => anyhow::bail!("{}: {sql}", describe(&error)),
        }
    }

    /// Runs a statement that is refused, prints the error as psql does, and returns it.
    ///
    /// # Errors
    /// When it succeeds, or the connection breaks.
    pub async fn run_refused(
        &self,
        prompt: &str,
        client: &Client,
        sql: &str,
    ) -> anyhow::Result<tokio_postgres::error::DbError> {
        println!("{prompt}=> {sql};");
        let Err(error) = client.rows(sql).await else {
            anyhow::bail!("this was served: {sql}");
        };
        let Some(db) = error.as_db_error() else {
            anyhow::bail!("the connection broke: {error}");
        };
        println!("ERROR:  {}: {}", db.code().code(), db.message());
        for (label, text) in [("DETAIL", db.detail()), ("HINT", db.hint())] {
            if let Some(text) = text {
                println!("{label}:  {text}");
            }
        }
        Ok(db.clone())
    }
}

fn print_rows(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            rows.iter()
                .filter_map(|row| row.get(c))
                .map(|v| v.chars().count())
                .max()
        })
        .map(|width| width.unwrap_or(0))
        .collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(value, width)| format!("{value:<width$}"))
            .collect();
        println!(" {}", cells.join(" | ").trim_end());
    }
}
