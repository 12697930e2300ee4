//! The shim of pgdog: a stateless proxy in front of sharded PostgreSQL.
//!
//! A client's message goes through the modules in this order:
//! `session` reads it, `plan` tells what the statement is, `route` decides where it goes,
//! `server` lends a connection, and `session` forwards, observes and settles.
//!
//! | module | kind | what it does |
//! |---|---|---|
//! | `proto` | pure | bytes <-> messages |
//! | `plan` | pure | statement text -> facts, cached by text |
//! | `route` | pure | plan + session + topology -> route, with a reason |
//! | `session` | async | one client: authenticate, then read, plan, route, forward, settle |
//! | `net` | async | streams of bytes: TCP, bare or below TLS |
//! | `server` | async | connections to PostgreSQL and their pools |
//! | `nodes` | async | the extension's SQL API, typed; positions; topology |
//! | `workflow` | async | hands of the state machine that grows a cluster |
//! | `admin` | async | operator verbs, one file each |
//! | `observe` | both | names of metrics and spans, logging |
//! | `config`, `cli`, `app` | | files, verbs of the command line, start and stop |

pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod net;
pub mod nodes;
pub mod observe;
pub mod plan;
pub mod proto;
pub mod route;
pub mod server;
pub mod session;
pub mod workflow;
