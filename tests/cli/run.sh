#!/usr/bin/env bash
# run.sh PROGRAM [NAME...] [-MODULE...]: runs the tests of the command line.
exec python3 "$(dirname "$0")/run.py" "$@"
