-- Changes of what a lookup reads: they move keys, so they raise the epoch of this node in the same
-- transaction, whoever makes them. Rows that are only added move nothing, unless the query is one
-- whose answer other rows can change.
--
-- Texts of lookups are somebody's; what follows them has all privileges. Nothing of such a text is
-- ever run or planned here: it is parsed, and only what PostgreSQL made of it is used. Constants
-- are read and written as on the shims' connections, whatever the caller has set.

CREATE FUNCTION pgdog.pin_lookup(lookup_query text, path text, OUT pinned text, OUT probe text)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pin_lookup_wrapper';
COMMENT ON FUNCTION pgdog.pin_lookup(text, text) IS
    'a lookup query with all names as they are found on that path; the probe has NULL as its key';

CREATE FUNCTION pgdog.has_raised() RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'has_raised_wrapper';
COMMENT ON FUNCTION pgdog.has_raised() IS
    'whether this transaction has raised the epoch already: nobody has seen it';

CREATE FUNCTION pgdog.lookup_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    -- Anybody may name this function in a trigger, and has to when a partition gets its own ones.
    IF NOT pgdog.has_raised() AND EXISTS (
           SELECT FROM pgdog.lookup_sources s
            WHERE s.source = coalesce(pg_partition_root(TG_RELID), TG_RELID)) THEN
        PERFORM pgdog.raise_epoch();
    END IF;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION pgdog.lookup_changed() IS
    'trigger: what a lookup reads has changed here, so older epochs are refused';

CREATE FUNCTION pgdog.lookup_paused() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    RAISE EXCEPTION 'writes of lookup table % are paused', TG_RELID::regclass
        USING ERRCODE = 'lock_not_available',
              HINT = format('Try again after SELECT pgdog.resume_lookup_writes(%L).',
                            coalesce(pg_partition_root(TG_RELID), TG_RELID)::regclass::text);
END
$function$;
COMMENT ON FUNCTION pgdog.lookup_paused() IS
    'trigger: error 55P03, while a map must stay as it is';

