-- A session that never said an epoch may read; it writes only if it says so.
\set SHOW_CONTEXT never
SET ROLE regress_owner;
SELECT count(*) FROM tenants;
SELECT count(*) FROM orders;
INSERT INTO tenants VALUES (1, 0, 'one');
\echo :LAST_ERROR_SQLSTATE
INSERT INTO orders VALUES (1, 1, 'first');
\echo :LAST_ERROR_SQLSTATE
COPY orders FROM '/dev/null';
TRUNCATE orders;
INSERT INTO plans VALUES (1, 'free');
SET pgdog.allow_direct_writes = on;
INSERT INTO tenants VALUES (1, 0, 'one');
INSERT INTO orders VALUES (1, 1, 'first');
RESET pgdog.allow_direct_writes;
RESET ROLE;
INSERT INTO tenants VALUES (2, 0, 'two');
SELECT id FROM tenants ORDER BY id;
DELETE FROM tenants;
TRUNCATE orders, plans;
