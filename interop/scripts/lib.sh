# shellcheck shell=bash
# What the installation scripts share. Sourced, not run.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# python311 prints an interpreter of 3.11 or newer.
python311() {
  local p
  for p in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    if "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$p"
      return
    fi
  done
  die "Python 3.11 or newer is needed (set PYTHON to name one)"
}

# begin_install VENV SUM ends the script when the installation with this fingerprint is there. Otherwise it takes care that
# nobody else installs into VENV meanwhile (two tests may begin side by side), and that an interrupt says what it means and
# leaves nothing: what is temporary lies in VENV.
begin_install() {
  is_ready "$@" && exit 0
  mkdir -p "$1/.tmp" || die "cannot make the folder $1"
  exec 9>"$1.lock"
  if ! flock -n 9; then
    say "waiting for another installation into $1"
    flock 9
    is_ready "$@" && exit 0
    mkdir -p "$1/.tmp"
  fi
  export TMPDIR=$1/.tmp
  trap 'rm -rf "$TMPDIR"' EXIT
  trap 'say "interrupted: run it again to go on"; exit 130' INT TERM HUP
}

# make_venv DIR makes a virtual environment unless there is one.
make_venv() {
  local python
  [ -x "$1/bin/pip" ] && return
  python=$(python311) || exit 1
  logged "$python" -m venv "$1" || die "cannot make the virtual environment $1 (on Debian: apt-get install python3-venv)"
}

# fingerprint FILE... prints one sum over the files: what was installed by other versions of them is installed anew.
fingerprint() { cat "$@" | sha256sum | cut -d' ' -f1; }

# is_ready VENV SUM and mark_ready VENV SUM: whether the installation with this fingerprint ran to its end.
is_ready() { [ "$(cat "$1/.ready" 2>/dev/null)" = "$2" ]; }
mark_ready() { echo "$2" >"$1/.ready"; }

# logged COMMAND... is quiet unless the command fails: then the end of what it said is shown.
logged() {
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    return 1
  }
}

# pip VENV ARGS... is pip with one retry, since downloads do break. Everything is pinned in the requirements files, so the
# resolver has nothing to decide.
pip() {
  local pip=("$1/bin/pip" "$2" --no-deps --disable-pip-version-check)
  shift 2
  logged "${pip[@]}" "$@" || {
    say "once more"
    logged "${pip[@]}" "$@"
  } || die "pip failed: is there a network, and does pip know its index (pip config list)?"
}
