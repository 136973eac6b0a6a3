// How lines are judged. A training loop's body has an order: get the batch, forward, backward,
// optimizer, the rest. The loop's own frame is the deepest one that readings inside and outside of
// the backward pass share, and its current line tells where in the body a reading falls. A line is
//   forward   if its readings run inside modules of the framework;
//   other     if much of its time writes files: what is put down was there before;
//   input     if they run in libraries that are not the framework (decoding, files, queues) or
//             mostly block (queue, pipe, lock, disk, sleep: a tensor operation computes while it
//             lasts);
//   other     if it comes after the line of the optimizer;
//   otherwise what its place says: before a line known as input, or before a forward pass that is
//             long enough for its backward pass, it is input. Where that is not to be seen, the
//             lines next above the backward pass are forward: all that compute in the loop's own
//             frame, calls of the user's functions until there is enough.
// A reading that is clear by itself counts as such whatever its line is.
#include "timeline/step_evidence.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "base/contains.h"
#include "model/source_files.h"
#include "model/system_call.h"
#include "timeline/loop_rounds.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

enum class Doing : uint8_t { kUnknown, kInput, kForward, kOther };

struct FrameKey {
  StringId function, file;
  bool operator==(const FrameKey&) const = default;
};

// What a stack says without its thread's state.
struct StackFacts {
  std::vector<FrameId> path;  // outermost first
  Doing doing = Doing::kUnknown;
  bool waits = false;   // its innermost frame is a wait of the standard library
  bool locks = false;   // it takes a mutex, which others hold for a moment
  FrameId parses = 0;   // the job's own code that has text parsed, 0: none
  FrameId own = 0;      // the innermost frame of the job's own code
  bool writes = false;  // it puts something into a stream
};

bool takes_mutex(std::string_view function) {
  return function.starts_with("pthread_mutex_lock") || function.starts_with("__lll_lock_wait") ||
         function.starts_with("std::mutex::lock");
}

/// Code of the job's own, as far as a native frame's file tells.
bool is_own_code(std::string_view file) {
  return !file.empty() && file.front() != '[' && !file.starts_with("/usr/") &&
         !file.starts_with("/lib") && !contains(file, ".so");
}

bool is_library(std::string_view file) {
  return contains(file, "site-packages/") || contains(file, "dist-packages/") ||
         contains(file, "/lib/python3") || file.starts_with("<frozen ");
}

bool is_module_call(std::string_view file) {
  return contains(file, "/torch/nn/") || contains(file, "/keras/src/layers/") ||
         contains(file, "/keras/layers/") || contains(file, "/mxnet/gluon/") ||
         contains(file, "/flax/") || contains(file, "/torch/_dynamo/") ||
         contains(file, "/torch/compiler");
}

// What prepares samples, even where it is built from modules of the framework.
bool is_input_library(std::string_view file) {
  for (const std::string_view part :
       {"/torch/utils/data/", "/torchvision/transforms/", "/torchvision/datasets/",
        "/torchvision/io/", "/torchaudio/transforms/", "/albumentations/", "/kornia/augmentation/",
        "/tensorflow/python/data/"}) {
    if (contains(file, part)) return true;
  }
  return false;
}

// Readers of files: what they return is input, whatever the loop does with it. (They write, too.)
bool reads_files(std::string_view file, std::string_view function) {
  for (const std::string_view writer : {"write", "save", "dump", "encode"}) {
    if (contains(function, writer)) return false;
  }
  for (const std::string_view part :
       {"/zipfile.py", "/zipfile/__init__.py", "/gzip.py", "/bz2.py", "/lzma.py", "/tarfile.py",
        "/csv.py", "/json/decoder.py", "/numpy/lib/npyio.py", "/numpy/lib/_npyio_impl.py",
        "/numpy/lib/format.py", "/numpy/lib/_format_impl.py", "/PIL/", "/imageio/", "/soundfile.py",
        "/h5py/", "/pandas/io/", "/pyarrow/"}) {
    if (contains(file, part)) return true;
  }
  return false;
}

