// What libflatout_malloc.so shows to the outside; all else is hidden.
#pragma once

#define FLATOUT_EXPORT __attribute__((visibility("default")))
// For what is called all the time: from the start of a cache line, in as few lines as can be. Where
// a function lies by chance makes up to a tenth of malloc and free together.
#define FLATOUT_EXPORT_HOT __attribute__((visibility("default"), aligned(64)))
