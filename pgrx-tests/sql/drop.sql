-- The extension goes with all that it made, but the roles.
DROP EXTENSION pgdog;
SELECT count(*) FROM pg_class WHERE relnamespace = 'pgdog'::regnamespace;
SET pgdog.epoch = '0';
INSERT INTO tenants VALUES (77, 0, 'free');
SELECT rolname FROM pg_roles WHERE rolname = 'pgdog';
