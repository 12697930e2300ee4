-- The extension installs, and nothing of it can be written by everybody.
SET client_min_messages = warning;
CREATE ROLE regress_owner LOGIN;
CREATE ROLE regress_other LOGIN;
CREATE ROLE regress_shim LOGIN;
ALTER DATABASE regress OWNER TO regress_owner;
GRANT ALL ON SCHEMA public TO PUBLIC;
CREATE EXTENSION pgdog;
GRANT pgdog TO regress_shim;
CREATE EXTENSION pgdog SCHEMA public;

SELECT extname, extrelocatable, nspname
  FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'pgdog';
SELECT rolname, rolcanlogin, rolsuper FROM pg_roles WHERE rolname = 'pgdog';

-- Tables and views, with who may do more than read them.
SELECT relname, relkind FROM pg_class
 WHERE relnamespace = 'pgdog'::regnamespace AND relkind IN ('r', 'v') ORDER BY 1;
SELECT relname, privilege_type FROM pg_class, aclexplode(relacl)
 WHERE relnamespace = 'pgdog'::regnamespace AND grantee = 0 AND privilege_type <> 'SELECT';
SELECT has_schema_privilege('regress_other', 'pgdog', 'CREATE') AS may_create,
       has_schema_privilege('regress_other', 'pgdog', 'USAGE') AS may_use;

-- Functions that act for somebody else pin their search path.
SELECT proname FROM pg_proc
 WHERE pronamespace = 'pgdog'::regnamespace AND prosecdef
   AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'));

-- Everything has a comment.
SELECT relname FROM pg_class c
 WHERE relnamespace = 'pgdog'::regnamespace AND relkind IN ('r', 'v')
   AND obj_description(c.oid, 'pg_class') IS NULL;
SELECT proname FROM pg_proc p
 WHERE pronamespace = 'pgdog'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL;

-- The prefix is reserved, values are checked, internal parameters stay internal.
\set VERBOSITY terse
SET pgdog.no_such = 1;
SET pgdog.min_lsn = '0/5A2';
SET pgdog.min_lsn = '0=0/5A2,1=0/1';
SET pgdog.min_lsn = '0/5A2x';
\echo :LAST_ERROR_SQLSTATE
SHOW pgdog.min_lsn;
SET pgdog.epoch = '-1';
SET pgdog.epoch = '18446744073709551615';
SET pgdog.epoch = '18446744073709551616';
SET pgdog.role = 'somewhere';
SET pgdog.read_your_writes = 'session';
SET pgdog.commit_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
SET ROLE regress_other;
SET pgdog.task_id = '1';
\echo :LAST_ERROR_SQLSTATE
INSERT INTO pgdog.topology VALUES (1, 1, 'serving', 1, 1, 0);
\echo :LAST_ERROR_SQLSTATE
SELECT pgdog.install_node(0, 2);
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
