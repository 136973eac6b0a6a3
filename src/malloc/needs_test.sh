#!/bin/sh
# Fails unless the library needs libc alone, has at most 64 bytes of static TLS, and leaves no symbol of the C++ run time
# open: it is loaded into programs of any language, at any time.
set -eu
needed=$(readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ "$needed" = libc.so.6 ] || { echo "needs: $needed"; exit 1; }
tls=$(readelf -lW "$1" | awk '$1 == "TLS" {print $6}')
[ $((tls)) -le 64 ] || { echo "static TLS: $tls"; exit 1; }
open=$(nm -D --undefined-only "$1" | awk '{print $NF}' | grep -E '^_Z|__cxa_(throw|begin|guard)|__gxx' || true)
[ -z "$open" ] || { echo "open: $open"; exit 1; }
