-- Ids: unique, one after the other, by whom ever, whatever the clock says.
\set SHOW_CONTEXT never
SET ROLE regress_other;
SELECT count(DISTINCT id), max(id) - min(id) = 99 << 10 AS dense, bool_and(id & 1023 = shard) AS own
  FROM (SELECT pgdog.next_id() AS id FROM generate_series(1, 100)) ids, pgdog.topology
 GROUP BY shard;
SELECT count(DISTINCT id), bool_and(id > before) AS rise, bool_and(id >> 12 & 1023 = shard) AS own
  FROM (SELECT id, lag(id, 1, 0::bigint) OVER (ORDER BY nth) AS before
          FROM (SELECT nth, pgdog.unique_id() AS id
                  FROM generate_series(1, 5000) nth) given) ids, pgdog.topology
 GROUP BY shard;
SELECT abs(extract(epoch FROM clock_timestamp()) - 1767225600 - (pgdog.unique_id() >> 22) / 1000.0)
       < 60 AS is_now;
SELECT setval('pgdog.unique_ids', 1);
\echo :LAST_ERROR_SQLSTATE
-- who is cancelled in the middle leaves nothing that others wait for
SET statement_timeout = '5ms';
SELECT 'SELECT count(pgdog.unique_id()) FROM generate_series(1, 10000000)'
  FROM generate_series(1, 20) \gexec
RESET statement_timeout;
SELECT count(*) FROM pg_locks WHERE relation = 'pgdog.unique_gate'::regclass;
BEGIN;
LOCK TABLE pgdog.unique_gate IN EXCLUSIVE MODE;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
RESET ROLE;
-- it starts by the clock, so that a node that is made anew repeats nothing
SELECT pgdog.next_id() >> 30 > extract(epoch FROM clock_timestamp()) - 1767229200 AS by_clock;
-- a clock that was set back: what was given away lies in the future
SELECT pgdog.unique_id() + (3600000::bigint << 22) AS last \gset
SELECT setval('pgdog.unique_ids', ((:last >> 22) << 12) | (:last & 4095)) > 0 AS set;
SELECT pgdog.unique_id() = :last + 1 AS next, pgdog.unique_id() = :last + 2 AS one_more;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory';
