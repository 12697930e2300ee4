//! `nodes` and `admin` against real servers with the installed extension.

mod admin;
mod cluster;
mod support;
mod two_phase;
