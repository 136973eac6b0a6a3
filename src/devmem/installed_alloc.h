// Between the files of libflatout_devmem.so.
#pragma once

#define FLATOUT_DEVMEM_API __attribute__((visibility("default")))
#include "flatout/devmem.h"

namespace flatout::devmem {

/// flatout_devmem_alloc() for `caller`, a return address.
void* installed_alloc(size_t bytes, int device, void* stream, const void* caller);

}  // namespace flatout::devmem
