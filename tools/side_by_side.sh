#!/usr/bin/env bash
# side_by_side.sh COMMAND...: runs the commands, each a line for the shell, as many at once as there are cores, and prints
# what each said, one after the other. Fails when one of them did.
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
  wait "${processes[$i]}" || result=1
  cat "$folder/$i"
done
exit $result
