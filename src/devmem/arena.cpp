#include "devmem/arena.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace flatout::devmem {
namespace {

// Each half of the range is this many times what may be mapped: after a trim() what is asked for
// may find room at its end only, until gaps between are filled again.
constexpr uint64_t kRangeFactor = 4;

// Of larger requests, how large is what a page's end or begin leaves idle comes to matter.
constexpr bool is_small(Bytes size) { return size <= kPageBytes / 8; }

// How large one handle gets. Of small ones more are wholly free, and they cost more calls
// (docs/devmem.md has the trade-off). Handles of a device that fills up become pages: what lies
// idle between live blocks can then be joined when it is full, and calls no longer matter.
Bytes largest_handle(Bytes reserved, Bytes needed, Bytes left) {
  const Bytes most = std::max(8 * kPageBytes, reserved / 512);
  const Bytes size = std::min({std::max(reserved / 48, needed / 8), most, left / 1024});
  return std::max(size / kPageBytes * kPageBytes, kPageBytes);
}

// On credit are so many waits for a stream, and so many mappings by views for each page that was
// asked for.
constexpr int kMostWaits = 2;
constexpr size_t kMappingsPerPage = 4;

// Views that are not live are dropped where all of them map so many times the handles there are.
constexpr size_t kMostMapped = 16;

}  // namespace

Arena::~Arena() {
  if (base_ == 0) return;
  for (const auto& [chunk, view] : views_) unmap(view);
  for (const auto& [address, mapping] : mappings_) {
    driver_.unmap(address);
    driver_.release(mapping.handle);
  }
  driver_.unreserve(base_);
}

Arena::Chunk* Arena::Lane::find(Bytes size) const {
  Chunk* hole = (is_small(size) ? upper : lower).find(size);
  return hole ? hole : (is_small(size) ? lower : upper).find(size);
}

Arena::Chunk* Arena::cut(Chunk* chunk, Bytes size) {
  Chunk* rest = chunks_.make();
  *rest = *chunk;
  rest->address += size;
  rest->size -= size;
  rest->prev = chunk;
  if (rest->next) rest->next->prev = rest;
  chunk->next = rest;
  chunk->size = size;
  return rest;
}

void Arena::drop(Chunk* chunk) {
  if (chunk->prev) chunk->prev->next = chunk->next;
  if (chunk->next) chunk->next->prev = chunk->prev;
  chunks_.drop(chunk);
}

void Arena::put_free(Chunk* chunk) {
  HoleTree<Chunk>& holes = holes_of(chunk);
  const auto same = [&](const Chunk* c) {
    return c && c->state == State::kFree && c->lane == chunk->lane;
  };
  Chunk *prev = chunk->prev, *next = chunk->next;
  if (same(prev)) {
    Bytes size = prev->size + chunk->size;
    if (same(next)) {
      size += next->size;
      holes.erase(next);
      drop(next);
    }
    drop(chunk);
    holes.resize(prev, prev->address, size);
  } else if (same(next)) {
    const Address address = chunk->address;
    const Bytes size = chunk->size + next->size;
    drop(chunk);
    holes.resize(next, address, size);
  } else {
    chunk->state = State::kFree;
    holes.insert(chunk);
  }
}

void Arena::put_gap(Chunk* chunk) {
  chunk->state = State::kGap;
  if (Chunk* next = chunk->next; next && next->state == State::kGap) {
    gaps_.erase(next->address);
    chunk->size += next->size;
    drop(next);
  }
  if (Chunk* prev = chunk->prev; prev && prev->state == State::kGap) {
    prev->size += chunk->size;
    drop(chunk);
    return;
  }
  gaps_.emplace(chunk->address, chunk);
}

uint32_t Arena::lane_of(Stream stream) {
  const auto [it, fresh] = lane_by_stream_.try_emplace(stream, lanes_.size());
  if (fresh) lanes_.push_back({stream, {}, {}});
  return it->second;
}

