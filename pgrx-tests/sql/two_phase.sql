-- The decision row stands exactly if the transaction that it is part of was committed.
\set SHOW_CONTEXT never
\set VERBOSITY terse
SELECT epoch AS now FROM pgdog.topology \gset
SET ROLE regress_other;
SELECT pgdog.two_phase_record('anything');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT pgdog.two_phase_record('pgdog_a');
PREPARE TRANSACTION 'pgdog_a';
BEGIN;
SELECT pgdog.two_phase_record('pgdog_b');
PREPARE TRANSACTION 'pgdog_b';
SELECT gid FROM pgdog.two_phase_commits;
COMMIT PREPARED 'pgdog_a';
ROLLBACK PREPARED 'pgdog_b';
SELECT gid FROM pgdog.two_phase_commits;
DELETE FROM pgdog.two_phase_commits;
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_shim;
DELETE FROM pgdog.two_phase_commits;
SET ROLE regress_owner;
-- the gate is kept through PREPARE
SET pgdog.epoch = :'now';
BEGIN;
INSERT INTO tenants VALUES (1, 0, 'one');
PREPARE TRANSACTION 'pgdog_c';
SELECT mode FROM pg_locks WHERE relation = 'pgdog.gate'::regclass AND pid IS NULL;
SET lock_timeout = '20ms';
RESET ROLE;
BEGIN;
LOCK TABLE pgdog.gate IN SHARE ROW EXCLUSIVE MODE;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
ROLLBACK PREPARED 'pgdog_c';
-- Entering is forgotten by PREPARE.
SET ROLE regress_owner;
SET pgdog.epoch = '1';
BEGIN;
SELECT epoch = :'now' AS today FROM pgdog.omni_enter();
PREPARE TRANSACTION 'pgdog_d';
INSERT INTO tenants VALUES (1, 0, 'one');
\echo :LAST_ERROR_SQLSTATE
COMMIT PREPARED 'pgdog_d';
RESET ROLE;
