-- DDL that changes where rows live changes the epoch with it. (What would make a declaration lose
-- its table, a rename say, is refused by the utility hook.)
--
-- Whoever is in a transaction on sharded tables loses it when the epoch rises: it rises once for a
-- transaction, and only for what the router knows.

CREATE FUNCTION pgdog.opaque_functions() RETURNS TABLE (oid oid, name name)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
    -- What an extension brings knows nothing of the tables of users, and what is immutable reads
    -- none. Procedures and triggers cannot be called by a SELECT, temporary functions by nobody
    -- else.
    SELECT p.oid, p.proname
      FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
      JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname !~ '^pg_temp_'
     WHERE p.oid >= 16384 AND p.prokind = 'f' AND p.provolatile <> 'i'
       AND l.lanname NOT IN ('internal', 'c') AND p.prorettype <> 'trigger'::regtype
       AND p.prorettype <> 'event_trigger'::regtype
       AND NOT EXISTS (SELECT FROM pg_depend d
                        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                          AND d.deptype = 'e')
$function$;
COMMENT ON FUNCTION pgdog.opaque_functions() IS
    'functions of users that may read or write any table, whatever the statement says';

CREATE TABLE pgdog.known_functions (
    oid          oid     NOT NULL CONSTRAINT known_functions_pkey PRIMARY KEY,
    schema_oid   oid     NOT NULL,
    name         name    NOT NULL,
    fewest       integer NOT NULL,
    most         integer NOT NULL
);
COMMENT ON TABLE pgdog.known_functions IS
    'the functions of users that may touch any table, as the router knows them: a new body of an '
    'old one is no news';
GRANT SELECT ON pgdog.known_functions TO PUBLIC;

CREATE FUNCTION pgdog.learn_functions(changed oid[]) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    DELETE FROM pgdog.known_functions k
     WHERE k.oid = ANY (changed)
       AND NOT EXISTS (SELECT FROM pgdog.opaque_functions() f WHERE f.oid = k.oid);
    INSERT INTO pgdog.known_functions AS k
    SELECT p.oid, p.pronamespace, p.proname, p.pronargs - p.pronargdefaults,
           CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE -1 END
      FROM pgdog.opaque_functions() f JOIN pg_proc p ON p.oid = f.oid
     WHERE f.oid = ANY (changed)
        ON CONFLICT (oid) DO UPDATE
       SET schema_oid = excluded.schema_oid, name = excluded.name, fewest = excluded.fewest,
           most = excluded.most
     WHERE (k.schema_oid, k.name, k.fewest, k.most) IS DISTINCT FROM
           (excluded.schema_oid, excluded.name, excluded.fewest, excluded.most);
    RETURN FOUND;
END
$function$;
COMMENT ON FUNCTION pgdog.learn_functions(oid[]) IS
    'brings known_functions up to date; whether the router has something to learn';
REVOKE ALL ON FUNCTION pgdog.learn_functions(oid[]) FROM PUBLIC;
SELECT pgdog.learn_functions(array_agg(oid)) FROM pgdog.opaque_functions();

CREATE FUNCTION pgdog.columns_changed() RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'columns_changed_wrapper';
COMMENT ON FUNCTION pgdog.columns_changed() IS
    'whether an ALTER TABLE of this transaction may have changed columns or their defaults';

CREATE FUNCTION pgdog.maps_changed() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    declared   pgdog.sharded_tables;
    is_changed boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pgdog.lookup_sources) THEN
        RETURN false;
    END IF;
    -- An empty partition answers nothing, and nobody has been told anything of it.
    is_changed := pgdog.repair_sources() AND EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() d WHERE d.command_tag = 'ALTER TABLE');
    -- A view that answers otherwise, or columns: the lookup is read anew, or cannot be any more.
    FOR declared IN
        SELECT s.* FROM pgdog.sharded_tables s
         WHERE EXISTS (
               SELECT FROM pg_event_trigger_ddl_commands() d
                 LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
                 JOIN pgdog.lookup_views v ON v.view = coalesce(r.ev_class, d.objid)
                WHERE d.classid IN ('pg_rewrite'::regclass, 'pg_class'::regclass)
                  AND (v.schema_name, v.table_name, v.column_name)
                      = (s.schema_name, s.table_name, s.column_name))
            OR pgdog.columns_changed() AND EXISTS (
               SELECT FROM pg_event_trigger_ddl_commands() d
                 JOIN pgdog.lookup_sources l ON l.source = d.objid
                WHERE d.classid = 'pg_class'::regclass
                  AND (l.schema_name, l.table_name, l.column_name)
                      = (s.schema_name, s.table_name, s.column_name))
    LOOP
        PERFORM pgdog.follow_lookup(declared);
        is_changed := true;
    END LOOP;
    RETURN is_changed;
END
$function$;
COMMENT ON FUNCTION pgdog.maps_changed() IS
    'part of after_ddl(): follows what has become of the tables that lookups read; whether their '
    'answers may have changed';

CREATE FUNCTION pgdog.after_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    changed oid[];
    is_news boolean := false;
