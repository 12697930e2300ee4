-- One row says who this server is.
SELECT column_name, data_type FROM information_schema.columns
 WHERE table_schema = 'pgdog' AND table_name = 'node' ORDER BY ordinal_position;
SET ROLE regress_other;
SELECT system_identifier = (SELECT system_identifier::text FROM pg_control_system()) AS system,
       timeline, incarnation ~ '^[0-9a-f]{32}$' AS incarnation, in_recovery,
       replay_lsn <= pg_current_wal_insert_lsn() AS replay, receive_lsn, last_replay_at,
       clock_timestamp() - clock < '1 min' AS clock, shard, shards, version,
       epoch = (SELECT epoch FROM pgdog.topology) AS epoch, topology_version, state
  FROM pgdog.node;
SELECT current_setting('pgdog.incarnation') AS here \gset
SELECT count(*) FROM pgdog.replicas;
\c
SELECT current_setting('pgdog.incarnation') = :'here' AS same_server;
