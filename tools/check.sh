#!/usr/bin/env bash
# check.sh [--short]: the checks of the project, every one, also after one that failed; ends with 1 when one did.
#
# Without `--short` each runs at full length. `--short` is what every change goes through (.ci/run): short lists of parity,
# score and soak, lint of what changed, and of the four longest checks one by turns. The number of commits says which, so
# that a few pushes bring all of them.
set -euo pipefail
cd "$(dirname "$0")/.."

passed=0 failed=0
stage() {
  local begin=$SECONDS result=passed
  "$@" || result=failed
  [ $result = passed ] && passed=$((passed + 1)) || failed=$((failed + 1))
  echo "check: $* $result after $((SECONDS - begin)) s"
}

lint_changed() {
  # What a push brings, where its maker says which commit was there before it; else its last commit.
  local before=${LINT_SINCE:-HEAD~1}
  if git rev-parse --quiet --verify "$before^{commit}" >/dev/null; then
    stage make lint CHANGED="$before"
  else
    echo "check: lint left out: the clone does not hold $before"
  fi
}

stage python3 tools/check_layers.py
stage python3 tools/mutants.py --check
stage make test
if [ "${1:-}" = --short ]; then
  long=(asan tsan fuzz parity)
  turn=${long[$(git rev-list --count HEAD) % ${#long[@]}]}
  stage make score SHORT=1
  [ "$turn" = parity ] || stage make parity SHORT=1
  stage make soak SHORT=1
  stage make "$turn"
  lint_changed
else
  for check in score parity soak asan tsan fuzz lint; do stage make "$check"; done
fi

echo "check: all stages took $SECONDS s"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
