#!/bin/sh
# Run the tests, each once: run_tests.sh PYTHON WORKERS. With CI=true those that need torch run among the others.
# First all that can share the machine, beside mypy, then the few that need it for themselves. All parts always run, so
# that one run reports everything that fails.
set -u
python=$1 workers=$2
status=0
marks="not long and not ml"
if [ "${CI:-}" = true ]; then
    export KERAS_BACKEND=torch
    marks="not long"
fi

# part NAME MARKS OPTIONS…
part() {
    name=$1 marked=$2
    shift 2
    began=$(date +%s)
    "$python" -m pytest -q --timeout 300 --durations 25 --durations-min 1 -m "$marked" "$@"
    code=$?
    # pytest ends with 5 where no test has the marks.
    [ $code -eq 0 ] || [ $code -eq 5 ] || status=1
    echo "== $name: $(($(date +%s) - began)) s"
}

types() {
    began=$(date +%s)
    nice "$python" -m mypy
    code=$?
    echo "== types: $(($(date +%s) - began)) s"
    return $code
}

told=$(mktemp)
trap 'rm -f "$told"' EXIT
types >"$told" 2>&1 &
part "tests that share the machine" "not serial and $marks" -n "$workers"
wait $! || status=1
cat "$told"
part "tests that need it for themselves" "serial and $marks"
exit $status