// The live chunk of that size at the hole's begin.
Arena::Chunk* Arena::take(Chunk* hole, Bytes size, uint32_t lane) {
  Chunk* chunk = hole;
  if (hole->size == size) {
    holes_of(hole).erase(hole);
  } else {
    chunk = chunks_.make();
    chunk->address = hole->address;
    chunk->size = size;
    chunk->prev = hole->prev;
    chunk->next = hole;
    if (hole->prev) hole->prev->next = chunk;
    hole->prev = chunk;
    holes_of(hole).resize(hole, hole->address + size, hole->size - size);
  }
  chunk->state = State::kLive;
  chunk->lane = lane;
  return chunk;
}

// [begin, begin + size) of a hole of the lane, in no set.
Arena::Chunk* Arena::take_at(Address begin, Bytes size, uint32_t lane) {
  HoleTree<Chunk>& holes = holes_at(lane, begin);
  Chunk* chunk = holes.at(begin);
  holes.erase(chunk);
  if (begin > chunk->address) {
    Chunk* before = chunk;
    chunk = cut(before, begin - before->address);
    holes.insert(before);
  }
  if (chunk->size > size) holes.insert(cut(chunk, size));
  return chunk;
}

// The lowest hole among what other streams freed, in the half for this size if there is one, after
// waiting for the stream that did.
Arena::Chunk* Arena::adopt(Bytes size, uint32_t lane) {
  const auto order = [&](const Chunk* hole) {
    return std::pair(is_small(size) != (hole->address >= middle_), hole->address);
  };
  Chunk* lowest = nullptr;
  for (const Lane& other : lanes_) {
    if (&other == &lanes_[lane]) continue;
    Chunk* hole = other.find(size);
    if (hole && (!lowest || order(hole) < order(lowest))) lowest = hole;
  }
  if (lowest) driver_.synchronize(lanes_[lowest->lane].stream);
  return lowest;
}

// Waits for all streams: what any of them freed is then this lane's, and merges.
void Arena::settle(uint32_t lane) {
  std::vector<Chunk*> others;
  for (Lane& other : lanes_) {
    if (&other == &lanes_[lane] || other.empty()) continue;
    driver_.synchronize(other.stream);
    for (HoleTree<Chunk>* holes : {&other.lower, &other.upper}) {
      holes->each(1, [&](Chunk* hole) { others.push_back(hole); });
      holes->clear();
    }
  }
  for (Chunk* chunk : others) {
    chunk->lane = lane;
    chunk->state = State::kLive;  // in no set: what is not put yet must not merge
  }
  for (Chunk* chunk : others) put_free(chunk);
}

Status Arena::open_range() {
  const Bytes half = round_up(std::min(limit_, driver_.total_bytes()), kPageBytes) * kRangeFactor;
  FLATOUT_TRY(base_, driver_.reserve(2 * half + kPageBytes));
  Chunk* lower = chunks_.make();
  lower->address = base_;
  lower->size = 2 * half + kPageBytes;
  Chunk* middle = cut(lower, half);
  Chunk* upper = cut(middle, kPageBytes);
  middle_ = upper->address;
  middle->state = State::kMiddle;
  put_gap(lower);
  put_gap(upper);
  return {};
}

// Of the runs of gaps and holes in the half for this size that are long enough the one that needs
// the least new memory, the lowest of equal ones.
Arena::Site Arena::choose_site(Bytes size, uint32_t lane) const {
  const auto is_hole = [&](const Chunk* c) { return c->state == State::kFree && c->lane == lane; };
  Site best;
  for (const auto& [address, gap] : gaps_) {
    if (is_small(size) != (address >= middle_)) continue;
    const Chunk* first = gap->prev && is_hole(gap->prev) ? gap->prev : gap;
    Site site{first->address, first->address + size, 0};
    Address at = first->address;
    for (const Chunk* c = first; c && at < site.end; c = c->next) {
      if (c->state == State::kGap) {
        site.missing += std::min(round_up(site.end - at, kPageBytes), c->size);
      } else if (!is_hole(c)) {
        break;
      }
      at = c->address + c->size;
    }
    if (at >= site.end && (best.end == 0 || site.missing < best.missing)) best = site;
  }
  return best;
}

