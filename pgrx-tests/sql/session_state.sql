-- What code leaves on its connection is told with the end of its transaction.
\set VERBOSITY terse
SET client_min_messages = warning;
-- The kinds of the last report, without its number.
CREATE FUNCTION pg_temp.told() RETURNS text LANGUAGE sql AS
    $$ SELECT split_part(current_setting('pgdog.session_state'), ' ', 2)
        || rtrim(' ' || split_part(current_setting('pgdog.session_state'), ' ', 3)) $$;
CREATE FUNCTION pg_temp.number() RETURNS int LANGUAGE sql AS
    $$ SELECT coalesce(nullif(split_part(current_setting('pgdog.session_state'), ' ', 1), ''),
        '0')::int $$;
SELECT pg_temp.told();

-- What the client's own statements do is not told, and harmless code neither.
SELECT pg_temp.number() AS before \gset
SET work_mem = '5MB';
RESET work_mem;
BEGIN; SET work_mem = '5MB'; ROLLBACK;
LISTEN here; UNLISTEN here;
PREPARE p AS SELECT 1; EXECUTE p; DEALLOCATE p;
SELECT set_config('app.a', '1', true);
DO $$ BEGIN PERFORM set_config('app.a', '1', true); SET LOCAL work_mem = '6MB'; END $$;
CREATE TABLE plain(a int); DROP TABLE plain;
SELECT pg_advisory_xact_lock(1);
DO $$ BEGIN BEGIN SET work_mem = '7MB'; RAISE 'x'; EXCEPTION WHEN others THEN END; END $$;
SELECT pg_temp.number() = :before AS silent;

-- Parameters, by whatever code.
SELECT set_config('App.A', '1', false);
SELECT pg_temp.told();
DO $$ BEGIN SET work_mem = '5MB'; PERFORM set_config('app.b', '1', false); END $$;
SELECT pg_temp.told();
CREATE FUNCTION sets() RETURNS int LANGUAGE plpgsql AS
    $$ BEGIN EXECUTE 'SE' || 'T app.c = 1'; RETURN 1; END $$;
CREATE VIEW setting AS SELECT sets();
SELECT * FROM setting;
SELECT pg_temp.told();
CREATE TABLE triggers(a int);
CREATE FUNCTION on_insert() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM set_config('app.d', '1', false); RETURN new; END $$;
CREATE TRIGGER sets BEFORE INSERT ON triggers FOR EACH ROW EXECUTE FUNCTION on_insert();
INSERT INTO triggers VALUES (1);
SELECT pg_temp.told();
BEGIN; SELECT sets(); SET LOCAL app.c = 2; COMMIT;
SELECT pg_temp.told(), current_setting('app.c') AS value;
CREATE FUNCTION role() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET ROLE postgres; END $$;
SELECT role();
SELECT pg_temp.told();
SELECT pg_temp.number() AS before \gset
BEGIN; SELECT sets(); ROLLBACK;
SELECT pg_temp.number() = :before AS nothing_is_left_by_a_rollback;

-- A procedure that commits is told of as a whole.
CREATE PROCEDURE twice() LANGUAGE plpgsql AS $$ BEGIN
    SET app.first = 1; COMMIT; SET app.second = 2; COMMIT; END $$;
CALL twice();
SELECT pg_temp.told();

-- Objects: those of transactions stay out, those of sessions are told of, also after an error.
DO $$ BEGIN PERFORM pg_advisory_lock(1); END $$;
SELECT pg_temp.told();
SELECT pg_temp.number() AS before \gset
DO $$ BEGIN PERFORM pg_advisory_lock(2); RAISE 'x'; END $$;
SELECT pg_temp.number() > :before AS locks_outlive_errors;
SELECT pg_advisory_unlock_all();
SELECT pg_temp.number() AS before \gset
DO $$ BEGIN CREATE TEMP TABLE t(a int); END $$;
SELECT pg_temp.number() > :before AS temporary_table;
SELECT pg_temp.number() AS before \gset
INSERT INTO t VALUES (1);
SELECT pg_temp.number() = :before AS use_is_silent;
DROP TABLE t;
SELECT pg_temp.number() > :before AS gone;
SELECT pg_temp.number() AS before \gset
DO $$ BEGIN EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1'; END $$;
SELECT pg_temp.number() > :before AS cursor;
SELECT pg_temp.number() AS before \gset
DO $$ BEGIN LISTEN here; END $$;
SELECT pg_temp.number() > :before AS listens;
SELECT pg_temp.number() AS before \gset
DO $$ BEGIN EXECUTE 'PREPARE inner_one AS SELECT 1'; END $$;
SELECT pg_temp.number() > :before AS prepared;

-- What nothing takes away.
SELECT setseed(0.5);
SELECT pg_temp.told();
DO $$ BEGIN LOAD 'plpgsql'; END $$;
SELECT pg_temp.told();

-- The parameter is the server's.
SET pgdog.session_state = 'x';
RESET ROLE;
DROP TABLE triggers;
DROP VIEW setting;
DROP FUNCTION sets(), on_insert(), role();
DROP PROCEDURE twice;
