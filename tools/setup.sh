#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing, and nothing that is there already.
# usage: tools/setup.sh [build] [test] [fuzz] [check] [aarch64] [bench-feed]
set -euo pipefail

build=(g++ cmake ninja-build pkg-config libfmt-dev libcli11-dev nlohmann-json3-dev zlib1g-dev
       libdw-dev libelf-dev libjpeg-dev libspng-dev libwebp-dev libncurses-dev libjs-chart.js
       libmicrohttpd-dev libsqlite3-dev libisal-dev)
test=(libgtest-dev libbenchmark-dev python3 python3-venv python3-dev chromium tmux openmpi-bin
       sysstat zsh fish openssl redis-tools)
fuzz=(clang-14 libclang-rt-14-dev libgtest-dev libbenchmark-dev)
check=(clang-format clang-tidy)
aarch64=(g++-aarch64-linux-gnu qemu-user libgtest-dev)
bench_feed=(python3-venv python3-dev pkg-config libopencv-dev libturbojpeg0-dev ffmpeg)

# Ubuntu's chromium package only installs a snap, which has no place in a container: the browser
# tests say there that they lack it.
if [ "$(. /etc/os-release; echo "${ID:-}")" = ubuntu ]; then test=("${test[@]/chromium}"); fi

wanted=()
for group in "$@"; do
  case "$group" in
    build) wanted+=("${build[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    fuzz) wanted+=("${fuzz[@]}") ;;
    check) wanted+=("${check[@]}") ;;
    aarch64) wanted+=("${aarch64[@]}") ;;
    bench-feed) wanted+=("${bench_feed[@]}") ;;
    *) echo "setup.sh: unknown group: $group" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query > /dev/null; then
  echo "setup.sh: not a Debian or Ubuntu system; install these yourself: ${wanted[*]}" >&2
  exit 0
fi

# Prometheus checks the metrics that are served. Its package would start a server on this machine, so
# only its programs are taken out of it, below build/; the tests say so where they lack them.
unpack_prometheus() {
  local folder
  folder="$(cd "$(dirname "$0")/.." && pwd)/build/prometheus"
  if command -v promtool > /dev/null || [ -x "$folder/usr/bin/promtool" ]; then return; fi
  mkdir -p "$folder"
  if (cd "$folder" && apt-get download -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20 prometheus &&
      dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin) > "$folder/log" 2>&1; then
    rm -f "$folder"/prometheus_*.deb
  else
    echo "setup.sh: cannot get the package prometheus, so its tests are skipped: $folder/log" >&2
  fi
}
finish() {
  case " $* " in *" test "*) unpack_prometheus ;; esac
  exit 0
}

missing=()
for package in "${wanted[@]}"; do
  [ -n "$package" ] || continue
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || finish "$@"

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || { echo "setup.sh: as root, run: apt-get install ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "Installing ${#missing[@]} packages: ${missing[*]}${sudo:+ (with sudo)}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
finish "$@"
