-- DDL that changes where rows live changes the epoch with it. (What would make a declaration lose
-- its table, a rename say, is refused by the utility hook.)

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
        -- A changed omni table, or a domain that may be the type of its columns: the router knows
        -- the columns, and which of their defaults differ between shards.
        SELECT FROM pg_event_trigger_ddl_commands() d
         WHERE d.command_tag = 'ALTER DOMAIN'
            OR d.classid = 'pg_class'::regclass AND NOT d.in_extension
               AND d.command_tag = 'ALTER TABLE'
               AND pgdog.table_class(d.objid::regclass) = 'omnisharded'
    ) THEN
        PERFORM pgdog.raise_epoch();
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.after_ddl() IS
    'event trigger: a new table with a declared column, a changed omni table raise the epoch';

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
    -- An INSERT without a list of columns finds its key by position.
    IF EXISTS (
        SELECT FROM pg_event_trigger_dropped_objects() d
         WHERE d.object_type = 'table column' AND d.original
           AND pgdog.table_class(d.objid::regclass) IN ('sharded', 'omnisharded')
    ) THEN
        PERFORM pgdog.raise_epoch();
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.after_drop() IS
    'event trigger: withdraws the declarations of dropped tables';

CREATE EVENT TRIGGER pgdog_after_ddl ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE SCHEMA',
                 'ALTER DOMAIN')
    EXECUTE FUNCTION pgdog.after_ddl();
CREATE EVENT TRIGGER pgdog_after_drop ON sql_drop
    EXECUTE FUNCTION pgdog.after_drop();
