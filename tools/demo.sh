#!/usr/bin/env bash
# Runs the doctor on the embedded trainer: once healthy, once for each of two injected causes.
# usage: tools/demo.sh FLATOUT
set -euo pipefail
flatout=$1
out=$(mktemp -d "${TMPDIR:-/tmp}/flatout-demo-XXXXXX")

show() {
  name=$1
  shift
  echo
  echo "\$ flatout run -- flatout train $*"
  "$flatout" run --out "$out/$name" -- "$flatout" train "$@" > "$out/$name.log" || true
}

show healthy --steps 200
show input.decode_cpu --inject input.decode_cpu
show stall.checkpoint --inject stall.checkpoint
echo
echo "Each run left a folder in $out. The report with all its curves: ${BROWSER:-open} $out/input.decode_cpu/report.html"