bool is_logging(std::string_view file) {
  return model::in_logging_library(file) || contains(file, "/torch/serialization.py");
}

bool is_wait(std::string_view file) {
  for (const std::string_view part :
       {"/queue.py", "/threading.py", "/multiprocessing/", "/selectors.py", "/socket.py", "/ssl.py",
        "/concurrent/", "/subprocess.py", "/asyncio/"}) {
    if (contains(file, part)) return true;
  }
  return false;
}

bool on_files(ThreadState state) {
  return state == ThreadState::kDisk || state == ThreadState::kKernel;
}

bool blocked(ThreadState state) {
  return state == ThreadState::kLock || state == ThreadState::kDisk ||
         state == ThreadState::kPoll || state == ThreadState::kSleep ||
         state == ThreadState::kChild || state == ThreadState::kReclaim;
}

class Judge {
 public:
  Judge(const Run& run, std::span<const Painted> painted, const OpenTimeContext& context)
      : run_(run), painted_(painted), context_(context) {
    const auto has = [&](SliceKind kind) {
      return std::ranges::any_of(painted_, [&](const Painted& p) { return p.kind == kind; });
    };
    compiled_ =
        has(SliceKind::kForward) && !has(SliceKind::kBackward) && !has(SliceKind::kOptimizer);
  }

  std::vector<Moment> judge(std::vector<OpenTime>& open) {
    collect(open);
    if (context_.native) {
      find_parsers();
      find_writers();
    } else {
      find_loop();
      judge_lines();
    }
    share_out(open);
    std::vector<Moment> moments;
    for (const Reading& r : readings_) {
      if (r.open == kNowhere) continue;
      const Doing doing = judged(r);
      if (doing == Doing::kUnknown) continue;
      moments.push_back({r.reading->at, part_of(doing)});
    }
    return moments;
  }

 private:
  struct Reading {
    const StackReading* reading;
    size_t open;  // index into the open times; npos: within backward or optimizer
    SliceKind within{};
  };
  Part part_of(Doing doing) const {
    if (doing == Doing::kInput) return Part::kInputWait;
    if (doing == Doing::kOther) return Part::kOther;
    return context_.phases ? Part::kForward : Part::kCompute;
  }

  struct LineWeights {
    double total = 0, input = 0, forward = 0, blocked = 0, written = 0;
    double nested = 0;  // in functions that the line calls
    Doing doing = Doing::kUnknown;
  };
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  // Of the time in a function that it has text parsed, from which that is what it is for.
  static constexpr double kMostlyParses = 0.5;
  static constexpr double kNearlyAll = 0.98;  // of the time is in the function with the loop
  static constexpr double kByTheWay = 0.05;   // of what a function does that is there for it

  const StackFacts& facts(StackId id) {
    const auto [it, is_new] = facts_.try_emplace(id);
    StackFacts& f = it->second;
    if (!is_new) return f;
    bool parses = false;
    for (StackId at = id; at != 0 && at < run_.stacks.size(); at = run_.stacks[at].parent) {
      const FrameId frame = run_.stacks[at].frame;
      if (run_.frames[frame].kind != FrameKind::kUnderPython) f.path.push_back(frame);
      const std::string_view function = run_.string(run_.frames[frame].function);
      f.locks = f.locks || takes_mutex(function);
      parses = parses || model::parses_text(function);
      f.writes = f.writes || model::writes_stream(function);
      if (!is_own_code(run_.string(run_.frames[frame].file))) continue;
      if (f.own == 0) f.own = frame;
      if (parses && f.parses == 0) f.parses = frame;
    }
    std::ranges::reverse(f.path);
    return f;
  }

  FrameKey key(FrameId id) const {
    const Frame& frame = run_.frames[id < run_.frames.size() ? id : 0];
    return {frame.function, frame.file};
  }

