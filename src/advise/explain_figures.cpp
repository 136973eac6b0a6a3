#include "advise/explain_figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "advise/oom_message.h"
#include "base/contains.h"
#include "base/size_text.h"

namespace flatout::advise {
namespace {

using model::Explanation;

void set_advice(Explanation& answer, std::string_view id, const std::string& text) {
  for (model::Suggestion& advice : answer.advice) {
    if (advice.id == id) advice.text = text;
  }
}

// What one step needed at the least, and what there was for it.
struct Need {
  uint64_t needed = 0, there = 0;
};

std::optional<Need> need_of(const OomMessage& m) {
  if (!m.wanted || !m.allocated || !m.free) return std::nullopt;
  uint64_t there = *m.allocated + m.unallocated.value_or(0) + *m.free;
  if (m.allowed) there = std::min(there, *m.allowed);
  const uint64_t needed = *m.allocated + *m.wanted;
  // Where it would have fitted but for its pieces, the figures bound nothing.
  if (there == 0 || needed <= there) return std::nullopt;
  return Need{needed, there};
}

// Half the batch halves the activations. Where the figures show that even less can fit, halve on.
void suggest_batch(std::optional<uint64_t> batch, const std::optional<Need>& need,
                   Explanation& answer) {
  if (batch && *batch < 2) {
    set_advice(answer, "batch_size",
               "The log names a batch of 1, so use smaller inputs (a shorter sequence, a lower "
               "resolution), or spread the model over several devices.");
    return;
  }
  const double fits =
      need ? static_cast<double>(need->there) / static_cast<double>(need->needed) : 1;
  uint64_t parts = 2;
  while (1.0 / static_cast<double>(parts) > fits) parts *= 2;
  std::string text;
  if (!batch) {
    text = fmt::format(
        "Use a smaller batch: 1/{} of it in the setting that the program has for it (batch_size, "
        "per_device_train_batch_size), with gradients accumulated over {} of them.",
        parts, parts);
  } else if (*batch / parts == 0) {
    text = fmt::format(
        "By these figures not even a batch of 1 instead of the {} that the log names fits: use "
        "smaller inputs, or spread the model over several devices.",
        *batch);
  } else {
    text = fmt::format(
        "Use a smaller batch: {} instead of the {} that the log names, and accumulate gradients "
        "over {} batches.",
        *batch / parts, *batch, parts);
  }
  if (need) {
    text += fmt::format(
        " That rests on the message: it needed {} at once, at the least, and could have {}; what "
        "does not grow with the batch (weights, the optimizer's state) stays.",
        size_text(need->needed), size_text(need->there));
  } else {
    text += " That halves the activations, not the weights or the optimizer's state.";
  }
  set_advice(answer, "batch_size", text);
}

// PyTorch's message: who held the memory when it ran out.
void torch_figures(const LogReading& log, std::string_view line, Explanation& out) {
  const auto message = parse_oom_message(line);
  if (!message) {
    suggest_batch(log.batch_size, std::nullopt, out);
    return;
  }
  if (message->wanted) {
    out.text = fmt::format("PyTorch's allocator asked for {}", size_text(*message->wanted));
    if (message->total && message->free) {
      out.text += fmt::format(" and {} of the device's {} were free", size_text(*message->free),
                              size_text(*message->total));
    }
    out.text += ".";
  }
  const OomJudgement judged = judge_oom(line, *message);
  switch (judged.cause) {
    case OomCause::kTaken: {
      uint64_t named = 0;
      for (const OomMessage::Other& other : message->others) named += other.bytes;
      out.finding = "gpu.memory_taken";
      out.text += fmt::format(" Other processes held {}: without them it would have fitted.",
                              size_text(std::max(named, message->held_by_others().value_or(0))));
      out.advice.insert(out.advice.begin(),
                        {"stop_holder", "Stop what else is on the device, or take another."});
      for (const OomMessage::Other& other : message->others) {
        out.holders.push_back({fmt::format("pid {} (as the log says)", other.pid), other.bytes});
      }
      break;
    }
    case OomCause::kFragmented:
      out.finding = "gpu.oom_fragmented";
      out.sure = judged.said.sure;
      out.text +=
          fmt::format(" PyTorch itself held {} that no tensor used, in pieces that are too small.",
                      size_text(*message->unallocated));
      out.advice.insert(
          out.advice.begin(),
          {"expandable_segments",
           "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PyTorch 2.1 and later)."});
      break;
    case OomCause::kTooBig:
      if (message->allocated && message->total) {
        out.text += fmt::format(" The job's own tensors took {}.", size_text(*message->allocated));
      }
      if (!message->total) out.sure = 0.8;
      suggest_batch(log.batch_size, need_of(*message), out);
      break;
    case OomCause::kOther:
      out.finding = judged.said.finding;
      out.sure = judged.said.sure;
      out.text = judged.said.text;
      for (const devmem::Advice& advice : judged.said.advice) {
        out.advice.insert(out.advice.begin(), {"", advice.text});
      }
      break;
  }
}

std::optional<uint64_t> number_after(std::string_view line, std::string_view words) {
  const size_t at = line.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + words.size());
  return parse_number<uint64_t>(line.substr(0, line.find_first_not_of("0123456789")));
}

// TensorFlow names the tensor, whose first dimension is mostly the batch; XLA the bytes.
void tensorflow_figures(const LogReading& log, std::string_view line, Explanation& out) {
  if (const auto bytes = number_after(line, "trying to allocate "); bytes && *bytes > (1u << 20)) {
    out.text += fmt::format(" It asked for {} at once.", size_text(*bytes));
  }
  const std::string_view shape = line.substr(std::min(line.find("with shape["), line.size()));
  const auto first = number_after(shape, "with shape[");
  const bool more_dimensions = shape.find(',') < shape.find(']');
  if (first && *first > 1 && more_dimensions && !log.batch_size) {
    set_advice(out, "batch_size",
               fmt::format("Use a smaller batch: {} if it is {} now, as the first dimension of the "
                           "tensor in the message says. That halves the activations.",
                           *first / 2, *first));
    return;
  }
  suggest_batch(log.batch_size, std::nullopt, out);
}

// Where the kernel or a scheduler killed for memory: the peak and the limit.
void killed_figures(const LogReading& log, std::string_view line, Explanation& out) {
  std::optional<uint64_t> peak = log.killed_bytes, limit = log.memory_limit;
  // Slurm: "exceeded memory limit (4365772 > 4194304), being killed", in KiB.
  if (const auto kb = number_after(line, "exceeded memory limit (")) {
    peak = *kb << 10;
    if (const auto allowed = number_after(line, " > ")) limit = *allowed << 10;
  }
  if (peak) out.text += fmt::format(" What was killed held {}.", size_text(*peak));
  if (limit) {
    out.text += fmt::format(" The limit was {}.", size_text(*limit));
    const std::string text = fmt::format(
        "Raise the limit above {}, or use less: fewer workers, each with a smaller "
        "prefetch_factor, or a smaller batch.",
        size_text(std::max(*limit, peak.value_or(0))));
    set_advice(out, "limit", text);
    set_advice(out, "slurm_mem", text);
  }
}

}  // namespace

void add_figures(const LogReading& log, const LogEvent& event, Explanation& answer) {
  const std::string_view kind = event.rule->kind, line = event.line.text;
  if (kind == "cuda_out_of_memory") torch_figures(log, line, answer);
  if (kind == "tensorflow_out_of_memory") tensorflow_figures(log, line, answer);
  if (kind == "segmentation_fault" && contains(line, "Fatal Python error")) {
    set_advice(
        answer, "stacks",
        "The stacks below that line are of that moment: the innermost line of the thread that "
        "is called current names the extension to update or reinstall.");
  }
  if (kind == "cudnn_no_algorithm") suggest_batch(log.batch_size, std::nullopt, answer);
  if (answer.finding == "mem.killed") killed_figures(log, line, answer);
}

}  // namespace flatout::advise
