//! The Postgres extension of pgdog.
pgrx::pg_module_magic!();
