-- While an intent stands, the schema is frozen, except for the task's own session.
\set SHOW_CONTEXT never
INSERT INTO pgdog.task_intents (task_id, shard) VALUES (7, 2);
SET ROLE regress_owner;
CREATE TABLE more (id int);
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY terse
ALTER TABLE tenants ADD COLUMN extra text;
CREATE INDEX ON tenants (name);
DROP TABLE tenants;
CREATE TABLE copy_of AS SELECT * FROM tenants;
SELECT * INTO copy_of FROM tenants;
CREATE VIEW v AS SELECT 1;
CREATE TYPE mood AS ENUM ('good');
CREATE SCHEMA another CREATE TABLE t (id int);
ALTER TABLE tenants RENAME TO lodgers;
GRANT SELECT ON tenants TO regress_other;
DO $$ BEGIN CREATE TABLE inside (id int); END $$;
SELECT pgdog.omni_table('plans');
\echo :LAST_ERROR_SQLSTATE

-- temporary tables, data and roles are not the schema
CREATE TEMP TABLE passing (id int);
ALTER TABLE passing ADD COLUMN extra text;
CREATE INDEX passing_id ON passing (id);
CREATE TEMP VIEW passing_view AS SELECT * FROM passing;
SELECT 1 AS one INTO TEMP passing_too;
DROP VIEW passing_view;
DROP TABLE passing, passing_too;
DROP TABLE IF EXISTS no_such_table;
INSERT INTO plans VALUES (1, 'free');
TRUNCATE plans;
VACUUM plans;
ANALYZE plans;
SET pgdog.task_id = '7';
RESET ROLE;
CREATE ROLE regress_passing;
DROP ROLE regress_passing;

-- a superuser is frozen too, until he speaks for the task
CREATE TABLE more (id int);
SET pgdog.task_id = '8';
CREATE TABLE more (id int);
SET pgdog.task_id = '7';
CREATE TABLE more (id int);
RESET pgdog.task_id;
DELETE FROM pgdog.task_intents;
BEGIN;
DROP TABLE more;
SELECT mode FROM pg_locks WHERE relation = 'pgdog.gate'::regclass AND pid = pg_backend_pid();
COMMIT;
