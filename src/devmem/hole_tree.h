// Holes by address, each knowing the largest beneath it: the lowest one that holds a request is
// found in logarithmic time. A treap (Seidel, Aragon, "Randomized search trees", 1996) of nodes
// that the holes bring along, whose ranks come from where the nodes lie.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/result.h"
#include "devmem/driver.h"

namespace flatout::devmem {

/// `Node` has `address`, `size`, and for the tree alone `left`, `right` and `largest`. A hole's
/// begin and size may change by resize() as long as it passes no other hole.
template <class Node>
class HoleTree {
 public:
  bool empty() const { return root_ == nullptr; }
  Bytes largest() const { return largest(root_); }

  /// The lowest hole of at least that size, or nullptr.
  Node* find(Bytes size) const {
    if (largest(root_) < size) return nullptr;
    Node* node = root_;
    for (;;) {
      if (largest(node->left) >= size) {
        node = node->left;
      } else if (node->size >= size) {
        return node;
      } else {
        node = node->right;
      }
    }
  }
  /// The hole that has this address, or nullptr.
  Node* at(Address address) const {
    Node *node = root_, *last = nullptr;  // the last that begins no later
    while (node) {
      const bool later = node->address > address;
      if (!later) last = node;
      node = later ? node->left : node->right;
    }
    return last && address - last->address < last->size ? last : nullptr;
  }
  void insert(Node* hole) {
    const uint64_t rank = rank_of(hole);
    Node** at = &root_;
    while (*at && rank_of(*at) >= rank) {
      (*at)->largest = std::max((*at)->largest, hole->size);
      at = before(*at, hole) ? &(*at)->right : &(*at)->left;
    }
    split(*at, hole, hole->left, hole->right);
    renew(hole);
    *at = hole;
  }
  void erase(Node* hole) {
    change(hole, [&](Node** at) { *at = merge(hole->left, hole->right); });
  }
  void resize(Node* hole, Address address, Bytes size) {
    change(hole, [&](Node**) {
      hole->address = address;
      hole->size = size;
      renew(hole);
    });
  }
  void clear() { root_ = nullptr; }
  /// visit(hole) for each of at least that size.
  template <class Visit>
  void each(Bytes least, Visit visit) const {
    each(root_, least, visit);
  }
  bool holds(const Node* hole) const {
    const Node* node = root_;
    while (node && node != hole) node = before(node, hole) ? node->right : node->left;
    return node != nullptr;
  }

 private:
  static bool before(const Node* a, const Node* b) { return a->address < b->address; }
  static uint64_t rank_of(const Node* node) {
    const uint64_t x = reinterpret_cast<uintptr_t>(node) * 0x9e3779b97f4a7c15;
    return x ^ x >> 32;
  }
  static Bytes largest(const Node* node) { return node ? node->largest : 0; }
  static void renew(Node* node) {
    node->largest = std::max({node->size, largest(node->left), largest(node->right)});
  }
  static void split(Node* node, const Node* where, Node*& below, Node*& above) {
    if (node == nullptr) {
      below = above = nullptr;
    } else if (before(node, where)) {
      split(node->right, where, node->right, above);
      renew(below = node);
    } else {
      split(node->left, where, below, node->left);
      renew(above = node);
    }
  }
  static Node* merge(Node* below, Node* above) {
    if (below == nullptr || above == nullptr) return below ? below : above;
    if (rank_of(below) >= rank_of(above)) {
      below->right = merge(below->right, above);
      renew(below);
      return below;
    }
    above->left = merge(below, above->left);
    renew(above);
    return above;
  }
  // Changes the node, and then what those above it know.
  template <class Change>
  void change(Node* hole, Change act) {
    change(&root_, hole, act);
  }
  template <class Change>
  static void change(Node** at, Node* hole, Change& act) {
    Node* node = *at;
    FLATOUT_CHECK(node != nullptr);  // the hole is in the tree
    if (node == hole) return act(at);
    change(before(node, hole) ? &node->right : &node->left, hole, act);
    renew(node);
  }
  template <class Visit>
  static void each(const Node* node, Bytes least, Visit& visit) {
    if (largest(node) < least || node == nullptr) return;
    each(node->left, least, visit);
    if (node->size >= least) visit(const_cast<Node*>(node));
    each(node->right, least, visit);
  }

  Node* root_ = nullptr;
};

}  // namespace flatout::devmem
