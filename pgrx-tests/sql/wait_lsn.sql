-- SET waits; what is here already is answered at once, what isn't is refused with an estimate.
\set SHOW_CONTEXT never
SET pgdog.wait_lsn = '0/1';
SELECT pg_current_wal_insert_lsn() AS here, timeline_id AS tli FROM pg_control_checkpoint() \gset
SET pgdog.wait_lsn = :'here';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL pgdog.wait_lsn = :'here';
SELECT 1 AS served;
COMMIT;
SET pgdog.wait_lsn = '';
SET pgdog.wait_lsn_timeout = 20;
\set VERBOSITY terse
SET pgdog.wait_lsn = 'FFFFFFFF/0';
\echo :LAST_ERROR_SQLSTATE
SET pgdog.wait_lsn_timeout = 0;
SET pgdog.wait_lsn = 'FFFFFFFF/0';
\echo :LAST_ERROR_SQLSTATE

-- bad values leave the old one
SET pgdog.wait_lsn = '0/1@1';
SET pgdog.wait_lsn = '0/1/2';
\echo :LAST_ERROR_SQLSTATE
SET pgdog.wait_lsn = '123456789/0';
SET pgdog.wait_lsn = '0=0/1';
SHOW pgdog.wait_lsn;

-- a position of a timeline that this server never reached is not here
SET pgdog.wait_lsn = '0/1@9';
\echo :LAST_ERROR_SQLSTATE

-- a snapshot that is older than the wait would miss what it waited for
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 AS snapshot_taken;
SET LOCAL pgdog.wait_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT 1;
SET LOCAL pgdog.wait_lsn = '0/1';
COMMIT;
DO $$ BEGIN SET pgdog.wait_lsn = '0/1'; END $$;

-- the wait gives way to a timeout of the statement
SET pgdog.wait_lsn_timeout = '1min';
SET statement_timeout = '50ms';
SET pgdog.wait_lsn = 'FFFFFFFF/0';
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