// Maps the handle where a gap begins.
void Arena::map_at(Address address, Handle handle, Bytes size, uint32_t lane) {
  driver_.map(address, handle);
  mappings_.emplace(address, Mapping{handle, size});
  reserved_ += size;
  const auto gap = gaps_.find(address);
  Chunk* chunk = gap->second;
  gaps_.erase(gap);
  if (chunk->size > size) {
    Chunk* rest = cut(chunk, size);
    gaps_.emplace(rest->address, rest);
  }
  chunk->lane = lane;
  put_free(chunk);
}

// Maps so much new memory, whole pages, from the begin of a gap on. What it came to: less where the
// device is full.
Bytes Arena::ask_for(Address gap, Bytes needed, uint32_t lane) {
  const Bytes allowed = (limit_ - std::min(limit_, reserved_)) / kPageBytes * kPageBytes;
  const Bytes largest = largest_handle(reserved_, needed, std::min(allowed, driver_.free_bytes()));
  const Bytes wanted = std::min(needed, allowed);
  Bytes got = 0;
  while (got < wanted) {
    const Bytes bytes = std::min(wanted - got, largest);
    const auto handle = driver_.create(bytes);
    if (!handle.ok()) break;
    map_at(gap + got, *handle, bytes, lane);
    mappings_left_ += kMappingsPerPage * (bytes / kPageBytes);
    got += bytes;
  }
  if (got == 0) return 0;
  driver_.set_access(gap, got);
  waits_ = std::min(waits_ + 1, kMostWaits);
  return got;
}

// False: the device is full; what was mapped stays as a hole.
bool Arena::grow(const Site& site, uint32_t lane) {
  const Address end = round_up(site.end, kPageBytes);
  for (auto gap = gaps_.lower_bound(site.begin); gap != gaps_.end() && gap->first < site.end;
       gap = gaps_.lower_bound(site.begin)) {
    const Bytes needed = std::min(end - gap->first, gap->second->size);
    if (ask_for(gap->first, needed, lane) < needed) return false;
  }
  return true;
}

Arena::FreeParts Arena::free_parts(uint32_t lane) const {
  FreeParts parts;
  for (const auto& [address, mapping] : mappings_) {
    const Address end = address + mapping.size;
    const Chunk *first = hole_at(lane, address), *last = hole_at(lane, end - 1);
    Piece piece{address, mapping.size, address, mapping.size};
    if (first != nullptr && first == last) {
      parts.whole.push_back(piece);
      continue;
    }
    if (first) {
      piece.size = first->address + first->size - address;
      parts.begins.push_back(piece);
    }
    if (last) {
      piece.begin = last->address;
      piece.size = end - last->address;
      parts.ends.push_back(piece);
    }
  }
  for (std::vector<Piece>* pieces : {&parts.whole, &parts.ends, &parts.begins})
    std::stable_sort(pieces->begin(), pieces->end(),
                     [](const Piece& a, const Piece& b) { return a.size < b.size; });
  return parts;
}

