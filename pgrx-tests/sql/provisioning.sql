-- A node that is being filled takes client writes from nobody, but a task's own session.
\set SHOW_CONTEXT never
\c bare
DROP SCHEMA IF EXISTS pgdog;
CREATE EXTENSION pgdog;
SELECT pgdog.provision_node(2);
SELECT pgdog.provision_node(2);
SELECT pgdog.install_node(2, 3);
CREATE TABLE plans (id int);
CREATE TABLE orders (tenant_id bigint);
SELECT pgdog.omni_table('plans');
SELECT pgdog.shard_table('orders', 'tenant_id');
SELECT version, shards, state, shard FROM pgdog.topology;
SELECT count(*) FROM pgdog.config;
INSERT INTO plans VALUES (1);
\echo :LAST_ERROR_SQLSTATE
INSERT INTO orders VALUES (1);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.add_shard(2);
\echo :LAST_ERROR_SQLSTATE
SET pgdog.task_id = '1';
INSERT INTO plans VALUES (1);
RESET pgdog.task_id;
UPDATE pgdog.topology SET version = 2, shards = 3, state = 'serving', epoch = epoch + 1;
INSERT INTO plans VALUES (2);
SELECT shard, shards FROM pgdog.config;
DROP TABLE plans, orders;
DROP EXTENSION pgdog;
