-- A key of text under a collation that takes different bytes for equal. Only ICU has such
-- collations: a server built without it has nothing to refuse (collation_1.out).
\set SHOW_CONTEXT never
CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
\if :ERROR
\quit
\endif
CREATE TABLE unfit (id bigint, name text COLLATE any_case);
SELECT pgdog.shard_table('unfit', 'name', 'varchar');
\echo :LAST_ERROR_SQLSTATE
SELECT attname, pgdog.unfit_key(attrelid, attname, 'varchar'),
       pgdog.unfit_key(attrelid, attname, 'bigint')
  FROM pg_attribute WHERE attrelid = 'unfit'::regclass AND attnum > 0 ORDER BY attnum;
DROP TABLE unfit;
DROP COLLATION any_case;
