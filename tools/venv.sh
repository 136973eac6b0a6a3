#!/usr/bin/env bash
# Makes or renews the virtual environment of the tests. usage: tools/venv.sh DIR REQUIREMENTS
# Nothing is done where the requirements have not changed since the last time.
set -euo pipefail
dir=$1 requirements=$2
stamp="$dir/.requirements"
if [ -x "$dir/bin/python" ] && cmp -s "$requirements" "$stamp"; then exit 0; fi
echo "Installing the Python packages of $requirements into $dir (they are large)"
python3 -m venv "$dir"
"$dir/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
cp "$requirements" "$stamp"
