-- The token changes with commits that wrote, in sessions that asked for it.
SHOW pgdog.commit_lsn;
CREATE TABLE noted (id int);
SHOW pgdog.commit_lsn;
SET pgdog.report_commit_lsn = on;
INSERT INTO noted VALUES (1);
SELECT current_setting('pgdog.commit_lsn') AS one \gset
SELECT :'one'::pg_lsn <= pg_current_wal_insert_lsn() AS covered,
       :'one'::pg_lsn > pg_current_wal_insert_lsn() - 100000::numeric AS recent;
-- reading, rolling back and preparing are no commits
SELECT count(*) FROM noted;
BEGIN; INSERT INTO noted VALUES (2); ROLLBACK;
BEGIN; INSERT INTO noted VALUES (3); PREPARE TRANSACTION 'later';
SELECT current_setting('pgdog.commit_lsn') = :'one' AS same;
COMMIT PREPARED 'later';
SELECT current_setting('pgdog.commit_lsn')::pg_lsn > :'one'::pg_lsn AS later;
SELECT current_setting('pgdog.commit_lsn') AS two \gset
-- the value stays, whatever happens to the session
RESET ALL;
DISCARD ALL;
SELECT current_setting('pgdog.commit_lsn') = :'two' AS same;
INSERT INTO noted VALUES (4);
SELECT current_setting('pgdog.commit_lsn') = :'two' AS not_asked_any_more;
-- a procedure that commits
SET pgdog.report_commit_lsn = on;
DO $$ BEGIN INSERT INTO noted VALUES (5); COMMIT; INSERT INTO noted VALUES (6); END $$;
SELECT current_setting('pgdog.commit_lsn')::pg_lsn > :'two'::pg_lsn AS later;
DROP TABLE noted;