CREATE FUNCTION pgdog.lookup_uses(probe text)
RETURNS TABLE (relation oid, kind "char", columns name[], counts_added boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET datestyle = 'ISO, MDY'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $function$
DECLARE
    used     oid[];
    actions  text[];
    unfit    text;
    is_whole boolean;
    is_plain boolean;
BEGIN
    -- PostgreSQL itself notes what a view depends on.
    EXECUTE 'CREATE VIEW pgdog.lookup_probe AS SELECT 1 AS one FROM (' || probe || ') AS answer';
    WITH RECURSIVE reached(relid) AS (
        SELECT 'pgdog.lookup_probe'::regclass::oid
        UNION
        SELECT d.refobjid
          FROM reached u
          JOIN pg_rewrite r ON r.ev_class = u.relid AND r.ev_type = '1'
          JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                              AND d.refclassid = 'pg_class'::regclass
    )
    SELECT array_agg(u.relid),
           array_agg(r.ev_action::text) FILTER (WHERE r.ev_action IS NOT NULL)
      INTO used, actions
      FROM reached u LEFT JOIN pg_rewrite r ON r.ev_class = u.relid AND r.ev_type = '1';

    -- What changes without a trigger, or without any write, cannot be followed.
    SELECT string_agg(format('%s is a %s', c.oid::regclass, CASE c.relkind
               WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table'
               WHEN 'S' THEN 'sequence' ELSE 'parent by INHERITS' END), ', ')
      INTO unfit
      FROM pg_class c
     WHERE c.oid = ANY (used)
       AND (c.relkind NOT IN ('r', 'p', 'v')
            OR c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid));
    IF unfit IS NOT NULL THEN
        RAISE EXCEPTION 'a lookup can read ordinary tables and views only'
            USING ERRCODE = 'feature_not_supported', DETAIL = unfit,
                  HINT = 'Changes of others would not be seen.';
    END IF;
    -- The shims run the query with privileges of their own: code in it is a superuser's.
    WITH called AS (
        SELECT DISTINCT match.parts[1]::oid AS number
          FROM unnest(actions) AS action,
               regexp_matches(action, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)', 'g')
                   AS match(parts)
        UNION
        SELECT o.oprcode
          FROM unnest(actions) AS action,
               regexp_matches(action, ':opno (\d+)', 'g') AS match(parts)
          JOIN pg_operator o ON o.oid = match.parts[1]::oid
    )
    SELECT string_agg(DISTINCT p.oid::regprocedure::text, ', ') INTO unfit
      FROM called JOIN pg_proc p ON p.oid = called.number
      LEFT JOIN pg_roles r ON r.oid = p.proowner
     WHERE p.provolatile = 'v'
        OR p.oid >= 16384 AND (p.provolatile <> 'i' OR NOT coalesce(r.rolsuper, false))
        OR p.oid < 16384 AND (p.proname = ANY ('{now,transaction_timestamp,statement_timestamp,
               current_setting,current_schema,current_schemas,current_query,pg_backend_pid,
               inet_client_addr,inet_client_port,has_table_privilege,pg_has_role,
               txid_current_if_assigned,pg_is_in_recovery,row_security_active}'::name[])
               OR p.proname = 'age' AND p.pronargs = 1);
    IF unfit IS NULL THEN
        SELECT CASE substring(action FROM '\{(SQLVALUEFUNCTION|TABLESAMPLECLAUSE|ROWMARKCLAUSE) ')
               WHEN 'SQLVALUEFUNCTION' THEN 'CURRENT_DATE, CURRENT_USER and the like'
               WHEN 'TABLESAMPLECLAUSE' THEN 'TABLESAMPLE'
               WHEN 'ROWMARKCLAUSE' THEN 'FOR UPDATE or SHARE' END AS found
          INTO unfit FROM unnest(actions) AS action ORDER BY found NULLS LAST LIMIT 1;
    END IF;
    IF unfit IS NOT NULL THEN
        RAISE EXCEPTION 'a lookup cannot use %', unfit
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'Its answer must depend on rows of tables alone, and on no code but '
                      'PostgreSQL''s and that of superusers that is IMMUTABLE.';
    END IF;

    -- A row that is used as a whole leaves no columns there.
    is_whole := EXISTS (SELECT FROM unnest(actions) AS action WHERE action ~ ':varattno 0 ');
    -- Inner joins and conditions: more rows can only mean more answers.
    is_plain := NOT EXISTS (
        SELECT FROM unnest(actions) AS action
         WHERE action ~ (':has(Aggs|WindowFuncs|SubLinks|DistinctOn|TargetSRFs) true'
                      || '|:jointype [1-9]|:(distinct|sort|group)Clause \('
                      || '|:groupingSets \(|:havingQual \{|:setOperations \{'
                      || '|:limit(Count|Offset) \{'));
    RETURN QUERY
    SELECT c.oid, c.relkind,
           CASE WHEN NOT is_whole THEN (
               SELECT array_agg(DISTINCT a.attname)
                 FROM pg_depend d
                 JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                                      AND r.ev_class = ANY (used) AND r.ev_type = '1'
                 JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
                  AND d.refobjsubid > 0)
           END,
           NOT is_plain
      FROM pg_class c
     WHERE c.oid = ANY (used) AND c.oid <> 'pgdog.lookup_probe'::regclass;
    DROP VIEW pgdog.lookup_probe;
END
$function$;
COMMENT ON FUNCTION pgdog.lookup_uses(text) IS
    'tables and views that a probe reads, with the columns that count (NULL: all of them) and '
    'whether rows that are added count; error 0A000 for what cannot be followed';

CREATE TABLE pgdog.lookup_sources (
    schema_name   text    NOT NULL,
    table_name    text    NOT NULL,
    column_name   text    NOT NULL,
    source        oid     NOT NULL,
    columns       name[],
    counts_added  boolean NOT NULL,
    CONSTRAINT lookup_sources_pkey PRIMARY KEY (schema_name, table_name, column_name, source),
    CONSTRAINT lookup_sources_declared FOREIGN KEY (schema_name, table_name, column_name)
        REFERENCES pgdog.sharded_tables ON DELETE CASCADE
);
COMMENT ON TABLE pgdog.lookup_sources IS
    'tables that the lookups of sharded tables read, as their triggers follow them';
COMMENT ON COLUMN pgdog.lookup_sources.columns IS 'columns that count; NULL: all of them';
COMMENT ON COLUMN pgdog.lookup_sources.counts_added IS
    'whether rows that are added can change an answer';

