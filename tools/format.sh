#!/usr/bin/env bash
# clang-format over every C and C++ file that git does not ignore, new ones too. --check changes nothing and fails on a difference.
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
if ! command -v clang-format > /dev/null; then
  echo "format.sh: clang-format is not installed; tools/setup.sh check installs it" >&2
  exit 2
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cpp' '*.cu')
if [ "${1:-}" = --check ]; then
  clang-format --dry-run --Werror "${files[@]}"
else
  clang-format -i "${files[@]}"
fi