BEGIN
    SELECT array_agg(d.objid) INTO changed FROM pg_event_trigger_ddl_commands() d
     WHERE d.classid = 'pg_proc'::regclass AND NOT d.in_extension;
    IF changed IS NOT NULL THEN
        -- A function that may touch tables: the router knows which of them a call may mean.
        is_news := pgdog.learn_functions(changed)
               AND EXISTS (SELECT FROM pgdog.topology t WHERE t.shards > 1);
    END IF;
    is_news := pgdog.maps_changed() OR is_news;
    -- Functions of a schema with another name are others.
    is_news := is_news OR EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() d
          JOIN pgdog.known_functions k ON k.schema_oid = d.objid
         WHERE d.classid = 'pg_namespace'::regclass AND d.command_tag = 'ALTER SCHEMA');
    IF NOT (is_news OR EXISTS (
        -- A table that has the column of a declaration without a name is sharded from now on.
        SELECT FROM pg_event_trigger_ddl_commands() d
          JOIN pg_attribute a ON a.attrelid = d.objid AND a.attnum > 0 AND NOT a.attisdropped
          JOIN pgdog.sharded_tables s ON s.table_name = '' AND s.column_name = a.attname
         WHERE d.classid = 'pg_class'::regclass AND NOT d.in_extension
           AND (d.command_tag <> 'ALTER TABLE' OR pgdog.columns_changed())
           AND pgdog.table_class(d.objid::regclass) = 'sharded'
    ) OR EXISTS (
        -- A changed table, or a domain that may be the type of its columns: the router knows the
        -- columns, where the key is among them, and which defaults differ between shards.
        SELECT FROM pg_event_trigger_ddl_commands() d
         WHERE d.command_tag = 'ALTER DOMAIN'
            OR d.classid = 'pg_class'::regclass AND NOT d.in_extension
               AND d.command_tag = 'ALTER TABLE' AND pgdog.columns_changed()
               AND pgdog.table_class(d.objid::regclass) IN ('sharded', 'omnisharded')
    )) THEN
        RETURN;
    END IF;
    -- Nobody has seen the one that this transaction raised before.
    IF NOT pgdog.has_raised() THEN
        PERFORM pgdog.raise_epoch();
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.after_ddl() IS
    'event trigger: new and changed tables and functions that the router knows raise the epoch';

CREATE FUNCTION pgdog.after_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    lost record;
BEGIN
    -- A dropped table is declared no more; one of the same name starts anew.
    DELETE FROM pgdog.sharded_tables s USING pg_event_trigger_dropped_objects() d
     WHERE d.object_type = 'table' AND s.schema_name = d.schema_name
       AND s.table_name = d.object_name;
    DELETE FROM pgdog.omnisharded_tables o USING pg_event_trigger_dropped_objects() d
     WHERE d.object_type = 'table' AND o.schema_name = d.schema_name
       AND o.table_name = d.object_name;
    DELETE FROM pgdog.known_functions k USING pg_event_trigger_dropped_objects() d
     WHERE d.classid = 'pg_proc'::regclass AND k.oid = d.objid;
    IF NOT EXISTS (SELECT FROM pgdog.lookup_sources) THEN
        RETURN;
    END IF;
    -- A new shard that is emptied again.
    IF coalesce(current_setting('pgdog.task_id', true), '') <> '' THEN
        DELETE FROM pgdog.lookup_sources s USING pg_event_trigger_dropped_objects() d
         WHERE d.objid = s.source;
        RETURN;
    END IF;
    -- One that comes in its place would be another one, and nobody would follow it.
    SELECT d.object_type, d.object_identity, u.table_name, u.column_name INTO lost
      FROM pg_event_trigger_dropped_objects() d
      JOIN (SELECT s.source, s.table_name, s.column_name FROM pgdog.lookup_sources s
            UNION ALL
            SELECT v.view, v.table_name, v.column_name FROM pgdog.lookup_views v) u
        ON u.source = d.objid
     WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0 LIMIT 1;
    IF lost IS NOT NULL THEN
        RAISE EXCEPTION 'cannot drop % because a lookup reads it', lost.object_identity
            USING ERRCODE = 'dependent_objects_still_exist',
                  DETAIL = format('The lookup of table "%s" by column "%s".',
                                  lost.table_name, lost.column_name),
                  HINT = format('SELECT pgdog.unshard_table(%L) first.', lost.table_name);
    END IF;
    -- With a partition, rows are gone; with a column, maybe a trigger, or the whole lookup.
    IF pgdog.repair_sources() OR EXISTS (
           SELECT FROM pg_event_trigger_dropped_objects() d
            WHERE d.object_type = 'trigger' AND d.object_identity ~ '^pgdog_lookup_delete on ') THEN
        PERFORM pgdog.follow_lookup(s) FROM pgdog.sharded_tables s
          WHERE s.pinned_query IS NOT NULL;
        IF NOT pgdog.has_raised() THEN
            PERFORM pgdog.raise_epoch();
        END IF;
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.after_drop() IS
    'event trigger: withdraws the declarations of dropped tables';

REVOKE ALL ON FUNCTION pgdog.maps_changed() FROM PUBLIC;

CREATE EVENT TRIGGER pgdog_after_ddl ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE SCHEMA',
                 'ALTER SCHEMA', 'CREATE VIEW', 'ALTER VIEW', 'CREATE RULE',
                 'ALTER DOMAIN', 'CREATE FUNCTION', 'ALTER FUNCTION',
                 'ALTER ROUTINE')
    EXECUTE FUNCTION pgdog.after_ddl();
CREATE EVENT TRIGGER pgdog_after_drop ON sql_drop
    EXECUTE FUNCTION pgdog.after_drop();
