#!/usr/bin/env bash
# check.sh [--short]: runs the checks of the project, even after one has failed, and exits with 1 if any failed. `make hosts`,
# `make nccl`, `make mutants` and `make bench` are run separately.
#
# Without `--short` every check runs at full length. `--short` is for every change (.ci/run): it runs parity, score and soak
# on short lists, lints only the changed files, and takes turns among the four longest checks, of which the sanitizers come
# in ninths. The number of commits selects the one that runs, so that a few pushes cover all.
set -euo pipefail
cd "$(dirname "$0")/../.."

passed=0 failed=0
stage() {
  local begin=$SECONDS result=passed
  "$@" || result=failed
  [ $result = passed ] && passed=$((passed + 1)) || failed=$((failed + 1))
  echo "check: $* $result after $((SECONDS - begin)) s"
}

lint_changed() {
  # LINT_SINCE names the commit before the push. Without it, only the last commit is linted.
  local before=${LINT_SINCE:-HEAD~1}
  if git rev-parse --quiet --verify "$before^{commit}" >/dev/null; then
    stage make lint CHANGED="$before"
  else
    echo "check: lint left out: the clone does not hold $before"
  fi
}

stage python3 -m tools.ci.check_layers
stage python3 -m tools.ci.mutants --check
stage make setup
stage tools/setup.sh clients  # without them their tests are skipped
# What only later stages need is installed beside the tests, which leave the processor idle while ranks wait. If that
# fails, these stages install it again and say why.
{ tools/setup.sh python && tools/setup.sh lint; } >/dev/null 2>&1 &
stage make test
wait $! || true
if [ "${1:-}" = --short ]; then
  turns=(fuzz parity)
  for i in {1..9}; do turns+=("asan PART=$i/9" "tsan PART=$i/9"); done
  read -ra turn <<<"${turns[$(git rev-list --count HEAD) % ${#turns[@]}]}"
  stage make score SHORT=1
  [ "${turn[0]}" = parity ] || stage make parity SHORT=1
  stage make soak SHORT=1
  stage make "${turn[@]}"
  lint_changed
else
  for check in score parity soak browser asan tsan fuzz lint; do stage make "$check"; done
fi

echo "check: all stages took $SECONDS s"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
