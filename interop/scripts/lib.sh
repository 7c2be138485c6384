# shellcheck shell=bash
# What the installation scripts share. Sourced, not run.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# python311 prints an interpreter of 3.11 or newer.
python311() {
  local p
  for p in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$p"
      return
    fi
  done
  die "Python 3.11 or newer is needed (set PYTHON to name one)"
}

# make_venv DIR makes a virtual environment unless there is one.
make_venv() {
  [ -x "$1/bin/pip" ] && return
  mkdir -p "$(dirname "$1")"
  "$(python311)" -m venv "$1" || die "cannot make the virtual environment $1 (on Debian: apt-get install python3-venv)"
}

# fingerprint FILE... prints one sum over the files: what was installed by other versions of them is installed anew.
fingerprint() { cat "$@" | sha256sum | cut -d' ' -f1; }

# is_ready VENV SUM and mark_ready VENV SUM: whether the installation with this fingerprint ran to its end.
is_ready() { [ "$(cat "$1/.ready" 2>/dev/null)" = "$2" ]; }
mark_ready() { echo "$2" >"$1/.ready"; }

# pip_install VENV ARGS... installs exactly what is named: everything is pinned in the requirements files, so the
# resolver has nothing to decide. Quiet unless it fails; one retry, since downloads do break.
pip_install() {
  local venv=$1 log
  shift
  log=$(mktemp)
  if ! "$venv/bin/pip" install --no-deps --disable-pip-version-check "$@" >"$log" 2>&1 &&
    ! "$venv/bin/pip" install --no-deps --disable-pip-version-check "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "pip install failed"
  fi
  rm -f "$log"
}
