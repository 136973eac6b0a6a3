#!/bin/sh
# Fails unless each library needs libc alone, has at most 64 bytes of static TLS, and leaves no symbol of the C++ run
# time open: it is loaded into programs of any language, at any time.
set -eu
for library in "$@"; do
  needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  [ "$needed" = libc.so.6 ] || { echo "$library needs: $needed"; exit 1; }
  tls=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
  [ $((tls)) -le 64 ] || { echo "$library, static TLS: $tls"; exit 1; }
  open=$(nm -D --undefined-only "$library" | awk '{print $NF}' | grep -E '^_Z|__cxa_(throw|begin|guard)|__gxx' || true)
  [ -z "$open" ] || { echo "$library, open: $open"; exit 1; }
done
