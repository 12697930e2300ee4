-- Roles are cluster-wide and outlive the extension: they are made when missing, never dropped.

DO $roles$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'pgdog') THEN
        CREATE ROLE pgdog NOLOGIN;
    END IF;
END
$roles$;

COMMENT ON ROLE pgdog IS
    'pgdog: least privilege for the node role of a shim; grant it to a login role';
COMMENT ON SCHEMA pgdog IS 'pgdog: what this node knows about the cluster, and the checks it makes';

-- Lag and replay positions of others are visible to monitors only.
GRANT pg_monitor TO pgdog;
GRANT USAGE ON SCHEMA pgdog TO PUBLIC;

CREATE FUNCTION pgdog.caller() RETURNS name
LANGUAGE sql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$function$;
COMMENT ON FUNCTION pgdog.caller() IS
    'role that speaks, after SET ROLE and seen through SECURITY DEFINER functions';

CREATE FUNCTION pgdog.require_operator() RETURNS void
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    -- pg_has_role is true for a superuser whatever the role.
    IF pg_has_role(pgdog.caller(), 'pgdog', 'USAGE') OR pg_has_role(
        pgdog.caller(),
        (SELECT datdba FROM pg_database WHERE datname = current_database()),
        'USAGE'
    ) THEN
        RETURN;
    END IF;
    RAISE EXCEPTION 'permission denied: % is not an operator of this database', pgdog.caller()
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Ask the database owner, or be granted the role pgdog.';
END
$function$;
COMMENT ON FUNCTION pgdog.require_operator() IS
    'error 42501 unless the caller owns the database, is a member of pgdog, or a superuser';
