-- Do the shards agree? Figures that are equal on two nodes exactly when their omni tables are.

CREATE FUNCTION pgdog.catalog_fingerprint() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    WITH omni AS (
        SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident
          FROM pgdog.omnisharded_tables o
          JOIN pg_namespace n ON n.nspname = o.schema_name
          JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = o.table_name
    ), facts AS (
        SELECT format('table %I.%I %s %s', nspname, relname, relkind, relreplident) AS fact
          FROM omni
        UNION ALL
        SELECT format('column %I.%I.%I %s %s %s %s', nspname, relname, a.attname,
                      format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated,
                      a.attidentity)
          FROM omni JOIN pg_attribute a ON a.attrelid = omni.oid
         WHERE a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT format('default %I.%I %s %s', nspname, relname, d.adnum,
                      pg_get_expr(d.adbin, d.adrelid))
          FROM omni JOIN pg_attrdef d ON d.adrelid = omni.oid
        UNION ALL
        SELECT format('constraint %I.%I %I %s', nspname, relname, k.conname,
                      pg_get_constraintdef(k.oid))
          FROM omni JOIN pg_constraint k ON k.conrelid = omni.oid
         WHERE k.contype IN ('p', 'u', 'c', 'x')
        UNION ALL
        SELECT format('partition %I.%I %s', nspname, relname, p.relid::regclass)
          FROM omni CROSS JOIN LATERAL pg_partition_tree(omni.oid) p WHERE p.level > 0
    )
    SELECT md5(coalesce(string_agg(fact, E'\n' ORDER BY fact COLLATE "C"), '')) FROM facts
$function$;
COMMENT ON FUNCTION pgdog.catalog_fingerprint() IS
    'md5 over columns, defaults, keys and partitions of all omnisharded tables';

CREATE FUNCTION pgdog.omni_hashes(OUT table_name text, OUT rows bigint, OUT hash text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
SET bytea_output = 'hex'
SET row_security = off
AS $function$
DECLARE
    target regclass;
BEGIN
    PERFORM pgdog.require_operator();
    FOR target IN
        SELECT c.oid
          FROM pgdog.omnisharded_tables o
          JOIN pg_namespace n ON n.nspname = o.schema_name
          JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = o.table_name
         ORDER BY o.schema_name, o.table_name
    LOOP
        -- Row order differs between nodes: a sum of row hashes does not depend on it, and unlike
        -- XOR it does not forget a row that is there twice. ROW(t.*) is the row, also where a
        -- column is called t.
        table_name := target::text;
        EXECUTE format(
            'SELECT count(*),
                    coalesce(sum(hashtextextended(ROW(t.*)::text, 0)::numeric), 0)::text
               FROM %s t', target) INTO rows, hash;
        RETURN NEXT;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION pgdog.omni_hashes() IS
    'row count and order-independent hash of every omnisharded table';

CREATE FUNCTION pgdog.verify_omni(
    OUT shard integer, OUT table_name text, OUT rows bigint, OUT hash text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $function$
BEGIN
    PERFORM pgdog.require_operator();
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'verify_omni() needs a READ COMMITTED transaction'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'The snapshot of this one may be from before it waited for writers.';
    END IF;
    -- Writers queue behind who waits here: not for long.
    --
    -- Waits for the omni writes that are under way, also prepared ones, and holds back later ones
    -- to the end of this transaction: what all shards say in transactions that overlap is of one
    -- point in time.
    LOCK TABLE pgdog.gate IN SHARE MODE;
    RETURN QUERY
    SELECT t.shard, h.table_name, h.rows, h.hash
      FROM pgdog.topology t CROSS JOIN pgdog.omni_hashes() h;
END
$function$;
COMMENT ON FUNCTION pgdog.verify_omni() IS
    'row count and order-independent hash of every omnisharded table of this shard, with no write '
    'under way; call it on every shard, 0 first, before you end the transaction on any';