  // The readings of the training thread that matter, and where each lies.
  void collect(const std::vector<OpenTime>& open) {
    size_t o = 0, p = 0;
    for (const StackReading& reading : run_.readings) {
      if (reading.thread != context_.thread) continue;
      note_call(reading);
      while (o < open.size() && open[o].end <= reading.at) ++o;
      while (p < painted_.size() && painted_[p].end <= reading.at) ++p;
      if (o < open.size() && open[o].begin <= reading.at) {
        readings_.push_back({&reading, o});
      } else if (p < painted_.size() && painted_[p].begin <= reading.at &&
                 (painted_[p].kind == SliceKind::kBackward ||
                  painted_[p].kind == SliceKind::kOptimizer ||
                  (compiled_ && painted_[p].kind == SliceKind::kForward))) {
        readings_.push_back({&reading, kNowhere, painted_[p].kind});
      }
    }
  }

  FrameId innermost(const StackReading& reading) const {
    return reading.stack < run_.stacks.size() ? run_.stacks[reading.stack].frame : 0;
  }
  // The call that a thread is in cannot always be read: a line that was seen to write writes.
  void note_call(const StackReading& reading) {
    if (!on_files(reading.state)) return;
    const model::CallKind call = model::call_kind(reading.syscall);
    if (call == model::CallKind::kWrite) ++writes_[innermost(reading)];
    if (call == model::CallKind::kRead) --writes_[innermost(reading)];
  }
  /// Puts something into a file: the kernel copies it, or waits for the disk. (A pipe's writer
  /// polls.)
  bool writes_file(const StackReading& reading) const {
    if (!on_files(reading.state)) return false;
    if (reading.syscall >= 0) return model::call_kind(reading.syscall) == model::CallKind::kWrite;
    const auto line = writes_.find(innermost(reading));
    return line != writes_.end() && line->second > 0;
  }

  /// The frames that the training loop calls; all where it is not known.
  std::span<const FrameId> in_loop(const StackFacts& f) const {
    for (size_t i = f.path.size(); i > 0; --i) {
      if (loop_functions_.contains(key(f.path[i - 1]).function))
        return std::span(f.path).subspan(i);
    }
    return f.path;
  }

  // Functions of the job's own that are there to parse text: what else they do makes samples, too.
  // The one with the training loop is none, however much of its time it parses.
  void find_parsers() {
    loop_functions_ =
        functions_with_loops(run_, run_.processes[run_.threads[context_.thread].process].pid);
    std::map<std::pair<StringId, StringId>, std::pair<double, double>> weights;  // parsing, all
    double seen = 0, all = 0;  // readings with a stack, and all of them
    for (const Reading& r : readings_) {
      all += r.reading->weight_us;
      if (!facts(r.reading->stack).path.empty()) seen += r.reading->weight_us;
      const StackFacts& f = facts(r.reading->stack);
      std::set<std::pair<StringId, StringId>> functions;  // one that calls itself counts once
      for (const FrameId frame : in_loop(f))
        functions.insert({key(frame).function, key(frame).file});
      for (const auto& k : functions) weights[k].second += r.reading->weight_us;
      const std::pair parser{key(f.parses).function, key(f.parses).file};
      if (f.parses != 0 && functions.contains(parser))
        weights[parser].first += r.reading->weight_us;
    }
    if (2 * seen < all) return;
    for (const auto& [k, w] : weights) {
      const bool around_all = loop_functions_.empty() && w.second > kNearlyAll * seen;
      if (w.first >= kMostlyParses * w.second && !around_all) parsers_.insert(k);
    }
  }

  // Functions of the job's own that write more than they read, and do not write by the way: what
  // else they do with files (open, rename, wait for the disk) is for that. The one with the loop
  // does all kinds of things.
  void find_writers() {
    for (const Reading& r : readings_) {
      const StackFacts& f = facts(r.reading->stack);
      const model::CallKind call = model::call_kind(r.reading->syscall);
      Written& own = written_[{key(f.own).function, key(f.own).file}];
      own.all += r.reading->weight_us;
      if (call == model::CallKind::kWrite || f.writes) own.written += r.reading->weight_us;
      if (call == model::CallKind::kRead) own.written -= r.reading->weight_us;
    }
  }
  bool is_writer(const StackFacts& f) const {
    if (f.own == 0 || run_.string(key(f.own).function) == "main") return false;
    if (loop_functions_.contains(key(f.own).function)) return false;
    const auto it = written_.find({key(f.own).function, key(f.own).file});
    return it != written_.end() && it->second.written > kByTheWay * it->second.all;
  }

