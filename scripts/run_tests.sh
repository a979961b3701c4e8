#!/bin/sh
# Run the parts of the tests one after another: run_tests.sh PYTHON WORKERS, with CI=true also the ML part.
# A test that fails while others run beside it is tried once more, alone: a shared machine may hold a process up for
# seconds. Every part runs, so that one run tells of all that fails.
set -u
python=$1 workers=$2
status=0

tests() {
    "$python" -m pytest -q --timeout 300 --reruns-delay 1 "$@"
}

# part NAME MARKS OPTIONS…
part() {
    name=$1 marks=$2
    shift 2
    began=$(date +%s)
    tests --reruns 1 -m "$marks" "$@"
    code=$?
    if [ $code -eq 1 ]; then
        echo "== $name: what failed is tried once more, alone"
        tests --reruns 1 -m "$marks" --last-failed --last-failed-no-failures none
        code=$?
    fi
    # pytest ends with 5 where no test has the mark.
    [ $code -eq 0 ] || [ $code -eq 5 ] || status=1
    echo "== $name: $(($(date +%s) - began)) s"
}

part "parallel tests" "not serial and not long and not ml" -n "$workers" --dist worksteal
part "tests that need the machine" "serial and not long and not ml"
if [ "${CI:-}" = true ]; then
    export KERAS_BACKEND=torch
    part "tests with torch" "ml and not serial and not long" -n "$workers" --dist worksteal
    part "tests with torch that need the machine" "ml and serial and not long"
fi
exit $status
