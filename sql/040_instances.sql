-- The fleet of shims, as information only: no safety argument uses this table.

CREATE TABLE pgdog.instances (
    instance_id      text        NOT NULL CONSTRAINT instances_pkey PRIMARY KEY,
    name             text        NOT NULL,
    addr             text        NOT NULL,
    version          text        NOT NULL,
    topology_version bigint      NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT now(),
    heartbeat_at     timestamptz NOT NULL DEFAULT now(),
    databases        text[]      NOT NULL DEFAULT '{}',
    reachable        integer[]   NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE pgdog.instances IS 'shims that reported themselves to shard 0';
COMMENT ON COLUMN pgdog.instances.topology_version IS 'topology version by which the shim routes';
COMMENT ON COLUMN pgdog.instances.reachable IS
    'shards, serving and provisioning, that the shim can log in to';
GRANT SELECT ON pgdog.instances TO PUBLIC;

CREATE FUNCTION pgdog.heartbeat(
    instance_id text, name text, addr text, version text, topology_version bigint,
    databases text[], reachable integer[]
) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    INSERT INTO pgdog.instances AS i
           (instance_id, name, addr, version, topology_version, databases, reachable)
    VALUES (instance_id, name, addr, version, topology_version, databases, reachable)
    ON CONFLICT ON CONSTRAINT instances_pkey DO UPDATE
       SET name = excluded.name, addr = excluded.addr, version = excluded.version,
           topology_version = excluded.topology_version, heartbeat_at = now(),
           databases = excluded.databases, reachable = excluded.reachable
$function$;
COMMENT ON FUNCTION pgdog.heartbeat(text, text, text, text, bigint, text[], integer[]) IS
    'a shim reports itself; every 5 s';

CREATE FUNCTION pgdog.deregister(instance_id text) RETURNS void
LANGUAGE sql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    DELETE FROM pgdog.instances i WHERE i.instance_id = deregister.instance_id
$function$;
COMMENT ON FUNCTION pgdog.deregister(text) IS 'a shim says good-bye';

REVOKE ALL ON FUNCTION pgdog.heartbeat(text, text, text, text, bigint, text[], integer[]),
    pgdog.deregister(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgdog.heartbeat(text, text, text, text, bigint, text[], integer[]),
    pgdog.deregister(text) TO pgdog;
