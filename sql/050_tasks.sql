-- Topology tasks: one row each on shard 0, driven by any shim through these functions. The state
-- machine itself is core's; the view pgdog.fsm shows it.

CREATE TABLE pgdog.tasks (
    task_id            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY
        CONSTRAINT tasks_pkey PRIMARY KEY,
    type               text        NOT NULL CONSTRAINT tasks_type CHECK (type IN ('add_shard')),
    shard              integer     NOT NULL CONSTRAINT tasks_shard_positive CHECK (shard > 0),
    auto               boolean     NOT NULL DEFAULT false,
    publication        text,
    own_publication    boolean     NOT NULL DEFAULT true,
    status             text        NOT NULL DEFAULT 'validating',
    inner_status       text        NOT NULL DEFAULT '',
    stopping           boolean     NOT NULL DEFAULT false,
    cutover_requested  boolean     NOT NULL DEFAULT false,
    attempt            integer     NOT NULL DEFAULT 0,
    coordinator        text,
    database_name      text        NOT NULL DEFAULT current_database(),
    source_sysid       text,
    source_timeline    integer,
    target_sysid       text,
    target_timeline    integer,
    fingerprint        text,
    tables_total       integer     NOT NULL DEFAULT 0,
    tables_done        integer     NOT NULL DEFAULT 0,
    rows_total         bigint      NOT NULL DEFAULT 0,
    rows_done          bigint      NOT NULL DEFAULT 0,
    bytes_total        bigint      NOT NULL DEFAULT 0,
    bytes_done         bigint      NOT NULL DEFAULT 0,
    lag_bytes          bigint,
    retained_wal_bytes bigint,
    error              text,
    pause_ms           double precision,
    started_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    finished_at        timestamptz,
    CONSTRAINT tasks_finished CHECK ((finished_at IS NOT NULL) = (status IN ('done', 'aborted')))
);
COMMENT ON TABLE pgdog.tasks IS 'topology tasks of this cluster, kept on shard 0';
COMMENT ON COLUMN pgdog.tasks.status IS 'state of the machine, see pgdog.fsm';
COMMENT ON COLUMN pgdog.tasks.inner_status IS 'what the driver is doing within the state';
COMMENT ON COLUMN pgdog.tasks.attempt IS
    'number of the current or last try to flip; part of its gid';
COMMENT ON COLUMN pgdog.tasks.coordinator IS 'instance that drives the task, as it said itself';
COMMENT ON COLUMN pgdog.tasks.own_publication IS
    'false: the operator made the publication and keeps it';
COMMENT ON COLUMN pgdog.tasks.lag_bytes IS
    'WAL bytes of shard 0 that the new shard has not applied';
COMMENT ON COLUMN pgdog.tasks.retained_wal_bytes IS
    'WAL bytes that shard 0 keeps for the task''s slot';
COMMENT ON COLUMN pgdog.tasks.pause_ms IS 'time for which the flip held back omni writes';
-- One topology task at a time.
CREATE UNIQUE INDEX tasks_one_active ON pgdog.tasks ((true)) WHERE finished_at IS NULL;

CREATE TABLE pgdog.task_events (
    event_id    bigint      NOT NULL GENERATED ALWAYS AS IDENTITY
        CONSTRAINT task_events_pkey PRIMARY KEY,
    task_id     bigint      NOT NULL
        CONSTRAINT task_events_task REFERENCES pgdog.tasks ON DELETE CASCADE,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    from_status text        NOT NULL,
    event       text        NOT NULL,
    to_status   text        NOT NULL,
    rule_pos    integer     NOT NULL,
    why         text        NOT NULL,
    detail      jsonb
);
COMMENT ON TABLE pgdog.task_events IS 'every step of every task, with the rule that fired';
COMMENT ON COLUMN pgdog.task_events.rule_pos IS 'position of the rule in pgdog.fsm';
CREATE INDEX task_events_by_task ON pgdog.task_events (task_id, event_id);

CREATE TABLE pgdog.marker (
    task_id    bigint      NOT NULL,
    attempt    integer     NOT NULL,
    value      text        NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT marker_pkey PRIMARY KEY (task_id, attempt)
);
COMMENT ON TABLE pgdog.marker IS
    'published with the omni tables: a row written here behind a closed gate has arrived when '
    'everything before it has';

