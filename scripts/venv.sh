#!/bin/sh
# venv.sh FOLDER [HASHES]: makes a virtual environment there with a Python of 3.11 or later, unless a working one is there.
# Its pip is the one in constraints.txt: older ones do not know dependency groups. With a file of hashes, everything in it
# is installed from files of those hashes, where it is for this Python and machine.
set -eu
venv=$1
hashes=${2:-}
pip=$(sed -n 's/^pip==//p' "$(dirname "$0")/../constraints.txt")

pin_pip() {
    [ "$("$venv/bin/python" -m pip --version 2>/dev/null | cut -d ' ' -f 2)" = "$pip" ] ||
        "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "pip==$pip"
    [ -n "$hashes" ] || return 0
    if "$venv/bin/python" -c "$hashed"; then
        "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-deps --require-hashes -r "$hashes"
    fi
}
hashed='import platform, sys; sys.exit((sys.version_info[:2], platform.machine()) != ((3, 11), "x86_64"))'

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    pin_pip
    exit 0
fi
recent='import sys; sys.exit(sys.version_info < (3, 11))'
found=
for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    if command -v "$python" >/dev/null 2>&1 && "$python" -c "$recent" >/dev/null 2>&1; then
        found=$python
        break
    fi
done
if [ -z "$found" ]; then
    echo "everywatt needs Python 3.11 or later, and there is none on the PATH." >&2
    echo "Try: sudo apt-get install python3 python3-venv   (or: make PYTHON=/path/to/python3)" >&2
    exit 1
fi
if ! "$found" -c 'import venv, ensurepip' 2>/dev/null; then
    version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$found cannot make virtual environments: its venv module is not installed." >&2
    echo "Try: sudo apt-get install python$version-venv" >&2
    exit 1
fi
echo "Making $venv with $("$found" --version)" >&2
"$found" -m venv --clear "$venv"
pin_pip
