-- What a lookup reads: changes that move keys raise the epoch, whoever makes them; others do not.
\set SHOW_CONTEXT never
\set epoch 'SELECT epoch - :before AS raised FROM pgdog.topology;'
SET ROLE regress_owner;
CREATE SCHEMA maps;
SET search_path = maps, public;
CREATE TABLE regions (code text PRIMARY KEY, shard_id int, note text);
CREATE TABLE firms (id bigint PRIMARY KEY, region text REFERENCES regions ON DELETE CASCADE,
                    name text) PARTITION BY RANGE (id);
CREATE TABLE firms_low PARTITION OF firms FOR VALUES FROM (0) TO (100);
CREATE VIEW homes AS SELECT f.id, r.shard_id FROM firms f JOIN regions r ON r.code = f.region;
CREATE TABLE bills (firm bigint, total int);
SELECT pgdog.omni_table('regions');
SELECT pgdog.omni_table('firms');
SELECT pgdog.shard_table('bills', 'firm',
    lookup_query => 'SELECT shard_id FROM homes WHERE id = $1', lookup_result => 'shard');
SELECT source::regclass, columns FROM pgdog.lookup_sources WHERE table_name = 'bills'
 ORDER BY source::regclass::text;
SELECT tgrelid::regclass, tgname, tgenabled FROM pg_trigger
 WHERE tgfoid = 'pgdog.lookup_changed'::regproc AND tgrelid <> 'tenants'::regclass
 ORDER BY tgrelid::regclass::text, tgname;
SET pgdog.allow_direct_writes = on;
SELECT epoch AS before FROM pgdog.topology \gset
-- what is added moves nothing, nor does what no lookup reads
INSERT INTO regions VALUES ('n', 0, 'north'), ('s', 0, 'south'), ('w', 1, 'west');
INSERT INTO firms VALUES (1, 'n', 'one'), (2, 's', 'two'), (3, 'w', 'three');
UPDATE regions SET note = 'cold', shard_id = shard_id;
UPDATE firms SET name = upper(name);
:epoch
-- once for a transaction, however many rows
BEGIN;
UPDATE regions SET shard_id = 1 WHERE code IN ('n', 's');
UPDATE firms SET region = 's' WHERE id = 1;
COMMIT;
:epoch
-- what is rolled back raises nothing, and hides no later change
BEGIN;
SAVEPOINT s;
UPDATE regions SET shard_id = 0 WHERE code = 'n';
ROLLBACK TO s;
:epoch
DELETE FROM regions WHERE code = 'n';
COMMIT;
:epoch
-- by a cascade, by a function, by rows that are replicated
DELETE FROM regions WHERE code = 's';
:epoch
DO $$ BEGIN UPDATE firms SET region = NULL WHERE id = 3; END $$;
:epoch
RESET ROLE;
SET session_replication_role = replica;
UPDATE maps.firms SET region = 'w' WHERE id = 3;
RESET session_replication_role;
SELECT epoch - :before AS raised FROM pgdog.topology;
SET ROLE regress_owner;
-- later partitions, and a truncated one
CREATE TABLE firms_high PARTITION OF firms FOR VALUES FROM (100) TO (200);
INSERT INTO firms VALUES (100, 'w', 'hundred');
UPDATE firms SET id = 101 WHERE id = 100;
:epoch
TRUNCATE firms_low;
:epoch
TRUNCATE firms;
:epoch
-- a row that is used as a whole counts as a whole
CREATE TABLE whole (id bigint, shard_id int, note text);
CREATE TABLE parts (id bigint);
SELECT pgdog.omni_table('whole');
SELECT pgdog.shard_table('parts', 'id', lookup_result => 'shard',
    lookup_query => 'SELECT (to_jsonb(w) ->> ''shard_id'')::int FROM whole w WHERE id = $1;');
INSERT INTO whole VALUES (1, 0, 'a');
SELECT epoch AS before FROM pgdog.topology \gset
UPDATE whole SET note = 'b';
:epoch
-- paused: nobody writes
SELECT pgdog.pause_lookup_writes('whole');
INSERT INTO whole VALUES (2, 0, 'b');
\echo :LAST_ERROR_SQLSTATE
UPDATE whole SET shard_id = 0 WHERE false;
\echo :LAST_ERROR_SQLSTATE
TRUNCATE whole;
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.resume_lookup_writes('whole');
INSERT INTO whole VALUES (2, 0, 'b');
-- only by those who may declare it
GRANT USAGE ON SCHEMA maps TO regress_other;
SET ROLE regress_other;
SELECT pgdog.pause_lookup_writes('maps.whole');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.follow_lookups();
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_owner;
-- no lookup, no triggers
SELECT pgdog.unshard_table('parts');
UPDATE whole SET shard_id = 1;
DROP TABLE bills;
SELECT count(*) FROM pg_trigger
 WHERE tgfoid = 'pgdog.lookup_changed'::regproc AND tgrelid <> 'tenants'::regclass;
SELECT count(*) FROM pgdog.lookup_sources WHERE table_name = 'bills';
DROP SCHEMA maps CASCADE;
