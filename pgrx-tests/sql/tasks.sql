-- A task walks through core's machine; every step is an event with its rule.
\set SHOW_CONTEXT never
SELECT position, from_status, event, condition, to_status FROM pgdog.fsm WHERE position <= 9;
SELECT count(*) = max(position) AND min(position) = 1 AS numbered FROM pgdog.fsm;
SELECT pgdog.add_shard(3);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.cutover_shard(2);
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_other;
SELECT pgdog.add_shard(2);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.stop_task(1);
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_owner;
SELECT pgdog.add_shard(2) AS task \gset
SELECT pgdog.add_shard(2) = 0;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SET ROLE regress_shim;
SELECT pgdog.task_advance(:task, 'cleaned');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.task_advance(:task, 'no such event');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.task_advance(:task + 1000, 'cleaned');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.task_advance(:task, 'guards_passed');
SELECT pgdog.task_progress(:task, '{"inner_status": "copying orders", "rows_total": 100,
    "rows_done": 40, "lag_bytes": 12, "source_sysid": "77", "error": null}');
SELECT pgdog.task_progress(:task, '{"rows_done": 50}');
SELECT pgdog.task_progress(:task, '{"status": "done"}');
\echo :LAST_ERROR_SQLSTATE
SELECT inner_status, rows_total, rows_done, lag_bytes, source_sysid FROM pgdog.tasks;
SELECT pgdog.task_advance(:task, 'schema_synced');
SELECT pgdog.task_advance(:task, 'data_copied');
SELECT pgdog.task_advance(:task, 'indexed');
SELECT pgdog.task_advance(:task, 'caught_up');
SELECT pgdog.cutover_shard(2) = :task AS asked;
SELECT pgdog.task_advance(:task, 'fence_failed', '{"error": "held by 4711"}');
SELECT status, error, cutover_requested FROM pgdog.tasks;
SELECT pgdog.task_advance(:task, 'caught_up');
SELECT pgdog.cutover_shard(2) = :task AS asked;
SELECT pgdog.task_advance(:task, 'fence_held');
SELECT pgdog.task_advance(:task, 'decided');
SELECT pgdog.stop_task(:task);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.task_advance(:task, 'activated');
SELECT pgdog.task_advance(:task, 'cleaned');
RESET ROLE;
SELECT type, shard, status, finished_at IS NOT NULL AS finished FROM pgdog.tasks;
SELECT from_status, event, to_status, rule_pos = position AS rule, e.why = f.why AS why
  FROM pgdog.task_events e LEFT JOIN pgdog.fsm f USING (from_status, event, to_status)
 ORDER BY event_id;

-- auto, then stopped
SELECT pgdog.add_shard(2, auto => true) AS task \gset
SELECT pgdog.task_advance(:task, 'guards_passed');
SELECT pgdog.stop_task(:task);
SELECT pgdog.task_advance(:task, 'schema_synced');
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.task_advance(:task, 'undone');
SELECT count(*) FROM pgdog.tasks WHERE finished_at IS NULL;

-- one task at a time is a rule of the table, too
SELECT pgdog.add_shard(2) AS task \gset
INSERT INTO pgdog.tasks (type, shard) VALUES ('add_shard', 2);
SELECT pgdog.task_advance(:task, 'guards_failed', '{"error": "no slot is free"}');
SELECT status, error FROM pgdog.tasks WHERE task_id = :task;
SELECT pgdog.heartbeat('00ff', 'shim-a', '10.0.0.1:6432', '0.1.0', 1, '{regress}', '{0,1}');
SELECT pgdog.heartbeat('00ff', 'shim-a', '10.0.0.1:6432', '0.1.0', 2, '{regress}', '{0,1,2}');
SELECT instance_id, name, addr, version, topology_version, databases, reachable
  FROM pgdog.instances;
SELECT pgdog.deregister('00ff');
SELECT count(*) FROM pgdog.instances;
DELETE FROM pgdog.tasks;
