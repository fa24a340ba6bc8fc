#include "parallel/mesh.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::parallel {

std::string_view axis_name(Axis axis) {
  constexpr std::array<std::string_view, kAxes> kNames = {"tp",        "tp2", "ulysses", "gather", "ring",
                                                          "displaced", "pp",  "cfg",     "dp"};
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(const PerAxis& sizes) : sizes_(sizes), world_size_(1) {
  for (const Axis axis : kAllAxes) {
    TESSERA_CHECK(sizes[axis] >= 1, "{} ranks on axis {}", sizes[axis], axis_name(axis));
    world_size_ *= sizes[axis];
  }
}

int64_t Mesh::size(std::span<const Axis> axes) const {
  int64_t product = 1;
  for (const Axis axis : axes) product *= sizes_[axis];
  return product;
}

PerAxis Mesh::coordinates(int64_t rank) const {
  TESSERA_CHECK(rank >= 0 && rank < world_size_, "rank {} of {}", rank, world_size_);
  PerAxis result(0);
  for (const Axis axis : kAllAxes) {
    result[axis] = rank % sizes_[axis];
    rank /= sizes_[axis];
  }
  return result;
}

int64_t Mesh::rank_at(const PerAxis& coordinates) const {
  int64_t rank = 0, stride = 1;
  for (const Axis axis : kAllAxes) {
    TESSERA_CHECK(coordinates[axis] >= 0 && coordinates[axis] < sizes_[axis], "{} on axis {} of size {}",
                  coordinates[axis], axis_name(axis), sizes_[axis]);
    rank += coordinates[axis] * stride;
    stride *= sizes_[axis];
  }
  return rank;
}

std::vector<int64_t> Mesh::group(int64_t rank, std::span<const Axis> axes) const {
  PerAxis first = coordinates(rank);
  for (const Axis axis : axes) first[axis] = 0;
  std::vector<int64_t> ranks = {rank_at(first)};
  // The axis with the smallest stride comes first, so that the ranks ascend.
  int64_t stride = 1;
  for (const Axis axis : kAllAxes) {
    const size_t count = ranks.size();
    const bool is_along = std::find(axes.begin(), axes.end(), axis) != axes.end();
    for (int64_t place = 1; is_along && place < sizes_[axis]; ++place) {
      for (size_t i = 0; i < count; ++i) ranks.push_back(ranks[i] + place * stride);
    }
    stride *= sizes_[axis];
  }
  return ranks;
}

std::vector<std::vector<int64_t>> Mesh::groups(std::span<const Axis> axes) const {
  std::vector<std::vector<int64_t>> result;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    const PerAxis place = coordinates(rank);
    const bool is_first = std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return place[axis] == 0; });
    if (is_first) result.push_back(group(rank, axes));
  }
  return result;
}

}  // namespace tessera::parallel
