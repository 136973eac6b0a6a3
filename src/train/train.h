// The embedded trainer: convolutional classifiers on generated or given pictures, with loader
// threads, marked through flatout/marker.h. It needs neither Python nor a GPU nor a data set, and
// can be given a real cause of slowness to be found (`--inject`).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::train {

struct TrainOptions {
  int64_t steps = 300;
  int batch = 32;          // of all replicas and ranks together
  int threads = 0;         // that compute; 0: by the number of cores
  int loaders = 0;         // that make batches; 0: by the number of cores
  int64_t samples = 1024;  // of the generated data set
  uint64_t seed = 1;
  // "small", "large", "lenet" or "resnet20"; "": small, or lenet with several replicas or ranks.
  std::string model;
  std::string data;    // lenet, resnet20: folder of a data set; else, or with a cause to inject:
                       // where temporary files go; "": generated data, $TMPDIR
  int classes = 0;     // of `data`, at least: archives do not say
  bool plain = false;  // samples in the order of the data set, not augmented
  std::string checkpoint;  // a file for all state, saved after every epoch and at the end; "": none
  std::string resume;      // a checkpoint to go on from, to the bit; "": none
  std::string weights;     // a safetensors file with the parameters to begin with; "": drawn
  // Of lenet and resnet20:
  std::string optimizer = "sgd";
  double learning_rate = 0;  // 0: 0.02 for sgd, 0.001 for adam
  double momentum = 0.9;
  double weight_decay = 0;
  int replicas = 1;
  uint64_t device_bytes = 0;  // limit of each replica's device; 0: the machine's memory
  bool sync_batch_norm = false;
  bool nccl = false;         // ranks speak over NCCL, a card for each
  double rank_timeout = 60;  // seconds that a rank may keep others waiting

  std::vector<std::string> inject;  // causes of cause_list(); or "list" alone
  double hang_seconds = 0;          // of stall.hang: go on after that; 0: never
  bool quiet = false;               // only the last line
  bool json = false;                // one document with every step's loss instead of text
  // Instead of training: so many busy processes until this one is ended or the time is up.
  int neighbours = 0;
  double seconds = 0;  // 0: 60
};

/// Whether the model is made of layers (lenet, resnet20), not the demo's plain network.
bool is_layered(std::string_view model);

/// Trains, or prints the list of causes. Exit code: 0; 1 failed; 2 bad options.
int train_main(const TrainOptions& options);

/// What stands behind `--inject list`: a line for each cause.
std::string cause_list();

}  // namespace flatout::train
