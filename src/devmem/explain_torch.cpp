#include "devmem/explain_torch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size_text.h"
#include "base/text.h"

namespace flatout::devmem {
namespace {

// Messages before PyTorch 2 do not count the context and the libraries.
constexpr Bytes kContext = Bytes{512} << 20;
// No card has as much: such a request is a mistake, whatever the card.
constexpr Bytes kBeyondAnyCard = Bytes{1} << 50;
// PyTorch says no more than that it is more, or a negative number became one.
constexpr Bytes kOverflown = Bytes{1} << 60;

Bytes minus(Bytes a, Bytes b) { return a - std::min(a, b); }

// The figures with 0 where one is not known.
struct Sums {
  explicit Sums(const TorchFigures& f)
      : request(f.request),
        total(f.total.value_or(0)),
        allocated(f.allocated.value_or(0)),
        cached(f.cached.value_or(0)),
        pools(std::min(f.private_pools.value_or(0), allocated)),
        tensors(allocated - pools),
        own(f.process ? std::max(*f.process, allocated + cached) : allocated + cached) {
    const Bytes taken = f.process ? own : own + kContext;
    // Where it is not told, what is free is at most what this process leaves.
    free = f.free.value_or(minus(total, own));
    lacking = minus(request, free);
    const Bytes left = minus(total, taken + free);
    for (const TorchMessage::Process& other : f.others) others += other.bytes;
    // The context stays this process's where its message does not count it.
    others = f.total ? std::min(others, minus(total, own + free)) : others;
    if (others == 0 && is_much(left)) others = left;
  }

  // From this share of the card on what others hold is a good part of it.
  bool is_much(Bytes bytes) const {
    constexpr double kMuch = 0.15;
    return total > 0 && static_cast<double>(bytes) >= kMuch * static_cast<double>(total);
  }

  // So little of what there is that it would have served this request and hardly the next.
  bool is_little(Bytes bytes) const {
    constexpr Bytes kParts = 100;
    return bytes < std::max(total, own + free) / kParts;
  }

  Bytes request, total, allocated, cached, pools, tensors, own;
  Bytes free = 0, lacking = 0, others = 0;
};

std::vector<Holder> holders_of(const TorchFigures& f, const Sums& s) {
  std::vector<Holder> holders;
  const auto add = [&](std::string_view what, Bytes bytes) {
    if (bytes > 0) holders.push_back({std::string(what), bytes});
  };
  add("tensors of this process", s.tensors);
  add("private pools (CUDA graphs), idle", s.pools);
  add("PyTorch's cache (reserved but unallocated)", s.cached);
  add("context and libraries of this process", minus(s.own, s.allocated + s.cached));
  add("other processes", s.others);
  if (f.free) add("free", *f.free);
  return holders;
}

// The commonest piece of advice: "batch_size".
Advice smaller_batch(const TorchFigures& f) {
  const uint64_t parts = batch_parts(f);
  std::string text = fmt::format(
      "Use a smaller batch: 1/{} of it is the first to try, with gradients accumulated over {}; or "
      "checkpointing, mixed precision.",
      parts, parts);
  if (const auto need = need_of(f)) {
    text += fmt::format(" It needed {} at once, at the least, and could have {}.",
                        size_text(need->needed), size_text(need->there));
  }
  return {std::move(text), "", "batch_size"};
}

class Judge {
 public:
  explicit Judge(const TorchFigures& f) : f_(f), s_(f) {
    e_.holders = holders_of(f_, s_);
    asked_ = fmt::format("PyTorch asked for {}",
                         s_.request >= kOverflown ? "1 EiB or more" : size_text(s_.request));
    if (f.free) asked_ += fmt::format(" with {} free", size_text(*f.free));
    if (f.total) asked_ += fmt::format("{} of {}", f.free ? "" : " on a card", size_text(*f.total));
  }

