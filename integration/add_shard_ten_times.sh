#!/bin/sh
# ADD SHARD 2 AUTO under load on ten new clusters (or as many as the first argument says), as a table.
set -eu
cd "$(dirname "$0")/.."
cargo build --release -p pgdog-shim -p pgdog-integration
exec target/release/add_shard_ten_times "${1:-10}"