CREATE TABLE pgdog.lookup_views (
    schema_name   text NOT NULL,
    table_name    text NOT NULL,
    column_name   text NOT NULL,
    view          oid  NOT NULL,
    CONSTRAINT lookup_views_pkey PRIMARY KEY (schema_name, table_name, column_name, view),
    CONSTRAINT lookup_views_declared FOREIGN KEY (schema_name, table_name, column_name)
        REFERENCES pgdog.sharded_tables ON DELETE CASCADE
);
COMMENT ON TABLE pgdog.lookup_views IS 'views through which lookups of sharded tables read';
GRANT SELECT ON pgdog.lookup_sources, pgdog.lookup_views TO PUBLIC;

-- Event triggers are left out: they are about what users do.
CREATE FUNCTION pgdog.watch_source(source oid) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET session_replication_role = replica
AS $function$
DECLARE
    old_row text;
    new_row text;
    kinds   text[] := '{update,delete}';
    kind    text;
    part    regclass;
BEGIN
    -- One whose columns nobody names counts as a whole, with columns that it gets later.
    IF NOT EXISTS (SELECT FROM pgdog.lookup_sources s
                    WHERE s.source = watch_source.source AND s.columns IS NULL) THEN
        SELECT 'ROW(' || string_agg(DISTINCT format('OLD.%I', name), ', ') || ')',
               'ROW(' || string_agg(DISTINCT format('NEW.%I', name), ', ') || ')'
          INTO old_row, new_row
          FROM pgdog.lookup_sources s CROSS JOIN unnest(s.columns) AS name
         WHERE s.source = watch_source.source;
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER pgdog_lookup_update AFTER UPDATE ON %s FOR EACH ROW
           WHEN (pg_catalog.record_image_ne(%s, %s))
           EXECUTE FUNCTION pgdog.lookup_changed()',
        source::regclass, coalesce(old_row, 'OLD.*'), coalesce(new_row, 'NEW.*'));
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER pgdog_lookup_delete AFTER DELETE ON %s FOR EACH ROW
           EXECUTE FUNCTION pgdog.lookup_changed()', source::regclass);
    IF EXISTS (SELECT FROM pgdog.lookup_sources s
                WHERE s.source = watch_source.source AND s.counts_added) THEN
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER pgdog_lookup_insert AFTER INSERT ON %s FOR EACH ROW
               EXECUTE FUNCTION pgdog.lookup_changed()', source::regclass);
        kinds := kinds || 'insert'::text;
    ELSIF EXISTS (SELECT FROM pg_trigger t
                   WHERE t.tgrelid = source AND t.tgname = 'pgdog_lookup_insert') THEN
        EXECUTE format('DROP TRIGGER pgdog_lookup_insert ON %s', source::regclass);
    END IF;
    -- Replicated rows fire them, too, and they go with the extension.
    FOREACH kind IN ARRAY kinds LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER pgdog_lookup_%s',
                       source::regclass, kind);
        EXECUTE format('ALTER TRIGGER pgdog_lookup_%s ON %s DEPENDS ON EXTENSION pgdog',
                       kind, source::regclass);
    END LOOP;
    -- A partition may be truncated by itself.
    FOR part IN
        SELECT t.relid FROM pg_partition_tree(source) t
        UNION SELECT source::regclass
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER pgdog_lookup_truncate AFTER TRUNCATE ON %s
               FOR EACH STATEMENT EXECUTE FUNCTION pgdog.lookup_changed()', part);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER pgdog_lookup_truncate', part);
        EXECUTE format('ALTER TRIGGER pgdog_lookup_truncate ON %s DEPENDS ON EXTENSION pgdog',
                       part);
    END LOOP;
END
$function$;
COMMENT ON FUNCTION pgdog.watch_source(oid) IS
    'puts the triggers on a table that lookups read';

CREATE FUNCTION pgdog.forget_source() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET session_replication_role = replica
AS $function$
DECLARE
    part oid;
    name name;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = OLD.source) THEN
        RETURN NULL;
    END IF;
    -- Another lookup may read less of it.
    IF EXISTS (SELECT FROM pgdog.lookup_sources s WHERE s.source = OLD.source) THEN
        PERFORM pgdog.watch_source(OLD.source);
        RETURN NULL;
    END IF;
    FOR part, name IN
        SELECT t.tgrelid, t.tgname FROM pg_trigger t
         WHERE t.tgparentid = 0 AND t.tgfoid = 'pgdog.lookup_changed'::regproc
           AND (t.tgrelid = OLD.source
                OR t.tgrelid IN (SELECT p.relid FROM pg_partition_tree(OLD.source) p))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', name, part::regclass);
    END LOOP;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION pgdog.forget_source() IS
    'trigger: takes the triggers from a table that no lookup reads any more';

