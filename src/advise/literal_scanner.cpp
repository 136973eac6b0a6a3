#include "advise/literal_scanner.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/result.h"

namespace flatout::advise {
namespace {

constexpr size_t kStripes = 4;
constexpr size_t kLeastStripe = 4096;

// The trie with its failure links, while it is being built.
struct Node {
  std::array<int32_t, 256> child;
  int32_t fail = 0;
  std::vector<uint32_t> literals;
  Node() { child.fill(-1); }
};

std::vector<Node> build_trie(const std::vector<std::string>& literals) {
  std::vector<Node> nodes(1);
  for (uint32_t i = 0; i < literals.size(); ++i) {
    FLATOUT_CHECK(!literals[i].empty() && literals[i].find('\n') == std::string::npos);
    int32_t at = 0;
    for (const char c : literals[i]) {
      const auto byte = static_cast<unsigned char>(c);
      if (nodes[at].child[byte] < 0) {
        nodes[at].child[byte] = static_cast<int32_t>(nodes.size());
        nodes.emplace_back();
      }
      at = nodes[at].child[byte];
    }
    nodes[at].literals.push_back(i);
  }
  return nodes;
}

// Breadth first: a node's failure link leads to a shallower node, which is finished already.
void link_failures(std::vector<Node>& nodes) {
  std::vector<int32_t> queue{0};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int32_t at = queue[head];
    for (size_t byte = 0; byte < 256; ++byte) {
      const int32_t fallback = at == 0 ? 0 : nodes[nodes[at].fail].child[byte];
      const int32_t child = nodes[at].child[byte];
      if (child < 0) {
        nodes[at].child[byte] = fallback;
        continue;
      }
      nodes[child].fail = fallback;
      const auto& inherited = nodes[fallback].literals;
      nodes[child].literals.insert(nodes[child].literals.end(), inherited.begin(), inherited.end());
      queue.push_back(child);
    }
  }
}

}  // namespace

LiteralScanner::LiteralScanner(const std::vector<std::string>& literals) {
  std::vector<Node> nodes = build_trie(literals);
  link_failures(nodes);
  FLATOUT_CHECK(nodes.size() < UINT16_MAX);

  unsigned count = 1;
  for (const std::string& literal : literals) {
    for (const char c : literal) {
      uint8_t& known = classes_[static_cast<unsigned char>(c)];
      if (known == 0) known = static_cast<uint8_t>(count++);
    }
  }
  shift_ = static_cast<unsigned>(std::bit_width(count - 1));

  // States that end a string get the highest numbers, so that one comparison tells them.
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t node) { return nodes[node].literals.empty(); });
  std::vector<State> number(nodes.size());
  for (size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<State>(i);
  first_accepting_ = static_cast<State>(order.size());
  table_.assign(nodes.size() << shift_, 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const Node& node = nodes[order[i]];
    if (!node.literals.empty()) {
      first_accepting_ = std::min(first_accepting_, static_cast<State>(i));
      accepting_.push_back(node.literals);
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      if (classes_[byte] != 0) table_[(i << shift_) | classes_[byte]] = number[node.child[byte]];
    }
  }
}

void LiteralScanner::add_hits(State state, uint64_t end, std::vector<Hit>& hits) const {
  for (const uint32_t literal : accepting_[state - first_accepting_]) hits.push_back({end, literal});
}

void LiteralScanner::scan(std::string_view text, std::vector<Hit>& hits) const {
  // Each byte's look-up waits for the one before. Four stripes of the text at once keep the core
  // busy meanwhile; they end at line feeds, which no string holds.
  std::array<size_t, kStripes + 1> bounds{};
  bounds[kStripes] = text.size();
  for (size_t i = 1; i < kStripes; ++i) {
    const size_t feed =
        text.size() < kLeastStripe * kStripes
            ? std::string_view::npos
            : text.find('\n', std::max(bounds[i - 1], text.size() / kStripes * i));
    bounds[i] = feed == std::string_view::npos ? text.size() : feed + 1;
  }
  std::array<size_t, kStripes> at{};
  std::array<State, kStripes> states{};
  std::array<std::vector<Hit>, kStripes> found;
  size_t together = text.size();
  for (size_t i = 0; i < kStripes; ++i) {
    at[i] = bounds[i];
    together = std::min(together, bounds[i + 1] - bounds[i]);
  }
  const char* data = text.data();
  const State accepting = first_accepting_;
  for (size_t n = 0; n < together; ++n) {
    for (size_t i = 0; i < kStripes; ++i) {
      states[i] = next(states[i], data[at[i] + n]);
      if (states[i] >= accepting) [[unlikely]]
        add_hits(states[i], at[i] + n + 1, found[i]);
    }
  }
  for (size_t i = 0; i < kStripes; ++i) {
    State state = states[i];
    for (size_t n = at[i] + together; n < bounds[i + 1]; ++n) {
      state = next(state, data[n]);
      if (state >= accepting) [[unlikely]]
        add_hits(state, n + 1, found[i]);
    }
    hits.insert(hits.end(), found[i].begin(), found[i].end());
  }
}

}  // namespace flatout::advise
