//! The shim: the program `pgdog`.

use std::process::ExitCode;

/// Gives back what a crowd of clients has left, where the system's own would keep it in pieces.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pgdog_shim::cli::main()
}
