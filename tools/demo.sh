#!/usr/bin/env bash
# Runs the doctor on the embedded trainer: once healthy, once for each of two injected causes.
# usage: tools/demo.sh FLATOUT
set -euo pipefail
flatout=$1
out=$(mktemp -d "${TMPDIR:-/tmp}/flatout-demo-XXXXXX")

show() {
  echo
  echo "\$ flatout run -- flatout train $*"
  "$flatout" run --out "$out/$1$2" -- "$flatout" train "$@" > "$out/$1$2.log" || true
}

show --steps 200
show --inject input.decode_cpu
show --inject stall.checkpoint
echo
echo "Each run left a folder in $out. The report with all its curves: ${BROWSER:-open} $out/--injectinput.decode_cpu/report.html"
