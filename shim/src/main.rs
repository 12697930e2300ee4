//! The shim: the program `pgdog`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pgdog_shim::cli::main()
}
