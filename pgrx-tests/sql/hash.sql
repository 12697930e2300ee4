-- 100 000 keys a type land where PostgreSQL's own hash partitioning puts them.
CREATE TABLE by_bigint (k bigint) PARTITION BY HASH (k);
CREATE TABLE by_text (k text) PARTITION BY HASH (k);
CREATE TABLE by_varchar (k varchar) PARTITION BY HASH (k);
CREATE TABLE by_uuid (k uuid) PARTITION BY HASH (k);
CREATE FUNCTION remainder_of(parent regclass, k anyelement) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    FOR shard IN 0 .. 6 LOOP
        IF satisfies_hash_partition(parent, 7, shard, k) THEN RETURN shard; END IF;
    END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE
           remainder_of('by_bigint', k) = pgdog.hash_shard('bigint', k::text, 7)) AS agree
  FROM (SELECT CASE n % 4 WHEN 0 THEN n WHEN 1 THEN -n
                    WHEN 2 THEN n * 92233720368547 ELSE n * -92233720368547 END AS k
          FROM generate_series(1::bigint, 100000) n) keys;
SELECT count(*), count(*) FILTER (WHERE
           remainder_of('by_text', k) = pgdog.hash_shard('varchar', k, 7)) AS agree
  FROM (SELECT substr(repeat(md5(n::text), 3), 1, n % 90) || chr(200 + n % 900) AS k
          FROM generate_series(1, 100000) n) keys;
SELECT count(*), count(*) FILTER (WHERE
           remainder_of('by_varchar', k) = pgdog.hash_shard('varchar', k, 7)) AS agree
  FROM (SELECT ('tenant-' || n)::varchar AS k FROM generate_series(1, 100000) n) keys;
SELECT count(*), count(*) FILTER (WHERE
           remainder_of('by_uuid', k) = pgdog.hash_shard('uuid', k::text, 7)) AS agree
  FROM (SELECT md5(n::text)::uuid AS k FROM generate_series(1, 100000) n) keys;
DROP FUNCTION remainder_of(regclass, anyelement);
DROP TABLE by_bigint, by_text, by_varchar, by_uuid;
