#!/usr/bin/env bash
# run.sh PROGRAM [ARGUMENT...]: runs the tests of the command line. The arguments are those of pytest, such as -k NAME.
set -euo pipefail
program=$(realpath "${1:?the program is missing}")
cd "$(dirname "$0")"
[ -x ../../.venv/bin/pytest ] || { echo "run.sh: no pytest in .venv; make setup installs it" >&2; exit 1; }
exec ../../.venv/bin/python -m pytest --program="$program" "${@:2}"
