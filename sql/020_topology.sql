-- What the cluster looks like from this node. `topology` is the truth; `config` repeats it in
-- PgDog's words. Backends cache the row and drop the cache when the relation is invalidated.

CREATE TABLE pgdog.config (
    shard      integer     NOT NULL CONSTRAINT config_shard_positive CHECK (shard >= 0),
    shards     integer     NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT config_shard_below_shards CHECK (shard < shards)
);
COMMENT ON TABLE pgdog.config IS
    'shard number and shard count of this node, kept equal to topology';
CREATE UNIQUE INDEX config_one_row ON pgdog.config ((true));

-- The hook reads this row by position: new columns go to the end (topology.rs).
CREATE TABLE pgdog.topology (
    version         bigint  NOT NULL CONSTRAINT topology_version_positive CHECK (version >= 0),
    shards          integer NOT NULL CONSTRAINT topology_shards_positive CHECK (shards >= 0),
    state           text    NOT NULL
        CONSTRAINT topology_state CHECK (state IN ('empty', 'provisioning', 'serving')),
    epoch           bigint  NOT NULL CONSTRAINT topology_epoch_positive CHECK (epoch >= 0),
    placement_epoch bigint  NOT NULL CONSTRAINT topology_placement_epoch_positive
        CHECK (placement_epoch >= 0),
    shard           integer,
    CONSTRAINT topology_placement_within_epoch CHECK (placement_epoch <= epoch),
    CONSTRAINT topology_empty_has_no_shard CHECK ((state = 'empty') = (shard IS NULL)),
    CONSTRAINT topology_serving_shard CHECK (state <> 'serving' OR shard BETWEEN 0 AND shards - 1)
);
COMMENT ON TABLE pgdog.topology IS
    'the one row that says what this node is and how large the cluster is';
COMMENT ON COLUMN pgdog.topology.version IS
    'cluster-wide, changed by flips only, equal on every shard once a flip is finished';
COMMENT ON COLUMN pgdog.topology.shards IS 'number of serving shards';
COMMENT ON COLUMN pgdog.topology.state IS
    'empty: not declared yet; provisioning: being filled; serving';
COMMENT ON COLUMN pgdog.topology.epoch IS
    'fence counter of this node: rises with every flip and every change of placement here';
COMMENT ON COLUMN pgdog.topology.placement_epoch IS
    'epoch of the last change that could move rows of a sharded table';
COMMENT ON COLUMN pgdog.topology.shard IS 'number of this shard, from 0; NULL while empty';
CREATE UNIQUE INDEX topology_one_row ON pgdog.topology ((true));

INSERT INTO pgdog.topology VALUES (0, 0, 'empty', 0, 0, NULL);

CREATE TABLE pgdog.shards (
    shard         integer NOT NULL CONSTRAINT shards_shard_positive CHECK (shard >= 0),
    role          text    NOT NULL
        CONSTRAINT shards_role CHECK (role IN ('primary', 'replica', 'auto')),
    host          text    NOT NULL,
    port          integer NOT NULL CONSTRAINT shards_port CHECK (port BETWEEN 1 AND 65535),
    database_name text    NOT NULL,
    CONSTRAINT shards_pkey PRIMARY KEY (host, port, database_name)
);
COMMENT ON TABLE pgdog.shards IS
    'where the nodes of the cluster are, as the shims last declared them';

CREATE TABLE pgdog.gate ();
COMMENT ON TABLE pgdog.gate IS
    'empty for ever: a lock tag. Omni writers hold it ROW EXCLUSIVE, a flip holds it SHARE ROW '
    'EXCLUSIVE';

CREATE FUNCTION pgdog.invalidate() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'pgdog_invalidate';
COMMENT ON FUNCTION pgdog.invalidate() IS
    'row trigger: drops what every backend has cached from this table, when the change commits';

CREATE FUNCTION pgdog.check_topology_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'pgdog.topology has exactly one row'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF NEW.version < OLD.version OR NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'version and epoch of pgdog.topology only rise'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('version %s to %s, epoch %s to %s',
                                  OLD.version, NEW.version, OLD.epoch, NEW.epoch);
    END IF;
    IF NEW.shards < OLD.shards AND coalesce(current_setting('pgdog.task_id', true), '') = '' THEN
        RAISE EXCEPTION 'pgdog.topology loses shards only by DROP SHARD'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('shards %s to %s', OLD.shards, NEW.shards);
    END IF;
    -- A growth flip adds an empty shard: rows that have a place keep it, so single-shard
    -- statements of an older epoch stay right. Every other rise may have moved rows.
    IF NEW.epoch > OLD.epoch AND NEW.shards <= OLD.shards THEN
        NEW.placement_epoch := NEW.epoch;
    END IF;
    RETURN NEW;
END
$function$;
COMMENT ON FUNCTION pgdog.check_topology_change() IS
    'trigger: counters only rise; a rise without growth is a change of placement';

