// What making a batch spends its time on, and what the detectors of the input share.
#pragma once

#include <array>
#include <initializer_list>

#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

/// A producer's time per batch by what it does, in seconds; samples only, collate and hand-over
/// are kept apart.
struct BatchTimes {
  std::array<double, static_cast<size_t>(Act::kCount)> act{};
  double at_mutex = 0;  // of waits for others: for a lock that one of them holds
  double collate = 0, handover = 0;
  double total = 0;
  double in_loop = 0;  // part of it: after a loader in the training thread has handed a batch out
  int64_t readings = 0;

  bool mostly_in_loop() const { return in_loop > 0.5 * total; }
  double operator[](Act a) const { return act[static_cast<size_t>(a)]; }
  double cpu() const {
    return (*this)[Act::kPython] + (*this)[Act::kNative] + (*this)[Act::kKernel] +
           (*this)[Act::kMemory];
  }
};

/// Share of their time that producers work from which they can be what the step waits for.
constexpr double kProducersBusy = 0.5;

/// Whether a cell belongs to the making of batches.
bool makes_batches(const RunView& view, const Cell& cell);
/// The same, without collating and handing over.
bool makes_samples(const RunView& view, const Cell& cell);
BatchTimes batch_times(const RunView& view);

/// Whether another thread of the training process runs Python, so that the training thread cannot.
bool holds_gil(const Cell& cell);
/// What the training thread waits, per step, for the interpreter lock while another thread of its
/// process passes batches on.
double gil_for_passing(const RunView& view);

constexpr double kOsPageBytes = 4096;

/// What the loop hands to TensorFlow by itself.
struct Fed {
  int64_t calls = 0;
  double bytes = 0;  // of all of them
};
Fed fed(const RunView& view);
/// Whether it does so in most steps.
bool fed_by_hand(const RunView& view);
/// What the kernel takes, per step, to hand out the memory that batches fed to TensorFlow by the
/// loop are copied into within the call.
double fresh_for_feeding(const RunView& view);

/// Which of the findings about storage the time in reads is: input.disk, input.disk_throttled,
/// input.cold_cache, input.random_seek; input.small_files where the files are little and cold.
std::string storage_cause(const RunView& view);
/// Whether so many bytes, read for each batch from the page cache, are those that samples are
/// searched for in from the beginning of the data: far more than batches hold, and the same for one
/// after the other.
bool scans(const RunView& view, double bytes);
/// Whether what lies open at a time is big.
bool big_file_open(const RunView& view);
void storage_evidence(const RunView& view, model::Finding& finding);
/// What helps beside the cause's own remedies.
void storage_remedies(const RunView& view, model::Finding& finding);

/// What the parts of a step take beyond their usual time, in seconds; parts that take less do not
/// make up for it.
double beyond_usual(const RunView& view, const model::Step& step,
                    std::initializer_list<model::Part> parts);

/// Input that tf.data makes. False: the job has none, and the others are asked.
bool detect_graph_input(const RunView& view, Findings& findings);
void detect_skew(const RunView& view, const WhatIf& whatif, Findings& findings);
void detect_order(const RunView& view, const WhatIf& whatif, Findings& findings);
void detect_restart(const RunView& view, Findings& findings);
void detect_boundary(const RunView& view, Findings& findings);  // feed_dict, h2d

}  // namespace flatout::diagnose