  bool makes_samples(const StackFacts& f) const {
    return f.parses != 0 || std::ranges::any_of(in_loop(f), [&](FrameId frame) {
             return parsers_.contains({key(frame).function, key(frame).file});
           });
  }

  // Descends from the outermost frame as long as nearly all readings agree, inside and outside of
  // the backward pass.
  void find_loop() {
    bool inside = false;
    for (const Reading& r : readings_) inside = inside || r.open == kNowhere;
    for (size_t depth = 0; depth < 200; ++depth) {
      std::map<std::pair<StringId, StringId>, std::pair<double, double>> weights;
      double in_total = 0, out_total = 0;
      for (const Reading& r : readings_) {
        const StackFacts& f = facts(r.reading->stack);
        if (f.path.empty()) continue;
        const double weight = r.reading->weight_us;
        (r.open == kNowhere ? in_total : out_total) += weight;
        if (depth >= f.path.size()) continue;
        const FrameKey k = key(f.path[depth]);
        auto& w = weights[{k.function, k.file}];
        (r.open == kNowhere ? w.first : w.second) += weight;
      }
      if (out_total <= 0) break;
      const std::pair<StringId, StringId>* best = nullptr;
      for (const auto& [k, w] : weights) {
        const bool agreed_in = !inside || w.first >= 0.9 * in_total;
        if (agreed_in && w.second >= 0.9 * out_total) best = &k;
      }
      if (best == nullptr || makes_items(run_.string(best->first), run_.string(best->second)))
        break;
      loop_depth_ = depth;
      loop_key_ = {best->first, best->second};
    }
  }

  std::optional<uint32_t> loop_line(const StackFacts& f) const {
    if (loop_depth_ == kNowhere || loop_depth_ >= f.path.size()) return std::nullopt;
    if (key(f.path[loop_depth_]) != loop_key_) return std::nullopt;
    return run_.frames[f.path[loop_depth_]].line;
  }

  // What the frames below the loop say.
  Doing doing_of_stack(const StackFacts& f) const {
    bool library = false, module = false, reader = false;
    for (size_t i = loop_depth_ == kNowhere ? 0 : loop_depth_ + 1; i < f.path.size(); ++i) {
      const Frame& frame = run_.frames[f.path[i]];
      const std::string_view file = run_.string(frame.file);
      if (is_input_library(file)) return Doing::kInput;
      if (is_logging(file)) {
        const bool generator = frame.kind == FrameKind::kGenerator;
        if (model::hands_out_items(run_.string(frame.function), generator)) continue;
        return Doing::kOther;
      }
      module = module || is_module_call(file);
      reader = reads_files(file, run_.string(frame.function));
      if (is_python(frame.kind) && is_library(file) && !model::in_framework(file)) {
        library = true;
      }
    }
    if (module) return Doing::kForward;
    if (reader) return Doing::kInput;  // the innermost frame
    // Above the loop lie the launcher's own frames: they say nothing.
    // Without phases the libraries may well be the training itself (NumPy).
    return library && loop_depth_ != kNowhere && context_.phases ? Doing::kInput : Doing::kUnknown;
  }

  bool waits(const StackFacts& f) const {
    return !f.path.empty() && is_wait(run_.string(run_.frames[f.path.back()].file));
  }