  Explanation judge() {
    if (s_.request >= kBeyondAnyCard || (f_.total && s_.request > s_.total)) {
      exceeds_card();
    } else if (is_limited()) {
      limited();
    } else if (s_.lacking > 0 && s_.pools >= s_.lacking &&
               s_.pools > std::max(s_.cached, named())) {
      in_private_pools();
    } else if (covers(s_.cached) && !(is_taken() && is_taken_by_far())) {
      if (!covers(minus(s_.cached, f_.elsewhere))) {
        idle_elsewhere();
      } else if (s_.is_little(s_.cached)) {
        too_big();
      } else {
        fragmented();
      }
    } else if (is_taken()) {
      taken();
    } else if (f_.free && s_.lacking == 0) {
      free_but_refused();
    } else {
      too_big();
    }
    return std::move(e_);
  }

 private:
  Bytes named() const {
    Bytes sum = 0;
    for (const TorchMessage::Process& other : f_.others) sum += other.bytes;
    return sum;
  }
  // Where what is free is not known, the request has to come from there alone.
  bool covers(Bytes idle) const {
    if (!f_.free && !f_.total) return idle >= s_.request;
    return s_.lacking > 0 && idle >= s_.lacking;
  }
  bool is_taken() const {
    return s_.others > 0 && s_.lacking > 0 && s_.others >= s_.lacking && s_.others > s_.cached;
  }
  // What lies idle here is beside the point where others hold a good part.
  bool is_taken_by_far() const { return s_.is_much(s_.others) && s_.others >= s_.request; }
  bool is_limited() const {
    const Bytes counted = f_.mps ? s_.own : s_.allocated + s_.cached;
    return f_.allowed && counted + s_.request > *f_.allowed && (!f_.free || *f_.free >= s_.request);
  }

  void set(std::string_view kind, std::string_view finding, double sure, std::string text) {
    e_.kind = kind;
    e_.finding = finding;
    e_.sure = sure;
    e_.text = asked_ + std::move(text);
  }
  void advise(std::string_view id, std::string text, std::string remedy = "") {
    e_.advice.push_back({std::move(text), std::move(remedy), std::string(id)});
  }

  void exceeds_card() {
    set("torch_request_exceeds_card", "gpu.oom_too_big", 0.95,
        s_.request >= kOverflown
            ? ": no card has as much. A size that was computed is wrong, as by an overflow."
            : ": this one tensor is larger than the card, whatever else is freed.");
    advise("shape",
           "Look at the shape at that line: a broadcast or an outer product that was not meant, a "
           "negative size, or a length that was not bounded.");
    // What is many times larger is no matter of the batch.
    constexpr Bytes kTimes = 64;
    if (f_.total && s_.request / kTimes < s_.total) e_.advice.push_back(smaller_batch(f_));
  }

  void limited() {
    set("torch_limit", "gpu.oom_too_big", 0.95,
        fmt::format(", but this process may take only {} ({}).", size_text(*f_.allowed),
                    f_.mps ? "PYTORCH_MPS_HIGH_WATERMARK_RATIO of what Metal recommends"
                           : "set_per_process_memory_fraction, or the limit of Flatout's pools"));
    advise("limit", f_.mps ? "A higher ratio lets it take memory that the system needs."
                           : "Raise the fraction, if the rest of the card is this job's.");
    e_.advice.push_back(smaller_batch(f_));
  }

  void in_private_pools() {
    set("torch_private_pools", "gpu.oom_too_big", 0.8,
        fmt::format(": {} lie idle in pools of CUDA graphs, which serve nothing else.",
                    size_text(s_.pools)));
    advise("graph_pools",
           "Fewer captured shapes, or one pool shared by all graphs "
           "(torch.cuda.graph_pool_handle).");
  }

  void idle_elsewhere() {
    set("torch_idle_elsewhere", "gpu.oom_fragmented", 0.8,
        fmt::format(", while {} lie unused in its cache. Of these, {} belong to other streams or "
                    "lie among small blocks, and cannot serve it, not even with expandable "
                    "segments.",
                    size_text(s_.cached), size_text(f_.elsewhere)));
    advise("streams",
           "Allocate on one stream, or call torch.cuda.empty_cache() after the work that used the "
           "other.");
    e_.advice.push_back(smaller_batch(f_));
  }

