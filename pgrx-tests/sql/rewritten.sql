-- Writes that rules, views and triggers make of others: no router sees them.
\set SHOW_CONTEXT never
\set VERBOSITY terse
CREATE TABLE books (id bigint PRIMARY KEY, t text);
CREATE TABLE audit (tenant_id bigint, t text);
CREATE VIEW some_books AS SELECT * FROM books;
SELECT pgdog.omni_table('books');
SELECT pgdog.shard_table('audit', 'tenant_id');
CREATE RULE also AS ON INSERT TO books DO ALSO INSERT INTO audit VALUES (NEW.id, NEW.t);
CREATE RULE other AS ON UPDATE TO audit
    DO INSTEAD UPDATE books SET t = NEW.t WHERE id = NEW.tenant_id;
CREATE RULE calls AS ON DELETE TO audit DO INSTEAD SELECT 1 AS called;
GRANT ALL ON books, audit, some_books TO regress_owner;
SELECT epoch AS now FROM pgdog.topology \gset
SET ROLE regress_owner;
SET pgdog.epoch = :'now';
INSERT INTO books VALUES (1, 'x');
\echo :LAST_ERROR_SQLSTATE
UPDATE audit SET t = 'y' WHERE tenant_id = 1;
DELETE FROM audit WHERE tenant_id = 1;
PREPARE one AS INSERT INTO books VALUES ($1, 'x');
EXECUTE one(1);
-- what no rule is about
INSERT INTO audit VALUES (1, 'x');
UPDATE books SET t = 'y' WHERE id = 1;
SELECT count(*) FROM books;
SELECT t FROM audit FOR UPDATE;
-- a map of every shard through a view: on every shard, or not at all
DELETE FROM some_books;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
DELETE FROM some_books;
ROLLBACK;
-- where there is one shard, or the rule is switched off
RESET ROLE;
BEGIN;
SET LOCAL pgdog.task_id = '1';
UPDATE pgdog.topology SET shards = 1;
SET LOCAL ROLE regress_owner;
INSERT INTO books VALUES (1, 'x');
DELETE FROM audit WHERE tenant_id = 1;
ROLLBACK;
BEGIN;
ALTER TABLE books DISABLE RULE also;
SET LOCAL ROLE regress_owner;
INSERT INTO books VALUES (1, 'x');
ROLLBACK;
-- who writes past the shims knows what he does
RESET pgdog.epoch;
BEGIN;
INSERT INTO books VALUES (1, 'x');
SELECT count(*) FROM audit;
ROLLBACK;
DROP RULE also ON books;
DROP RULE other ON audit;
DROP RULE calls ON audit;
INSERT INTO books VALUES (1, 'x');

-- triggers of what runs on every shard may change and delete what each has, not add to it
CREATE FUNCTION adds() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO audit VALUES (NEW.id, NEW.t); RETURN NEW; END $$;
CREATE FUNCTION changes() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN UPDATE audit SET t = NEW.t; DELETE FROM audit; RETURN NEW; END $$;
CREATE TRIGGER adds AFTER INSERT ON books FOR EACH ROW EXECUTE FUNCTION adds();
CREATE TRIGGER changes AFTER UPDATE ON books FOR EACH ROW EXECUTE FUNCTION changes();
SET ROLE regress_owner;
SET pgdog.epoch = :'now';
BEGIN;
SELECT shards FROM pgdog.omni_enter();
UPDATE books SET t = 'z';
SELECT count(*) FROM audit;
INSERT INTO books VALUES (2, 'x');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
RESET ROLE;
DROP TRIGGER adds ON books;
CREATE CONSTRAINT TRIGGER adds AFTER INSERT ON books DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION adds();
SET ROLE regress_owner;
BEGIN;
SELECT shards FROM pgdog.omni_enter();
INSERT INTO books VALUES (2, 'x');
COMMIT;
RESET ROLE;
RESET pgdog.epoch;
DROP TABLE books, audit CASCADE;
DROP FUNCTION adds(), changes();
