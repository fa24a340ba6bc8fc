// An ordered map with sums over ranges of its keys.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::serve {

// Distinct keys, each with a value; the sum of the values before a key takes O(log n), as do insert() and
// erase(). `Value{}` is zero, and values have +=. A treap: a search tree by key that is a heap by
// pseudorandom priorities.
template <typename Key, typename Value>
class SumTree {
 public:
  bool empty() const { return root_ == kNone; }
  Value total() const { return sum(root_); }

  // The least key; there must be one.
  const Key& first() const {
    int32_t at = root_;
    while (nodes_[at].left != kNone) at = nodes_[at].left;
    return nodes_[at].key;
  }
  const Key& last() const {
    int32_t at = root_;
    while (nodes_[at].right != kNone) at = nodes_[at].right;
    return nodes_[at].key;
  }

  // The sum over keys less than `key`, which need not be in the map.
  Value before(const Key& key) const {
    Value result{};
    for (int32_t at = root_; at != kNone;) {
      const Node& node = nodes_[at];
      if (node.key < key) {
        result += sum(node.left);
        result += node.value;
        at = node.right;
      } else {
        at = node.left;
      }
    }
    return result;
  }

  void insert(const Key& key, const Value& value) {
    const auto [less, more] = split(root_, key);
    root_ = join(join(less, create(key, value)), more);
  }

  // Does nothing if the key is not in the map.
  void erase(const Key& key) { root_ = without(root_, key); }

 private:
  static constexpr int32_t kNone = -1;
  struct Node {
    Key key;
    Value value, sum;  // `sum` is that of the subtree
    uint32_t priority;
    int32_t left = kNone, right = kNone;
  };

  Value sum(int32_t at) const { return at == kNone ? Value{} : nodes_[at].sum; }

  int32_t create(const Key& key, const Value& value) {
    state_ ^= state_ << 13;  // xorshift32
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    Node node{.key = key, .value = value, .sum = value, .priority = state_};
    if (free_.empty()) {
      nodes_.push_back(std::move(node));
      return static_cast<int32_t>(nodes_.size()) - 1;
    }
    const int32_t at = free_.back();
    free_.pop_back();
    nodes_[at] = std::move(node);
    return at;
  }

  int32_t summed(int32_t at) {
    Node& node = nodes_[at];
    node.sum = sum(node.left);
    node.sum += node.value;
    node.sum += sum(node.right);
    return at;
  }

  // The trees of the keys less than `key` and of the others.
  std::pair<int32_t, int32_t> split(int32_t at, const Key& key) {
    if (at == kNone) return {kNone, kNone};
    if (nodes_[at].key < key) {
      const auto [less, more] = split(nodes_[at].right, key);
      nodes_[at].right = less;
      return {summed(at), more};
    }
    const auto [less, more] = split(nodes_[at].left, key);
    nodes_[at].left = more;
    return {less, summed(at)};
  }

  // Joins two trees; all keys of `less` must precede those of `more`.
  int32_t join(int32_t less, int32_t more) {
    if (less == kNone || more == kNone) return less == kNone ? more : less;
    if (nodes_[less].priority > nodes_[more].priority) {
      nodes_[less].right = join(nodes_[less].right, more);
      return summed(less);
    }
    nodes_[more].left = join(less, nodes_[more].left);
    return summed(more);
  }

  int32_t without(int32_t at, const Key& key) {
    if (at == kNone) return kNone;
    if (key < nodes_[at].key) {
      nodes_[at].left = without(nodes_[at].left, key);
    } else if (nodes_[at].key < key) {
      nodes_[at].right = without(nodes_[at].right, key);
    } else {
      free_.push_back(at);
      return join(nodes_[at].left, nodes_[at].right);
    }
    return summed(at);
  }

  std::vector<Node> nodes_;
  std::vector<int32_t> free_;
  int32_t root_ = kNone;
  uint32_t state_ = 0x9e3779b9;
};

}  // namespace tessera::serve
