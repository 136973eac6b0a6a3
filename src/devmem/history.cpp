#include "devmem/history.h"

#include <algorithm>
#include <numeric>

namespace flatout::devmem {
namespace {

// Live bytes op by op, of each group of sites.
class Live {
 public:
  Live(const Trace& trace, const std::vector<size_t>& group_of_site, size_t groups)
      : trace_(trace), group_of_(group_of_site), live_(groups, 0), sizes_(trace.blocks, 0) {}

  void apply(const Op& op) {
    if (op.kind == Op::kMark) return;
    Bytes& group = live_[group_of_[trace_.site_of[op.block]]];
    if (op.kind == Op::kAllocate) {
      sizes_[op.block] = op.size;
      group += op.size;
      total_ += op.size;
    } else {
      group -= sizes_[op.block];
      total_ -= sizes_[op.block];
    }
  }
  const std::vector<Bytes>& groups() const { return live_; }
  Bytes total() const { return total_; }

 private:
  const Trace& trace_;
  const std::vector<size_t>& group_of_;
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

  // First who is worth a band of its own: the largest at the peak, then by their own peaks. There
  // may be as many sites as operations, so that nothing is done for all of them at each.
  std::vector<size_t> order(trace.sites.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const std::vector<size_t> itself = order;
  Live sites(trace, itself, itself.size());
  std::vector<Bytes> own_peak(trace.sites.size(), 0);
  size_t peak_end = 0;  // behind the operation that made it
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    sites.apply(trace.ops[i]);
    if (trace.ops[i].kind != Op::kAllocate) continue;
    const uint32_t site = trace.site_of[trace.ops[i].block];
    own_peak[site] = std::max(own_peak[site], sites.groups()[site]);
    if (sites.total() <= out.peak) continue;
    out.peak = sites.total();
    out.peak_column = column_of(i);
    peak_end = i + 1;
  }
  Live until_peak(trace, itself, itself.size());
  for (size_t i = 0; i < peak_end; ++i) until_peak.apply(trace.ops[i]);
  const std::vector<Bytes>& at_peak = until_peak.groups();
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
  Live again(trace, band_of, out.bands.size() + 1);  // + 1: of sites that never had anything
  size_t next_failure = 0;
  for (size_t i = 0, column = 0; column < columns; ++column) {
    Bytes most = 0;
    bool first = true;
    const auto look = [&] {
      if (!first && again.total() <= most) return;
      first = false;
      most = again.total();
      for (size_t band = 0; band < out.bands.size(); ++band)
        out.bands[band].bytes[column] = again.groups()[band];
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
