-- Rows that functions, triggers and views write must belong to the shard they are written on.
\set SHOW_CONTEXT never
\set VERBOSITY terse
SELECT shard, shards FROM pgdog.topology;
CREATE TABLE homes (id bigint PRIMARY KEY, shard_id int);
SELECT pgdog.omni_table('homes');
INSERT INTO homes VALUES (1, 0), (2, 1), (3, 0);
CREATE TABLE parcels (tenant_id bigint, id bigint, note text, UNIQUE (tenant_id, id));
CREATE TABLE parts (id bigint, tenant_id bigint) PARTITION BY RANGE (id);
CREATE TABLE parts_low (tenant_id bigint, id bigint);
ALTER TABLE parts ATTACH PARTITION parts_low FOR VALUES FROM (0) TO (100);
SELECT pgdog.shard_table(name, 'tenant_id', lookup_query =>
    'SELECT shard_id FROM homes WHERE id = $1', lookup_result => 'shard')
  FROM unnest(ARRAY['parcels', 'parts']) AS name;
CREATE TABLE names (name varchar(20), id int);
SELECT pgdog.shard_table('names', 'name', 'varchar');
CREATE VIEW some_parcels AS SELECT tenant_id AS t, id FROM parcels;
CREATE FUNCTION runs(sql text) RETURNS void LANGUAGE plpgsql AS 'BEGIN EXECUTE sql; END';
CREATE FUNCTION sends(tenant bigint, number bigint) RETURNS bigint LANGUAGE plpgsql AS
    'BEGIN INSERT INTO parcels VALUES (tenant, number, ''sent''); RETURN tenant; END';
CREATE FUNCTION sends_sql(bigint, bigint) RETURNS void LANGUAGE sql AS
    'INSERT INTO parcels VALUES ($1, $2)';
GRANT ALL ON parcels, parts, parts_low, names, some_parcels TO regress_owner;
SELECT epoch AS now FROM pgdog.topology \gset
-- he may not read the map
SET ROLE regress_owner;
SET pgdog.epoch = :'now';
SELECT sends(1, 1);
SELECT sends(2, 1);
\echo :LAST_ERROR_SQLSTATE
SELECT sends(t, 2) FROM generate_series(1, 3) t;
SELECT sends_sql(3, 3);
SELECT sends_sql(2, 3);
-- as often as it is planned
SELECT sends(1, n) FROM generate_series(10, 20) n WHERE n % 2 = 0;
SELECT sends(2, 21);
SELECT sends(9, 21);
\echo :LAST_ERROR_SQLSTATE
SELECT sends(NULL, 21);
\echo :LAST_ERROR_SQLSTATE
SELECT runs('UPDATE parcels SET tenant_id = 3 WHERE id = 1');
SELECT runs('UPDATE parcels SET tenant_id = 2 WHERE id = 1');
SELECT runs('UPDATE parcels SET tenant_id = 2 WHERE id = 999');
SELECT runs('UPDATE parcels SET note = ''x'' WHERE id = 1');
SELECT runs('WITH a AS (INSERT INTO parcels VALUES (2, 30) RETURNING *) SELECT FROM a');
SELECT runs('INSERT INTO parcels VALUES (3, 1) ON CONFLICT (tenant_id, id)
             DO UPDATE SET tenant_id = 2');
SELECT runs('MERGE INTO parcels p USING (VALUES (2, 40)) v(t, i) ON p.id = v.i
             WHEN NOT MATCHED THEN INSERT VALUES (v.t, v.i)');
SELECT runs('MERGE INTO parcels p USING (VALUES (2, 1)) v(t, i) ON p.id = v.i
             WHEN MATCHED THEN UPDATE SET tenant_id = v.t');
SELECT runs('MERGE INTO parcels p USING (VALUES (1, 40)) v(t, i) ON p.id = v.i
             WHEN NOT MATCHED THEN INSERT VALUES (v.t, v.i)');
SELECT runs('INSERT INTO parts VALUES (1, 1)');
SELECT runs('INSERT INTO parts VALUES (1, 2)');
SELECT runs('INSERT INTO parts_low VALUES (2, 2)');
DO $$ BEGIN INSERT INTO parcels VALUES (2, 50); END $$;
INSERT INTO some_parcels VALUES (1, 60);
INSERT INTO some_parcels VALUES (2, 60);
UPDATE some_parcels SET t = 2 WHERE t = 1;
-- a hash: some are here, some are not
SELECT count(*) FILTER (WHERE pgdog.shard_for('names', n::text) = 0) > 0 AS here FROM
    generate_series(1, 20) n;
DO $$ BEGIN FOR n IN 1..20 LOOP INSERT INTO names VALUES ('n' || n, n); END LOOP; END $$;
SELECT tenant_id, id, note FROM parcels ORDER BY id, tenant_id;
SELECT * FROM parts;
-- what the router has seen is its business; who writes past it knows what he does
INSERT INTO parcels VALUES (2, 70);
RESET pgdog.epoch;
SET pgdog.allow_direct_writes = on;
SELECT sends(2, 71);
RESET pgdog.allow_direct_writes;
RESET ROLE;
-- triggers, and deferred ones
CREATE FUNCTION copies() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO parts VALUES (NEW.id, NEW.tenant_id + 1); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER copies AFTER INSERT ON parcels DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION copies();
SET ROLE regress_owner;
SET pgdog.epoch = :'now';
INSERT INTO parcels VALUES (1, 80);
SELECT count(*) FROM parcels WHERE id = 80;
RESET pgdog.epoch;
RESET ROLE;
SELECT pgdog.unshard_table(name) FROM unnest(ARRAY['parcels', 'parts', 'names', 'homes']) AS name;
DROP VIEW some_parcels;
DROP TABLE parcels, parts, names, homes;
DROP FUNCTION runs, sends, sends_sql, copies;
