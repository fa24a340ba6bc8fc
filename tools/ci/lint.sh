#!/usr/bin/env bash
# lint.sh [FILE... | --changed COMMIT]: checks the given files, those changed since COMMIT, or all files with clang-format, and
# the sources (*.cc) among them with clang-tidy (tools/ci/tidy.py), which takes the compiler's arguments from build/. It fails
# on any finding.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/setup.sh lint
case ${1:-} in
  '') mapfile -t files < <(git ls-files '*.h' '*.cc') ;;
  --changed)
    git rev-parse --quiet --verify "$2^{commit}" >/dev/null || { echo "lint: no commit $2 in this clone" >&2; exit 1; }
    mapfile -t files < <(git diff --name-only --diff-filter=d "$2" -- '*.h' '*.cc')
    [ ${#files[@]} -gt 0 ] || { echo "lint: no source changed since $2"; exit 0; }
    ;;
  *) files=("$@") ;;
esac
sources=()
for file in "${files[@]}"; do
  [[ $file != *.cc ]] || sources+=("$file")
done

.venv/bin/clang-format --dry-run -Werror "${files[@]}"
[ ${#sources[@]} -gt 0 ] || exit 0
tools/build.sh release build.ninja >/dev/null  # configures, if need be
.venv/bin/python -m tools.ci.tidy "${sources[@]}"
