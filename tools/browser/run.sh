#!/usr/bin/env bash
# run.sh PROGRAM: in headless Chromium, uses the page of the server, plays a generated video of each format, and opens a report of
# traces of every kind of model.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

.venv/bin/python -m pytest -q --tb=short tests/page --program "$program"

videos=()
for kind in mp4 webm gif; do
  "$program" generate "a red circle moves left to right" --model shapes-video --num-frames 17 --num-inference-steps 4 --quiet \
    -o "$folder/$kind.$kind" >/dev/null
  videos+=("$folder/$kind.$kind")
done
python3 -m tools.browser.play_video "${videos[@]}"

"$program" trace "a cat" --model shapes --ulysses-degree 2 -o "$folder/pixart.json" >/dev/null
"$program" trace "a cat" --model shapes-xl --use-cfg-parallel --ring-degree 2 -o "$folder/xl.json" >/dev/null
"$program" trace "a cat" --model shapes-video --tensor-parallel-degree 3 -o "$folder/video.json" >/dev/null
for machine in h100 tx8; do
  "$program" analyze report "$folder"/{pixart,xl,video}.json --machine $machine -o "$folder/$machine.html" >/dev/null
done
"$program" analyze report "$folder/pixart.json" -o "$folder/plain.html" >/dev/null
python3 -m tools.browser.open_report "$folder"/*.html
