-- A commit's stamp gives a position that covers the commit, and all others stamped up to then.
CREATE TABLE stamped (id int, stamp timestamptz, stop pg_lsn);
-- Where the last record ends: the next one may have to begin behind the header of a page.
CREATE FUNCTION last_end() RETURNS pg_lsn LANGUAGE sql AS $$
    SELECT next - CASE WHEN (next - '0/0') % 8192 IN (24, 40) THEN (next - '0/0') % 8192 ELSE 0 END
      FROM pg_current_wal_insert_lsn() next
$$;
CREATE PROCEDURE stamp_and_check(rounds int) LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz; stop pg_lsn; covered pg_lsn;
BEGIN
    FOR n IN 1..rounds LOOP
        INSERT INTO stamped (id) VALUES (n);
        COMMIT;
        stop := last_end();
        stamp := clock_timestamp();  -- not earlier than the commit's own
        covered := pgdog.lsn_for_timestamp(stamp);
        IF covered IS NULL OR covered < stop THEN
            RAISE 'round %: % does not cover %', n, covered, stop;
        END IF;
    END LOOP;
END $$;
CALL stamp_and_check(100);
-- The future is not known, however near.
SELECT pgdog.lsn_for_timestamp(clock_timestamp() + '1 hour') AS future,
       pgdog.lsn_for_timestamp('infinity') AS infinity,
       pgdog.lsn_for_timestamp(NULL) AS nothing;
-- What is older than anything known is covered by the earliest that is known.
SELECT pgdog.lsn_for_timestamp('-infinity') <= pgdog.lsn_for_timestamp(clock_timestamp())
       AS in_order,
       pgdog.lsn_for_timestamp('2020-01-01') IS NOT NULL AS long_ago;
-- The spelling of a moment does not matter.
SELECT pgdog.lsn_for_timestamp('2024-01-01 10:00:00.123456+02')
     = pgdog.lsn_for_timestamp('2024-01-01 08:00:00.123456Z') AS same;
-- COMMIT PREPARED is a commit like the others, also when it fails.
BEGIN; INSERT INTO stamped VALUES (-1); PREPARE TRANSACTION 'stamped';
COMMIT PREPARED 'stamped';
SELECT pgdog.lsn_for_timestamp(clock_timestamp()) >= last_end() AS covered;
COMMIT PREPARED 'nothing';
BEGIN; COMMIT PREPARED 'nothing'; ROLLBACK;
SELECT pgdog.lsn_for_timestamp(clock_timestamp()) IS NOT NULL AS still_answered;
-- A replica that has all there is is not waited for after a change of segments.
SELECT pg_switch_wal() IS NOT NULL AS switched;
SELECT pgdog.lsn_for_timestamp(clock_timestamp()) <= last_end() AS there_already;
-- Every session may ask.
SET ROLE regress_other;
SELECT pgdog.lsn_for_timestamp(clock_timestamp()) IS NOT NULL AS answered;
RESET ROLE;
-- No standby was promoted: there is no earlier timeline.
SELECT * FROM pgdog.timeline_history();
DROP TABLE stamped;
DROP PROCEDURE stamp_and_check;
DROP FUNCTION last_end;
