-- One row, whose counters only rise; config says the same.
\set SHOW_CONTEXT never
SELECT version, shards, state, epoch, placement_epoch, shard FROM pgdog.topology;
SELECT count(*) FROM pgdog.config;
SELECT * FROM pgdog.omni_enter();
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.install_node(2, 2);
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_shim;
SELECT pgdog.install_node(0, 2);
SELECT pgdog.install_node(0, 2);
RESET ROLE;
SELECT version, shards, state, epoch, placement_epoch, shard FROM pgdog.topology;
SELECT shard, shards FROM pgdog.config;
SELECT pgdog.install_node(1, 2);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.provision_node(1);
\echo :LAST_ERROR_SQLSTATE

-- Growth raises the epoch and leaves the placement epoch; every other rise takes it along.
BEGIN;
UPDATE pgdog.topology SET version = version + 1, shards = 3, epoch = epoch + 1;
SELECT version, shards, epoch, placement_epoch FROM pgdog.topology;
SELECT shard, shards FROM pgdog.config;
UPDATE pgdog.topology SET epoch = epoch + 1;
SELECT epoch, placement_epoch FROM pgdog.topology;
ROLLBACK;
UPDATE pgdog.topology SET epoch = 0;
UPDATE pgdog.topology SET version = 0;
UPDATE pgdog.topology SET shards = 1;
UPDATE pgdog.topology SET state = 'nonsense';
UPDATE pgdog.topology SET shard = 2;
DELETE FROM pgdog.topology;
TRUNCATE pgdog.topology;
INSERT INTO pgdog.topology VALUES (1, 2, 'serving', 1, 1, 0);
-- also for replication
SET session_replication_role = replica;
UPDATE pgdog.topology SET epoch = 0;
RESET session_replication_role;

SET ROLE regress_other;
SELECT * FROM pgdog.omni_enter();
SELECT shard, shards FROM pgdog.config;
UPDATE pgdog.topology SET epoch = epoch + 1;
\echo :LAST_ERROR_SQLSTATE
