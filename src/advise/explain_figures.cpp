#include "advise/explain_figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/contains.h"
#include "base/size_text.h"
#include "devmem/explain_torch.h"

namespace flatout::advise {
namespace {

using model::Explanation;

void set_advice(Explanation& answer, std::string_view id, const std::string& text) {
  for (model::Suggestion& advice : answer.advice) {
    if (advice.id == id) advice.text = text;
  }
}

void suggest_batch(std::optional<uint64_t> batch,
                   const std::optional<devmem::TorchMessage>& message, Explanation& answer) {
  if (batch && *batch < 2) {
    set_advice(answer, "batch_size",
               "The log names a batch of 1, so use smaller inputs (a shorter sequence, a lower "
               "resolution), or spread the model over several devices.");
    return;
  }
  const uint64_t parts = message ? devmem::batch_parts(*message) : 2;
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
  if (const auto need = message ? devmem::need_of(*message) : std::nullopt) {
    text += fmt::format(
        " That rests on the message: it needed {} at once, at the least, and could have {}; what "
        "does not grow with the batch (weights, the optimizer's state) stays.",
        size_text(need->needed), size_text(need->there));
  } else {
    text += " That halves the activations, not the weights or the optimizer's state.";
  }
  set_advice(answer, "batch_size", text);
}

// PyTorch's message is judged as `flatout devmem explain` judges it, so that there is one answer.
void torch_figures(const LogReading& log, const LogEvent& event, Explanation& out) {
  const auto message = devmem::parse_torch_message(log.message_of(event));
  if (!message) {
    suggest_batch(log.batch_size, std::nullopt, out);
    return;
  }
  devmem::TorchFigures figures{*message};
  figures.is_expanding = log.expandable_segments;
  const devmem::Explanation said = devmem::explain_torch(figures);
  out.finding = said.finding;
  out.sure = said.sure;
  out.text = said.text;
  const bool smaller = std::any_of(said.advice.begin(), said.advice.end(),
                                   [](const auto& advice) { return advice.id == "batch_size"; });
  if (!smaller) out.advice.clear();
  // Behind what is said of these figures stays what always helps.
  for (size_t i = 0, at = 0; i < said.advice.size(); ++i) {
    const devmem::Advice& advice = said.advice[i];
    if (advice.id == "batch_size") continue;
    const std::string setting = advice.remedy.substr(advice.remedy.find(':') + 1);
    out.advice.insert(out.advice.begin() + static_cast<std::ptrdiff_t>(at++),
                      {advice.id, setting.empty() ? advice.text : advice.text + " " + setting});
  }
  suggest_batch(log.batch_size, message, out);
  if (out.finding != "gpu.memory_taken") return;
  for (const devmem::TorchMessage::Process& other : message->others)
    out.holders.push_back({fmt::format("pid {} (as the log says)", other.pid), other.bytes});
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

// cuDNN's handle takes some hundred MiB: with more free than that it was not the memory.
void cudnn_figures(const LogReading& log, Explanation& out) {
  constexpr uint64_t kEnough = uint64_t{2} << 30;
  if (!log.device_free || !log.device_total || *log.device_free < kEnough) return;
  out.finding.clear();
  out.text = fmt::format(
      "cuDNN could not start, and not for want of memory: {} of the device's {} were free. Its "
      "version does not fit the driver or the framework, or two versions of it are mixed.",
      size_text(*log.device_free), size_text(*log.device_total));
  out.advice = {{"versions",
                 "Install the cuDNN that the framework's release names, or a newer driver; remove "
                 "other cuDNN folders from LD_LIBRARY_PATH."}};
}

}  // namespace

void add_figures(const LogReading& log, const LogEvent& event, Explanation& answer) {
  const std::string_view kind = event.rule->kind, line = event.line.text;
  if (kind == "cuda_out_of_memory") torch_figures(log, event, answer);
  if (kind == "tensorflow_out_of_memory") tensorflow_figures(log, line, answer);
  if (kind == "segmentation_fault" && contains(line, "Fatal Python error")) {
    set_advice(
        answer, "stacks",
        "The stacks below that line are of that moment: the innermost line of the thread that "
        "is called current names the extension to update or reinstall.");
  }
  if (kind == "cudnn_not_initialized") cudnn_figures(log, answer);
  if (kind == "cudnn_no_algorithm") suggest_batch(log.batch_size, std::nullopt, answer);
  if (answer.finding == "mem.killed") killed_figures(log, line, answer);
}

}  // namespace flatout::advise