CREATE TRIGGER lookup_sources_forget AFTER DELETE ON pgdog.lookup_sources
    FOR EACH ROW EXECUTE FUNCTION pgdog.forget_source();

CREATE FUNCTION pgdog.follow_lookup(declared pgdog.sharded_tables) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET datestyle = 'ISO, MDY'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $function$
DECLARE
    probe   text;
    sources oid[];
    views   oid[];
    found   record;
BEGIN
    SELECT p.probe INTO STRICT probe FROM pgdog.pin_lookup(declared.pinned_query, 'pg_catalog') p;
    sources := '{}';
    views := '{}';
    -- Partitions count by their topmost table: later ones belong to it as well.
    FOR found IN
        SELECT coalesce(pg_partition_root(u.relation), u.relation)::oid AS source,
               u.kind = 'v' AS is_view, bool_or(u.columns IS NULL) AS is_whole,
               array_agg(DISTINCT name ORDER BY name) FILTER (WHERE name IS NOT NULL) AS columns,
               bool_or(u.counts_added) AS counts_added
          FROM pgdog.lookup_uses(probe) u LEFT JOIN LATERAL unnest(u.columns) AS name ON true
         GROUP BY 1, 2 ORDER BY 1
    LOOP
        IF found.is_view THEN
            views := views || found.source;
            CONTINUE;
        END IF;
        -- Triggers are put on tables of the caller only.
        IF NOT EXISTS (SELECT FROM pgdog.lookup_sources s
                        WHERE (s.schema_name, s.table_name, s.column_name, s.source)
                              = (declared.schema_name, declared.table_name, declared.column_name,
                                 found.source)) THEN
            PERFORM pgdog.require_declarable(found.source);
        END IF;
        sources := sources || found.source;
        INSERT INTO pgdog.lookup_sources
        VALUES (declared.schema_name, declared.table_name, declared.column_name, found.source,
                CASE WHEN NOT found.is_whole THEN found.columns END, found.counts_added)
            ON CONFLICT ON CONSTRAINT lookup_sources_pkey DO UPDATE
           SET columns = excluded.columns, counts_added = excluded.counts_added;
        PERFORM pgdog.watch_source(found.source);
    END LOOP;
    DELETE FROM pgdog.lookup_sources s
     WHERE (s.schema_name, s.table_name, s.column_name)
           = (declared.schema_name, declared.table_name, declared.column_name)
       AND s.source <> ALL (sources);
    DELETE FROM pgdog.lookup_views v
     WHERE (v.schema_name, v.table_name, v.column_name)
           = (declared.schema_name, declared.table_name, declared.column_name)
       AND v.view <> ALL (views);
    INSERT INTO pgdog.lookup_views
    SELECT declared.schema_name, declared.table_name, declared.column_name, unnest(views)
        ON CONFLICT DO NOTHING;
END
$function$;
COMMENT ON FUNCTION pgdog.follow_lookup(pgdog.sharded_tables) IS
    'puts triggers on what a lookup reads, if the caller may declare those tables';

CREATE FUNCTION pgdog.follow_lookups() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM pgdog.require_operator();
    PERFORM pgdog.follow_lookup(s) FROM pgdog.sharded_tables s WHERE s.pinned_query IS NOT NULL;
END
$function$;
COMMENT ON FUNCTION pgdog.follow_lookups() IS
    'puts the triggers of all lookups on their tables: on a new shard, which has the declarations '
    'of another one';

CREATE FUNCTION pgdog.repair_sources() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET session_replication_role = replica
AS $function$
DECLARE
    broken     oid;
    unfit      text;
    is_changed boolean := false;
