-- A declaration never loses its table, and DDL that changes placement raises the epoch.
\set SHOW_CONTEXT never
\set VERBOSITY terse
SELECT epoch AS before FROM pgdog.topology \gset
SET ROLE regress_owner;
ALTER TABLE tenants RENAME TO lodgers;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE orders RENAME COLUMN tenant_id TO t;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE orders RENAME COLUMN note TO remark;
ALTER TABLE orders RENAME COLUMN remark TO note;
RESET ROLE;
CREATE SCHEMA elsewhere;
ALTER TABLE orders SET SCHEMA elsewhere;
\echo :LAST_ERROR_SQLSTATE
ALTER SCHEMA public RENAME TO private;
\echo :LAST_ERROR_SQLSTATE
ALTER SCHEMA elsewhere RENAME TO nowhere;
DROP SCHEMA nowhere;
-- for the two of another column
SELECT epoch - :'before' AS raised FROM pgdog.topology;

-- dropped, and born again undeclared
CREATE TABLE passing (a int, b int, tenant_id bigint);
SELECT pgdog.shard_table('passing', 'tenant_id');
SELECT epoch AS before FROM pgdog.topology \gset
ALTER TABLE passing ADD COLUMN c int;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
ALTER TABLE passing ALTER COLUMN b SET DEFAULT 1;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
-- nothing that the router knows
ALTER TABLE passing SET (fillfactor = 90);
ALTER TABLE passing ENABLE ROW LEVEL SECURITY, ADD CONSTRAINT small CHECK (c < 9) NOT VALID;
ALTER TABLE passing VALIDATE CONSTRAINT small;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
-- twice in one transaction is once
BEGIN;
ALTER TABLE passing ADD COLUMN d int;
ALTER TABLE passing ADD COLUMN e int;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
ROLLBACK;
ALTER TABLE passing DROP COLUMN a;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
SELECT pgdog.table_class('passing');
DROP TABLE passing;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
SELECT table_name FROM pgdog.sharded_tables ORDER BY 1;
CREATE TABLE passing (tenant_id bigint);
SELECT pgdog.table_class('passing');
DROP TABLE passing;

-- a new function that may touch tables is known to everybody before it is called
SELECT epoch AS before FROM pgdog.topology \gset
CREATE FUNCTION plus(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + 1';
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
SELECT epoch - :'before' AS raised FROM pgdog.topology;
CREATE FUNCTION orders_of(t bigint) RETURNS SETOF orders LANGUAGE sql STABLE
    AS 'SELECT * FROM orders WHERE tenant_id = t';
SELECT epoch - :'before' AS raised FROM pgdog.topology;
-- nor is a new body news, or what only one session can call
CREATE OR REPLACE FUNCTION orders_of(t bigint) RETURNS SETOF orders LANGUAGE sql STABLE
    AS 'SELECT * FROM orders WHERE tenant_id = t AND true';
CREATE FUNCTION pg_temp.own() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1';
SELECT epoch - :'before' AS raised FROM pgdog.topology;
ALTER FUNCTION plus(int) VOLATILE;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
SELECT name FROM pgdog.opaque_functions() WHERE name IN ('plus', 'fires', 'orders_of') ORDER BY 1;
-- those of a schema are others when its name changes
CREATE SCHEMA one;
CREATE FUNCTION one.of_schema() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1';
CREATE SCHEMA empty;
SELECT epoch AS before FROM pgdog.topology \gset
ALTER SCHEMA empty RENAME TO still_empty;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
ALTER SCHEMA one RENAME TO two;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
DROP SCHEMA still_empty;
DROP SCHEMA two CASCADE;
DROP FUNCTION plus(int), fires(), orders_of(bigint);

-- a declaration without a name takes in tables that come later
SELECT pgdog.shard_table('', 'customer_id');
SELECT epoch AS before FROM pgdog.topology \gset
CREATE TABLE bills (id int, customer_id bigint);
SELECT epoch - :'before' AS raised FROM pgdog.topology;
SELECT pgdog.table_class('bills'), pgdog.table_class('tenants'), pgdog.table_class('plans');
CREATE TABLE bills2 (id int);
SELECT epoch - :'before' AS raised FROM pgdog.topology;
ALTER TABLE bills2 ADD COLUMN customer_id bigint;
SELECT epoch - :'before' AS raised FROM pgdog.topology;
-- nothing that the router knows
ALTER TABLE bills SET (fillfactor = 90);
SELECT epoch - :'before' AS raised FROM pgdog.topology;
DROP TABLE bills, bills2;
DELETE FROM pgdog.sharded_tables WHERE column_name = 'customer_id';

-- who changes placement goes on in the same transaction; others and later ones are stale
SELECT epoch AS now FROM pgdog.topology \gset
SET ROLE regress_owner;
SET pgdog.epoch = :'now';
BEGIN;
SELECT pgdog.omni_table('plans');
INSERT INTO plans VALUES (1, 'one');
INSERT INTO tenants VALUES (1, 0, 'one');
COMMIT;
INSERT INTO tenants VALUES (2, 0, 'two');
BEGIN;
SELECT pgdog.unshard_table('plans');
INSERT INTO tenants VALUES (2, 0, 'two');
ROLLBACK;
RESET ROLE;
RESET pgdog.epoch;
SELECT pgdog.unshard_table('plans');
TRUNCATE tenants, plans;
