#!/bin/sh
# Run the tests, each once: run_tests.sh PYTHON WORKERS. With CI=true those that need torch run among the others.
# First all that can share the machine, which takes every core; then the few that need it for themselves, most of which
# wait or use one core, and mypy in the time that they leave. All parts always run, so that one run reports everything
# that fails.
set -u
python=$1 workers=$2
status=0
folders=0
# What tests write lives for seconds, and to wait for the disk was a third of their time: it goes to memory where there
# are 4 GB of it (a whole run leaves less than 1 GB). Short, because sockets have short names.
memory=/dev/shm
if [ -w $memory ] && [ "$(df -Pk $memory | awk 'NR == 2 { print $4 }')" -ge 4194304 ]; then
    TMPDIR=$(mktemp -d $memory/ew.XXXX)
    chmod 1777 "$TMPDIR" # as /tmp: some tests become another user
    export TMPDIR
else
    memory=
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" ${memory:+"$TMPDIR"}' EXIT
trap 'exit 130' HUP INT TERM # memory is given back then too
marks="not long and not ml"
if [ "${CI:-}" = true ]; then
    export KERAS_BACKEND=torch
    marks="not long"
fi

# Puts into $cpu the CPU seconds of all programs that were waited for: not of recorders and servers that left their parents.
look_at_cpu() {
    times >"$scratch/times"
    cpu=$(awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); printf "%d", 60 * (u[1] + s[1]) + u[2] + s[2] }' \
        "$scratch/times")
}

# part NAME MARKS OPTIONS…
part() {
    name=$1 marked=$2
    shift 2
    began=$(date +%s)
    look_at_cpu
    before=$cpu
    folders=$((folders + 1))
    "$python" -m pytest -q ${memory:+--basetemp "$TMPDIR/$folders"} --timeout 300 --durations 25 --durations-min 1 -m "$marked" "$@"
    code=$?
    # pytest ends with 5 where no test has the marks.
    [ $code -eq 0 ] || [ $code -eq 5 ] || status=1
    look_at_cpu
    echo "== $name: $(($(date +%s) - began)) s, $((cpu - before)) s of CPU time"
}

# Runs a program only while no other one wants to run; with the lowest priority where that cannot be asked for.
in_idle_time() {
    if chrt --idle 0 true 2>/dev/null; then chrt --idle 0 "$@"; else nice -n 19 "$@"; fi
}

types() {
    began=$(date +%s)
    in_idle_time "$python" -m mypy
    code=$?
    echo "== types: $(($(date +%s) - began)) s"
    return $code
}

part "tests that share the machine" "not serial and $marks" -n "$workers"
types >"$scratch/types" 2>&1 &
# Only the files that have some: to import all others takes ten seconds.
# shellcheck disable=SC2046 # names without spaces
part "tests that need it for themselves" "serial and $marks" $(grep -rl --include='test_*.py' 'mark\.serial' tests)
wait $! || status=1
cat "$scratch/types"
exit $status
