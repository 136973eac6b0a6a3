# Cross-building for aarch64 with Debian's compiler; tests run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# -R: else qemu keeps a byte for each page that is reserved, gigabytes for our range of addresses.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -R 200G -L /usr/aarch64-linux-gnu)