  void fragmented() {
    const Bytes usable = minus(s_.cached, f_.elsewhere);
    std::string text = fmt::format(
        ", while {} lie unused in its cache, in pieces that are too small{}.", size_text(s_.cached),
        f_.largest_hole > 0 ? fmt::format(" (the largest is {})", size_text(f_.largest_hole)) : "");
    text += usable >= s_.request ? " The memory is there; it is not in one piece."
                                 : " Together with what is free that would have been enough.";
    set("torch_oom_fragmented", "gpu.oom_fragmented",
        f_.is_expanding ? 0.6 : (f_.largest_hole > 0 ? 0.95 : 0.8), std::move(text));
    advise_against_pieces();
    e_.advice.push_back(smaller_batch(f_));
  }

  void advise_against_pieces() {
    if (f_.is_expanding) {
      e_.text += " Expandable segments are on already.";
      advise("pieces",
             "What lies idle all the same may belong to other streams or small blocks: allocate on "
             "one stream, call torch.cuda.empty_cache() between phases (training, validation).");
    } else if (f_.expandable) {
      advise("expandable_segments", "Let the cache map its pages together.",
             "env:" + f_.setting + "=expandable_segments:True");
    } else if (f_.setting == "PYTORCH_NPU_ALLOC_CONF") {
      advise("expandable_segments",
             "Let the cache map its pages together, where this torch_npu can: "
             "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True");
    } else {
      advise("expandable_segments",
             fmt::format("This PyTorch is older than 2.1, in which {}=expandable_segments:True "
                         "lets the cache map its pages together.",
                         f_.setting));
    }
    if (f_.max_split && !f_.expandable)
      advise("max_split", "Or keep large blocks whole.",
             "env:" + f_.setting + "=max_split_size_mb:512");
  }

  void taken() {
    set("torch_memory_taken", "gpu.memory_taken", 0.9,
        fmt::format(": other processes hold {}. Without them it would fit.", size_text(s_.others)));
    advise("stop_holder",
           "Stop those processes, if they are left over (nvidia-smi shows them), or take another "
           "card.");
  }

  void free_but_refused() {
    set("torch_free_but_refused", "gpu.memory_taken", 0.5,
        ": there was room when the message was written, not when the driver was asked. Another "
        "process took and gave back memory, or a limit that CUDA does not show applies. It is not "
        "fragmentation.");
    advise("stop_holder", "See who shares the card while the job runs: nvidia-smi.");
  }

  void too_big() {
    std::string text = f_.allocated ? fmt::format(": live tensors hold {}", size_text(s_.tensors))
                                    : ": the message's other figures are not there";
    if (f_.cached && covers(s_.cached)) {
      text += fmt::format(
          ". The {} in the cache are in pieces; in one they would have served this request, and "
          "hardly the next",
          size_text(s_.cached));
    } else if (f_.cached && f_.allocated) {
      text +=
          fmt::format(", and the {} in the cache would not have been enough", size_text(s_.cached));
    }
    const bool by_others = !f_.total || !f_.allocated;
    set("torch_oom_too_big", "gpu.oom_too_big", by_others ? 0.6 : 0.9,
        text + ". The job does not fit" +
            (by_others ? ", unless other processes hold a part of the card." : "."));
    e_.advice.push_back(smaller_batch(f_));
  }

  const TorchFigures& f_;
  const Sums s_;
  Explanation e_;
  std::string asked_;
};

}  // namespace

std::optional<Need> need_of(const TorchMessage& m) {
  if (!m.allocated || !m.free) return std::nullopt;
  Bytes there = *m.allocated + m.cached.value_or(0) + *m.free;
  if (m.allowed) there = std::min(there, *m.allowed);
  const Bytes needed = *m.allocated + m.request;
  if (there == 0 || needed <= there) return std::nullopt;
  return Need{needed, there};
}

uint64_t batch_parts(const TorchMessage& message) {
  const auto need = need_of(message);
  const double fits =
      need ? static_cast<double>(need->there) / static_cast<double>(need->needed) : 1;
  uint64_t parts = 2;
  while (1.0 / static_cast<double>(parts) > fits && parts < (1u << 20)) parts *= 2;
  return parts;
}

Explanation explain_torch(const TorchFigures& figures) { return Judge(figures).judge(); }

}  // namespace flatout::devmem
