#!/bin/sh
# Installs the extension into one PostgreSQL.
#
#   extension/install.sh [PG_CONFIG [LIBRARY]]
#
# PG_CONFIG  of the PostgreSQL to install into; default /usr/bin/pg_config
# LIBRARY    libpgdog.so as built by
#            PGRX_PG_CONFIG_PATH=PG_CONFIG cargo build -p pgdog --no-default-features --features pgNN
#            default: target/release/libpgdog.so, else target/debug/libpgdog.so
#
# Each file is written beside its place and renamed: running servers keep the old library mapped.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
pg_config=${1:-/usr/bin/pg_config}
library=${2:-}
if [ -z "$library" ]; then
    for library in "$root/target/release/libpgdog.so" "$root/target/debug/libpgdog.so"; do
        [ -f "$library" ] && break
    done
fi
[ -f "$library" ] || { echo "install.sh: $library does not exist, build it first" >&2; exit 1; }

libraries=$("$pg_config" --pkglibdir)
extensions=$("$pg_config" --sharedir)/extension
version=$(sed -n "s/^default_version = '\(.*\)'/\1/p" "$here/pgdog.control")

put() { # MODE TARGET, content on stdin
    cat > "$2.new.$$"
    chmod "$1" "$2.new.$$"
    mv -f "$2.new.$$" "$2"
}

mkdir -p "$libraries" "$extensions"
put 755 "$libraries/pgdog.so" < "$library"
put 644 "$extensions/pgdog.control" < "$here/pgdog.control"
{
    printf '%s\n' '\echo Use "CREATE EXTENSION pgdog" to load this file. \quit'
    for part in "$root"/sql/[0-9]*.sql; do
        printf '\n-- %s\n\n' "$(basename "$part")"
        cat "$part"
    done
} | put 644 "$extensions/pgdog--$version.sql"
echo "pgdog $version installed into $("$pg_config" --version) ($libraries)"
