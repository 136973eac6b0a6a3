// What libflatout_devlimit.so shows to the outside; all else is hidden.
#pragma once

#define FLATOUT_EXPORT __attribute__((visibility("default")))
