#include "devmem/sim_driver.h"

#include <algorithm>
#include <numeric>

namespace flatout::devmem {

SimDriver::SimDriver(Bytes capacity, CostTable costs) : capacity_(capacity), costs_(costs) {}

void SimDriver::count(Call kind, uint64_t times_priced) {
  ++calls_[static_cast<int>(kind)];
  cost_ns_ += costs_.ns[static_cast<int>(kind)] * times_priced;
}

uint64_t SimDriver::calls() const {
  return std::accumulate(std::begin(calls_), std::end(calls_), uint64_t{0});
}

Status SimDriver::take(Bytes size) {
  const bool fault = fault_in_ > 0 && --fault_in_ == 0;
  if (fault || size > capacity_ - used_) return Error{Code::kFull, "the device is full", ""};
  used_ += size;
  peak_ = std::max(peak_, used_);
  return {};
}

Address SimDriver::next_address(Bytes size) {
  const Address address = next_;
  next_ += round_up(size, kPageBytes);
  return address;
}

Result<Address> SimDriver::allocate(Bytes size) {
  count(Call::kAllocate);
  FLATOUT_CHECK(size > 0);
  FLATOUT_TRY_STATUS(take(size));
  const Address address = next_address(size);
  allocations_.emplace(address, size);
  return address;
}

void SimDriver::free(Address address) {
  count(Call::kFree);
  const auto it = allocations_.find(address);
  FLATOUT_CHECK(it != allocations_.end());
  used_ -= it->second;
  allocations_.erase(it);
}

Result<Address> SimDriver::reserve(Bytes size) {
  count(Call::kReserve);
  FLATOUT_CHECK(size > 0 && size % kPageBytes == 0);
  const Address address = next_address(size);
  reservations_.emplace(address, size);
  return address;
}

void SimDriver::unreserve(Address address) {
  count(Call::kUnreserve);
  const auto it = reservations_.find(address);
  FLATOUT_CHECK(it != reservations_.end());
  const auto mapping = mappings_.lower_bound(address);
  FLATOUT_CHECK(mapping == mappings_.end() || mapping->first >= address + it->second);
  reservations_.erase(it);
}

Result<Handle> SimDriver::create(Bytes size) {
  count(Call::kCreate);
  FLATOUT_CHECK(size > 0 && size % kPageBytes == 0);
  FLATOUT_TRY_STATUS(take(size));
  physical_.emplace(++last_handle_, Physical{size, 0});
  return last_handle_;
}

void SimDriver::release(Handle handle) {
  count(Call::kRelease);
  const auto it = physical_.find(handle);
  FLATOUT_CHECK(it != physical_.end() && it->second.mapped == 0);
  used_ -= it->second.size;
  physical_.erase(it);
}

void SimDriver::map(Address address, Handle handle) {
  count(Call::kMap);
  const auto physical = physical_.find(handle);
  FLATOUT_CHECK(physical != physical_.end());
  const Bytes size = physical->second.size;
  auto range = reservations_.upper_bound(address);
  FLATOUT_CHECK(range != reservations_.begin());
  --range;
  FLATOUT_CHECK(address % kPageBytes == 0 && address + size <= range->first + range->second);
  const auto next = mappings_.lower_bound(address);
  FLATOUT_CHECK(next == mappings_.end() || next->first >= address + size);
  FLATOUT_CHECK(next == mappings_.begin() ||
                std::prev(next)->first + std::prev(next)->second.size <= address);
  ++physical->second.mapped;
  mappings_.emplace(address, Mapping{size, handle, false});
}

void SimDriver::set_access(Address address, Bytes size) {
  uint64_t handles = 0;
  const Address end = address + size;
  for (auto it = mappings_.find(address); address < end; ++it, ++handles) {
    FLATOUT_CHECK(it != mappings_.end() && it->first == address);
    it->second.access = true;
    address += it->second.size;
  }
  FLATOUT_CHECK(address == end);
  count(Call::kSetAccess, handles);
}

void SimDriver::unmap(Address address) {
  count(Call::kUnmap);
  const auto it = mappings_.find(address);
  FLATOUT_CHECK(it != mappings_.end());
  --physical_.at(it->second.handle).mapped;
  mappings_.erase(it);
}

// Memory that the stream has freed serves it at once; here that shows only on a full device.
Result<Address> SimDriver::allocate_async(Bytes size, Stream stream) {
  count(Call::kAllocateAsync);
  FLATOUT_CHECK(size > 0);
  Status taken = take(size);
  if (!taken.ok() && !streams_[stream].frees.empty()) {
    finish(stream);
    taken = take(size);
  }
  if (!taken.ok()) return taken.error();
  const Address address = next_address(size);
  async_.emplace(address, size);
  return address;
}

void SimDriver::free_async(Address address, Stream stream) {
  count(Call::kFreeAsync);
  FLATOUT_CHECK(async_.contains(address));
  Work& work = streams_[stream];
  FLATOUT_CHECK(std::find(work.frees.begin(), work.frees.end(), address) == work.frees.end());
  work.frees.push_back(address);
  if (work.done == work.queued) finish(stream);
}

void SimDriver::finish(Stream stream) {
  Work& work = streams_[stream];
  work.done = work.queued;
  for (const Address address : work.frees) {
    const auto it = async_.find(address);
    used_ -= it->second;
    async_.erase(it);
  }
  work.frees.clear();
}

// Nothing is known of such a stream: all of the device is waited for.
void SimDriver::wait_if_destroyed(Stream stream) {
  if (!destroyed_.contains(stream)) return;
  for (const auto& [each, work] : streams_) finish(each);
}

void SimDriver::synchronize(Stream stream) {
  count(Call::kSynchronize);
  FLATOUT_CHECK(!is_capturing(stream));
  wait_if_destroyed(stream);
  finish(stream);
}

Event SimDriver::record(Stream stream) {
  count(Call::kEvent);
  FLATOUT_CHECK(!is_capturing(stream));
  wait_if_destroyed(stream);
  events_.emplace(++last_event_, Point{stream, streams_[stream].queued});
  return last_event_;
}

bool SimDriver::is_done(Event event) {
  count(Call::kEvent);
  const Point& point = events_.at(event);
  return streams_[point.stream].done >= point.after;
}

void SimDriver::wait(Event event) {
  count(Call::kEvent);
  const Point& point = events_.at(event);
  Work& work = streams_[point.stream];
  if (work.done < point.after) finish(point.stream);
}

void SimDriver::forget(Event event) {
  count(Call::kEvent);
  FLATOUT_CHECK(events_.erase(event) == 1);
}

bool SimDriver::accessible(Address address, Bytes size) const {
  if (auto plain = allocations_.upper_bound(address); plain != allocations_.begin()) {
    --plain;
    if (address + size <= plain->first + plain->second) return true;
  }
  if (auto async = async_.upper_bound(address); async != async_.begin()) {
    --async;
    if (address + size <= async->first + async->second) return true;
  }
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return false;
  --it;
  for (Address at = it->first; at < address + size; ++it) {
    if (it == mappings_.end() || it->first != at || !it->second.access) return false;
    at += it->second.size;
  }
  return true;
}

std::pair<Handle, Bytes> SimDriver::behind(Address address) const {
  const auto after = mappings_.upper_bound(address);
  FLATOUT_CHECK(after != mappings_.begin());
  const auto& [begin, mapping] = *std::prev(after);
  FLATOUT_CHECK(address - begin < mapping.size);
  return {mapping.handle, address - begin};
}

}  // namespace flatout::devmem
