-- A database without the extension, in the same server: nothing is checked, nothing is in the way.
\c bare
CREATE TABLE tenants (id int, tenant_id int);
SET pgdog.epoch = '0';
INSERT INTO tenants VALUES (1, 1);
COPY tenants FROM '/dev/null';
TRUNCATE tenants;
-- a schema of that name is not the extension
CREATE SCHEMA pgdog CREATE TABLE topology (version bigint) CREATE TABLE gate ();
INSERT INTO tenants VALUES (1, 1);
DROP SCHEMA pgdog CASCADE;
-- the extension comes while the session is open
INSERT INTO tenants VALUES (2, 1);
CREATE EXTENSION pgdog;
INSERT INTO tenants VALUES (3, 1);
SELECT pgdog.install_node(0, 1);
SELECT pgdog.omni_table('tenants');
INSERT INTO tenants VALUES (4, 1);
-- and goes
DROP EXTENSION pgdog;
INSERT INTO tenants VALUES (5, 1);
DROP TABLE tenants;
