//! Verbs of the command line.
