#include "diagnose/allocator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::SignalId;

namespace {

// Part of the time in malloc that threads wait for its lock, from which they contend; and how much
// of the rest goes with it: a line of the cache that comes from another core is slow, too.
constexpr double kContended = 0.1, kGoesToo = 3.0;
// Part of that time that is other threads' than the training thread's, at least.
constexpr double kOthers = 0.2;
// Part of the producers' time from which on they are held up.
constexpr double kHeldUp = 0.3;
// What the kernel takes for a fault of a page at most.
constexpr double kFaultSeconds = 2e-6;

bool waits_inside(const Cell& c) {
  return in_allocator(c) && (c.act == Act::kLock || c.act == Act::kKernel);
}

}  // namespace

bool in_allocator(const Cell& c) {
  return (c.traits & kInMalloc) != 0 && (c.act == Act::kLock || on_cpu(c.act));
}

double malloc_contention(const RunView& view) {
  if (view.readings(waits_inside) < kFewReadings) return 0;
  const double inside = view.profile().seconds(in_allocator);
  // A process's threads wait for each other; of a loader's processes each has one.
  const bool threads = view.loader().kind == LoaderKind::kThreads;
  const double others = view.profile().seconds([&](const Cell& c) {
    return c.role != Role::kTrainer && (c.role != Role::kProducer || threads) && in_allocator(c);
  });
  if (others < kOthers * inside) return 0;
  // In the kernel there is the lock's own call, but also what asks for memory and faults it in.
  double waits = view.profile().seconds(waits_inside);
  waits -= kFaultSeconds *
           view.process_increase(SignalId::kProcMinorFaults, [](model::ProcessId) { return true; });
  const double contended = waits / inside;
  return contended < kContended ? 0 : std::min(1.0, kGoesToo * contended);
}

void detect_allocator(const RunView& view, Findings& findings) {
  const double contended = malloc_contention(view);
  if (contended <= 0) return;
  // The part of what threads of some roles do that would not be without it.
  const auto share_of = [&](auto&& role_is) {
    const auto works = [&](const Cell& c) {
      return role_is(c) && (on_cpu(c.act) || c.act == Act::kRunQueue || in_allocator(c));
    };
    const double all = view.profile().seconds(works);
    const double there =
        view.profile().seconds([&](const Cell& c) { return works(c) && in_allocator(c); });
    return all > 0 ? there / all * contended : 0.0;
  };
  const double helpers =
      share_of([](const Cell& c) { return c.role == Role::kHelper || c.role == Role::kPool; });
  const double producers = share_of(
      [](const Cell& c) { return c.role == Role::kProducer || c.role == Role::kProducerPool; });
  const double own = view.per_step(Role::kTrainer, in_allocator) * contended;
  // The training thread waits for the helpers that work for it.
  const double joined = view.per_step(Role::kTrainer, [](const Cell& c) {
    return !in_allocator(c) && (c.act == Act::kLock || c.act == Act::kPoll);
  });
  const bool produced = view.loader().batches > 0 && view.loader().kind != LoaderKind::kSerial;
  double saved = own + joined * helpers;
  if (produced) {
    const LoaderView& loader = view.loader();
    const double cpu = view.cpu().producers * view.seconds() / static_cast<double>(loader.batches);
    saved = WhatIf(view).saved_by({.fetch = loader.fetch * producers,
                                   .fetch_cpu = cpu * producers,
                                   .trainer = own,
                                   .trainer_cpu = own});
  }
  model::Finding* f = findings.add("mem.allocator", "Threads contend in malloc", 0.8, saved);
  if (f == nullptr) return;
  // What the samples themselves take cannot be told while their threads hold each other up.
  if (producers > kHeldUp) findings.drop("input.decode_cpu");
  f->where = view.where(in_allocator);
  const double waits = view.profile().seconds(waits_inside) / view.profile().seconds(in_allocator);
  evidence(
      *f,
      fmt::format("{} of the time that threads spend in malloc and free they wait for its lock",
                  format_percent(waits)),
      waits, "ratio", "stacks", view.readings(waits_inside));
  const double share = produced ? producers : helpers;
  evidence(*f, fmt::format("without that they would be done {} sooner", format_percent(share)),
           share, "ratio", "stacks", view.readings(in_allocator));
  remedy(*f, "allocator", "Preload an allocator with caches per thread.");
  remedy(*f, "arenas", "Where MALLOC_ARENA_MAX is set, raise it or take it away.");
}

}  // namespace flatout::diagnose
