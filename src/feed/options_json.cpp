#include "feed/options_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace flatout::feed {
namespace {

using Json = nlohmann::ordered_json;

template <class E>
struct Word {
  std::string_view word;
  E value;
};

constexpr Word<Policy> kPolicies[] = {
    {"strict", Policy::kStrict}, {"skip", Policy::kSkip}, {"lenient", Policy::kLenient}};
constexpr Word<Mode> kModes[] = {{"exact", Mode::kExact}, {"scaled", Mode::kScaled}};
constexpr Word<Layout> kLayouts[] = {{"nchw", Layout::kNchw}, {"nhwc", Layout::kNhwc}};
constexpr Word<Type> kTypes[] = {
    {"u8", Type::kU8}, {"f32", Type::kF32}, {"f16", Type::kF16}, {"bf16", Type::kBf16}};
constexpr Word<Filter> kFilters[] = {{"bilinear", Filter::kBilinear},
                                     {"bicubic", Filter::kBicubic}};
constexpr Word<Augment::Kind> kKinds[] = {{"random_crop", Augment::Kind::kRandomCrop},
                                          {"center_crop", Augment::Kind::kCenterCrop},
                                          {"stretch", Augment::Kind::kStretch}};

template <class E, size_t n>
bool take(const Json& json, const Word<E> (&words)[n], E& out) {
  if (!json.is_string()) return false;
  for (const Word<E>& word : words) {
    if (json.get_ref<const std::string&>() == word.word) {
      out = word.value;
      return true;
    }
  }
  return false;
}

template <class Number>
bool take(const Json& json, Number& out) {
  if constexpr (std::is_same_v<Number, bool>) {
    if (!json.is_boolean()) return false;
  } else if constexpr (std::is_integral_v<Number>) {
    if (!json.is_number_integer()) return false;
    if (json.is_number_unsigned()
            ? json.get<uint64_t>() > uint64_t(std::numeric_limits<Number>::max())
            : json.get<int64_t>() < int64_t(std::numeric_limits<Number>::min()))
      return false;
  } else {
    if (!json.is_number()) return false;
  }
  out = json.get<Number>();
  return true;
}

bool take(const Json& json, std::string& out) {
  if (json.is_string()) out = json.get<std::string>();
  return json.is_string();
}

template <class Number, size_t n>
bool take(const Json& json, Number (&out)[n]) {
  if (!json.is_array() || json.size() != n) return false;
  for (size_t i = 0; i < n; ++i) {
    if (!take(json[i], out[i])) return false;
  }
  return true;
}

// Of each channel, or of all of them: [0.5], as torchvision's Normalize takes it.
bool take_channels(const Json& json, float (&out)[3]) {
  float one[1];
  if (!take(json, one) && !take(json, one[0])) return take(json, out);
  std::fill(std::begin(out), std::end(out), one[0]);
  return true;
}

// True where `name` is an option and `json` a value of it.
bool set(LoaderOptions& options, std::string_view name, const Json& json, bool& known) {
  Augment& augment = options.augment;
  known = true;
  if (name == "batch") return take(json, options.batch);
  if (name == "threads") return take(json, options.threads);
  if (name == "prefetch") return take(json, options.prefetch);
  if (name == "seed") return take(json, options.seed);
  if (name == "shuffle") return take(json, options.shuffle);
  if (name == "drop_last") return take(json, options.drop_last);
  if (name == "rank") return take(json, options.rank);
  if (name == "ranks") return take(json, options.ranks);
  if (name == "on_bad") return take(json, kPolicies, options.policy);
  if (name == "mode") return take(json, kModes, options.mode);
  if (name == "dtype") return take(json, kTypes, options.type);
  if (name == "layout") return take(json, kLayouts, options.layout);
  if (name == "mean") return take_channels(json, options.mean);
  if (name == "std") return take_channels(json, options.std);
  if (name == "augment") return take(json, kKinds, augment.kind);
  if (name == "scale") return take(json, augment.area);
  if (name == "ratio") return take(json, augment.ratio);
  if (name == "flip") return take(json, augment.flip);
  if (name == "resize") return take(json, augment.shorter);
  if (name == "interpolation") return take(json, kFilters, augment.filter);
  if (name == "brightness") return take(json, augment.brightness);
  if (name == "contrast") return take(json, augment.contrast);
  if (name == "saturation") return take(json, augment.saturation);
  if (name == "hue") return take(json, augment.hue);
  if (name == "randaugment") {
    int both[2];
    if (!take(json, both)) return false;
    augment.rand_operations = both[0];
    augment.rand_magnitude = both[1];
    return true;
  }
  if (name == "mixup") return take(json, options.mix.mixup);
  if (name == "cutmix") return take(json, options.mix.cutmix);
  if (name == "allow_empty") return take(json, options.allow_empty);
  if (name == "shuffle_buffer") return take(json, options.window.samples);
  if (name == "shuffle_run") return take(json, options.window.run);
  if (name == "orient") return take(json, options.orient);
  if (name == "index") return take(json, options.index);
  if (name == "index_mb") {
    uint32_t megabytes = 0;
    if (!take(json, megabytes)) return false;
    options.index_bytes = uint64_t{megabytes} << 20;
    return true;
  }
  if (name == "size") {
    int both[2];
    if (take(json, both)) {
      augment.height = both[0];
      augment.width = both[1];
      return true;
    }
    if (!take(json, augment.width)) return false;
    augment.height = augment.width;
    return true;
  }
  known = false;
  return false;
}

}  // namespace

