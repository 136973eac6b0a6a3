#!/usr/bin/env bash
# clang-tidy over every C++ file of src/ that changed since it last passed, or whose headers did. usage: tools/lint.sh BUILD [ROOM…]
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
build=$1
shift
if ! command -v clang-tidy > /dev/null; then
  echo "lint.sh: clang-tidy is not installed; tools/setup.sh check installs it" >&2
  exit 2
fi
stamps="$build/lint"
mkdir -p "$stamps"
# A line for each source: itself and the headers of ours that the build saw it include.
ninja -C "$build" -t deps | awk -v root="$PWD/" '
  /^[^ ]/ { if (line != "") print line; line = ""; next }
  index($1, root "src/") == 1 || index($1, root "include/") == 1 {
    line = line (line == "" ? "" : " ") substr($1, length(root) + 1)
  }
  END { if (line != "") print line }' > "$stamps/headers"
check_one() {
  file=$1
  stamp="$2/$(echo "$file" | tr / _)"
  headers=$(grep -m 1 "^$file " "$2/headers" || echo "$file")
  key=$(cat .clang-tidy $headers | sha256sum)
  [ "$key" = "$(cat "$stamp" 2> /dev/null)" ] && return 0
  # It counts suppressed warnings on stderr each time: shown only where it fails.
  if said=$(clang-tidy -p "$3" --quiet --warnings-as-errors='*' "$file" 2>&1); then
    echo "$key" > "$stamp"
  else
    printf 'lint: %s\n%s\n' "$file" "$said" >&2
    return 1
  fi
}
export -f check_one
git ls-files "${@/#/src/}" | grep '^src/.*\.cpp$' | grep -v '_fuzz\.cpp$' \
  | xargs -P "${JOBS:-$(nproc)}" -I {} bash -c 'check_one "$@"' _ {} "$stamps" "$build"