// The view of that size that needs the least new memory, and breaks few bytes of wholly free
// handles: what the largest end and begin don't come to is met by whole ones, the largest first,
// and the smallest larger one for what remains, or the smallest that is large enough alone; an end
// before and a begin behind them make up the rest.
Arena::Plan Arena::plan_view(Bytes size, const FreeParts& parts) {
  const auto largest = [](const std::vector<Piece>& pieces) {
    return pieces.empty() ? 0 : pieces.back().size;
  };
  Plan plan;
  Bytes left = size;
  const auto add = [&](Piece piece) {
    plan.broken += piece.size;
    piece.size = std::min(piece.size, left);
    left -= piece.size;
    plan.pieces.push_back(piece);
  };
  const Bytes pair = largest(parts.ends) + largest(parts.begins);
  Bytes whole = size > pair ? round_up(size - pair, kPageBytes) : 0;
  const Piece *larger = nullptr, *alone = nullptr;
  for (auto piece = parts.whole.rbegin(); whole > 0 && piece != parts.whole.rend(); ++piece) {
    if (piece->size > whole) {
      larger = &*piece;
      if (plan.pieces.empty()) alone = larger;
      continue;
    }
    whole -= piece->size;
    add(*piece);
  }
  if (whole > 0 && larger != nullptr) {
    if (alone && alone->size <= plan.broken + larger->size) {
      plan = {};
      left = size;
      larger = alone;
    }
    whole = 0;
    add(*larger);
  }
  plan.missing = whole;
  left -= std::min(left, whole);
  if (left > 0) add_pair(plan, left, parts);
  return plan;
}

// The end and the begin, or one of them, that have the least to spare over what is left.
void Arena::add_pair(Plan& plan, Bytes left, const FreeParts& parts) {
  const Piece *end = nullptr, *begin = nullptr;
  Bytes spare = ~Bytes{0};
  const auto consider = [&](const Piece* one) {
    const Bytes has = one ? one->size : 0;
    const Piece* other = nullptr;
    if (has < left) {
      const auto found = std::ranges::lower_bound(parts.begins, left - has, {}, &Piece::size);
      if (found == parts.begins.end()) return;
      other = &*found;
    }
    const Bytes over = has + (other ? other->size : 0) - left;
    if (over >= spare) return;
    spare = over;
    end = one;
    begin = other;
  };
  consider(nullptr);
  for (const Piece& one : parts.ends) consider(&one);
  if (end) {
    Piece piece = *end;
    piece.size = std::min(piece.size, left);
    piece.begin = piece.mapped + piece.mapped_size - piece.size;
    left -= piece.size;
    plan.pieces.insert(plan.pieces.begin(), piece);
  }
  if (begin) {
    plan.pieces.push_back(*begin);
    plan.pieces.back().size = left;
    plan.ends_with_begin = true;
  }
}

Arena::Run Arena::run_as_made(const View& view) {
  const Piece& first = view.pieces.front();
  return {view.range + (first.begin - first.mapped), view.pieces, 0};
}

// The first run of that size which is free in the view, from one of its handles into the next at
// least: what lies in one handle is a hole like others. No pieces: there is none.
Arena::Run Arena::find_run(const View& view, Bytes size, uint32_t lane) const {
  Run run;
  Bytes has = 0;
  Address at = view.range;
  for (const Piece& piece : view.pieces) {
    const Address begin = piece.mapped, end = begin + piece.mapped_size;
    const Chunk *first = hole_at(lane, begin), *last = hole_at(lane, end - 1);
    const bool whole = first != nullptr && first == last;
    if (first) {
      const Bytes free = std::min(first->address + first->size - begin, piece.mapped_size);
      if (has == 0) run.address = at;
      if (whole) run.broken += piece.mapped_size;
      run.pieces.push_back({begin, piece.mapped_size, begin, std::min(free, size - has)});
      has += run.pieces.back().size;
    }
    if (has == size) break;
    if (!whole) {
      run = {};
      has = 0;
      if (last) {
        has = end - last->address;
        run.address = at + (last->address - begin);
        run.pieces.push_back({begin, piece.mapped_size, last->address, has});
      }
    }
    at += piece.mapped_size;
  }
  if (has < size) return {};
  // A view may end with the begin of the handle whose end it begins with.
  const Piece &first = run.pieces.front(), &last = run.pieces.back();
  const bool twice =
      run.pieces.size() > 1 && first.mapped == last.mapped && first.begin < last.begin + last.size;
  return twice ? Run{} : run;
}

