-- DDL that changes where rows live changes the epoch with it. (What would make a declaration lose
-- its table, a rename say, is refused by the utility hook.)

CREATE FUNCTION pgdog.opaque_functions() RETURNS TABLE (oid oid, name name)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
    -- What an extension brings knows nothing of the tables of users, and what is immutable reads
    -- none. Procedures and triggers cannot be called by a SELECT.
    SELECT p.oid, p.proname
      FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
     WHERE p.oid >= 16384 AND p.prokind = 'f' AND p.provolatile <> 'i'
       AND l.lanname NOT IN ('internal', 'c') AND p.prorettype <> 'trigger'::regtype
       AND p.prorettype <> 'event_trigger'::regtype
       AND NOT EXISTS (SELECT FROM pg_depend d
                        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                          AND d.deptype = 'e')
$function$;
COMMENT ON FUNCTION pgdog.opaque_functions() IS
    'functions of users that may read or write any table, whatever the statement says';

CREATE FUNCTION pgdog.after_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    -- A table that has the column of a declaration without a name is sharded from now on.
    IF EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() d
          JOIN pg_attribute a ON a.attrelid = d.objid AND a.attnum > 0 AND NOT a.attisdropped
          JOIN pgdog.sharded_tables s ON s.table_name = '' AND s.column_name = a.attname
         WHERE d.classid = 'pg_class'::regclass AND NOT d.in_extension
           AND pgdog.table_class(d.objid::regclass) = 'sharded'
    ) OR EXISTS (
        -- A changed table, or a domain that may be the type of its columns: the router knows the
        -- columns, where the key is among them, and which defaults differ between shards.
        SELECT FROM pg_event_trigger_ddl_commands() d
         WHERE d.command_tag = 'ALTER DOMAIN'
            OR d.classid = 'pg_class'::regclass AND NOT d.in_extension
               AND d.command_tag = 'ALTER TABLE'
               AND pgdog.table_class(d.objid::regclass) IN ('sharded', 'omnisharded')
    ) OR EXISTS (
        -- A function that may touch tables: the router knows the names of those.
        SELECT FROM pg_event_trigger_ddl_commands() d
          JOIN pgdog.opaque_functions() f ON f.oid = d.objid
          JOIN pgdog.topology t ON t.shards > 1
         WHERE d.classid = 'pg_proc'::regclass AND NOT d.in_extension
    ) THEN
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
BEGIN
    -- A dropped table is declared no more; one of the same name starts anew.
    DELETE FROM pgdog.sharded_tables s USING pg_event_trigger_dropped_objects() d
     WHERE d.object_type = 'table' AND s.schema_name = d.schema_name
       AND s.table_name = d.object_name;
    DELETE FROM pgdog.omnisharded_tables o USING pg_event_trigger_dropped_objects() d
     WHERE d.object_type = 'table' AND o.schema_name = d.schema_name
       AND o.table_name = d.object_name;
END
$function$;
COMMENT ON FUNCTION pgdog.after_drop() IS
    'event trigger: withdraws the declarations of dropped tables';

CREATE EVENT TRIGGER pgdog_after_ddl ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE SCHEMA',
                 'ALTER DOMAIN', 'CREATE FUNCTION', 'ALTER FUNCTION', 'ALTER ROUTINE')
    EXECUTE FUNCTION pgdog.after_ddl();
CREATE EVENT TRIGGER pgdog_after_drop ON sql_drop
    EXECUTE FUNCTION pgdog.after_drop();