GRANT SELECT ON pgdog.tasks, pgdog.task_events TO PUBLIC;
GRANT INSERT, DELETE ON pgdog.task_intents TO pgdog;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgdog.marker TO pgdog;

CREATE FUNCTION pgdog.workflow_step(
    status text, event text, auto boolean, stopping boolean, cutover_requested boolean,
    OUT to_status text, OUT now_stopping boolean, OUT now_cutover_requested boolean,
    OUT rule_pos integer, OUT why text, OUT ended boolean
) RETURNS SETOF record
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE ROWS 1 AS 'MODULE_PATHNAME', 'workflow_step_wrapper';
COMMENT ON FUNCTION pgdog.workflow_step(text, text, boolean, boolean, boolean) IS
    'where an event leads; error 55000 if it does not fit the state';

CREATE FUNCTION pgdog.workflow_rows(
    OUT "position" integer, OUT from_status text, OUT event text, OUT condition text,
    OUT to_status text, OUT why text
) RETURNS SETOF record
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'workflow_rows_wrapper';
COMMENT ON FUNCTION pgdog.workflow_rows() IS 'rows of pgdog.fsm';

CREATE VIEW pgdog.fsm AS SELECT * FROM pgdog.workflow_rows();
COMMENT ON VIEW pgdog.fsm IS
    'the state machine of topology tasks: one row per rule, with its reason';
GRANT SELECT ON pgdog.fsm TO PUBLIC;

CREATE FUNCTION pgdog.require_shard_zero() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    here pgdog.topology;
BEGIN
    SELECT * INTO STRICT here FROM pgdog.topology;
    IF here.state <> 'serving' OR here.shard <> 0 THEN
        RAISE EXCEPTION 'topology tasks live on shard 0'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('This node is %s%s.', here.state, ' as shard ' || here.shard),
                  HINT = 'Ask shard 0, or any pgdog.';
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.require_shard_zero() IS 'error 55000 on every other node';