  Doing doing_of(const Reading& r) {
    StackFacts& f = facts_.find(r.reading->stack)->second;
    if (f.doing == Doing::kUnknown && !f.path.empty()) {
      f.doing = doing_of_stack(f);
      f.waits = waits(f);
    }
    if (f.doing == Doing::kOther || f.doing == Doing::kForward) return f.doing;
    // What a data set writes (its own cache) makes batches all the same.
    if (f.doing == Doing::kUnknown && !f.waits && writes_file(*r.reading)) return Doing::kOther;
    if (r.reading->state == ThreadState::kDisk) return Doing::kInput;
    if (f.waits && blocked(r.reading->state)) return Doing::kInput;
    if (f.path.empty() && blocked(r.reading->state) && !context_.team) return Doing::kInput;
    return f.doing;
  }

  Doing doing_in_native(const Reading& r) {
    const ThreadState state = r.reading->state;
    const StackFacts& f = facts(r.reading->stack);
    switch (model::call_kind(r.reading->syscall)) {
      case model::CallKind::kWrite:
        return Doing::kOther;
      case model::CallKind::kRead:
        return Doing::kInput;
      case model::CallKind::kSeek:
      case model::CallKind::kMetadata:
        return is_writer(f) ? Doing::kOther : Doing::kInput;
      default:
        break;
    }
    if (state == ThreadState::kDisk) return is_writer(f) ? Doing::kOther : Doing::kInput;
    const bool waits = blocked(state) && !context_.team && !f.locks;
    if (waits || makes_samples(f)) return Doing::kInput;
    // What is on a core and shows no stack may be either.
    return f.path.empty() && !parsers_.empty() ? Doing::kUnknown : Doing::kForward;
  }

  void judge_lines() {
    std::map<uint32_t, double> inside;  // lines at which backward passes and optimizers run
    double inside_total = 0;
    for (const Reading& r : readings_) {
      const StackFacts& f = facts(r.reading->stack);
      const std::optional<uint32_t> line = loop_line(f);
      if (!line) continue;
      if (r.open == kNowhere) {
        inside[*line] += r.reading->weight_us;
        inside_total += r.reading->weight_us;
        if (r.within == SliceKind::kBackward) backward_ += r.reading->weight_us;
        continue;
      }
      LineWeights& w = lines_[*line];
      const double weight = r.reading->weight_us;
      w.total += weight;
      const Doing doing = doing_of(r);
      if (doing == Doing::kInput) w.input += weight;
      if (doing == Doing::kForward) w.forward += weight;
      if (doing == Doing::kOther && writes_file(*r.reading)) w.written += weight;
      if (blocked(r.reading->state)) w.blocked += weight;
      if (f.path.size() > loop_depth_ + 1) w.nested += weight;
    }
    // The last line of the loop's body before "the rest". A reading at the very end of the
    // optimizer may show the line after it, which is elsewhere most of its time.
    uint32_t last_line = 0;
    for (const auto& [line, weight] : inside) {
      const auto open = lines_.find(line);
      const double elsewhere = open != lines_.end() ? open->second.total : 0;
      if (weight >= 0.02 * inside_total && weight >= 0.2 * (weight + elsewhere)) {
        last_line = std::max(last_line, line);
      }
    }
    double forward = 0;
    uint32_t first_forward = UINT32_MAX, last_input = 0;
    for (auto& [line, w] : lines_) {
      if (last_line != 0 && line > last_line) {
        w.doing = Doing::kOther;
      } else if (w.forward >= 0.3 * w.total) {
        w.doing = Doing::kForward;
        first_forward = std::min(first_forward, line);
        forward += w.total;
      } else if (w.written >= 0.3 * w.total && w.input < 0.1 * w.total) {
        w.doing = Doing::kOther;
      } else if (w.input >= 0.3 * w.total || (w.blocked >= 0.7 * w.total && !context_.team)) {
        w.doing = Doing::kInput;
        last_input = std::max(last_input, line);
      }
    }
    // From the backward pass upwards.
    const double enough = 0.3 * backward_;
    const bool complete = first_forward != UINT32_MAX && forward >= enough;
    double above = 0;  // forward so far
    for (auto it = lines_.rbegin(); it != lines_.rend(); ++it) {
      auto& [line, w] = *it;
      if (w.doing == Doing::kForward) above += w.total;
      if (w.doing != Doing::kUnknown) continue;
      bool input = line < last_input || context_.real_forward;
      if (!input && line < first_forward && complete) input = true;
      const bool calls = w.nested >= 0.5 * w.total;
      if (!input && backward_ > 0 && calls && above >= enough) input = true;
      if (!context_.phases) input = false;
      w.doing = input ? Doing::kInput : Doing::kForward;
      if (input) {
        last_input = std::max(last_input, line);  // and so is all that lies before it
      } else {
        above += w.total;
      }
    }
  }

