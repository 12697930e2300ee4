-- Numbers that no other shard gives away.
--
--   next_id      <- counter of this node (53) -> <- shard (10) ->
--   unique_id    <- ms since 2026 (41) -> <- shard (10) -> <- counter (12) ->
--
-- A shard knows its own number only, so a new one adds to what is given away without taking any.

CREATE SEQUENCE pgdog.next_ids AS bigint MINVALUE 1 MAXVALUE 9007199254740991;
COMMENT ON SEQUENCE pgdog.next_ids IS 'counter behind pgdog.next_id()';

-- It starts by the clock: where the extension is made anew, what was given before stays behind.
SELECT setval('pgdog.next_ids',
              greatest(extract(epoch FROM clock_timestamp())::bigint - 1767225600, 1) << 20);

CREATE SEQUENCE pgdog.unique_ids AS bigint MINVALUE 1 MAXVALUE 9007199254740991;
COMMENT ON SEQUENCE pgdog.unique_ids IS
    'the highest moment and counter that pgdog.unique_id() has given away';

CREATE FUNCTION pgdog.own_shard() RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    here pgdog.topology;
BEGIN
    SELECT * INTO STRICT here FROM pgdog.topology t;
    IF here.shard IS NULL THEN
        RAISE EXCEPTION 'node is not a shard yet'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Start pgdog with this node in its configuration.';
    END IF;
    IF here.shard > 1023 THEN
        RAISE EXCEPTION 'shard % is too high for an id', here.shard
            USING ERRCODE = 'program_limit_exceeded', DETAIL = 'Ids have room for 1024 shards.';
    END IF;
    RETURN here.shard;
END
$function$;
COMMENT ON FUNCTION pgdog.own_shard() IS 'number of the shard that this node is, as part of an id';

CREATE FUNCTION pgdog.next_id() RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    RETURN (nextval('pgdog.next_ids') << 10) | pgdog.own_shard();
END
$function$;
COMMENT ON FUNCTION pgdog.next_id() IS
    'a number that no shard has given away or will; rises on each shard, one by one';

CREATE TABLE pgdog.unique_gate ();
COMMENT ON TABLE pgdog.unique_gate IS
    'empty for ever: a lock tag, for those who take from pgdog.unique_ids';

CREATE FUNCTION pgdog.unique_id() RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    shard   bigint := pgdog.own_shard();
    moment  bigint;
    given   bigint;
BEGIN
    -- Kept in a sequence, so that what was given away stays so after a restart, and when a clock is
    -- set back: then ids go on from the last one. One at a time: who only reads the sequence and
    -- sets it later would give away what another one has taken in between.
    --
    -- The block always ends by an error of its own: then the lock is gone, however it ends, and
    -- what was done to the sequence stays.
    BEGIN
        LOCK TABLE pgdog.unique_gate IN EXCLUSIVE MODE;
        moment := (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1767225600000;
        given := nextval('pgdog.unique_ids');
        IF given < moment << 12 THEN
            given := setval('pgdog.unique_ids', moment << 12);
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'PGD01';
    EXCEPTION WHEN SQLSTATE 'PGD01' THEN
        NULL;
    END;
    RETURN ((given >> 12) << 22) | (shard << 12) | (given & 4095);
END
$function$;
COMMENT ON FUNCTION pgdog.unique_id() IS
    'a number that no shard has given away or will, in the order of time: ms since 2026 << 22';