Result<LoaderOptions> parse_options(std::string_view text) {
  LoaderOptions options;
  const Json json = Json::parse(text.empty() ? "{}" : text, nullptr, false);
  if (!json.is_object())
    return Error{Code::kBadInput, "the options are no JSON object", "{\"batch\": 64}"};
  // Flips are for training; an evaluation asks for them if it wants them.
  if (json.contains("augment") && json["augment"] != "random_crop") options.augment.flip = 0;
  for (const auto& [name, value] : json.items()) {
    bool known = false;
    if (set(options, name, value, known)) continue;
    if (!known)
      return Error{Code::kBadInput, fmt::format("there is no option '{}'", escape_terminal(name)),
                   "flatout/feed.h lists them, and help(flatout.feed.Loader) in Python"};
    return Error{
        Code::kBadInput,
        fmt::format("{} cannot be {}", name,
                    escape_terminal(value.dump(-1, ' ', false, Json::error_handler_t::replace))),
        "flatout/feed.h says what each option takes, and help(flatout.feed.Loader) in Python"};
  }
  FLATOUT_TRY_STATUS(options.check());
  return options;
}

std::string report_json(const Loader& loader) {
  const Report report = loader.report();
  Json out;
  out["classes"] = Json::array();
  for (const std::string& name : loader.source().classes()) out["classes"].push_back(to_utf8(name));
  out["samples"] = report.samples;
  out["replaced"] = report.replaced;
  out["outcomes"] = Json::object();
  for (int i = 0; i < kOutcomes; ++i)
    out["outcomes"][std::string(outcome_name(static_cast<Outcome>(i)))] =
        report.outcomes[static_cast<size_t>(i)];
  out["bad"] = Json::array();
  for (const BadSample& bad : report.bad)
    out["bad"].push_back({{"file", to_utf8(bad.file)},
                          {"outcome", std::string(outcome_name(bad.verdict.outcome))},
                          {"detail", to_utf8(bad.verdict.detail)}});
  out["threads"] = report.threads;
  const double n = static_cast<double>(std::max<uint64_t>(report.made, 1));
  out["stages"] = Json::array();
  for (const auto& [name, cpu] : report.stages())
    out["stages"].push_back({{"name", std::string(name)}, {"cpu_ms_per_image", to_ms(cpu) / n}});
  out["waited_ms"] = to_ms(report.waited);
  out["held_up_ms"] = to_ms(report.held_up);
  out["read_ahead"] = {{"way", std::string(report.ahead.way)},
                       {"threads", report.ahead.threads},
                       {"samples", report.ahead.done}};
  return out.dump();
}

}  // namespace flatout::feed