// Takes the run's pieces out of their holes. nullptr: not all of them are free.
Arena::Chunk* Arena::open_view(View& view, const Run& run, Bytes size, uint32_t lane) {
  for (const Piece& piece : run.pieces) {
    const Chunk* hole = hole_at(lane, piece.begin);
    if (!hole || hole->address + hole->size < piece.begin + piece.size) return nullptr;
  }
  for (const Piece& piece : run.pieces) {
    Chunk* chunk = take_at(piece.begin, piece.size, lane);
    chunk->state = State::kPiece;
    view.taken.push_back(chunk);
  }
  view.chunk->address = run.address;
  view.chunk->size = size;
  return view.chunk;
}

// A view that was made for this size and is free.
Arena::Chunk* Arena::idle_view(Bytes size, uint32_t lane) {
  const auto [first, last] = views_by_size_.equal_range(size);
  for (auto it = first; it != last; ++it) {
    View& view = views_.at(it->second);
    if (!view.taken.empty()) continue;
    if (Chunk* chunk = open_view(view, run_as_made(view), size, lane)) return chunk;
  }
  return nullptr;
}

// Of a view that was made for another size, its first run; of several views the one whose run
// breaks the fewest bytes of wholly free handles. nullptr: none breaks so few.
Arena::Chunk* Arena::part_of_view(Bytes size, uint32_t lane, Bytes most_broken) {
  View* best = nullptr;
  Run run;
  for (const auto& [made_for, chunk] : views_by_size_) {
    View& view = views_.at(chunk);
    if (!view.taken.empty()) continue;
    Run found = find_run(view, size, lane);
    if (found.pieces.empty() || found.broken > most_broken) continue;
    if (best && found.broken >= run.broken) continue;
    best = &view;
    run = std::move(found);
    if (run.broken == 0) break;
  }
  return best ? open_view(*best, run, size, lane) : nullptr;
}

// nullptr: the device is full; what was asked for stays as a hole.
Arena::Chunk* Arena::make_view(Plan plan, Bytes size, uint32_t lane) {
  if (plan.missing > 0) {
    const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](const auto& each) {
      return each.second->size >= plan.missing;
    });
    if (gap == gaps_.end()) return nullptr;
    const Address begin = gap->first;
    if (ask_for(begin, plan.missing, lane) < plan.missing) return nullptr;
    Bytes left = size;
    for (const Piece& piece : plan.pieces) left -= piece.size;
    for (auto m = mappings_.find(begin); left > 0; ++m) {
      const Bytes bytes = std::min(left, m->second.size);
      plan.pieces.insert(plan.pieces.end() - (plan.ends_with_begin ? 1 : 0),
                         {m->first, m->second.size, m->first, bytes});
      left -= bytes;
    }
  }
  Bytes mapped = 0;
  for (const Piece& piece : plan.pieces) mapped += piece.mapped_size;
  const auto range = driver_.reserve(mapped);
  if (!range.ok()) return nullptr;
  Address at = *range;
  for (const Piece& piece : plan.pieces) {
    driver_.map(at, mappings_.at(piece.mapped).handle);
    at += piece.mapped_size;
  }
  driver_.set_access(*range, mapped);
  mapped_again_ += plan.pieces.size();
  mappings_left_ -= std::min(mappings_left_, plan.pieces.size());

  Chunk* chunk = chunks_.make();
  chunk->state = State::kView;
  views_by_size_.emplace(size, chunk);
  View& view = views_[chunk];
  view = {*range, *range, std::move(plan.pieces), {}, chunk};
  return open_view(view, run_as_made(view), size, lane);
}

void Arena::unmap(const View& view) {
  Address at = view.range;
  for (const Piece& piece : view.pieces) {
    driver_.unmap(at);
    at += piece.mapped_size;
  }
  driver_.unreserve(view.reserved);
}