CREATE FUNCTION pgdog.mirror_topology() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF NEW.state <> 'serving' THEN
        DELETE FROM pgdog.config;
    ELSIF EXISTS (SELECT FROM pgdog.config) THEN
        UPDATE pgdog.config SET shard = NEW.shard, shards = NEW.shards
         WHERE (config.shard, config.shards) IS DISTINCT FROM (NEW.shard, NEW.shards);
    ELSE
        INSERT INTO pgdog.config (shard, shards) VALUES (NEW.shard, NEW.shards);
    END IF;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION pgdog.mirror_topology() IS
    'trigger: keeps pgdog.config equal to pgdog.topology';

CREATE TRIGGER topology_check BEFORE INSERT OR UPDATE OR DELETE ON pgdog.topology
    FOR EACH ROW EXECUTE FUNCTION pgdog.check_topology_change();
CREATE TRIGGER topology_no_truncate BEFORE TRUNCATE ON pgdog.topology
    FOR EACH STATEMENT EXECUTE FUNCTION pgdog.check_topology_change();
CREATE TRIGGER topology_invalidate AFTER UPDATE ON pgdog.topology
    FOR EACH ROW EXECUTE FUNCTION pgdog.invalidate();
CREATE TRIGGER topology_mirror AFTER UPDATE ON pgdog.topology
    FOR EACH ROW EXECUTE FUNCTION pgdog.mirror_topology();
ALTER TABLE pgdog.topology
    ENABLE ALWAYS TRIGGER topology_check,
    ENABLE ALWAYS TRIGGER topology_no_truncate,
    ENABLE ALWAYS TRIGGER topology_invalidate,
    ENABLE ALWAYS TRIGGER topology_mirror;

CREATE FUNCTION pgdog.install_node(shard integer, shards integer) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    here pgdog.topology;
BEGIN
    PERFORM pgdog.require_operator();
    SELECT * INTO STRICT here FROM pgdog.topology t FOR UPDATE;
    IF here.state = 'serving' AND here.shard = install_node.shard
       AND here.shards = install_node.shards THEN
        RETURN;
    END IF;
    IF here.state <> 'empty' THEN
        RAISE EXCEPTION 'node is already % as shard % of %', here.state, here.shard, here.shards
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'A cluster grows with ADD SHARD.';
    END IF;
    IF install_node.shard NOT BETWEEN 0 AND install_node.shards - 1 THEN
        RAISE EXCEPTION 'shard % does not exist among % shards',
                        install_node.shard, install_node.shards
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE pgdog.topology
       SET version = 1, shards = install_node.shards, state = 'serving',
           epoch = 1, placement_epoch = 1, shard = install_node.shard;
END
$function$;
COMMENT ON FUNCTION pgdog.install_node(integer, integer) IS
    'turns an empty node into the serving shard `shard` of `shards`; nothing happens if it is '
    'that already';

CREATE FUNCTION pgdog.provision_node(shard integer) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    here pgdog.topology;
BEGIN
    PERFORM pgdog.require_operator();
    SELECT * INTO STRICT here FROM pgdog.topology t FOR UPDATE;
    IF here.state = 'provisioning' AND here.shard = provision_node.shard THEN
        RETURN;
    END IF;
    IF here.state <> 'empty' THEN
        RAISE EXCEPTION 'node is already % as shard % of %', here.state, here.shard, here.shards
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'A new shard starts from an empty database.';
    END IF;
    UPDATE pgdog.topology SET state = 'provisioning', shard = provision_node.shard;
END
$function$;
COMMENT ON FUNCTION pgdog.provision_node(integer) IS
    'turns an empty node into the shard to be: client writes to registered tables are refused '
    'until it serves';

REVOKE ALL ON FUNCTION pgdog.install_node(integer, integer),
    pgdog.provision_node(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgdog.install_node(integer, integer),
    pgdog.provision_node(integer) TO pgdog;
GRANT SELECT ON pgdog.config, pgdog.topology, pgdog.shards TO PUBLIC;
GRANT INSERT, UPDATE, DELETE ON pgdog.shards TO pgdog;

CREATE FUNCTION pgdog.omni_enter(OUT version bigint, OUT epoch bigint, OUT shards integer)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'omni_enter_wrapper';
COMMENT ON FUNCTION pgdog.omni_enter() IS
    'takes the gate for this transaction, waiting for a flip in progress, and answers with the '
    'topology as it is then; the caller promises to write on that many shards';

CREATE FUNCTION pgdog.follow_epoch(epoch bigint) RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'follow_epoch_wrapper';
COMMENT ON FUNCTION pgdog.follow_epoch(bigint) IS
    'the transaction that raised the epoch itself goes on by it, unless it was stale before';

CREATE FUNCTION pgdog.raise_epoch() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    raised bigint;
BEGIN
    UPDATE pgdog.topology t SET epoch = t.epoch + 1 WHERE t.state <> 'empty'
    RETURNING t.epoch INTO raised;
    PERFORM pgdog.follow_epoch(raised);
END
$function$;
COMMENT ON FUNCTION pgdog.raise_epoch() IS
    'placement changes here, in this transaction: older epochs are refused from its commit on';
REVOKE ALL ON FUNCTION pgdog.follow_epoch(bigint), pgdog.raise_epoch() FROM PUBLIC;
