-- Decisions of two-phase commits: the row is written in the transaction that is prepared first,
-- so it is visible exactly when that transaction was committed.

CREATE TABLE pgdog.two_phase_commits (
    gid        text        NOT NULL CONSTRAINT two_phase_commits_pkey PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT two_phase_commits_gid CHECK (gid LIKE 'pgdog\_%' AND octet_length(gid) < 200)
);
COMMENT ON TABLE pgdog.two_phase_commits IS 'global transactions whose decision is: commit';
GRANT SELECT ON pgdog.two_phase_commits TO PUBLIC;
GRANT DELETE ON pgdog.two_phase_commits TO pgdog;

CREATE FUNCTION pgdog.two_phase_record(gid text) RETURNS void
LANGUAGE sql STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    INSERT INTO pgdog.two_phase_commits (gid) VALUES (gid)
$function$;
COMMENT ON FUNCTION pgdog.two_phase_record(text) IS
    'makes this transaction the decision of the global transaction `gid`; anyone may call it '
    'for his own';