// Of a live view no more is mapped than its block uses: it is as if it was made for that one.
void Arena::shrink(View& view) {
  const Address begin = view.chunk->address, end = begin + view.chunk->size;
  std::vector<Piece> used;
  Bytes made_for = 0;
  Address at = view.range;
  for (const Piece& piece : view.pieces) {
    made_for += piece.size;
    const Address next = at + piece.mapped_size;
    if (next <= begin || at >= end) {
      driver_.unmap(at);
      if (used.empty()) view.range = next;
    } else {
      const Address from = std::max(at, begin), to = std::min(next, end);
      used.push_back({piece.mapped, piece.mapped_size, piece.mapped + (from - at), to - from});
    }
    at = next;
  }
  if (used.size() == view.pieces.size()) return;
  mapped_again_ -= view.pieces.size() - used.size();
  view.pieces = std::move(used);
  auto it = views_by_size_.lower_bound(made_for);
  while (it->second != view.chunk) ++it;
  views_by_size_.erase(it);
  views_by_size_.emplace(view.chunk->size, view.chunk);
}

// Unless a stream cannot be waited for: what is queued may still use the views' addresses.
bool Arena::drop_idle_views() {
  const auto capturing = [&](const Lane& lane) { return driver_.is_capturing(lane.stream); };
  if (std::ranges::any_of(lanes_, capturing)) return false;
  for (const Lane& lane : lanes_) driver_.synchronize(lane.stream);
  for (auto it = views_by_size_.begin(); it != views_by_size_.end();) {
    const View& view = views_.at(it->second);
    if (!view.taken.empty()) {
      ++it;
      continue;
    }
    unmap(view);
    mapped_again_ -= view.pieces.size();
    chunks_.drop(view.chunk);
    views_.erase(it->second);
    it = views_by_size_.erase(it);
  }
  return true;
}

// A chunk for a request that no hole holds. nullptr: the device is full.
Arena::Chunk* Arena::make_room(Bytes size, uint32_t lane, bool on_credit) {
  if (Chunk* chunk = idle_view(size, lane)) return chunk;
  const Site site = choose_site(size, lane);
  Plan plan;
  bool affordable = !on_credit || mappings_left_ > 0;
  if (affordable) {
    plan = plan_view(size, free_parts(lane));
    affordable = !on_credit || plan.pieces.size() <= mappings_left_;
  }
  if (plan.missing == 0) {  // else no view has a run either; 0, too, without a plan
    const Bytes most_broken = affordable ? plan.broken : ~Bytes{0};
    if (Chunk* chunk = part_of_view(size, lane, most_broken)) return chunk;
  }
  if (affordable && (site.end == 0 || plan.missing < site.missing)) {
    if (mapped_again_ > kMostMapped * mappings_.size()) drop_idle_views();
    return make_view(std::move(plan), size, lane);
  }
  if (site.end == 0 || !grow(site, lane)) return nullptr;
  return take(lanes_[lane].find(size), size, lane);
}

Result<Address> Arena::allocate(Bytes requested, Stream stream) {
  const Bytes size = round_up(requested, kGranule);
  if (base_ == 0) FLATOUT_TRY_STATUS(open_range());
  const uint32_t lane = lane_of(stream);
  Chunk* hole = lanes_[lane].find(size);
  if (!hole && lanes_.size() > 1 && waits_ > 0) {
    hole = adopt(size, lane);
    if (hole) --waits_;
  }
  Chunk* chunk = hole ? take(hole, size, lane) : make_room(size, lane, true);
  if (!chunk) {
    settle(lane);
    hole = lanes_[lane].find(size);
    chunk = hole ? take(hole, size, lane) : make_room(size, lane, false);
  }
  if (!chunk) return Error{Code::kFull, fmt::format("no {} bytes on the device", size), ""};
  return live_.add(chunk, requested);
}

