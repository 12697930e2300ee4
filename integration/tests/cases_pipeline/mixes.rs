//! Batches whose answers must be those of PostgreSQL, type by type.

use pgdog_integration::wire::Batch;

/// The batches, for one connection in this order.
pub fn all() -> Vec<Batch> {
    [extended(), simple()].concat()
}

fn extended() -> Vec<Batch> {
    let one = "SELECT 1";
    vec![
        Batch::new().sync(),
        Batch::new().sync().sync().query(""),
        Batch::new().flush().sync(),
        Batch::new().parse("a", one).describe("a").close("a").sync(),
        Batch::new().parse("a", one).run("BEGIN", &[]).sync(),
        Batch::new().run("COMMIT", &[]).bind("a", &[]).sync(),
        Batch::new().bind("a", &[]).execute(0).close("a").sync(),
        Batch::new().bind("a", &[]).execute(0).sync(),
        Batch::new()
            .parse("", "SELECT generate_series(1, 5)")
            .bind("", &[])
            .execute(2)
            .execute(2)
            .execute(2)
            .execute(2)
            .sync(),
        Batch::new()
            .parse("b", "SELECT generate_series(1, 3)")
            .bind_portal("p", "b", &[])
            .bind_portal("q", "b", &[])
            .execute_portal("p", 1)
            .execute_portal("q", 2)
            .flush()
            .execute_portal("p", 0)
            .execute_portal("q", 0)
            .close("b")
            .sync(),
        Batch::new().execute_portal("p", 0).sync(),
        Batch::new().run("", &[]).describe_portal().sync(),
        Batch::new()
            .parse("", "nonsense")
            .bind("", &[])
            .execute(0)
            .flush()
            .run(one, &[])
            .sync(),
        Batch::new()
            .run("BEGIN", &[])
            .run("SELECT 1/0", &[])
            .sync()
            .run(one, &[])
            .sync()
            .run("ROLLBACK", &[])
            .sync(),
        Batch::new().run(one, &[]).parse("", "bad sql").sync(),
        Batch::new()
            .parse("c", "SELECT $1::int + $2")
            .describe("c")
            .flush()
            .bind("c", &["1", "2"])
            .describe_portal()
            .execute(0)
            .bind("c", &["x", "2"])
            .execute(0)
            .sync()
            .close("c")
            .sync(),
    ]
}

fn simple() -> Vec<Batch> {
    vec![
        Batch::new().query("SELECT 1; BEGIN; SELECT 2; ROLLBACK; SELECT 3"),
        Batch::new().query("BEGIN; SELECT 1/0; COMMIT"),
        Batch::new().query("SELECT 1; COMMIT; SELECT 1/0"),
        Batch::new().query("ROLLBACK"),
        Batch::new().query("SELECT 1; nonsense; SELECT 2"),
        Batch::new().query("BEGIN").query("BEGIN").query("COMMIT"),
        Batch::new()
            .query("BEGIN")
            .query("SAVEPOINT s")
            .query("SELECT 1/0")
            .query("SELECT 1")
            .query("ROLLBACK TO s")
            .query("SELECT 1")
            .query("RELEASE s")
            .query("COMMIT AND CHAIN")
            .query("ROLLBACK TO nowhere")
            .query("COMMIT AND CHAIN")
            .query("ROLLBACK"),
    ]
}

/// How many ReadyForQuery a batch asks for.
pub fn ends(batch: &Batch) -> usize {
    let mut rest = &batch.bytes[..];
    let mut ends = 0;
    while let Some(length) = rest.get(1..5).and_then(|l| l.first_chunk::<4>()) {
        ends += usize::from(matches!(rest[0], b'S' | b'Q'));
        rest = &rest[1 + u32::from_be_bytes(*length) as usize..];
    }
    ends
}
