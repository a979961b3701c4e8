#!/bin/sh
# system_packages.sh PACKAGE...: installs Debian packages without starting their services. Needs root.
set -eu
missing=
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "Installing$missing needs root. Try: sudo make system-packages" >&2
    exit 1
fi
# invoke-rc.d asks this file; 101 means "do not start". A policy of the machine's own is left as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # a list of words
apt-get install -y -q --no-install-recommends $missing
