-- A small multi-tenant shop. Run it through a shim: every shard gets it.
--
--   tenants, plans,   omnisharded: the same rows on every shard. Their columns have no DEFAULT
--   counters, ledger  that gives another value on another shard, as now() would.
--   users, orders     sharded by tenant_id; the tenants table says where a tenant lives

CREATE TABLE plans (
    code        text PRIMARY KEY,
    title       text NOT NULL,
    price_cents int  NOT NULL CHECK (price_cents >= 0)
);

CREATE TABLE tenants (
    id       bigint PRIMARY KEY,
    name     text NOT NULL,
    plan     text NOT NULL REFERENCES plans (code),
    shard_id int  NOT NULL CHECK (shard_id >= 0)
);

CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
);

CREATE TABLE ledger (
    writer int    NOT NULL,
    n      bigint NOT NULL,
    PRIMARY KEY (writer, n)
);

CREATE TABLE users (
    tenant_id bigint NOT NULL,
    id        bigint NOT NULL,
    email     text   NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

CREATE TABLE orders (
    tenant_id   bigint NOT NULL,
    id          bigint NOT NULL,
    user_id     bigint NOT NULL,
    total_cents int    NOT NULL,
    memo        text,
    placed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id)
);

CREATE INDEX orders_by_user ON orders (tenant_id, user_id);
