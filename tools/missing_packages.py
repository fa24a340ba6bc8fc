"""Import it first: a Python package that is missing ends the script with one line that says how to get it."""

from __future__ import annotations

import sys


def _explain(kind, error, trace):
    if issubclass(kind, ModuleNotFoundError):
        sys.stderr.write(f"{sys.argv[0]}: the Python package {error.name} is missing; tools/setup.sh python installs it\n")
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _explain
