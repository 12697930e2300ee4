//! Connections to PostgreSQL and their pools.
