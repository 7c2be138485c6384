#!/usr/bin/env bash
# Installs the stock Dynamo frontend and its Rust vLLM sidecar (versions: dynamo-requirements.txt) into a virtual
# environment: about 40 s and 0.7 GB the first time, nothing after that.
# usage: install-dynamo.sh VENV
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=lib.sh
. "$here/lib.sh"
venv=${1:?usage: install-dynamo.sh VENV}
sum=$(fingerprint "$here/install-dynamo.sh" "$here/dynamo-requirements.txt")
begin_install "$venv" "$sum"

say "installing the stock Dynamo into $venv (about a minute)"
make_venv "$venv"
# ai-dynamo names a planner dependency that the usual index does not carry; frontend and sidecar do without it, which is
# one more reason to install from a full list without resolving.
pip "$venv" install -r "$here/dynamo-requirements.txt"
"$venv/bin/python" -c 'import dynamo._core, dynamo.frontend, dynamo.vllm.sidecar' || die "the installed Dynamo cannot be imported"
mark_ready "$venv" "$sum"
say "stock Dynamo is ready in $venv"
