-- The text of a lookup is somebody's: nothing of it is run for others, and it goes on meaning what
-- it meant when it was declared.
\set SHOW_CONTEXT never
\set VERBOSITY terse
CREATE SCHEMA texts AUTHORIZATION regress_other;
SET ROLE regress_other;
SET search_path = texts, public;
CREATE TABLE mine (id bigint);
CREATE TABLE map (id bigint PRIMARY KEY, shard_id int);
SELECT pgdog.omni_table('map');
-- more than one statement, whoever puts it in
SELECT pgdog.declare_sharded('mine', 'id', 'bigint',
    $q$SELECT 1) AS answer; ALTER ROLE regress_other SUPERUSER; SELECT 1 FROM (SELECT $1$q$,
    'value', NULL, 'texts');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.declare_sharded('mine', 'id', 'bigint',
    'SELECT $1; ALTER ROLE regress_other SUPERUSER', 'value', NULL, 'texts');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.declare_sharded('mine', 'id', 'bigint', query, 'value', NULL, 'texts')
  FROM (VALUES ('SELECT id INTO stolen FROM map WHERE id = $1')) v(query);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.declare_sharded('mine', 'id', 'bigint', query, 'value', NULL, 'texts') FROM (
    VALUES ('WITH d AS (DELETE FROM map RETURNING id) SELECT id FROM d WHERE id = $1')) v(query);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.declare_sharded('mine', 'id', 'bigint', query, 'value', NULL, 'texts')
  FROM (VALUES ('SELECT id FROM map WHERE id = $1 FOR UPDATE')) v(query);
\echo :LAST_ERROR_SQLSTATE
-- code of somebody who is no superuser, and what changes without any write
CREATE FUNCTION become(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
    'BEGIN ALTER ROLE regress_other SUPERUSER; RETURN $1; END';
SELECT pgdog.shard_table('mine', 'id',
    lookup_query => 'SELECT shard_id FROM map WHERE id = $1 AND id = become(id)');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('mine', 'id',
    lookup_query => 'SELECT shard_id FROM map WHERE id = $1 AND now() > ''2026-01-01''');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('mine', 'id',
    lookup_query => 'SELECT shard_id FROM map WHERE id = $1 AND CURRENT_DATE > ''2026-01-01''');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.shard_table('mine', 'id',
    lookup_query => 'SELECT shard_id FROM map WHERE id = $1 AND random() < 2');
\echo :LAST_ERROR_SQLSTATE
-- an operator of the caller in front of PostgreSQL's
CREATE FUNCTION glue(text, text) RETURNS text LANGUAGE plpgsql AS
    'BEGIN ALTER ROLE regress_other SUPERUSER; RETURN $1; END';
CREATE OPERATOR texts.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = texts.glue);
CREATE FUNCTION same(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS
    'BEGIN ALTER ROLE regress_other SUPERUSER; RETURN true; END';
CREATE OPERATOR texts.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = texts.same);
SET search_path = texts, pg_catalog, public;
SELECT pgdog.declare_sharded('mine', 'id', 'bigint', 'SELECT shard_id FROM map WHERE id = $1',
    'shard', NULL, 'texts, pg_catalog');
\echo :LAST_ERROR_SQLSTATE
SET search_path = texts, public;
SELECT pgdog.declare_sharded('mine', 'id', 'bigint',
    'SELECT shard_id FROM map WHERE id OPERATOR(pg_catalog.=) $1', 'shard', NULL,
    'texts, pg_catalog');
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_other';
SELECT pgdog.unshard_table('mine');
-- triggers on tables of others, and the triggers' functions for tables of one's own
SELECT pgdog.shard_table('mine', 'id',
    lookup_query => 'SELECT id FROM public.tenants WHERE id = $1');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.declare_sharded('mine', 'id', 'bigint',
    'SELECT id FROM public.tenants WHERE id = $1', 'value', NULL, 'public');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.declare_sharded('mine', 'id', 'bigint',
    'SELECT epoch FROM pgdog.topology WHERE epoch = $1', 'value', NULL, 'public');
\echo :LAST_ERROR_SQLSTATE
CREATE TRIGGER up AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION pgdog.lookup_changed();
SELECT epoch AS before FROM pgdog.topology \gset
INSERT INTO mine VALUES (1);
SELECT epoch - :before AS raised FROM pgdog.topology;
SELECT count(*) FROM pgdog.sharded_tables WHERE schema_name = 'texts';
-- the meaning is that of the declaration, on whatever path it is asked later
RESET ROLE;
CREATE SCHEMA old_texts AUTHORIZATION regress_other;
SET ROLE regress_other;
CREATE TABLE old_texts.map (id bigint PRIMARY KEY, shard_id int);
SET pgdog.allow_direct_writes = on;
INSERT INTO old_texts.map VALUES (1, 1);
INSERT INTO texts.map VALUES (1, 0);
SET search_path = texts;
SELECT pgdog.shard_table('mine', 'id', lookup_result => 'shard',
    lookup_query => 'SELECT shard_id FROM map WHERE id OPERATOR(pg_catalog.=) $1 -- one');
SELECT lookup_query, pinned_query FROM pgdog.sharded_tables WHERE schema_name = 'texts';
SET search_path = old_texts;
SELECT pgdog.shard_for('texts.mine', '1');
-- the same again is the same
SET search_path = texts;
SELECT epoch AS before FROM pgdog.topology \gset
SELECT pgdog.shard_table('mine', 'id', lookup_result => 'shard',
    lookup_query => 'SELECT shard_id FROM map WHERE id OPERATOR(pg_catalog.=) $1 -- one');
SELECT epoch - :before AS raised FROM pgdog.topology;
-- constants mean what they mean to the shims
SELECT pgdog.unshard_table('mine');
SET standard_conforming_strings = off;
SET datestyle = 'SQL, DMY';
SELECT pgdog.shard_table('mine', 'id', lookup_result => 'shard', lookup_query => $q$
    SELECT shard_id FROM map WHERE id OPERATOR(pg_catalog.=) $1
       AND id::text <> '\' AND date '2026-02-01' < date '2026-03-01'$q$);
RESET standard_conforming_strings;
RESET datestyle;
SELECT pinned_query FROM pgdog.sharded_tables WHERE schema_name = 'texts';
SELECT pgdog.shard_for('mine', '1');
RESET ROLE;
RESET search_path;
\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA texts, old_texts CASCADE;