BEGIN
    SELECT string_agg(DISTINCT c.oid::regclass::text, ', ') INTO unfit
      FROM pgdog.lookup_sources s JOIN pg_class c ON c.oid = s.source AND c.relkind = 'r'
     WHERE EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid);
    IF unfit IS NOT NULL THEN
        RAISE EXCEPTION 'table % cannot have children, for a lookup reads it', unfit
            USING ERRCODE = 'feature_not_supported', DETAIL = 'Changes there would not be seen.';
    END IF;
    -- Partitions that are none any more.
    FOR broken IN
        SELECT t.tgrelid FROM pg_trigger t
         WHERE t.tgname = 'pgdog_lookup_truncate' AND t.tgfoid = 'pgdog.lookup_changed'::regproc
           AND NOT EXISTS (SELECT FROM pgdog.lookup_sources s
                            WHERE s.source = coalesce(pg_partition_root(t.tgrelid), t.tgrelid))
    LOOP
        EXECUTE format('DROP TRIGGER pgdog_lookup_truncate ON %s', broken::regclass);
        is_changed := true;
    END LOOP;
    -- New ones, and triggers that were switched off or dropped with a column.
    FOR broken IN
        SELECT s.source
          FROM (SELECT a.source, bool_or(a.counts_added) AS counts_added
                  FROM pgdog.lookup_sources a GROUP BY 1) s
          JOIN pg_class c ON c.oid = s.source
         WHERE EXISTS (
               SELECT FROM (SELECT p.relid FROM pg_partition_tree(s.source) p
                            UNION SELECT s.source) tree
                WHERE CASE WHEN s.counts_added THEN 4 ELSE 3 END > (
                      SELECT count(*) FROM pg_trigger t
                       WHERE t.tgrelid = tree.relid AND t.tgenabled = 'A'
                         AND t.tgfoid = 'pgdog.lookup_changed'::regproc
                         AND t.tgname ~ '^pgdog_lookup_(update|delete|insert|truncate)$'))
         ORDER BY 1
    LOOP
        PERFORM pgdog.watch_source(broken);
        is_changed := true;
    END LOOP;
    RETURN is_changed;
END
$function$;
COMMENT ON FUNCTION pgdog.repair_sources() IS
    'after definitions have changed: puts the triggers of lookups where they are missing; whether '
    'any were';
REVOKE ALL ON FUNCTION pgdog.pin_lookup(text, text), pgdog.has_raised(), pgdog.lookup_uses(text),
    pgdog.watch_source(oid), pgdog.forget_source(), pgdog.follow_lookup(pgdog.sharded_tables),
    pgdog.repair_sources() FROM PUBLIC;

CREATE FUNCTION pgdog.pause_lookup_writes(table_name text) RETURNS void
LANGUAGE plpgsql STRICT
AS $function$
BEGIN
    PERFORM pgdog.set_lookup_pause(pgdog.named_table(table_name), true);
END
$function$;
COMMENT ON FUNCTION pgdog.pause_lookup_writes(text) IS
    'waits for the writers of a lookup table and refuses new ones (55P03) until '
    'resume_lookup_writes()';

CREATE FUNCTION pgdog.resume_lookup_writes(table_name text) RETURNS void
LANGUAGE plpgsql STRICT
AS $function$
BEGIN
    PERFORM pgdog.set_lookup_pause(pgdog.named_table(table_name), false);
END
$function$;
COMMENT ON FUNCTION pgdog.resume_lookup_writes(text) IS
    'lets a lookup table be written again';

CREATE FUNCTION pgdog.set_lookup_pause(target regclass, is_paused boolean) RETURNS void
LANGUAGE plpgsql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET session_replication_role = replica
AS $function$
DECLARE
    part regclass;
BEGIN
    PERFORM pgdog.require_declarable(target);
    -- A partition may be written by itself.
    FOR part IN
        SELECT p.relid FROM pg_partition_tree(target) p
        UNION SELECT target
        ORDER BY 1
    LOOP
        IF is_paused THEN
            -- The lock that a trigger takes waits for whoever is writing.
            EXECUTE format(
                'CREATE OR REPLACE TRIGGER pgdog_lookup_paused
                   BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s
                   FOR EACH STATEMENT EXECUTE FUNCTION pgdog.lookup_paused()', part);
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER pgdog_lookup_paused', part);
            EXECUTE format('ALTER TRIGGER pgdog_lookup_paused ON %s DEPENDS ON EXTENSION pgdog',
                           part);
        ELSE
            EXECUTE format('DROP TRIGGER IF EXISTS pgdog_lookup_paused ON %s', part);
        END IF;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION pgdog.set_lookup_pause(regclass, boolean) IS
    'the part of pause_lookup_writes() and resume_lookup_writes() that checks and writes';
