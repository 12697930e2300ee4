//! A schema with what growth has to get right: keys of several kinds, a table without one, foreign
//! keys, triggers, partitions, generated columns, enums, functions, a sequence.

use super::Shop;

const SCHEMA: &str = "
CREATE SCHEMA shop;
CREATE TYPE shop.tier AS ENUM ('free', 'paid');
CREATE DOMAIN shop.cents AS bigint CHECK (VALUE >= 0);
CREATE TABLE public.tenants (id bigint PRIMARY KEY, name text NOT NULL, shard_id int NOT NULL);
CREATE TABLE shop.plans (
  code char(8) PRIMARY KEY, tier shop.tier NOT NULL, price shop.cents NOT NULL,
  yearly bigint GENERATED ALWAYS AS (price * 10) STORED);
CREATE INDEX plans_tier ON shop.plans (tier);
CREATE TABLE shop.rates (day date, currency text, rate numeric, PRIMARY KEY (day, currency));
CREATE TABLE shop.notes (at timestamptz, body text);
ALTER TABLE shop.notes REPLICA IDENTITY FULL;
CREATE TABLE shop.ledger (
  id bigserial, writer int NOT NULL, n bigint NOT NULL,
  plan char(8) NOT NULL REFERENCES shop.plans, PRIMARY KEY (writer, n));
CREATE TABLE shop.counters (writer int PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE shop.visits (at date NOT NULL, n bigint NOT NULL, PRIMARY KEY (at, n))
  PARTITION BY RANGE (at);
CREATE TABLE shop.visits_old PARTITION OF shop.visits FOR VALUES FROM (MINVALUE) TO ('2026-01-01');
CREATE TABLE shop.visits_new PARTITION OF shop.visits FOR VALUES FROM ('2026-01-01') TO (MAXVALUE);
CREATE INDEX visits_n ON shop.visits (n);
CREATE TABLE shop.audit (writer int, n bigint, PRIMARY KEY (writer, n));
CREATE FUNCTION shop.audited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO shop.audit VALUES (NEW.writer, NEW.n); RETURN NULL; END $$;
CREATE TRIGGER ledger_audit AFTER INSERT ON shop.ledger
  FOR EACH ROW EXECUTE FUNCTION shop.audited();
CREATE VIEW shop.cheap AS SELECT code FROM shop.plans WHERE price < 100;
CREATE TABLE public.orders (
  id bigint, tenant_id bigint NOT NULL REFERENCES public.tenants, PRIMARY KEY (tenant_id, id));
";

const DATA: &str = "
INSERT INTO public.tenants SELECT n, 'tenant ' || n, n % 2 FROM generate_series(1, 200) n;
INSERT INTO shop.plans SELECT 'p' || n, 'paid', n FROM generate_series(1, 50) n;
INSERT INTO shop.rates SELECT date '2026-01-01' + n, 'EUR', n / 7.0 FROM generate_series(1, 500) n;
INSERT INTO shop.notes SELECT '2026-01-01', 'note ' || n FROM generate_series(1, 100) n;
INSERT INTO shop.visits SELECT date '2025-06-01' + n % 400, n FROM generate_series(1, 2000) n;
INSERT INTO shop.counters SELECT n, 0 FROM generate_series(0, 9) n;
";

const OMNI: [&str; 8] = [
    "public.tenants",
    "shop.plans",
    "shop.rates",
    "shop.notes",
    "shop.ledger",
    "shop.counters",
    "shop.visits",
    "shop.audit",
];

/// Creates it on shards 0 and 1; the third server gets an empty database.
pub async fn create(shop: &Shop) {
    for (shard, server) in shop.servers.iter().enumerate() {
        let client = server.client("postgres").await;
        client.batch_execute("CREATE DATABASE app").await.unwrap();
        client.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
        if shard == 2 {
            continue;
        }
        let client = server.client("app").await;
        client
            .batch_execute("CREATE EXTENSION pgdog")
            .await
            .unwrap();
        client.batch_execute(SCHEMA).await.unwrap();
        let install = format!("SELECT pgdog.install_node({shard}, 2)");
        client.batch_execute(&install).await.unwrap();
        client.batch_execute(DATA).await.unwrap();
        for table in OMNI {
            client
                .batch_execute(&format!("SELECT pgdog.omni_table('{table}')"))
                .await
                .unwrap();
        }
        let sharded = "SELECT pgdog.shard_table('public.orders', 'tenant_id', lookup_query => \
             'SELECT shard_id FROM public.tenants WHERE id = $1', lookup_result => 'shard')";
        client.batch_execute(sharded).await.unwrap();
        let orders = format!(
            "INSERT INTO public.orders SELECT n, id FROM public.tenants, generate_series(1, 10) n \
             WHERE shard_id = {shard}"
        );
        client.batch_execute(&orders).await.unwrap();
    }
}
