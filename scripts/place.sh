#!/bin/sh
# Prints the folder for virtual environments and runs: "." (the project) where it can be written, else one in the user's
# cache, else a temporary one.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
if [ -w "$root" ]; then
    echo .
    exit
fi
# Two checkouts must not share one environment.
key=$(printf %s "$root" | cksum | cut -d ' ' -f 1)
for base in "${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/everywatt" "${TMPDIR:-/tmp}/everywatt-$(id -u)-cache"; do
    if mkdir -p -m 700 "$base/$key" 2>/dev/null && [ -O "$base" ] && [ -w "$base/$key" ]; then
        echo "$base/$key"
        exit
    fi
done
echo "No folder can be written: neither $root, nor the cache, nor ${TMPDIR:-/tmp}." >&2
exit 1
