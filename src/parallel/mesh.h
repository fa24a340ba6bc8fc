// The mesh of ranks. Each parallel method is an axis; the ranks that differ only on that axis form a group.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::parallel {

// The fastest axis comes first, so its neighbours have adjacent rank numbers and hence the fastest links. 2-d
// tensor parallelism uses two axes; in 1-d the second one has size 1.
enum class Axis { kTensorInner, kTensorOuter, kUlysses, kGather, kRing, kDisplaced, kPipeline, kCfg, kData };
inline constexpr int64_t kAxes = 9;
inline constexpr std::array<Axis, kAxes> kAllAxes = {Axis::kTensorInner, Axis::kTensorOuter, Axis::kUlysses,
                                                     Axis::kGather,      Axis::kRing,        Axis::kDisplaced,
                                                     Axis::kPipeline,    Axis::kCfg,         Axis::kData};
// The axes that appear as one to layers that split weights, and to layers that split tokens.
inline constexpr std::array<Axis, 2> kTensorAxes = {Axis::kTensorInner, Axis::kTensorOuter};
inline constexpr std::array<Axis, 4> kSequenceAxes = {Axis::kUlysses, Axis::kGather, Axis::kRing,
                                                      Axis::kDisplaced};
// The axes over which ranks work on the same images.
inline constexpr std::array<Axis, 8> kReplicaAxes = {Axis::kTensorInner, Axis::kTensorOuter, Axis::kUlysses,
                                                     Axis::kGather,      Axis::kRing,        Axis::kDisplaced,
                                                     Axis::kPipeline,    Axis::kCfg};

// "tp", "tp2", "ulysses", "gather", "ring", "displaced", "pp", "cfg", "dp"
std::string_view axis_name(Axis axis);

// One number for each axis: sizes, or a rank's coordinates.
class PerAxis {
 public:
  explicit PerAxis(int64_t value) { values_.fill(value); }
  int64_t& operator[](Axis axis) { return values_[static_cast<size_t>(axis)]; }
  int64_t operator[](Axis axis) const { return values_[static_cast<size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;

 private:
  std::array<int64_t, kAxes> values_{};
};

class Mesh {
 public:
  // All sizes must be at least 1 (checked).
  explicit Mesh(const PerAxis& sizes);

  int64_t world_size() const { return world_size_; }
  const PerAxis& sizes() const { return sizes_; }
  int64_t size(std::span<const Axis> axes) const;  // the product of their sizes

  PerAxis coordinates(int64_t rank) const;
  int64_t rank_at(const PerAxis& coordinates) const;

  // The ranks that share all coordinates with `rank` except those on `axes`, in ascending order.
  std::vector<int64_t> group(int64_t rank, std::span<const Axis> axes) const;
  // All groups of `axes`, ordered by their first rank; together they contain each rank once.
  std::vector<std::vector<int64_t>> groups(std::span<const Axis> axes) const;

 private:
  PerAxis sizes_;
  int64_t world_size_;
};

}  // namespace tessera::parallel
