#!/usr/bin/env bash
# clang-tidy over every C++ file of src/ that changed since it last passed. usage: tools/lint.sh BUILD
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
build=$1
if ! command -v clang-tidy > /dev/null; then
  echo "lint.sh: clang-tidy is not installed; tools/setup.sh check installs it" >&2
  exit 2
fi
stamps="$build/lint"
mkdir -p "$stamps"
check_one() {
  file=$1
  stamp="$2/$(echo "$file" | tr / _)"
  # A header may have changed: the stamp holds the hash of the file and of all headers of ours.
  key=$(cat "$file" .clang-tidy $(git ls-files 'src/*.h' 'include/*.h') | sha256sum)
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
git ls-files 'src/*.cpp' | grep -v '_fuzz\.cpp$' \
  | xargs -P "$(nproc)" -I {} bash -c 'check_one "$@"' _ {} "$stamps" "$build"
