-- Columns of omni tables whose default every shard would compute for itself. Nobody compares the
-- rows of the shards at a write, so the router refuses a write that leaves such a column out.

CREATE FUNCTION pgdog.differs_between_shards(expression pg_catalog.pg_node_tree) RETURNS boolean
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    -- CURRENT_TIMESTAMP and its like, identity; any function or operator that is not immutable;
    -- a conversion through text whose input function is not ('now'::text::timestamptz).
    SELECT expression::text ~ '\{(SQLVALUEFUNCTION|NEXTVALUEEXPR)'
        OR EXISTS (
            SELECT FROM regexp_matches(expression::text, ':(?:funcid|opfuncid) (\d+)', 'g') found
              JOIN pg_proc p ON p.oid = found[1]::oid
             WHERE p.provolatile <> 'i')
        OR expression::text ~ '\{COERCEVIAIO' AND EXISTS (
            SELECT FROM regexp_matches(expression::text, ':resulttype (\d+)', 'g') found
              JOIN pg_type t ON t.oid = found[1]::oid
              JOIN pg_proc p ON p.oid = t.typinput
             WHERE p.provolatile <> 'i')
$function$;
COMMENT ON FUNCTION pgdog.differs_between_shards(pg_node_tree) IS
    'whether two servers may compute different values of an expression';

CREATE VIEW pgdog.omni_columns AS
SELECT t.schema_name, t.table_name, t.declared,
       coalesce(c.columns, '{}') AS columns, coalesce(c.computed, '{}') AS computed
  FROM (
    SELECT o.schema_name, o.table_name, true AS declared,
           pg_catalog.to_regclass(pg_catalog.format('%I.%I', o.schema_name, o.table_name)) AS relid
      FROM pgdog.omnisharded_tables o
    UNION ALL
    SELECT n.nspname, r.relname, false, r.oid
      FROM pg_catalog.pg_class r
      JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
     WHERE r.relkind IN ('r', 'p') AND r.relpersistence <> 't' AND n.nspname !~ '^pg_'
       AND n.nspname NOT IN ('information_schema', 'pgdog')
       AND pgdog.table_class(r.oid) = 'unlisted'
  ) t
  CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attnum) AS columns,
           pg_catalog.array_agg(a.attname::text ORDER BY a.attnum) FILTER (
               WHERE a.attgenerated = ''
                 AND (a.attidentity <> '' OR pgdog.differs_between_shards(
                        CASE WHEN a.atthasdef THEN d.adbin ELSE y.typdefaultbin END))
           ) AS computed
      FROM pg_catalog.pg_attribute a
      JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
      LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped
  ) c;
COMMENT ON VIEW pgdog.omni_columns IS
    'columns of omnisharded tables, and of tables that nobody declared';
COMMENT ON COLUMN pgdog.omni_columns.declared IS
    'false: unlisted here; the same everywhere only where unlisted tables count as omnisharded';
COMMENT ON COLUMN pgdog.omni_columns.columns IS 'live columns in order';
COMMENT ON COLUMN pgdog.omni_columns.computed IS
    'columns whose default differs between shards: a write has to give their values. What '
    'triggers and rules compute is not seen here: they must do the same on every shard';
GRANT SELECT ON pgdog.omni_columns TO PUBLIC;

CREATE FUNCTION pgdog.notice_computed(target regclass) RETURNS void
LANGUAGE plpgsql STRICT
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    names text;
BEGIN
    SELECT string_agg(quote_ident(name), ', ' ORDER BY place) INTO names
      FROM pgdog.omni_columns o, pg_class c, unnest(o.computed) WITH ORDINALITY u(name, place)
     WHERE c.oid = target AND o.declared AND o.table_name = c.relname
       AND o.schema_name = c.relnamespace::regnamespace::text;
    IF names IS NOT NULL THEN
        RAISE NOTICE 'defaults of omnisharded table % differ between shards', target
            USING DETAIL = format('columns: %s', names),
                  HINT = 'Statements have to give their values; pgdog refuses those that do not.';
    END IF;
END
$function$;
COMMENT ON FUNCTION pgdog.notice_computed(regclass) IS
    'NOTICE that names the columns of an omni table whose default differs between shards';
