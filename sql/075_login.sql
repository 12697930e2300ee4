-- Who may log in: what a shim needs to check a client's password without having it.

CREATE FUNCTION pgdog.mock_nonce() RETURNS bytea
LANGUAGE c STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'mock_nonce_wrapper';
REVOKE ALL ON FUNCTION pgdog.mock_nonce() FROM PUBLIC;
COMMENT ON FUNCTION pgdog.mock_nonce() IS
    'secret from which this server makes salts of roles that do not exist; replicas have the same';

CREATE FUNCTION pgdog.verifier(user_name text) RETURNS text
LANGUAGE sql VOLATILE STRICT PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT coalesce(
        (SELECT a.rolpassword FROM pg_authid a
          WHERE a.rolname = user_name
            AND (a.rolvaliduntil IS NULL OR a.rolvaliduntil > statement_timestamp())),
        -- Nobody knows a password for these keys; the salt is the one that the server itself
        -- would show for that name.
        format(
            'SCRAM-SHA-256$%s:%s$%s:%s',
            coalesce(current_setting('scram_iterations', true), '4096'),
            encode(
                substr(sha256(convert_to(user_name, 'UTF8') || pgdog.mock_nonce()), 1, 16),
                'base64'
            ),
            encode(sha256(uuid_send(gen_random_uuid())), 'base64'),
            encode(sha256(uuid_send(gen_random_uuid())), 'base64')
        )
    )
$function$;
REVOKE ALL ON FUNCTION pgdog.verifier(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgdog.verifier(text) TO pgdog;
COMMENT ON FUNCTION pgdog.verifier(text) IS
    'stored password of a role; a made-up verifier for a name without a valid one';
