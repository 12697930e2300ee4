-- Which tables are sharded and which are the same everywhere. Every change raises the epoch of
-- this node in the same transaction, whoever makes it.

CREATE TABLE pgdog.sharded_tables (
    schema_name   text        NOT NULL DEFAULT 'public',
    table_name    text        NOT NULL,
    column_name   text        NOT NULL
        CONSTRAINT sharded_tables_column_named CHECK (column_name <> ''),
    data_type     text        NOT NULL
        CONSTRAINT sharded_tables_data_type CHECK (data_type IN ('bigint', 'varchar', 'uuid')),
    strategy      text        NOT NULL
        CONSTRAINT sharded_tables_strategy CHECK (
            strategy IN ('hash', 'lookup_query', 'lookup', 'mapping')),
    lookup_query  text,
    lookup_result text        NOT NULL DEFAULT 'value'
        CONSTRAINT sharded_tables_lookup_result CHECK (lookup_result IN ('value', 'shard')),
    lookup_table  text,
    mapping       jsonb,
    declared_at   timestamptz NOT NULL DEFAULT now(),
    pinned_query  text,
    CONSTRAINT sharded_tables_pkey PRIMARY KEY (schema_name, table_name, column_name),
    CONSTRAINT sharded_tables_lookup_query_given
        CHECK ((lookup_query IS NOT NULL) = (strategy IN ('lookup_query', 'lookup'))),
    CONSTRAINT sharded_tables_lookup_table_given
        CHECK ((lookup_table IS NOT NULL) = (strategy = 'lookup')),
    CONSTRAINT sharded_tables_mapping_given
        CHECK (strategy <> 'mapping' OR mapping IS NOT NULL),
    CONSTRAINT sharded_tables_shard_excludes_mapping
        CHECK (lookup_result <> 'shard' OR (strategy = 'lookup_query' AND mapping IS NULL))
);
COMMENT ON TABLE pgdog.sharded_tables IS
    'tables whose rows live on one shard each, and how a key becomes a shard';
COMMENT ON COLUMN pgdog.sharded_tables.schema_name IS
    'schema; empty together with table_name: any schema';
COMMENT ON COLUMN pgdog.sharded_tables.table_name IS
    'table; empty: every table that has the column and is not declared by name';
COMMENT ON COLUMN pgdog.sharded_tables.lookup_query IS
    'lookup_query: one column by $1; lookup: the whole map, two columns';
COMMENT ON COLUMN pgdog.sharded_tables.pinned_query IS
    'the same with all names as they were found when it was declared: this is what is run';
COMMENT ON COLUMN pgdog.sharded_tables.lookup_result IS
    'shard: the lookup answers the shard number; value: the answer is placed as a key is';

CREATE TABLE pgdog.omnisharded_tables (
    schema_name text        NOT NULL DEFAULT 'public',
    table_name  text        NOT NULL CONSTRAINT omnisharded_tables_named CHECK (table_name <> ''),
    declared_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT omnisharded_tables_pkey PRIMARY KEY (schema_name, table_name)
);
COMMENT ON TABLE pgdog.omnisharded_tables IS 'tables that have the same rows on every shard';
GRANT SELECT ON pgdog.sharded_tables, pgdog.omnisharded_tables TO PUBLIC;

CREATE FUNCTION pgdog.placement_changed() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM pgdog.raise_epoch();
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION pgdog.placement_changed() IS
    'trigger: placement changed here, so older epochs are refused';

CREATE TRIGGER sharded_tables_invalidate AFTER INSERT OR UPDATE OR DELETE ON pgdog.sharded_tables
    FOR EACH ROW EXECUTE FUNCTION pgdog.invalidate();
CREATE TRIGGER sharded_tables_epoch AFTER INSERT OR UPDATE OR DELETE ON pgdog.sharded_tables
    FOR EACH ROW EXECUTE FUNCTION pgdog.placement_changed();
CREATE TRIGGER sharded_tables_truncate AFTER TRUNCATE ON pgdog.sharded_tables
    FOR EACH STATEMENT EXECUTE FUNCTION pgdog.placement_changed();
