-- What a shim is told of roles' passwords, and who else is not.
SET password_encryption = 'scram-sha-256';
CREATE ROLE login_scram LOGIN PASSWORD 'x';
CREATE ROLE login_none LOGIN;
CREATE ROLE login_barred NOLOGIN PASSWORD 'x';
CREATE ROLE login_late LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01';
CREATE ROLE login_soon LOGIN PASSWORD 'x' VALID UNTIL 'infinity';
SET password_encryption = 'md5';
SET client_min_messages = error;
CREATE ROLE login_md5 LOGIN PASSWORD 'x';
RESET client_min_messages;
RESET password_encryption;

-- The stored password of whoever has one, also of who is refused afterwards; made up for others.
SELECT name, v LIKE 'SCRAM-SHA-256$%' AS is_scram, v LIKE 'md5%' AS is_md5,
       v IS NOT DISTINCT FROM rolpassword AS is_stored
  FROM unnest(ARRAY['login_scram', 'login_none', 'login_barred', 'login_late', 'login_soon',
                    'login_md5', 'login_nobody']) AS name
       CROSS JOIN LATERAL pgdog.verifier(name) AS v
       LEFT JOIN pg_authid ON rolname = name;
SELECT pgdog.verifier(NULL) IS NULL AS no_name_no_verifier;

-- Made up: the same salt and another key each time, another salt for another name.
SELECT split_part(a, '$', 2) = split_part(b, '$', 2) AS same_salt,
       split_part(a, '$', 3) = split_part(b, '$', 3) AS same_keys,
       split_part(a, '$', 2) = split_part(c, '$', 2) AS same_salt_for_all,
       a ~ '^SCRAM-SHA-256\$4096:[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$'
           AS well_formed
  FROM pgdog.verifier('login_nobody') AS a, pgdog.verifier('login_nobody') AS b,
       pgdog.verifier('login_noone') AS c;

-- For members of pgdog only, and not the secret below.
SET ROLE login_scram;
SELECT pgdog.verifier('login_scram');
SELECT pgdog.mock_nonce();
RESET ROLE;
GRANT pgdog TO login_scram;
SET ROLE login_scram;
SELECT pgdog.verifier('login_scram') LIKE 'SCRAM-SHA-256$%' AS told;
SELECT pgdog.mock_nonce();
RESET ROLE;

DROP ROLE login_scram, login_none, login_barred, login_late, login_soon, login_md5;
