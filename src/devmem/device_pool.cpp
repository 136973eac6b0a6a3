#include "devmem/device_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "base/output.h"
#include "base/size_text.h"
#include "base/text.h"
#include "devmem/call_site.h"

namespace flatout::devmem {
namespace {

// TensorFlow's arenas serve one stream: what is freed may be used on any other at once.
bool minds_streams(std::string_view policy) { return !policy.starts_with("tf_"); }

constexpr size_t kMostGone = 100'000;
constexpr int kMostSaid = 100;

}  // namespace

Result<std::unique_ptr<DevicePool>> DevicePool::open(std::shared_ptr<Card> card,
                                                     PoolOptions options) {
  options.sites |= options.debug;
  std::unique_ptr<DevicePool> pool(new DevicePool(std::move(card), std::move(options)));
  const PoolOptions& o = pool->options_;
  if (!minds_streams(o.policy))
    return Error{
        Code::kBadInput,
        fmt::format("the policy '{}' is for replay: it takes no care of streams", o.policy),
        "arena, torch or torch_expandable"};
  auto policy = make_policy(o.policy, pool->meter_, pool->meter_.limit());
  if (!policy.ok())
    return Error{Code::kBadInput, policy.error().message, "arena, torch or torch_expandable"};
  pool->policy_ = std::move(*policy);
  if (!o.record_to.empty()) FLATOUT_TRY_STATUS(pool->recording_.write_to(o.record_to));

  const Lock lock(pool->card_->mutex_);
  Bytes sum = o.limit;
  for (const DevicePool* other : pool->card_->pools_) sum += other->options_.limit;
  const Bytes total = pool->card_->driver().total_bytes();
  if (sum > total)
    return Error{Code::kBadInput,
                 fmt::format("the limits of {}'s pools add up to {}, and it has {}", o.name,
                             size_text(sum), size_text(total)),
                 "choose smaller ones"};
  pool->card_->pools_.push_back(pool.get());
  return pool;
}

DevicePool::DevicePool(std::shared_ptr<Card> card, PoolOptions options)
    : card_(std::move(card)),
      options_(std::move(options)),
      meter_(card_->driver(), options_.limit > 0 ? options_.limit : card_->driver().total_bytes()),
      recording_(options_.name, options_.kept) {}

DevicePool::~DevicePool() {
  const Lock lock(card_->mutex_);
  if (policy_ == nullptr) return;
  std::erase(card_->pools_, this);
  give_back();
  if (options_.debug && !blocks_.empty()) {
    const auto& [address, block] = *blocks_.begin();
    say(fmt::format("{} blocks with {} were never freed, one of them {:#x} with {} bytes{}",
                    blocks_.size(), size_text(stats_.live), address, block.size, at(block.site)));
  }
  policy_.reset();
}

std::string DevicePool::site_of(const void* caller) const {
  return options_.sites ? call_site(caller) : std::string();
}

std::string DevicePool::at(uint32_t site) const {
  return site == 0 ? "" : ", allocated at " + recording_.site_text(site);
}

void DevicePool::say(const std::string& text) {
  if (said_++ < kMostSaid) log_warning("devmem: " + escape_terminal(text));
  if (options_.abort) {
    recording_.flush();
    std::abort();
  }
}

// Frees what other streams are done with; with `wait`, all of it.
void DevicePool::collect(bool wait) {
  for (auto& [stream, queue] : waiting_) {
    while (!queue.empty()) {
      auto& [event, block] = queue.front();
      if (wait) {
        meter_.wait(event);
      } else if (!meter_.is_done(event)) {
        break;  // nor are the later ones
      }
      meter_.forget(event);
      if (--block->events == 0) {
        stats_.waiting -= block->size;
        FLATOUT_CHECK(policy_->free(block->address).ok());
      }
      queue.pop_front();
    }
  }
}

void DevicePool::give_back() {
  collect(true);
  policy_->trim();
}

Result<Address> DevicePool::find(Bytes size, Stream stream) {
  if (size > meter_.limit()) return Error{Code::kFull, "more than the pool may ever have", ""};
  if (stats_.waiting > 0) collect(false);
  auto got = policy_->allocate(size, stream);
  if (!got.ok() && stats_.waiting > 0) {
    collect(true);
    got = policy_->allocate(size, stream);
  }
  if (got.ok()) return got;
  // What lies idle here may be in pieces, and what lies idle in the other pools is not ours.
  for (DevicePool* pool : card_->pools_) pool->give_back();
  return policy_->allocate(size, stream);
}

// In the words of PyTorch's own message, which users, frameworks and `flatout devmem explain` know.
Error DevicePool::full(Bytes size) {
  give_back();
  const Bytes held = meter_.reserved(), idle = held - std::min(held, stats_.live);
  const std::string allowed =
      options_.limit > 0 ? fmt::format("{} allowed; ", size_text(meter_.limit())) : "";
  return {Code::kFull,
          fmt::format("CUDA out of memory. Tried to allocate {}. {} has a total capacity of {} of "
                      "which {} is free. {}Flatout's {} holds {}, of which {} is allocated by {}, "
                      "and {} is reserved by {} but unallocated, {} of it in one piece.",
                      size_text(size), options_.name, size_text(meter_.total_bytes()),
                      size_text(meter_.free_bytes()), allowed, options_.policy, size_text(held),
                      size_text(stats_.live), options_.user, size_text(idle), options_.user,
                      size_text(policy_->stats().largest_free)),
          ""};
}

Result<Address> DevicePool::allocate(Bytes size, Stream stream, const void* caller) {
  const std::string where = site_of(caller);
  const Lock lock(card_->mutex_);
  const uint32_t site = recording_.site(where);
  if (meter_.is_capturing(stream))
    return Error{Code::kUnsupported,
                 "a CUDA graph is being captured, and Flatout's pools give no memory to graphs",
                 "capture it before flatout.devmem.install(), or without it"};
  auto got = find(size, stream);
  if (const Status health = meter_.health(); !health.ok()) return health.error();
  if (!got.ok()) {
    ++stats_.refused;
    recording_.refused(size, stream, site);
    return full(size);
  }
  Block block;
  block.id = ++stats_.allocations;
  block.size = size;
  block.stream = stream;
  block.site = site;
  recording_.allocated(block);
  if (options_.debug) gone_.erase(*got);
  stats_.live += size;
  stats_.allocated_total += size;
  stats_.peak_live = std::max(stats_.peak_live, stats_.live);
  blocks_[*got] = std::move(block);
  return got;
}

Status DevicePool::unknown(Address address, uint32_t site) {
  const std::string here = site == 0 ? "" : " at " + recording_.site_text(site);
  std::string text;
  if (const auto gone = gone_.find(address); gone != gone_.end()) {
    const auto& [size, allocated, freed, number] = gone->second;
    text = fmt::format("double free of {:#x} ({} bytes){}: it was freed at {} before{}", address,
                       size, here, recording_.site_text(freed), at(allocated));
  } else {
    text = fmt::format("free of {:#x}{}: no block begins there", address, here);
    for (const auto& [begin, block] : blocks_) {
      if (address <= begin || address >= begin + block.size) continue;
      text += fmt::format("; it lies {} bytes within {:#x} ({} bytes){}", address - begin, begin,
                          block.size, at(block.site));
    }
  }
  if (options_.debug) say(text);
  return Error{Code::kBadInput, text,
               options_.debug ? "" : "FLATOUT_DEVMEM_DEBUG=1 names the call sites"};
}

void DevicePool::check_free(Address address, const Block& block, std::optional<Bytes> size,
                            std::optional<Stream> stream, uint32_t site) {
  const std::string here = site == 0 ? "" : " at " + recording_.site_text(site);
  if (size && *size != block.size)
    say(fmt::format("free of {:#x}{} with {} bytes, and it has {}{}", address, here, *size,
                    block.size, at(block.site)));
  if (stream && *stream != block.stream &&
      std::find(block.used_on.begin(), block.used_on.end(), *stream) == block.used_on.end())
    say(fmt::format(
        "free of {:#x}{} on stream {:#x}, and it is for stream {:#x}, and record_stream() "
        "has named no other{}",
        address, here, *stream, block.stream, at(block.site)));
}

Status DevicePool::free(Address address, std::optional<Bytes> size, std::optional<Stream> stream,
                        const void* caller) {
  const std::string where = site_of(caller);
  const Lock lock(card_->mutex_);
  const uint32_t site = recording_.site(where);
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return unknown(address, site);
  Block& block = it->second;
  if (options_.debug) {
    check_free(address, block, size, stream, site);
    gone_[address] = {block.size, block.site, site, stats_.frees};
    gone_order_.emplace_back(address, stats_.frees);
    if (gone_order_.size() > kMostGone) {
      const auto [oldest, number] = gone_order_.front();
      const auto gone = gone_.find(oldest);
      if (gone != gone_.end() && gone->second.number == number) gone_.erase(gone);
      gone_order_.pop_front();
    }
  }
  recording_.freed(block);
  ++stats_.frees;
  stats_.live -= block.size;
  stats_.freed_total += block.size;
  std::vector<Stream> others = std::move(block.used_on);
  if (stream && *stream != block.stream &&
      std::find(others.begin(), others.end(), *stream) == others.end())
    others.push_back(*stream);
  const Bytes bytes = block.size;
  blocks_.erase(it);
  if (others.empty()) {
    FLATOUT_CHECK(policy_->free(address).ok());
    return {};
  }
  const auto waits = std::make_shared<Waiting>(Waiting{address, bytes, others.size()});
  stats_.waiting += bytes;
  // No event can be had of a stream that a graph is captured from, and the graph may use the block
  // at any time: it is kept for good.
  for (const Stream other : others)
    if (!meter_.is_capturing(other)) waiting_[other].emplace_back(meter_.record(other), waits);
  return {};
}

Status DevicePool::use_on(Address address, Stream stream) {
  const Lock lock(card_->mutex_);
  const auto it = blocks_.find(address);
  if (it == blocks_.end())
    return Error{Code::kBadInput, fmt::format("{:#x} is no live block", address), ""};
  Block& block = it->second;
  if (stream != block.stream &&
      std::find(block.used_on.begin(), block.used_on.end(), stream) == block.used_on.end())
    block.used_on.push_back(stream);
  return {};
}

bool DevicePool::holds(Address address) {
  const Lock lock(card_->mutex_);
  return blocks_.contains(address);
}

void DevicePool::trim() {
  const Lock lock(card_->mutex_);
  give_back();
}

PoolStats DevicePool::stats() {
  const Lock lock(card_->mutex_);
  PoolStats out = stats_;
  out.reserved = meter_.reserved();
  out.peak_reserved = meter_.peak_reserved();
  out.limit = meter_.limit();
  out.largest_free = policy_->stats().largest_free;
  out.blocks = blocks_.size();
  out.driver_calls = meter_.calls();
  out.device_free = meter_.free_bytes();
  out.device_total = meter_.total_bytes();
  return out;
}

void DevicePool::reset_peaks() {
  const Lock lock(card_->mutex_);
  stats_.peak_live = stats_.live;
  meter_.reset_peak();
}

Status DevicePool::snapshot(const std::string& path) {
  std::string lines;
  {
    const Lock lock(card_->mutex_);
    std::vector<RecordedBlock> live;
    for (const auto& [address, block] : blocks_) live.push_back(block);
    lines = recording_.lines(std::move(live));
  }
  return fs::write_output(path, lines);
}

void DevicePool::flush() {
  const Lock lock(card_->mutex_);
  recording_.flush();
}

}  // namespace flatout::devmem
