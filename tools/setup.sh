#!/usr/bin/env bash
# Installs what building needs and is missing: Debian packages (as root; otherwise says which) and libtorch, from
# pip into .venv or from the folder that TORCH_DIR names. `setup.sh python` adds the Python packages that only
# goldens, parity and benchmarks need, `setup.sh fuzz` and `setup.sh lint` the tools of clang, `setup.sh
# hosts` other launchers. Run twice, it does nothing the second time.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
packages=(build-essential cmake ninja-build ccache python3-venv libcli11-dev nlohmann-json3-dev libpng-dev
          libicu-dev libgloo-dev libgtest-dev libbenchmark-dev)
case ${1:-} in
  fuzz) packages+=(clang libclang-rt-14-dev) ;;
  lint) packages+=(clang clang-format clang-tidy) ;;
  hosts) packages+=(iproute2 util-linux openmpi-bin mpich slurmctld slurmd slurm-client) ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
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

if [ -z "${TORCH_DIR:-}" ] || [ "${1:-}" = python ]; then
  [ -x .venv/bin/python ] || python3 -m venv .venv
  have=$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null || true)
  if [ "$have" != "$torch_version" ]; then
    echo "setup: installing torch $torch_version into .venv"
    .venv/bin/python -m pip install -q --disable-pip-version-check "torch==$torch_version" numpy
  fi
fi

if [ "${1:-}" = python ]; then
  stamp=.venv/.requirements
  if ! cmp -s tools/requirements.txt "$stamp"; then
    echo "setup: installing tools/requirements.txt into .venv"
    .venv/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements.txt
    cp tools/requirements.txt "$stamp"
  fi
fi
