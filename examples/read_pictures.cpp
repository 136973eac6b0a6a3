// The input pipeline in a C++ program: the mean of every channel over one epoch of a data set.
//
//   g++ -O2 -std=c++17 -Iinclude examples/read_pictures.cpp build/release/libflatout_feed.so
//   -Wl,-rpath,build/release -o read_pictures
//   ./read_pictures train/        (a folder, 'shards/train-{000..146}.tar', records.tfrecord,
//   train.fpack)
#include <flatout/feed.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DATA\n", argv[0]);
    return 2;
  }
  flatout_feed* feed = flatout_feed_open(
      argv[1],
      R"({"batch": 64, "size": 224, "mean": [0, 0, 0], "std": [1, 1, 1], "shuffle": false})");
  if (feed == nullptr) {
    std::fprintf(stderr, "%s\n", flatout_feed_error());
    return 1;
  }
  double sum[3] = {};
  long pictures = 0;
  flatout_feed_batch* batch;
  int got;
  while ((got = flatout_feed_next(feed, &batch)) == FLATOUT_FEED_BATCH) {
    // Batches of float [count, 3, 224, 224], values 0 to 1.
    const float* value = static_cast<const float*>(batch->data);
    const long plane = static_cast<long>(batch->shape[2] * batch->shape[3]);
    for (int sample = 0; sample < batch->count; ++sample) {
      for (double& channel : sum) {
        for (long i = 0; i < plane; ++i) channel += *value++ / static_cast<double>(plane);
      }
    }
    pictures += batch->count;
    flatout_feed_release(batch);
  }
  if (got == FLATOUT_FEED_ERROR) std::fprintf(stderr, "%s\n", flatout_feed_error());
  flatout_feed_close(feed);
  if (pictures > 0)
    std::printf("%ld pictures, mean %.4f %.4f %.4f\n", pictures, sum[0] / pictures,
                sum[1] / pictures, sum[2] / pictures);
  return got == FLATOUT_FEED_END ? 0 : 1;
}
