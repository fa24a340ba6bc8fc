#!/usr/bin/env bash
# Installs what the build and its tests need and the system lacks: Debian packages (only as root; otherwise it prints their
# names), and from pip into .venv libtorch, unless TORCH_DIR names its folder, and pytest. `setup.sh python` adds the Python
# packages that only goldens, parity and benchmarks need, `setup.sh fuzz` adds clang, `setup.sh lint` clang-format and
# clang-tidy, `setup.sh hosts` other launchers, `setup.sh clients` Node.js and from npm what the tests use a server with,
# `setup.sh browser` the same and Chromium. A second run does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0

# Each entry pairs a program, a header or a file of a tool with the Debian package that provides it. apt-get runs only if
# one of them is missing.
commands="c++:build-essential cmake:cmake ninja:ninja-build ccache:ccache groff:groff-base"
headers="CLI/CLI.hpp:libcli11-dev nlohmann/json.hpp:nlohmann-json3-dev png.h:libpng-dev unicode/uchar.h:libicu-dev sqlite3.h:libsqlite3-dev
         libavformat/avformat.h:libavformat-dev libavcodec/avcodec.h:libavcodec-dev libavutil/avutil.h:libavutil-dev
         libswscale/swscale.h:libswscale-dev jpeglib.h:libjpeg62-turbo-dev
         gloo/config.h:libgloo-dev gtest/gtest.h:libgtest-dev boost/beast.hpp:libboost-dev
         benchmark/benchmark.h:libbenchmark-dev"
files=""
case ${1:-} in
  python) commands+=" cjpeg:libjpeg-turbo-progs" ;;
  fuzz)
    commands+=" clang++:clang"
    files="/usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a:libclang-rt-14-dev" ;;
  clients) commands+=" node:nodejs npm:npm curl:curl" ;;
  browser) commands+=" chromium:chromium node:nodejs npm:npm" ;;
  hosts) commands+=" ip:iproute2 unshare:util-linux mpirun.openmpi:openmpi-bin mpirun.mpich:mpich slurmctld:slurmctld slurmd:slurmd
                     srun:slurm-client" ;;
esac

probe=$(mktemp)
trap 'rm -f "$probe" "$probe.out"' EXIT
missing=()
for each in $commands; do
  command -v "${each%%:*}" >/dev/null || missing+=("${each##*:}")
done
for each in $headers; do
  printf '#if !__has_include(<%s>)\nmissing %s\n#endif\n' "${each%%:*}" "${each##*:}"
done >"$probe"
if command -v c++ >/dev/null; then
  c++ -std=c++20 -E -P -x c++ "$probe" -o "$probe.out"
else
  grep ^missing "$probe" >"$probe.out"
fi
while read -r _ package; do missing+=("$package"); done <"$probe.out"
for each in $files; do
  compgen -G "${each%%:*}" >/dev/null || missing+=("${each##*:}")
done
[ -x .venv/bin/python ] || python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    echo "setup: missing packages; install them with: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi

[ -x .venv/bin/python ] || python3 -m venv .venv
if [ -z "${TORCH_DIR:-}" ] || [ "${1:-}" = python ]; then
  have=$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null || true)
  if [ "$have" != "$torch_version" ]; then
    echo "setup: installing torch $torch_version into .venv"
    # Python compiles what it imports when it imports it. To compile all of torch at once takes longer than to install it.
    .venv/bin/python -m pip install -q --no-compile --disable-pip-version-check "torch==$torch_version" numpy
  fi
fi

# Installs what a file lists, if it has changed since it was copied into .venv under the given name.
install_listed() {
  cmp -s "$1" ".venv/$2" && return
  echo "setup: installing $1 into .venv"
  .venv/bin/python -m pip install -q --disable-pip-version-check "${@:3}" -r "$1"
  cp "$1" ".venv/$2"
}
install_listed tests/cli/requirements.txt .tests
[ "${1:-}" != lint ] || install_listed tools/ci/requirements.txt .lint
[ "${1:-}" != python ] || install_listed tools/requirements.txt .requirements --no-compile
case ${1:-} in
  clients | browser)
    if ! cmp -s tests/package.json .venv/npm/installed; then
      echo "setup: installing tests/package.json into .venv/npm"
      mkdir -p .venv/npm
      cp tests/package.json .venv/npm/package.json
      npm install --prefix .venv/npm --no-package-lock --no-audit --no-fund --silent
      cp tests/package.json .venv/npm/installed
    fi ;;
esac
