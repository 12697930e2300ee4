-- Figures of omni tables: equal for equal rows in any order, different for any difference.
INSERT INTO tenants VALUES (1, 0, 'one'), (2, 1, 'two');
SELECT table_name, rows, hash AS first FROM pgdog.omni_hashes() \gset
SELECT table_name, rows FROM pgdog.omni_hashes();
TRUNCATE tenants;
INSERT INTO tenants VALUES (2, 1, 'two'), (1, 0, 'one');
SET timezone = 'Asia/Tokyo';
SELECT rows, hash = :'first' AS same FROM pgdog.omni_hashes();
UPDATE tenants SET name = 'Two' WHERE id = 2;
SELECT rows, hash = :'first' AS same FROM pgdog.omni_hashes();
TRUNCATE tenants;
SELECT rows, hash FROM pgdog.omni_hashes();

SELECT pgdog.catalog_fingerprint() AS first \gset
BEGIN;
ALTER TABLE tenants ADD COLUMN extra text;
SELECT pgdog.catalog_fingerprint() = :'first' AS same;
ALTER TABLE tenants DROP COLUMN extra;
SELECT pgdog.catalog_fingerprint() = :'first' AS same;
ALTER TABLE tenants ALTER COLUMN name SET NOT NULL;
SELECT pgdog.catalog_fingerprint() = :'first' AS same;
ROLLBACK;
BEGIN;
ALTER TABLE orders ADD COLUMN extra text;
SELECT pgdog.catalog_fingerprint() = :'first' AS sharded_tables_are_not_in_it;
ROLLBACK;
