#!/usr/bin/env bash
# run.sh [--short]: judges from the pixels what the shipped models generate. The image of `make demo` must show what its
# prompt says. tests/cases/captions.txt holds 20 captions of one object and 20 of two that training never saw: at most one of
# the former and two of the latter may be wrong. tests/cases/video_captions.txt has as many of videos. `--short` takes every
# fifth caption.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/demo" "$folder/captions" "$folder/xl" "$folder/video"

make --no-print-directory demo
cp out.png "$folder/demo"
sed -n 's/.*tessera generate "\([^"]*\)".*/\1/p' Makefile >"$folder/demo.txt"
.venv/bin/python -m tools.score.check_demo --pictures "$folder/demo" --captions "$folder/demo.txt" --need-two 100 --verbose

step=1 needs="--need-single 95 --need-two 90" xl_needs="--need-single 75 --need-two 80" video_need=85
if [ "${1:-}" = --short ]; then
  step=5 needs="--need-single 75 --need-two 75" xl_needs=$needs video_need=75  # one of four may be wrong
fi
list=$folder/captions.txt
awk "NR % $step == 0" tests/cases/captions.txt >"$list"
mapfile -t captions <"$list"
build/tessera generate "${captions[@]}" --dtype fp32 --seed 1 --quiet -o "$folder/captions/p.png" >/dev/null
.venv/bin/python -m tools.score.check_demo --pictures "$folder/captions" --captions "$list" $needs --verbose

# The model in SDXL's form is right less often: it got 17 and 18 of the same captions right after training (20 steps).
build/tessera generate "${captions[@]}" --model shapes-xl --num-inference-steps 20 --dtype fp32 --seed 1 --quiet -o "$folder/xl/p.png" >/dev/null
.venv/bin/python -m tools.score.check_demo --pictures "$folder/xl" --captions "$list" $xl_needs --verbose

# Of the 40 captions of videos 20 of one shape and 16 of two were right after training.
list=$folder/video_captions.txt
awk "NR % $step == 0" tests/cases/video_captions.txt >"$list"
build/tessera generate --prompt-file "$list" --model shapes-video --dtype fp32 --seed 1 --quiet -o "$folder/video/v.gif" >/dev/null
.venv/bin/python -m tools.score.check_video --videos "$folder/video" --captions "$list" --need "$video_need" --verbose
