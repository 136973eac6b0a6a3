// What a stack tells about a cause: the user's own line in it, and which well-known library work it
// is part of. Each stack of the run is looked at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "model/finding.h"
#include "model/run.h"

namespace flatout::diagnose {

/// What a stack passes through.
using Traits = uint32_t;
enum StackTrait : Traits {
  kInSubprocess = 1 << 0,   // starting a process or waiting for it (subprocess, os.system, fork)
  kInCollate = 1 << 1,      // putting samples together to a batch
  kInQueue = 1 << 2,        // handing objects between processes (multiprocessing queues, pickling)
  kInArchive = 1 << 3,      // looking for a member of an archive, or skipping within a stream
  kInMetadata = 1 << 4,     // path look-ups: exists, stat, listdir, glob
  kInLogging = 1 << 5,      // logging and printing libraries
  kInSave = 1 << 6,         // writing a checkpoint
  kInSpin = 1 << 7,         // a thread pool's barrier or spin wait
  kInMalloc = 1 << 8,       // the memory allocator
  kInLoader = 1 << 9,       // a data loader's machinery
  kInWorkerLoop = 1 << 10,  // a loader worker; without kInFetch it waits for something to do
  kInSpawn = 1 << 11,       // loader workers being started
  kInFetch = 1 << 12,       // making a batch
  kInChild = 1 << 14,       // where a child process begins; what called it is not its own
  kHasPython = 1 << 13,     // any Python frame
  kInCollective =
      1 << 15,           // where ranks meet: a collective, or a backward pass, which may end in one
  kInCompile = 1 << 16,  // compiling or tracing what is to run (torch.compile, tf.function, JAX)
  kAtMutex = 1 << 17,    // waits until another thread or process lets go of a lock; of a reading,
                         // not of a stack: RunView::traits()
  kInHook = 1 << 19,     // what the job lets PyTorch call before or after a module's forward()
  kInText = 1 << 18,     // puts something into a stream: native code, or Python that dumps as text
  kInParser = 1 << 21,   // native code that reads numbers or words out of text
  kInMutex = 1 << 20,    // native code that takes or releases a lock
  kTakesOver = 1 << 23,  // takes what another process shares: what was waited for has come
  kInFit = 1 << 22,      // Keras' fit, evaluate or predict, outside of what they compiled
  kInGradient =
      1 << 24,  // PyTorch's gradients: a backward pass, or what torch.autograd.grad() asks
};

/// What a step does besides computing.
inline constexpr Traits kNotComputing =
    kInLogging | kInHook | kInSave | kInSpawn | kInSubprocess | kInCompile;

enum class Owner : uint8_t { kUser, kPackage, kLibrary };  // package: installed, not one we know

/// Whose file this is. `project`: a folder that counts as the user's wherever it lies.
Owner owner_of(std::string_view file, std::string_view project);

/// The native code that a stack ends in under Python. It is seen in some of the readings only, and
/// so no trait.
enum class NativeCall : uint8_t {
  kUnseen,
  kLookup,   // a call of the C library that looks a file up
  kOther,    // another one that enters the kernel or copies memory
  kUnclear,  // anything else
};

/// What a thread that waits at a futex waits for, as far as its stack says.
enum class FutexWait : uint8_t {
  kOther,      // a condition, an item of a queue, a pool of threads
  kMutex,      // that somebody lets go of a lock
  kUnseen,     // innermost is a line of the user's or a package's; what it called was not seen
  kNotAtLine,  // it was seen, and is not a lock
};

class StackIndex {
 public:
  explicit StackIndex(const model::Run& run);

  /// The user's innermost frame; 0 if there is none.
  model::FrameId user_frame(model::StackId stack) const { return at(stack).user; }
  /// The innermost frame of an installed package that is not a well-known library: to blame where
  /// the user has no line of his own. 0 if there is none.
  model::FrameId package_frame(model::StackId stack) const { return at(stack).package; }
  /// The innermost frame of a generator of the user's or a package's; 0 if there is none.
  model::FrameId generator_frame(model::StackId stack) const { return at(stack).generator; }
  Owner owner(model::FrameId frame) const {
    return frame < owners_.size() ? owners_[frame] : Owner::kLibrary;
  }
  Traits traits(model::StackId stack) const { return at(stack).traits; }
  NativeCall native_call(model::StackId stack) const { return at(stack).call; }
  FutexWait futex_wait(model::StackId stack) const { return at(stack).futex; }
  /// The line that futex_wait() speaks of, where it is not kOther.
  model::FrameId futex_line(model::StackId stack) const { return at(stack).line; }
  /// Whether it is in a call of MPI's, which looks again and again whether the others' messages
  /// have come, and so is on a core meanwhile. Under Python seen where native_call() is.
  bool in_mpi(model::StackId stack) const { return at(stack).mpi; }
  /// Of a frame that runs an event loop: where the training waits in it, if that is known.
  model::Where where(model::FrameId frame) const;

 private:
  struct Known {
    model::FrameId user = 0, package = 0, generator = 0, line = 0;
    Traits traits = 0;
    NativeCall call = NativeCall::kUnseen;
    FutexWait futex = FutexWait::kOther;
    bool mpi = false;
    bool done = false;
  };
  struct FrameFacts;
  std::vector<FrameFacts> look_at_frames() const;
  Known below(const Known& above, model::StackId stack, const std::vector<FrameFacts>& all);
  const Known& at(model::StackId stack) const { return known_[stack < known_.size() ? stack : 0]; }

  const model::Run& run_;
  std::vector<Known> known_;
  std::vector<Owner> owners_;                       // by frame
  std::unordered_set<model::FrameId> event_loops_;  // the user's frames that run one
  std::optional<model::Where> awaited_;
};

}  // namespace flatout::diagnose
