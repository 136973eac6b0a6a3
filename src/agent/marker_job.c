/* A C program that uses flatout/marker.h, for agent_test: links nothing but libdl. */
#include <flatout/marker.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  const long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 3;
  for (long i = 0; i < steps; ++i) {
    uint64_t t = flatout_now();
    flatout_slice(FLATOUT_INPUT_WAIT, NULL, t);
    t = flatout_now();
    flatout_phase("augment", t);
    flatout_slice_values(FLATOUT_FETCH, "shard", t, 32, i);
    flatout_counter("loss", 1.0 / (double)(i + 1));
    flatout_step(i);
  }
  return 0;
}
