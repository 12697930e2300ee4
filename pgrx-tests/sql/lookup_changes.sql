-- Lookups whose answers change in other ways than by an UPDATE of a plain map.
\set SHOW_CONTEXT never
\set VERBOSITY terse
\set epoch 'SELECT epoch > :before AS raised FROM pgdog.topology;'
\set watched 'SELECT tgrelid::regclass, tgname, tgenabled FROM pg_trigger'
\set watched :watched ' WHERE tgfoid = ''pgdog.lookup_changed''::regproc AND tgrelid <> '
\set watched :watched '''public.tenants''::regclass ORDER BY tgrelid::regclass::text, tgname;'
SET ROLE regress_owner;
CREATE SCHEMA moves;
SET search_path = moves, public;
SET pgdog.allow_direct_writes = on;
CREATE TABLE homes (id bigint PRIMARY KEY, shard_id int, note text);
CREATE TABLE extras (id bigint, shard_id int);
CREATE TABLE bills (firm bigint);
SELECT pgdog.omni_table('homes'), pgdog.omni_table('extras');
-- rows that are added count where another row can change the answer
SELECT pgdog.shard_table('bills', 'firm', lookup_result => 'shard', lookup_query =>
    'SELECT coalesce(e.shard_id, h.shard_id) FROM homes h LEFT JOIN extras e USING (id)
      WHERE h.id = $1');
SELECT source::regclass, columns, counts_added FROM pgdog.lookup_sources
 WHERE table_name = 'bills' ORDER BY 1;
SELECT epoch AS before FROM pgdog.topology \gset
INSERT INTO extras VALUES (1, 1);
:epoch
SELECT pgdog.unshard_table('bills');
SELECT pgdog.shard_table('bills', 'firm', lookup_result => 'shard',
    lookup_query => 'SELECT shard_id FROM extras WHERE id = $1 ORDER BY shard_id LIMIT 1');
SELECT epoch AS before FROM pgdog.topology \gset
COPY extras FROM STDIN;
1	0
\.
:epoch
SELECT pgdog.unshard_table('bills');
-- a whole row under a view
CREATE VIEW wholes AS SELECT h.id, (to_jsonb(h) ->> 'shard_id')::int AS s FROM homes h;
SELECT pgdog.shard_table('bills', 'firm', lookup_result => 'shard',
    lookup_query => 'SELECT s FROM wholes WHERE id = $1');
SELECT source::regclass, columns, counts_added FROM pgdog.lookup_sources WHERE table_name = 'bills';
INSERT INTO homes VALUES (1, 0, 'a');
SELECT epoch AS before FROM pgdog.topology \gset
UPDATE homes SET shard_id = 1;
:epoch
-- a column that is dropped leaves the trigger, and one that is added counts
ALTER TABLE homes DROP COLUMN note CASCADE;
ALTER TABLE homes ADD COLUMN later int;
SELECT epoch AS before FROM pgdog.topology \gset
UPDATE homes SET later = 1;
:epoch
-- a view that answers otherwise
CREATE TABLE moved (id bigint, shard_id int);
SELECT pgdog.omni_table('moved');
SELECT epoch AS before FROM pgdog.topology \gset
CREATE OR REPLACE VIEW wholes AS SELECT m.id, m.shard_id AS s FROM moved m;
:epoch
SELECT source::regclass, columns FROM pgdog.lookup_sources WHERE table_name = 'bills';
:watched
CREATE OR REPLACE VIEW wholes AS
    SELECT m.id, m.shard_id * (random() < 2)::int AS s FROM moved m;
\echo :LAST_ERROR_SQLSTATE
ALTER VIEW wholes RENAME TO others;
\echo :LAST_ERROR_SQLSTATE
-- (the view goes on)
ALTER TABLE moved RENAME COLUMN shard_id TO place;
-- what a lookup reads stays
DROP VIEW wholes;
\echo :LAST_ERROR_SQLSTATE
DROP TABLE moved CASCADE;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE moved DROP COLUMN place CASCADE;
\echo :LAST_ERROR_SQLSTATE
-- triggers that somebody takes away or switches off
DROP TRIGGER pgdog_lookup_update ON moved;
ALTER TABLE moved DISABLE TRIGGER ALL;
ALTER TABLE moved ENABLE TRIGGER ALL;
:watched
SELECT pgdog.unshard_table('bills');
-- tables that cannot be followed
CREATE MATERIALIZED VIEW still AS SELECT * FROM homes;
SELECT pgdog.shard_table('bills', 'firm',
    lookup_query => 'SELECT shard_id FROM still WHERE id = $1');
\echo :LAST_ERROR_SQLSTATE
CREATE TABLE heirs () INHERITS (moved);
SELECT pgdog.shard_table('bills', 'firm',
    lookup_query => 'SELECT place FROM moved WHERE id = $1');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE heirs;
SELECT pgdog.shard_table('bills', 'firm',
    lookup_query => 'SELECT place FROM moved WHERE id = $1');
CREATE TABLE heirs () INHERITS (moved);
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE moved RENAME COLUMN place TO shard_id;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE moved DROP COLUMN place CASCADE;
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.unshard_table('bills');
-- a map of several tables
SELECT pgdog.shard_table('bills', 'firm', lookup_query =>
    'SELECT shard_id FROM homes WHERE id = $1 UNION ALL SELECT shard_id FROM extras WHERE id = $1');
SELECT source::regclass, columns, counts_added FROM pgdog.lookup_sources
 WHERE table_name = 'bills' ORDER BY 1;
SELECT pgdog.unshard_table('bills');
-- partitions come and go
CREATE TABLE firms (id bigint, shard_id int) PARTITION BY RANGE (id);
CREATE TABLE firms_low PARTITION OF firms FOR VALUES FROM (0) TO (100);
SELECT pgdog.omni_table('firms');
SELECT pgdog.shard_table('bills', 'firm', lookup_result => 'shard',
    lookup_query => 'SELECT shard_id FROM firms WHERE id = $1');
SELECT epoch AS before FROM pgdog.topology \gset
CREATE TABLE firms_high PARTITION OF firms FOR VALUES FROM (100) TO (200);
:epoch
INSERT INTO firms VALUES (5, 0), (105, 1);
TRUNCATE firms_high;
:epoch
SELECT epoch AS before FROM pgdog.topology \gset
ALTER TABLE firms DETACH PARTITION firms_low;
:epoch
SELECT epoch AS before FROM pgdog.topology \gset
ALTER TABLE firms ATTACH PARTITION firms_low FOR VALUES FROM (0) TO (100);
:epoch
SELECT epoch AS before FROM pgdog.topology \gset
DROP TABLE firms_low;
:epoch
:watched
-- paused, also by the name of a partition
SELECT pgdog.pause_lookup_writes('firms');
INSERT INTO firms_high VALUES (106, 1);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.resume_lookup_writes('firms');
INSERT INTO firms_high VALUES (106, 1);
SELECT pgdog.unshard_table('bills');
-- two that read different columns of one table, and one of them that goes
CREATE TABLE whole (id bigint, shard_id int, note text);
CREATE TABLE parts (id bigint);
SELECT pgdog.omni_table('whole');
SELECT pgdog.shard_table('bills', 'firm', lookup_result => 'shard',
    lookup_query => 'SELECT (to_jsonb(w) ->> ''shard_id'')::int FROM whole w WHERE id = $1');
SELECT pgdog.shard_table('parts', 'id', lookup_result => 'shard',
    lookup_query => 'SELECT shard_id FROM whole WHERE id = $1');
SELECT pgdog.unshard_table('bills');
INSERT INTO whole SELECT g, 0, '' FROM generate_series(1, 100) g;
SELECT epoch AS before FROM pgdog.topology \gset
UPDATE whole SET note = 'b';
:epoch
-- once for a transaction, in savepoints as well; what is rolled back counts no more
BEGIN;
SAVEPOINT one;
UPDATE whole SET shard_id = 1;
SAVEPOINT two;
UPDATE whole SET shard_id = 0;
RELEASE two;
SELECT epoch - :before AS raised FROM pgdog.topology;
ROLLBACK TO one;
UPDATE whole SET shard_id = 1 WHERE id < 3;
COMMIT;
SELECT epoch - :before AS raised FROM pgdog.topology;
-- a new shard has the declarations, and gets the triggers by them
RESET ROLE;
DELETE FROM pgdog.lookup_sources;
:watched
SELECT pgdog.follow_lookups();
:watched
RESET search_path;
\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA moves CASCADE;