ALTER TABLE pgdog.sharded_tables
    ENABLE ALWAYS TRIGGER sharded_tables_invalidate,
    ENABLE ALWAYS TRIGGER sharded_tables_epoch,
    ENABLE ALWAYS TRIGGER sharded_tables_truncate;

CREATE TRIGGER omnisharded_tables_invalidate
    AFTER INSERT OR UPDATE OR DELETE ON pgdog.omnisharded_tables
    FOR EACH ROW EXECUTE FUNCTION pgdog.invalidate();
CREATE TRIGGER omnisharded_tables_epoch AFTER INSERT OR UPDATE OR DELETE ON pgdog.omnisharded_tables
    FOR EACH ROW EXECUTE FUNCTION pgdog.placement_changed();
CREATE TRIGGER omnisharded_tables_truncate AFTER TRUNCATE ON pgdog.omnisharded_tables
    FOR EACH STATEMENT EXECUTE FUNCTION pgdog.placement_changed();
ALTER TABLE pgdog.omnisharded_tables
    ENABLE ALWAYS TRIGGER omnisharded_tables_invalidate,
    ENABLE ALWAYS TRIGGER omnisharded_tables_epoch,
    ENABLE ALWAYS TRIGGER omnisharded_tables_truncate;

CREATE TABLE pgdog.task_intents (
    task_id    bigint      NOT NULL CONSTRAINT task_intents_pkey PRIMARY KEY,
    kind       text        NOT NULL DEFAULT 'add_shard',
    shard      integer,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE pgdog.task_intents IS
    'a row freezes the schema of this node for the life of the task';
GRANT SELECT ON pgdog.task_intents TO PUBLIC;

CREATE FUNCTION pgdog.table_class(relation regclass) RETURNS text
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'table_class_wrapper';
COMMENT ON FUNCTION pgdog.table_class(regclass) IS
    'sharded, omnisharded or unlisted, as the fence of this node sees the table';

CREATE FUNCTION pgdog.lock_placement(target regclass, key_column text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    task  bigint;
    heap  regclass;
BEGIN
    -- Writers of an omni table hold the gate, after they have locked the table: to drain them the
    -- gate alone is locked, both would be a deadlock. Writers of any other table hold the table.
    -- Who waited meanwhile is compared with the new epoch.
    IF pgdog.table_class(target) = 'omnisharded' THEN
        LOCK TABLE pgdog.gate IN SHARE ROW EXCLUSIVE MODE;
    ELSE
        LOCK TABLE pgdog.gate IN ROW EXCLUSIVE MODE;
        FOR heap IN
            SELECT c.oid FROM pg_class c
             WHERE c.oid = target OR target IS NULL AND c.relkind IN ('r', 'p')
                   AND c.relpersistence <> 't' AND EXISTS (
                       SELECT FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attname = key_column AND a.attnum > 0)
             ORDER BY c.oid
        LOOP
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', heap);
        END LOOP;
    END IF;
    SELECT task_id INTO task FROM pgdog.task_intents ORDER BY task_id LIMIT 1;
    IF task IS NOT NULL AND task::text <> current_setting('pgdog.task_id') THEN
        RAISE EXCEPTION 'placement is frozen by task %', task
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format(
                      'Wait for the task, or SELECT pgdog.stop_task(%s) on shard 0.', task);
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.lock_placement(regclass, text) IS
    'holds back all writers whom a change of placement concerns; refuses it while a task runs';

CREATE FUNCTION pgdog.require_declarable(target regclass) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    rel pg_class;
BEGIN
    SELECT * INTO STRICT rel FROM pg_class WHERE oid = target;
    IF NOT pg_has_role(pgdog.caller(), rel.relowner, 'USAGE')
       AND NOT pg_has_role(pgdog.caller(), 'pgdog', 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', target
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF rel.relkind NOT IN ('r', 'p') OR rel.relpersistence = 't' OR rel.relispartition
       OR rel.relnamespace::regnamespace::text IN ('pg_catalog', 'information_schema', 'pgdog') THEN
        RAISE EXCEPTION '% cannot be declared', target
            USING ERRCODE = 'wrong_object_type',
                  DETAIL = 'Only ordinary and partitioned tables of users can be declared.',
                  HINT = 'Declare the topmost table of a partition tree.';
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.require_declarable(regclass) IS
    'error unless the caller may declare this table';

CREATE FUNCTION pgdog.unfit_key(target oid, key_column name, key_type text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT CASE
        WHEN format_type(made.of, NULL) <> ALL (CASE key_type
                 WHEN 'bigint' THEN ARRAY['smallint', 'integer', 'bigint']
                 WHEN 'varchar' THEN ARRAY['text', 'character varying']
                 ELSE ARRAY[key_type] END)
            THEN format('is not of type %s', key_type)
        WHEN a.attgenerated <> '' THEN 'is generated: statements do not give it'
        -- Equal keys must be on one shard, so texts must be equal only if all of their bytes are.
        WHEN NOT coalesce((SELECT c.collisdeterministic FROM pg_collation c
                            WHERE c.oid = a.attcollation), true)
            THEN 'has a collation that is not deterministic'
    END
      FROM pg_attribute a
     CROSS JOIN LATERAL (
           -- Of a domain, what it is made of.
           WITH RECURSIVE made(of, depth) AS (
               SELECT a.atttypid, 0
               UNION ALL
               SELECT t.typbasetype, made.depth + 1
                 FROM made JOIN pg_type t ON t.oid = made.of AND t.typtype = 'd')
           SELECT made.of FROM made ORDER BY made.depth DESC LIMIT 1) made
     WHERE a.attrelid = target AND a.attname = key_column
       AND a.attnum > 0 AND NOT a.attisdropped
$function$;
COMMENT ON FUNCTION pgdog.unfit_key(oid, name, text) IS
    'why rows cannot be placed by this column; NULL if they can';

CREATE FUNCTION pgdog.declare_sharded(
    target regclass, key_column text, key_type text, query text, result text, rules jsonb,
    path text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET datestyle = 'ISO, MDY'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $function$
DECLARE
    wanted pgdog.sharded_tables;
    found  pgdog.sharded_tables;
    unfit  text;
    source oid;
BEGIN
    IF target IS NULL THEN
        PERFORM pgdog.require_operator();
    ELSE
        PERFORM pgdog.require_declarable(target);
    END IF;
    IF key_type NOT IN ('bigint', 'varchar', 'uuid') THEN
        RAISE EXCEPTION 'data type "%" cannot be a sharding key', key_type
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use bigint, varchar or uuid.';
    END IF;
    IF query IS NOT NULL THEN
        -- What the lookup reads gets triggers: its writers come first, as in their transactions.
        LOCK TABLE pgdog.gate IN ROW EXCLUSIVE MODE;
        SELECT p.pinned INTO STRICT wanted.pinned_query FROM pgdog.pin_lookup(query, path) p;
        FOR source IN
            SELECT DISTINCT coalesce(pg_partition_root(u.relation), u.relation)::oid
              FROM pgdog.pin_lookup(query, path) p CROSS JOIN LATERAL pgdog.lookup_uses(p.probe) u
             WHERE u.kind <> 'v' ORDER BY 1
        LOOP
            PERFORM pgdog.require_declarable(source);
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', source::regclass);
        END LOOP;
    END IF;
    PERFORM pgdog.lock_placement(target, key_column);

    wanted.column_name := key_column;
    wanted.data_type := key_type;
    wanted.strategy := CASE WHEN query IS NOT NULL THEN 'lookup_query'
                            WHEN rules IS NOT NULL THEN 'mapping' ELSE 'hash' END;
    wanted.lookup_query := query;
    wanted.lookup_result := coalesce(result, 'value');
    wanted.mapping := rules;
    wanted.declared_at := now();
    wanted.schema_name := '';
    wanted.table_name := '';
    IF target IS NOT NULL THEN
        SELECT n.nspname, c.relname INTO STRICT wanted.schema_name, wanted.table_name
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
        IF NOT EXISTS (SELECT FROM pg_attribute a
                        WHERE a.attrelid = target AND a.attname = key_column
                          AND a.attnum > 0 AND NOT a.attisdropped) THEN
            RAISE EXCEPTION 'column "%" of table % does not exist', key_column, target
                USING ERRCODE = 'undefined_column';
        END IF;
        unfit := pgdog.unfit_key(target, key_column, key_type);
        IF unfit IS NOT NULL THEN
            RAISE EXCEPTION 'column "%" of table % %', key_column, target, unfit
                USING ERRCODE = 'datatype_mismatch',
                      HINT = 'Use a stored column of type smallint, integer, bigint, text, varchar '
                          'or uuid, with a deterministic collation.';
        END IF;
    END IF;
    IF EXISTS (SELECT FROM pgdog.omnisharded_tables o
                WHERE (o.schema_name, o.table_name) = (wanted.schema_name, wanted.table_name)) THEN
        RAISE EXCEPTION 'table % is omnisharded', target
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('SELECT pgdog.unshard_table(%L) first.', target);
    END IF;

    -- A table has one key; the same declaration again changes nothing, so no epoch either.
    SELECT * INTO found FROM pgdog.sharded_tables s
     WHERE (s.schema_name, s.table_name) = (wanted.schema_name, wanted.table_name)
       AND (s.table_name <> '' OR s.column_name = wanted.column_name);
    IF found.column_name IS NOT NULL THEN
        wanted.declared_at := found.declared_at;
        wanted.lookup_table := found.lookup_table;
        IF wanted IS NOT DISTINCT FROM found THEN
            IF query IS NOT NULL THEN
                PERFORM pgdog.follow_lookup(found);
            END IF;
            RETURN;
        END IF;
        RAISE EXCEPTION 'table % is already sharded in another way',
                        coalesce(target::text, 'with any name')
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('by column %s, type %s, strategy %s',
                                  found.column_name, found.data_type, found.strategy),
                  HINT = format('SELECT pgdog.unshard_table(%L) first.',
                                coalesce(target::text, ''));
    END IF;
    INSERT INTO pgdog.sharded_tables SELECT wanted.*;
    IF query IS NOT NULL THEN
        PERFORM pgdog.follow_lookup(wanted);
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.declare_sharded(regclass, text, text, text, text, jsonb, text) IS
    'the part of shard_table() that writes; checks the caller itself';

CREATE FUNCTION pgdog.named_table(table_name text) RETURNS regclass
LANGUAGE plpgsql STABLE STRICT
AS $function$
DECLARE
    -- No pinned search_path here: names mean what they mean to the caller.
    target pg_catalog.regclass := pg_catalog.to_regclass(table_name);
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'relation "%" does not exist', table_name USING ERRCODE = 'undefined_table';
    END IF;
    RETURN target;
END
$function$;
COMMENT ON FUNCTION pgdog.named_table(text) IS
    'table of that name on the search path of the caller, or 42P01';

CREATE FUNCTION pgdog.shard_table(
    table_name text,
    column_name text,
    data_type text DEFAULT 'bigint',
    lookup_query text DEFAULT NULL,
    lookup_result text DEFAULT 'value',
    mapping jsonb DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM pgdog.declare_sharded(
        CASE WHEN table_name <> '' THEN pgdog.named_table(table_name) END,
        column_name, data_type, lookup_query, lookup_result, mapping,
        (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(schema), ', ')
           FROM pg_catalog.unnest(pg_catalog.current_schemas(true)) AS schema));
END
$function$;
COMMENT ON FUNCTION pgdog.shard_table(text, text, text, text, text, jsonb) IS
    'declares a table as sharded by a column (empty table name: every table with that column) '
    'and raises the epoch of this node';

CREATE FUNCTION pgdog.declare_omnisharded(target regclass) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    namespace name;
    relation name;
BEGIN
    PERFORM pgdog.require_declarable(target);
    PERFORM pgdog.lock_placement(target);
    SELECT n.nspname, c.relname INTO STRICT namespace, relation
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    IF EXISTS (SELECT FROM pgdog.sharded_tables s
                WHERE (s.schema_name, s.table_name) = (namespace, relation)) THEN
        RAISE EXCEPTION 'table % is sharded', target
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('SELECT pgdog.unshard_table(%L) first.', target);
    END IF;
    INSERT INTO pgdog.omnisharded_tables (schema_name, table_name)
    VALUES (namespace, relation) ON CONFLICT DO NOTHING;
END
$function$;
COMMENT ON FUNCTION pgdog.declare_omnisharded(regclass) IS
    'the part of omni_table() that writes; checks the caller itself';

CREATE FUNCTION pgdog.omni_table(table_name text) RETURNS void
LANGUAGE plpgsql STRICT
AS $function$
DECLARE
    target pg_catalog.regclass := pgdog.named_table(table_name);
BEGIN
    PERFORM pgdog.declare_omnisharded(target);
    PERFORM pgdog.notice_computed(target);
END
$function$;
COMMENT ON FUNCTION pgdog.omni_table(text) IS
    'declares a table as having the same rows on every shard and raises the epoch of this node';

CREATE FUNCTION pgdog.withdraw_declaration(target regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    namespace name := '';
    relation name := '';
BEGIN
    IF target IS NULL THEN
        PERFORM pgdog.require_operator();
    ELSE
        PERFORM pgdog.require_declarable(target);
        SELECT n.nspname, c.relname INTO STRICT namespace, relation
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    END IF;
    IF target IS NULL THEN
        PERFORM pgdog.lock_placement(NULL, s.column_name)
           FROM pgdog.sharded_tables s WHERE s.table_name = '';
    ELSE
        PERFORM pgdog.lock_placement(target);
    END IF;
    DELETE FROM pgdog.sharded_tables s
     WHERE (s.schema_name, s.table_name) = (namespace, relation);
    DELETE FROM pgdog.omnisharded_tables o
     WHERE (o.schema_name, o.table_name) = (namespace, relation);
END
$function$;
COMMENT ON FUNCTION pgdog.withdraw_declaration(regclass) IS
    'the part of unshard_table() that writes; checks the caller itself';

CREATE FUNCTION pgdog.unshard_table(table_name text) RETURNS void
LANGUAGE plpgsql STRICT
AS $function$
BEGIN
    PERFORM pgdog.withdraw_declaration(
        CASE WHEN table_name <> '' THEN pgdog.named_table(table_name) END);
END
$function$;
COMMENT ON FUNCTION pgdog.unshard_table(text) IS
    'withdraws the declaration of a table and raises the epoch of this node';
REVOKE ALL ON FUNCTION pgdog.lock_placement(regclass, text) FROM PUBLIC;

CREATE FUNCTION pgdog.shard_for(schema_name text, table_name text, key text) RETURNS integer
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'shard_for_wrapper';
COMMENT ON FUNCTION pgdog.shard_for(text, text, text) IS
    'shard of a key of a table, by schema and name';

CREATE FUNCTION pgdog.shard_for(table_name text, key text) RETURNS integer
LANGUAGE sql STABLE STRICT PARALLEL RESTRICTED
AS $function$
    SELECT pgdog.shard_for(n.nspname::text, c.relname::text, key)
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
     WHERE c.oid OPERATOR(pg_catalog.=) pgdog.named_table(table_name)::pg_catalog.oid
$function$;
COMMENT ON FUNCTION pgdog.shard_for(text, text) IS
    'shard on which pgdog would look for a key of a table; runs the look-up if the table has one';

-- Called for whoever runs a function that writes: he need not read the map.
CREATE FUNCTION pgdog.placed_here(relation oid, key text) RETURNS boolean
LANGUAGE c STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'placed_here_wrapper';
COMMENT ON FUNCTION pgdog.placed_here(oid, text) IS
    'whether a row that code writes belongs to this shard; an error if it does not';

CREATE FUNCTION pgdog.placement_epoch() RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'placement_epoch_wrapper';
COMMENT ON FUNCTION pgdog.placement_epoch() IS
    'placement epoch of now, whatever snapshot the transaction has';

CREATE FUNCTION pgdog.hash_shard(data_type text, key text, shards integer) RETURNS integer
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'hash_shard_wrapper';
COMMENT ON FUNCTION pgdog.hash_shard(text, text, integer) IS
    'shard of a key by PostgreSQL''s hash partitioning, without any declaration';
