-- Every kind of statement of an older epoch is refused before it does anything.
\set SHOW_CONTEXT never
\set VERBOSITY terse
INSERT INTO tenants VALUES (1, 0, 'one');
INSERT INTO orders VALUES (1, 1, 'first');
CREATE TABLE ledger (id bigint, tenant_id bigint) PARTITION BY RANGE (id);
CREATE TABLE ledger_low PARTITION OF ledger FOR VALUES FROM (0) TO (100);
CREATE TABLE lines (tenant bigint REFERENCES tenants ON DELETE CASCADE, t text);
CREATE VIEW some_tenants AS SELECT * FROM tenants;
CREATE FUNCTION write_tenant() RETURNS void LANGUAGE sql AS
    $$ INSERT INTO tenants VALUES (99, 0, 'f') $$;
SELECT pgdog.omni_table('ledger');
SELECT pgdog.omni_table('lines');
GRANT ALL ON ALL TABLES IN SCHEMA public TO regress_owner;
ALTER TABLE ledger OWNER TO regress_owner;
ALTER TABLE ledger_low OWNER TO regress_owner;
ALTER TABLE lines OWNER TO regress_owner;
SELECT epoch AS now, epoch - 1 AS before FROM pgdog.topology \gset
SET ROLE regress_owner;

-- a session of today
SET pgdog.epoch = :'now';
INSERT INTO tenants VALUES (2, 0, 'two');
-- what its client resets is not the epoch
RESET ALL;
INSERT INTO ledger_low VALUES (1, 1);
INSERT INTO orders VALUES (2, 2, 'second');
UPDATE orders SET note = 'changed' WHERE id = 2;

-- what stands in a function runs here only, unless the statement runs everywhere
SELECT write_tenant();
\echo :LAST_ERROR_SQLSTATE
DO $$ BEGIN COPY tenants FROM '/dev/null'; END $$;
DO $$ BEGIN TRUNCATE tenants; END $$;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
SELECT write_tenant();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- what an omnisharded write sets off runs wherever that does, even after a caught error
RESET ROLE;
CREATE FUNCTION log_line() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    line record;
BEGIN
    BEGIN
        PERFORM 1 / (NEW.id - NEW.id);
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
    FOR line IN UPDATE lines SET t = t || '!' RETURNING * LOOP
        RAISE NOTICE 'line %', line.t;
    END LOOP;
    RETURN NEW;
END
$$;
CREATE TRIGGER log_line AFTER INSERT ON tenants FOR EACH ROW EXECUTE FUNCTION log_line();
CREATE TRIGGER log_line AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION log_line();
SET ROLE regress_owner;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
INSERT INTO lines VALUES (1, 'x');
INSERT INTO tenants VALUES (90, 0, 'ninety');
PREPARE one AS INSERT INTO tenants VALUES (91, 0, 'more');
EXECUTE one;
\o /dev/null
EXPLAIN ANALYZE INSERT INTO tenants VALUES (93, 0, 'explained');
\o
SAVEPOINT two;
INSERT INTO orders VALUES (90, 1, 'fires it on one shard');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO two;
DELETE FROM tenants WHERE id = 1;
SELECT count(*) FROM lines;
ROLLBACK;
-- nor does a loop over a cursor hide it, or a change of definitions
INSERT INTO orders VALUES (90, 1, 'fires it on one shard');
BEGIN;
SELECT pgdog.omni_table('plans');
INSERT INTO orders VALUES (90, 1, 'fires it on one shard');
ROLLBACK;
-- nor a cursor that a function has left open
CREATE FUNCTION left_open(c refcursor) RETURNS refcursor LANGUAGE plpgsql AS $$
BEGIN
    OPEN c FOR INSERT INTO lines VALUES (3, 'y') RETURNING tenant;
    RETURN c;
END
$$;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
SELECT left_open('c');
FETCH ALL FROM c;
ROLLBACK;
DROP FUNCTION left_open(refcursor);
SELECT epoch AS now FROM pgdog.topology \gset
-- at the commit
RESET ROLE;
DROP TRIGGER log_line ON tenants;
DROP TRIGGER log_line ON orders;
CREATE CONSTRAINT TRIGGER log_line AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION log_line();
CREATE CONSTRAINT TRIGGER log_line AFTER INSERT ON tenants DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION log_line();
SET ROLE regress_owner;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
INSERT INTO lines VALUES (2, 'x');
INSERT INTO orders VALUES (90, 1, 'fires it on one shard');
COMMIT;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
INSERT INTO lines VALUES (1, 'z');
INSERT INTO tenants VALUES (92, 0, 'fires it on every shard');
COMMIT;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
DELETE FROM tenants WHERE id = 92;
COMMIT;
-- of which the decision is recorded in the same transaction
BEGIN;
SELECT shards FROM pgdog.omni_enter();
INSERT INTO tenants VALUES (92, 0, 'fires it on every shard');
SELECT pgdog.two_phase_record('pgdog_decided');
PREPARE TRANSACTION 'pgdog_decided';
ROLLBACK PREPARED 'pgdog_decided';
RESET ROLE;
DROP TRIGGER log_line ON tenants;
DROP TRIGGER log_line ON orders;
DROP FUNCTION log_line();
SET ROLE regress_owner;
-- (a row of a map is gone)
SELECT epoch AS now FROM pgdog.topology \gset
SET pgdog.epoch = :'now';

