#!/usr/bin/env bash
# lint.sh [FILE... | --changed COMMIT]: clang-format over these files, those that changed since that commit, or all, and
# clang-tidy over the sources (*.cc) among them. Fails when anything is found. clang has a build of its own, build-lint/, of which only the precompiled header is made.
set -euo pipefail
cd "$(dirname "$0")/.."

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

clang-format --dry-run -Werror "${files[@]}"
[ ${#sources[@]} -gt 0 ] || exit 0
tools/build.sh lint CMakeFiles/tessera_library.dir/cmake_pch.hxx.pch
# The fuzzers are not in this build: they are read with the flags of a neighbour, and include from the root. The count
# that clang-tidy ends with is of what it left out, in the headers of others.
printf '%s\n' "${sources[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build-lint --extra-arg="-I$PWD" \
    2> >(grep -v '^[0-9]* warnings\? generated\.$' >&2)
