#!/bin/sh
# Measure any command: its output and its exit code stay its own, the figure goes to stderr.
set -eu

everywatt run --tag example=command -- sh -c 'i=0; while [ "$i" -lt 200000 ]; do i=$((i + 1)); done; echo "counted to $i"'

# The same as data, for another program.
everywatt show last --json | python3 -c '
import json, sys
energy = json.load(sys.stdin)["energy"]
print("{joules:.1f} J, between {low:.1f} and {high:.1f}".format(**energy))
'