-- a session of yesterday
SET pgdog.epoch = :'before';
INSERT INTO tenants VALUES (3, 0, 'three');
\echo :LAST_ERROR_SQLSTATE
UPDATE tenants SET name = 'x';
DELETE FROM tenants WHERE false;
MERGE INTO tenants t USING (VALUES (7)) v(id) ON t.id = v.id
    WHEN NOT MATCHED THEN INSERT VALUES (7, 0, 'seven');
WITH gone AS (DELETE FROM tenants RETURNING 1) SELECT count(*) FROM gone;
COPY tenants FROM '/dev/null';
\echo :LAST_ERROR_SQLSTATE
COPY orders FROM '/dev/null';
TRUNCATE tenants;
\echo :LAST_ERROR_SQLSTATE
TRUNCATE plans, tenants CASCADE;
INSERT INTO some_tenants VALUES (4, 0, 'view');
INSERT INTO ledger VALUES (2, 1);
INSERT INTO ledger_low VALUES (2, 1);
SELECT write_tenant();
DO $$ BEGIN UPDATE orders SET note = 'do'; END $$;
PREPARE p AS INSERT INTO tenants VALUES (5, 0, 'prepared');
EXECUTE p;
EXPLAIN ANALYZE INSERT INTO tenants VALUES (5, 0, 'explained');
EXPLAIN (COSTS off) INSERT INTO tenants VALUES (5, 0, 'explained');
SELECT * FROM orders;
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM plans WHERE id IN (SELECT id FROM orders);
SELECT * FROM orders FOR UPDATE;
COPY (SELECT * FROM orders) TO stdout;

-- omni reads and undeclared tables don't care
SELECT count(*) FROM tenants;
INSERT INTO plans VALUES (1, 'free');
CREATE TEMP TABLE scratch AS SELECT 1 AS tenant_id;
INSERT INTO scratch VALUES (2);
-- but what they are filled from does
INSERT INTO scratch SELECT id FROM tenants;
INSERT INTO scratch SELECT tenant_id FROM orders;
\echo :LAST_ERROR_SQLSTATE
DELETE FROM scratch USING orders o WHERE o.tenant_id = scratch.tenant_id;

-- growth: sharded statements stay right, omni writes and fanned out reads don't
RESET ROLE;
BEGIN;
UPDATE pgdog.topology SET version = version + 1, shards = shards + 1, epoch = epoch + 1;
SET LOCAL ROLE regress_owner;
SET LOCAL pgdog.epoch = :'now';
INSERT INTO orders VALUES (3, 1, 'third');
SELECT count(*) FROM orders;
SAVEPOINT one;
INSERT INTO tenants VALUES (8, 0, 'eight');
ROLLBACK TO one;
SET LOCAL pgdog.fan_out = on;
SELECT count(*) FROM orders;
ROLLBACK;

-- entering the gate speaks for the transaction, and ends with its savepoint
SET ROLE regress_owner;
SET pgdog.epoch = :'before';
BEGIN;
SELECT epoch = :'now' AS today, shards FROM pgdog.omni_enter();
INSERT INTO tenants VALUES (9, 0, 'nine');
SAVEPOINT one;
INSERT INTO tenants VALUES (10, 0, 'ten');
ROLLBACK TO one;
INSERT INTO orders VALUES (4, 9, 'fourth');
COMMIT;
INSERT INTO tenants VALUES (11, 0, 'eleven');
BEGIN;
SAVEPOINT one;
SELECT epoch = :'now' AS today FROM pgdog.omni_enter();
RELEASE one;
INSERT INTO tenants VALUES (11, 0, 'eleven');
ROLLBACK;
BEGIN;
SAVEPOINT one;
SELECT epoch = :'now' AS today FROM pgdog.omni_enter();
ROLLBACK TO one;
INSERT INTO tenants VALUES (11, 0, 'eleven');
ROLLBACK;

-- an error of the statement itself keeps its own code and context
\set VERBOSITY default
\set SHOW_CONTEXT always
DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = 'AB123'; END $$;
\echo :LAST_ERROR_SQLSTATE
\set SHOW_CONTEXT never
SELECT id FROM tenants ORDER BY id;
RESET ROLE;
RESET pgdog.epoch;

-- who wrote tenants holds the gate, who wrote orders doesn't
BEGIN;
INSERT INTO orders VALUES (5, 1, 'fifth');
SELECT count(*) FROM pg_locks WHERE relation = 'pgdog.gate'::regclass AND pid = pg_backend_pid();
INSERT INTO lines VALUES (1, 'x');
SELECT mode FROM pg_locks WHERE relation = 'pgdog.gate'::regclass AND pid = pg_backend_pid();
ROLLBACK;
DROP VIEW some_tenants;
DROP FUNCTION write_tenant();
SELECT pgdog.unshard_table('ledger'), pgdog.unshard_table('lines');
DROP TABLE ledger, lines;
DELETE FROM tenants;
TRUNCATE orders, plans;
