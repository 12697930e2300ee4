//! Operator verbs on the admin database.
