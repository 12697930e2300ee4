-- Counts and hashes of the omnisharded tables: of one point in time, whatever the order of rows.
\set SHOW_CONTEXT never
BEGIN;
CREATE TABLE verified (id int PRIMARY KEY, note text);
SELECT pgdog.omni_table('verified');
INSERT INTO verified VALUES (1, 'a'), (2, NULL), (3, 'c');
SELECT shard, table_name, rows FROM pgdog.verify_omni() WHERE table_name = 'public.verified';
SELECT hash AS before FROM pgdog.verify_omni() WHERE table_name = 'public.verified' \gset
DELETE FROM verified WHERE id = 1;
INSERT INTO verified VALUES (1, 'a');
SELECT hash = :'before' AS same FROM pgdog.verify_omni() WHERE table_name = 'public.verified';
UPDATE verified SET note = '' WHERE id = 2;
SELECT hash = :'before' AS same FROM pgdog.verify_omni() WHERE table_name = 'public.verified';
SELECT mode FROM pg_locks
 WHERE relation = 'pgdog.gate'::regclass AND pid = pg_backend_pid() AND mode = 'ShareLock';
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM pgdog.verify_omni();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SET ROLE regress_other;
SELECT * FROM pgdog.verify_omni();
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- Whatever its columns are called, all of a row counts.
BEGIN;
CREATE TABLE odd (t int PRIMARY KEY, r int, rows int, hash text);
SELECT pgdog.omni_table('odd');
INSERT INTO odd VALUES (1, 2, 3, 'x');
SELECT hash AS before FROM pgdog.verify_omni() WHERE table_name = 'public.odd' \gset
UPDATE odd SET rows = 4;
SELECT hash = :'before' AS same FROM pgdog.verify_omni() WHERE table_name = 'public.odd';
ROLLBACK;
