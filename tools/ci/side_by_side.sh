#!/usr/bin/env bash
# side_by_side.sh COMMAND...: runs the commands, each a line of shell, in parallel on all cores, and prints their outputs in
# order. It fails if any command fails.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cores=$(nproc)
processes=()
for command in "$@"; do
  while [ "$(jobs -pr | wc -l)" -ge "$cores" ]; do wait -n || true; done
  bash -c "$command" >"$folder/${#processes[@]}" 2>&1 &
  processes+=($!)
done
result=0
for i in "${!processes[@]}"; do
  code=0
  wait "${processes[$i]}" || code=$?
  cat "$folder/$i"
  [ $code -le 128 ] || echo "ended by signal $((code - 128))"
  [ $code -eq 0 ] || result=1
done
exit $result
