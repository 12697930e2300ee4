-- Declarations: checked, owned, repeatable; each change raises the epoch of the node.
\set SHOW_CONTEXT never
SET ROLE regress_owner;
CREATE TABLE tenants (id bigint PRIMARY KEY, shard_id integer, name text);
CREATE TABLE orders (id bigint, tenant_id bigint, note text);
CREATE TABLE plans (id integer PRIMARY KEY, title text);
SELECT pgdog.omni_table('tenants');
SELECT pgdog.shard_table('orders', 'tenant_id',
    lookup_query => 'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard');
SELECT epoch, placement_epoch FROM pgdog.topology;
-- the same again changes nothing
SELECT pgdog.omni_table('public.tenants');
SELECT pgdog.shard_table('orders', 'tenant_id',
    lookup_query => 'SELECT shard_id FROM tenants WHERE id = $1', lookup_result => 'shard');
SELECT epoch, placement_epoch FROM pgdog.topology;
SELECT schema_name, table_name, column_name, data_type, strategy, lookup_result
  FROM pgdog.sharded_tables;

-- contradictions
SELECT pgdog.shard_table('orders', 'id');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('tenants', 'id');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.omni_table('orders');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.omni_table('nowhere');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'nothing');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'title', 'bigint');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'id', 'float');
-- keys that statements do not give, or that are equal in other ways than by their bytes
CREATE TABLE unfit (
    id bigint, block bigint GENERATED ALWAYS AS (id / 1000) STORED, code char(4));
SELECT pgdog.shard_table('unfit', 'block');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('unfit', 'code', 'varchar');
\echo :LAST_ERROR_SQLSTATE
SELECT attname, pgdog.unfit_key(attrelid, attname, 'varchar'),
       pgdog.unfit_key(attrelid, attname, 'bigint')
  FROM pg_attribute WHERE attrelid = 'unfit'::regclass AND attnum > 0 ORDER BY attnum;
DROP TABLE unfit;
-- a domain is what it is made of
CREATE DOMAIN whole AS bigint;
CREATE DOMAIN positive AS whole CHECK (VALUE > 0);
CREATE TABLE of_domains (id positive);
SELECT pgdog.unfit_key('of_domains'::regclass, 'id', 'bigint') AS bigint,
       pgdog.unfit_key('of_domains'::regclass, 'id', 'varchar') AS varchar;
DROP TABLE of_domains;
DROP DOMAIN positive, whole;
SELECT pgdog.shard_table('plans', 'id', lookup_query => 'SELECT 1');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'id', lookup_query => 'DELETE FROM tenants WHERE id = $1');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'id',
    lookup_query => 'SELECT id, name FROM tenants WHERE id = $1');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'id',
    lookup_query => 'SELECT shard_id FROM tenants WHERE id = $1 AND name = $2');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('plans', 'id',
    lookup_query => 'SELECT id FROM tenants WHERE id = $1; DROP TABLE tenants');
\echo :LAST_ERROR_SQLSTATE
CREATE TEMP TABLE passing (id bigint);
SELECT pgdog.omni_table('passing');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.omni_table('pg_class');
\echo :LAST_ERROR_SQLSTATE

-- only by the owner, an operator, a superuser
SET ROLE regress_other;
SELECT pgdog.omni_table('plans');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.unshard_table('orders');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('', 'tenant_id');
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_shim;
SELECT pgdog.omni_table('plans');
SELECT pgdog.unshard_table('plans');
RESET ROLE;
SELECT epoch, placement_epoch FROM pgdog.topology;

-- where a key lives
INSERT INTO tenants VALUES (1, 1, 'one'), (2, 0, 'two'), (3, NULL, 'three'), (4, 9, 'four');
SELECT pgdog.shard_for('orders', '1'), pgdog.shard_for('orders', '0002');
SELECT pgdog.shard_for('orders', '3');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_for('orders', '4');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_for('orders', '5');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_for('orders', 'five');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_for('plans', '1');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
CREATE TABLE mapped (k varchar);
SELECT pgdog.shard_table('mapped', 'k', 'varchar', mapping =>
    '[{"kind": "list", "values": ["a", "b"], "shard": 0},
      {"kind": "range", "start": "m", "end": "p", "shard": 1}]');
SELECT pgdog.shard_for('mapped', 'b'), pgdog.shard_for('mapped', 'o');
SELECT pgdog.shard_for('mapped', 'z');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- a column of any table
BEGIN;
SELECT pgdog.unshard_table('orders');
SELECT pgdog.shard_table('', 'tenant_id', 'bigint');
SELECT pgdog.shard_for('orders', '42') = pgdog.hash_shard('bigint', '42', 2) AS by_column;
ROLLBACK;
DELETE FROM tenants;
