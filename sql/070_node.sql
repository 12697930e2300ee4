-- Who this server is and how far it has replayed, in one row, cheap enough to be polled.

CREATE FUNCTION pgdog.node_facts(
    OUT system_identifier text, OUT timeline integer, OUT in_recovery boolean, OUT replay_lsn text
) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL SAFE ROWS 1 AS 'MODULE_PATHNAME', 'node_facts_wrapper';
COMMENT ON FUNCTION pgdog.node_facts() IS
    'identity and position of this server; on a primary the position is the WAL insert position';

CREATE FUNCTION pgdog.version() RETURNS text
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'version_wrapper';
COMMENT ON FUNCTION pgdog.version() IS 'version of the loaded library';

CREATE FUNCTION pgdog.timeline_history(OUT timeline integer, OUT ended_at text)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL SAFE ROWS 3 AS 'MODULE_PATHNAME', 'timeline_history_wrapper';
COMMENT ON FUNCTION pgdog.timeline_history() IS
    'earlier timelines of this server, and the last position that it shares with each';

CREATE FUNCTION pgdog.lsn_for_timestamp(commit_stamp timestamptz) RETURNS pg_lsn
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'lsn_for_timestamp_wrapper';
COMMENT ON FUNCTION pgdog.lsn_for_timestamp(timestamptz) IS
    'position that covers every commit of this server stamped up to then; NULL on a standby, for a '
    'moment in the future, and when it cannot be told: read from the primary';

CREATE VIEW pgdog.node AS
SELECT f.system_identifier,
       f.timeline,
       current_setting('pgdog.incarnation') AS incarnation,
       f.in_recovery,
       f.replay_lsn::pg_lsn AS replay_lsn,
       pg_last_wal_receive_lsn() AS receive_lsn,
       pg_last_xact_replay_timestamp() AS last_replay_at,
       clock_timestamp() AS clock,
       t.shard,
       t.shards,
       pgdog.version() AS version,
       t.epoch,
       t.version AS topology_version,
       t.state
  FROM pgdog.node_facts() f CROSS JOIN pgdog.topology t;
COMMENT ON VIEW pgdog.node IS 'this node in one row';
COMMENT ON COLUMN pgdog.node.incarnation IS
    'one start of one server; a position vouches only for the incarnation that reported it';
COMMENT ON COLUMN pgdog.node.replay_lsn IS
    'replayed position; on a primary the WAL insert position';
COMMENT ON COLUMN pgdog.node.timeline IS 'timeline of replay_lsn';

CREATE VIEW pgdog.replicas AS
SELECT application_name AS standby,
       host(client_addr) AS addr,
       state,
       pg_wal_lsn_diff(
           CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END, replay_lsn
       )::bigint AS lag_bytes,
       (extract(epoch FROM replay_lag) * 1000)::double precision AS lag_ms
  FROM pg_stat_replication
 WHERE state IS DISTINCT FROM 'backup';
COMMENT ON VIEW pgdog.replicas IS 'standbys of this primary; figures need pg_monitor';
COMMENT ON COLUMN pgdog.replicas.lag_bytes IS 'WAL bytes written here and not replayed there';
COMMENT ON COLUMN pgdog.replicas.lag_ms IS
    'replay lag in ms; NULL when the standby is idle and caught up';
GRANT SELECT ON pgdog.node, pgdog.replicas TO PUBLIC;