CREATE FUNCTION pgdog.add_shard(
    shard integer, auto boolean DEFAULT false, publication text DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    serving integer;
    active  bigint;
    task    bigint;
BEGIN
    PERFORM pgdog.require_operator();
    PERFORM pgdog.require_shard_zero();
    -- Serialises the requests, so that a second one is refused by name and not by an index.
    LOCK TABLE pgdog.tasks IN SHARE ROW EXCLUSIVE MODE;
    SELECT t.task_id INTO active FROM pgdog.tasks t WHERE t.finished_at IS NULL;
    IF active IS NOT NULL THEN
        RAISE EXCEPTION 'task % is already changing the topology', active
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('Wait for it, or SELECT pgdog.stop_task(%s).', active);
    END IF;
    SELECT t.shards INTO STRICT serving FROM pgdog.topology t;
    IF add_shard.shard IS DISTINCT FROM serving THEN
        RAISE EXCEPTION 'shard % cannot be added', add_shard.shard
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('%s shards serve, so the next one is shard %s.',
                                  serving, serving);
    END IF;
    INSERT INTO pgdog.tasks (type, shard, auto, publication, own_publication)
    VALUES ('add_shard', add_shard.shard, coalesce(add_shard.auto, false), add_shard.publication,
            add_shard.publication IS NULL)
    RETURNING task_id INTO task;
    PERFORM pg_notify('pgdog_tasks', task::text);
    RETURN task;
END
$function$;
COMMENT ON FUNCTION pgdog.add_shard(integer, boolean, text) IS
    'asks for a new shard; answers the task, which any live pgdog drives; auto: cut over '
    'without being asked';

CREATE FUNCTION pgdog.task_advance(
    task_id bigint, event text, detail jsonb DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    task pgdog.tasks;
    step record;
BEGIN
    PERFORM pgdog.require_operator();
    SELECT * INTO task FROM pgdog.tasks t WHERE t.task_id = task_advance.task_id FOR UPDATE;
    IF task.task_id IS NULL THEN
        RAISE EXCEPTION 'task % does not exist', task_advance.task_id
            USING ERRCODE = 'undefined_object';
    END IF;
    SELECT * INTO STRICT step
      FROM pgdog.workflow_step(
          task.status, event, task.auto, task.stopping, task.cutover_requested);
    UPDATE pgdog.tasks t
       SET status = step.to_status,
           stopping = step.now_stopping,
           cutover_requested = step.now_cutover_requested,
           inner_status = CASE WHEN step.to_status = t.status THEN t.inner_status ELSE '' END,
           error = coalesce(detail ->> 'error',
                            CASE WHEN step.to_status = t.status OR step.ended THEN t.error END),
           updated_at = clock_timestamp(),
           finished_at = CASE WHEN step.ended THEN clock_timestamp() END
     WHERE t.task_id = task.task_id;
    INSERT INTO pgdog.task_events (task_id, from_status, event, to_status, rule_pos, why, detail)
    VALUES (task.task_id, task.status, event, step.to_status, step.rule_pos, step.why, detail);
    PERFORM pg_notify('pgdog_tasks', task.task_id::text);
    RETURN step.to_status;
END
$function$;
COMMENT ON FUNCTION pgdog.task_advance(bigint, text, jsonb) IS
    'reports an event, answers the new status; detail.error becomes the task''s error';

CREATE FUNCTION pgdog.task_progress(task_id bigint, progress jsonb) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    unknown text;
    report  pgdog.tasks;
BEGIN
    PERFORM pgdog.require_operator();
    SELECT key INTO unknown FROM jsonb_object_keys(progress) key
     WHERE key NOT IN ('inner_status', 'attempt', 'coordinator', 'source_sysid', 'source_timeline',
                       'target_sysid', 'target_timeline', 'fingerprint', 'tables_total',
                       'tables_done', 'rows_total', 'rows_done', 'bytes_total', 'bytes_done',
                       'lag_bytes', 'retained_wal_bytes', 'error', 'pause_ms')
     LIMIT 1;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'a task has no progress called "%"', unknown
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO report FROM pgdog.tasks t WHERE t.task_id = task_progress.task_id FOR UPDATE;
    IF report.task_id IS NULL THEN
        RAISE EXCEPTION 'task % does not exist', task_progress.task_id
            USING ERRCODE = 'undefined_object';
    END IF;
    -- What the report does not name stays; what it names as null becomes NULL.
    report := jsonb_populate_record(report, progress);
    UPDATE pgdog.tasks t
       SET (inner_status, attempt, coordinator, source_sysid, source_timeline, target_sysid,
            target_timeline, fingerprint, tables_total, tables_done, rows_total, rows_done,
            bytes_total, bytes_done, lag_bytes, retained_wal_bytes, error, pause_ms, updated_at)
         = (coalesce(report.inner_status, ''), report.attempt, report.coordinator,
            report.source_sysid, report.source_timeline, report.target_sysid,
            report.target_timeline, report.fingerprint, report.tables_total, report.tables_done,
            report.rows_total, report.rows_done, report.bytes_total, report.bytes_done,
            report.lag_bytes, report.retained_wal_bytes, report.error, report.pause_ms,
            clock_timestamp())
     WHERE t.task_id = report.task_id;
END
$function$;
COMMENT ON FUNCTION pgdog.task_progress(bigint, jsonb) IS
    'updates the columns that the object names: figures, identities, inner_status, error';

CREATE FUNCTION pgdog.cutover_shard(shard integer) RETURNS bigint
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    task bigint;
BEGIN
    PERFORM pgdog.require_operator();
    PERFORM pgdog.require_shard_zero();
    SELECT t.task_id INTO task FROM pgdog.tasks t
     WHERE t.shard = cutover_shard.shard AND t.finished_at IS NULL;
    IF task IS NULL THEN
        RAISE EXCEPTION 'no task is adding shard %', cutover_shard.shard
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('SELECT pgdog.add_shard(%s) first.', cutover_shard.shard);
    END IF;
    PERFORM pgdog.task_advance(task, 'cutover_requested');
    RETURN task;
END
$function$;
COMMENT ON FUNCTION pgdog.cutover_shard(integer) IS
    'asks for the cutover of the shard that is being added; answers the task';

CREATE FUNCTION pgdog.stop_task(task_id bigint) RETURNS text
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM pgdog.require_operator();
    PERFORM pgdog.require_shard_zero();
    RETURN pgdog.task_advance(task_id, 'stop_requested');
END
$function$;
COMMENT ON FUNCTION pgdog.stop_task(bigint) IS
    'asks that a task be undone; refused from the point of no return on';