  Doing judged(const Reading& r) {
    if (context_.native) return doing_in_native(r);
    const Doing own = doing_of(r);
    const std::optional<uint32_t> line = loop_line(facts(r.reading->stack));
    if (line) {
      const Doing by_line = lines_[*line].doing;
      if (by_line == Doing::kOther) return by_line;
      if (own == Doing::kUnknown) return by_line;
    }
    return own;
  }

  void share_out(std::vector<OpenTime>& open) {
    struct Votes {
      double input = 0, other = 0, total = 0, count = 0;
    };
    std::vector<Votes> own(open.size());
    Votes all[2];
    for (const Reading& r : readings_) {
      if (r.open == kNowhere) continue;
      const Doing doing = judged(r);
      if (doing == Doing::kUnknown) continue;
      const double weight = r.reading->weight_us;
      for (Votes* v : {&own[r.open], &all[open[r.open].after_input]}) {
        v->total += weight;
        ++v->count;
        if (doing == Doing::kInput) v->input += weight;
        if (doing == Doing::kOther) v->other += weight;
      }
    }
    for (size_t i = 0; i < open.size(); ++i) {
      const Votes& everyone = all[open[i].after_input];
      // Without readings: what lies before a real forward pass was needed for the batch.
      double input = context_.real_forward ? 1 : 0;
      double other = 0;
      if (everyone.total > 0) {
        constexpr double kDoubt = 3;  // readings that the assumption above weighs
        const double share = everyone.count / (everyone.count + kDoubt);
        input = share * everyone.input / everyone.total + (1 - share) * input;
        other = share * everyone.other / everyone.total;
      }
      if (own[i].total > 0) {
        constexpr double kDoubt = 2;
        const double share = own[i].count / (own[i].count + kDoubt);
        input = share * own[i].input / own[i].total + (1 - share) * input;
        other = share * own[i].other / own[i].total + (1 - share) * other;
      }
      const double length = static_cast<double>((open[i].end - open[i].begin).count());
      open[i].other = nanos(length * std::clamp(other, 0.0, 1.0));
      open[i].input = std::min(nanos(length * std::clamp(input, 0.0, 1.0)),
                               open[i].end - open[i].begin - open[i].other);
    }
  }

  const Run& run_;
  std::span<const Painted> painted_;
  const OpenTimeContext& context_;
  bool compiled_ = false;  // the forward slices are whole steps: TensorFlow's and JAX's graphs
  std::vector<Reading> readings_;
  std::unordered_map<StackId, StackFacts> facts_;
  std::map<uint32_t, LineWeights> lines_;
  std::unordered_map<FrameId, int64_t> writes_;      // less reads, by innermost frame
  std::set<std::pair<StringId, StringId>> parsers_;  // functions, of native code
  struct Written {
    double written = 0, all = 0;  // less what it reads, and whatever it does
  };
  std::map<std::pair<StringId, StringId>, Written> written_;  // by function of the job's
  std::set<StringId> loop_functions_;
  size_t loop_depth_ = kNowhere;
  FrameKey loop_key_{};
  double backward_ = 0;  // weight of the readings in it
};

}  // namespace

bool makes_items(std::string_view function, std::string_view file) {
  return function == "__next__" || is_input_library(file);
}

std::vector<Moment> judge_open_times(const Run& run, std::span<const Painted> painted,
                                     const OpenTimeContext& context, std::vector<OpenTime>& open) {
  if (open.empty()) return {};
  return Judge(run, painted, context).judge(open);
}

}  // namespace flatout::timeline
