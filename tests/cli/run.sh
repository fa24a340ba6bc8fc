#!/usr/bin/env bash
# run.sh PROGRAM: the tests of the command line.
exec python3 "$(dirname "$0")/run.py" "$@"
