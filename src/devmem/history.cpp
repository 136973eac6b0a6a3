#include "devmem/history.h"

#include <algorithm>
#include <numeric>

namespace flatout::devmem {
namespace {

// Live bytes of each site, op by op.
class Sites {
 public:
  explicit Sites(const Trace& trace)
      : trace_(trace), live_(trace.sites.size(), 0), sizes_(trace.blocks, 0) {}

  void apply(const Op& op) {
    if (op.kind == Op::kMark) return;
    Bytes& site = live_[trace_.site_of[op.block]];
    if (op.kind == Op::kAllocate) {
      sizes_[op.block] = op.size;
      site += op.size;
      total_ += op.size;
    } else {
      site -= sizes_[op.block];
      total_ -= sizes_[op.block];
    }
  }
  const std::vector<Bytes>& live() const { return live_; }
  Bytes total() const { return total_; }

 private:
  const Trace& trace_;
  std::vector<Bytes> live_, sizes_;
  Bytes total_ = 0;
};

std::string label_of(const Trace& trace, size_t site) {
  return trace.sites[site].empty() ? "(not recorded)" : trace.sites[site];
}

}  // namespace

model::MemoryHistory memory_history(const Trace& trace, Bytes card, size_t most_columns,
                                    size_t most_bands) {
  model::MemoryHistory out;
  out.name = trace.name;
  out.card = card;
  out.operations = trace.ops.size();
  const size_t columns = std::max<size_t>(1, std::min(most_columns, trace.ops.size()));
  const auto column_of = [&](size_t op) {
    return std::min(op * columns / std::max<size_t>(1, trace.ops.size()), columns - 1);
  };

  // First who is worth a band of its own: the largest at the peak, then by their own peaks.
  Sites sites(trace);
  std::vector<Bytes> at_peak(trace.sites.size(), 0), own_peak(trace.sites.size(), 0);
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    sites.apply(trace.ops[i]);
    if (trace.ops[i].kind != Op::kAllocate) continue;
    const uint32_t site = trace.site_of[trace.ops[i].block];
    own_peak[site] = std::max(own_peak[site], sites.live()[site]);
    if (sites.total() <= out.peak) continue;
    out.peak = sites.total();
    out.peak_column = column_of(i);
    at_peak = sites.live();
  }
  std::vector<size_t> order(trace.sites.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return at_peak[a] != at_peak[b] ? at_peak[a] > at_peak[b] : own_peak[a] > own_peak[b];
  });
  std::erase_if(order, [&](size_t site) { return own_peak[site] == 0; });
  const size_t own_bands = order.size() <= most_bands ? order.size() : most_bands - 1;
  std::vector<size_t> band_of(trace.sites.size(), own_bands);
  for (size_t band = 0; band < own_bands; ++band) {
    const size_t site = order[band];
    band_of[site] = band;
    out.bands.push_back(
        {label_of(trace, site), std::vector<uint64_t>(columns, 0), at_peak[site], own_peak[site]});
  }
  if (own_bands < order.size()) {
    out.bands.push_back({"all others", std::vector<uint64_t>(columns, 0), 0, 0});
    for (size_t i = own_bands; i < order.size(); ++i) out.bands.back().at_peak += at_peak[order[i]];
  }

  // Then a column at a time: the moment in it when most was live, which may be its beginning.
  Sites again(trace);
  size_t next_failure = 0;
  for (size_t i = 0, column = 0; column < columns; ++column) {
    Bytes most = 0;
    bool first = true;
    const auto look = [&] {
      if (!first && again.total() <= most) return;
      first = false;
      most = again.total();
      for (model::MemoryBand& band : out.bands) band.bytes[column] = 0;
      for (const size_t site : order) out.bands[band_of[site]].bytes[column] += again.live()[site];
    };
    look();
    for (; i < trace.ops.size() && column_of(i) == column; ++i) {
      for (; next_failure < trace.failures.size() && trace.failures[next_failure].op <= i;
           ++next_failure) {
        const Trace::Failure& f = trace.failures[next_failure];
        out.failures.push_back({column, f.size, again.total(), f.site});
      }
      if (trace.ops[i].kind == Op::kMark && (out.steps.empty() || out.steps.back() != column))
        out.steps.push_back(column);
      again.apply(trace.ops[i]);
      if (trace.ops[i].kind == Op::kAllocate) look();
    }
    if (card > 0 && most > card && !out.beyond_the_card) out.beyond_the_card = column;
  }
  for (; next_failure < trace.failures.size(); ++next_failure) {
    const Trace::Failure& f = trace.failures[next_failure];
    out.failures.push_back({columns - 1, f.size, again.total(), f.site});
  }
  for (model::MemoryBand& band : out.bands)
    band.peak = std::max(band.peak, *std::max_element(band.bytes.begin(), band.bytes.end()));
  return out;
}

}  // namespace flatout::devmem
