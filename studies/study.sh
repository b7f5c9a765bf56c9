# Sourced by the scripts of the studies: their settings, and how they run a program.
#
#     WORKERS=4 bash studies/digits.sh      run it, or continue it where it stopped
#     PYTHON=true bash studies/digits.sh    only print the commands
#
# OUT receives all runs, and RESULTS the files to commit. Exit status: 0 done,
# 1 runs failed (they are marked, and the report counts them), 2 user error, 75 stopped (the sweep
# saves its runs; the same command continues).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Relative paths: the page names its files and must not reveal the folders of this machine.
PYTHON=${PYTHON:-.venv/bin/python}
WORKERS=${WORKERS:-2}
OUT=${OUT:-runs/studies/$NAME}
RESULTS=${RESULTS:-results/$NAME}
if [[ -e $RESULTS && ! -d $RESULTS ]]; then
  echo "error: RESULTS=$RESULTS: is not a folder; give another" >&2
  exit 2
fi
[[ $OUT == /* ]] && cache=$OUT || cache=$PWD/$OUT
# All sweeps of a study share their compiled programs.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$cache/.compile_cache}

# A sweep that receives SIGTERM saves its runs and ends. Job control (-m) gives it a process group
# of its own, so that Ctrl-C reaches only this script, and the sweep gets one signal instead of two.
set -m
stopped=
pid=
trap 'stopped=1; kill -TERM $pid 2> /dev/null || true' INT TERM HUP

# Runs a program with these arguments; `status` is its exit status.
run() {
  [[ -z $stopped ]] || stop
  (IFS=' '; printf '%q ' python "$@"; echo)
  "$PYTHON" "$@" &
  pid=$!
  [[ -z $stopped ]] || kill -TERM $pid  # received before `pid` was set
  # A signal that arrives just before bash blocks in `wait` is handled only after it: wait shortly.
  while kill -0 $pid 2> /dev/null; do
    sleep 0.2 &
    wait $! || true
  done
  status=0
  wait $pid || status=$?
  [[ -z $stopped ]] || stop
}

stop() {
  echo "stopped; the same command continues" >&2
  exit 75
}

# Runs sweep.py. Failed runs do not stop the study; any other failure does.
failed=0
sweep() {
  run sweep.py "$@" --workers="$WORKERS"
  case $status in
    0) ;;
    1) failed=1 ;;
    *) exit "$status" ;;
  esac
}

# Writes the tables and trials to commit, then the page with its figures.
finish() {
  run -m reporting.archive "$OUT" "$RESULTS"
  [[ $status == 0 ]] || exit "$status"
  run report.py "$RESULTS"
  [[ $status == 0 ]] || exit "$status"
  exit "$failed"
}