Status Arena::free(Address address) {
  FLATOUT_TRY(Chunk* const chunk, live_.remove(address));
  if (chunk->state != State::kView) {
    put_free(chunk);
    return {};
  }
  View& view = views_.at(chunk);
  for (Chunk* piece : view.taken) put_free(piece);
  view.taken.clear();
  return {};
}

void Arena::trim() {
  if (lanes_.empty() || !drop_idle_views()) return;
  settle(0);
  for (auto& [chunk, view] : views_) shrink(view);
  for (auto it = mappings_.begin(); it != mappings_.end();) {
    const auto [address, mapping] = *it;
    const Chunk* hole = hole_at(0, address);
    if (!hole || hole->address + hole->size < address + mapping.size) {
      ++it;
      continue;
    }
    driver_.unmap(address);
    driver_.release(mapping.handle);
    reserved_ -= mapping.size;
    it = mappings_.erase(it);
    put_gap(take_at(address, mapping.size, 0));
  }
}

PolicyStats Arena::stats() const {
  PolicyStats stats = live_.stats(reserved_);
  for (const Lane& lane : lanes_)
    stats.largest_free = std::max({stats.largest_free, lane.lower.largest(), lane.upper.largest()});
  return stats;
}

void Arena::check() const {
  if (base_ == 0) return;
  const auto first = std::find_if(chunks_.all().begin(), chunks_.all().end(),
                                  [&](const Chunk& c) { return c.address == base_; });
  FLATOUT_CHECK(first != chunks_.all().end());
  Bytes mapped = 0, allocated = 0;
  size_t free_chunks = 0, gaps = 0, pieces = 0;
  for (const Chunk* c = &*first; c; c = c->next) {
    FLATOUT_CHECK(c->size > 0 && (!c->next || c->next->prev == c));
    FLATOUT_CHECK(!c->next || c->next->address == c->address + c->size);
    if (c->state == State::kMiddle) continue;
    if (c->state == State::kGap) {
      ++gaps;
      FLATOUT_CHECK(gaps_.at(c->address) == c && c->size % kPageBytes == 0);
      FLATOUT_CHECK(!c->next || c->next->state != State::kGap);
      continue;
    }
    mapped += c->size;
    if (c->state == State::kFree) {
      ++free_chunks;
      FLATOUT_CHECK(hole_at(c->lane, c->address) == c);
      FLATOUT_CHECK(!c->next || c->next->state != State::kFree || c->next->lane != c->lane);
      continue;
    }
    allocated += c->size;
    pieces += c->state == State::kPiece;
    FLATOUT_CHECK(c->state == State::kPiece || (c->state == State::kLive && live_.holds(c)));
  }
  size_t in_trees = 0, taken = 0, again = 0;
  for (const Lane& lane : lanes_)
    for (const HoleTree<Chunk>* holes : {&lane.lower, &lane.upper})
      holes->each(1, [&](Chunk*) { ++in_trees; });
  for (const auto& [chunk, view] : views_) {
    FLATOUT_CHECK(view.chunk == chunk && live_.holds(chunk) == !view.taken.empty());
    again += view.pieces.size();
    taken += view.taken.size();
    for (const Piece& piece : view.pieces)
      FLATOUT_CHECK(mappings_.at(piece.mapped).size == piece.mapped_size);
    Bytes size = 0;
    for (const Chunk* piece : view.taken) {
      FLATOUT_CHECK(piece->state == State::kPiece);
      size += piece->size;
    }
    FLATOUT_CHECK(view.taken.empty() || size == chunk->size);
  }
  Bytes handles = 0;
  for (const auto& [address, mapping] : mappings_) handles += mapping.size;
  FLATOUT_CHECK(in_trees == free_chunks && gaps == gaps_.size() && allocated == live_.allocated());
  FLATOUT_CHECK(mapped == reserved_ && handles == reserved_);
  FLATOUT_CHECK(taken == pieces && again == mapped_again_ &&
                views_.size() == views_by_size_.size());
}

}  // namespace flatout::devmem
