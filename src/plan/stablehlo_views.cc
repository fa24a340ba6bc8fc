// Views of a storage's value, and writes into it. A storage is a row of elements. A view whose strides divide
// one another is a box in that row, seen as a shape with one dimension for each stride.
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

// A box of the row of a storage.
struct Box {
  Sizes64 dims;          // of the view, in the order of `row`
  Sizes64 row = {};      // the shape in which the row is seen, padded at the end to fit
  Sizes64 begins = {};   // by dimension of `row`
  Sizes64 lengths = {};  // the same; the last is 1
};

// The dimensions with more than one element, from the largest stride to the smallest, without those that only
// repeat.
Sizes64 dims_by_stride(const Geometry& geometry) {
  Sizes64 dims;
  for (int64_t i = 0; i < std::ssize(geometry.sizes); ++i) {
    const auto at = static_cast<size_t>(i);
    if (geometry.sizes[at] != 1 && geometry.strides[at] != 0) dims.push_back(i);
  }
  std::stable_sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) {
    return geometry.strides[static_cast<size_t>(a)] > geometry.strides[static_cast<size_t>(b)];
  });
  return dims;
}

Box box_of(const Geometry& part, int64_t elements) {
  Box box{.dims = dims_by_stride(part)};
  const auto refuse = [&] {
    throw Error(ErrorKind::kUsage, field("stablehlo"),
                fmt::format("a view of sizes [{}] and strides [{}] has no form", fmt::join(part.sizes, ", "),
                            fmt::join(part.strides, ", ")));
  };
  int64_t above = elements, left = part.offset;
  for (const int64_t dim : box.dims) {
    const int64_t stride = part.strides[static_cast<size_t>(dim)];
    if (box.row.empty()) above = (above + stride - 1) / stride * stride;
    if (above % stride != 0) refuse();
    box.row.push_back(above / stride);
    box.begins.push_back(left / stride);
    box.lengths.push_back(part.sizes[static_cast<size_t>(dim)]);
    if (box.begins.back() + box.lengths.back() > box.row.back()) refuse();
    left %= stride;
    above = stride;
  }
  box.row.push_back(above);
  box.begins.push_back(left);
  box.lengths.push_back(1);
  return box;
}

// The value of a storage as a row, in memory order.
MlirValue row_of(MlirBuilder& b, const MlirValue& whole, const Geometry& geometry) {
  Sizes64 order = dims_by_stride(geometry);
  for (int64_t i = 0; i < std::ssize(geometry.sizes); ++i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  }
  return b.transpose(whole, order);
}

// The inverse: a row of any shape as the value of the storage.
MlirValue whole_of(MlirBuilder& b, const MlirValue& row, const Geometry& geometry) {
  Sizes64 order = dims_by_stride(geometry);
  for (int64_t i = 0; i < std::ssize(geometry.sizes); ++i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  }
  Sizes64 sizes, back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sizes.push_back(geometry.sizes[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return b.transpose(b.reshape(row, sizes), back);
}

MlirValue in_shape(MlirBuilder& b, const MlirValue& row, const Sizes64& shape) {
  const int64_t missing = c10::multiply_integers(shape) - c10::multiply_integers(row.sizes());
  if (missing == 0) return b.reshape(row, shape);
  return b.reshape(b.pad(b.reshape(row, {c10::multiply_integers(row.sizes())}), {0}, {missing}), shape);
}

// Reshapes elements of a box [lengths] to the view's sizes, and back.
MlirValue view_of_box(MlirBuilder& b, const MlirValue& box, const Box& at, const Geometry& part) {
  Sizes64 found = box.sizes();
  found.pop_back();
  // The dimensions in the order of the view.
  Sizes64 order(at.dims.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
    return at.dims[static_cast<size_t>(x)] < at.dims[static_cast<size_t>(y)];
  });
  const MlirValue ordered = b.transpose(b.reshape(box, found), order);
  Sizes64 sizes;  // with the dimensions of one element, and repeating ones as one
  for (size_t i = 0; i < part.sizes.size(); ++i) sizes.push_back(part.strides[i] == 0 ? 1 : part.sizes[i]);
  return b.broadcast(b.reshape(ordered, sizes), part.sizes);
}

// Where the box of the current node begins in its row; ranks may see it at different places.
std::vector<MlirValue> begins_of(Lowering& lowering, const Box& box, int64_t elements) {
  std::vector<Sizes64> by_dim(box.begins.size());
  for (const GraphNode* const node : lowering.by_rank()) {
    const Box own = box_of(node->part, elements);
    TESSERA_CHECK(own.row == box.row, "ranks see memory in different shapes");
    for (size_t i = 0; i < by_dim.size(); ++i) by_dim[i].push_back(own.begins[i]);
  }
  std::vector<MlirValue> begins;
  for (const Sizes64& numbers : by_dim) begins.push_back(lowering.builder().by_partition(numbers));
  return begins;
}

bool is_at_one_place(const Lowering& lowering) {
  const std::vector<const GraphNode*> nodes = lowering.by_rank();
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const GraphNode* node) { return node->part == nodes.front()->part; });
}

void view(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue whole = lowering.read(node, 0);
  const bool is_repeated = c10::multiply_integers(whole.sizes()) == 1 || whole.sizes().empty();
  const int64_t elements = is_repeated ? 1 : c10::multiply_integers(whole.sizes());
  const Box box = box_of(node.part, elements);
  const MlirValue row = in_shape(b, row_of(b, whole, node.whole), box.row);
  const MlirValue found = is_at_one_place(lowering)
                              ? b.slice(row, box.begins, box.lengths)
                              : b.slice_at(row, begins_of(lowering, box, elements), box.lengths);
  lowering.write(node, 0, view_of_box(b, found, box, node.part));
}

void write_part(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue whole = lowering.read(node, 0), part = lowering.read(node, 1);
  const int64_t elements = c10::multiply_integers(whole.sizes());
  const Box box = box_of(node.part, elements);
  TESSERA_CHECK(c10::multiply_integers(part.sizes()) == c10::multiply_integers(box.lengths),
                "a write to a tensor that repeats");
  Sizes64 sizes;  // of the part, without dimensions of one element
  for (const int64_t size : part.sizes()) {
    if (size != 1) sizes.push_back(size);
  }
  Sizes64 sorted = box.dims;  // the dimensions of the view that correspond to `sizes`
  std::sort(sorted.begin(), sorted.end());
  Sizes64 order;
  for (const int64_t dim : box.dims)
    order.push_back(std::find(sorted.begin(), sorted.end(), dim) - sorted.begin());
  const MlirValue fresh = b.reshape(b.transpose(b.reshape(part, sizes), order), box.lengths);
  const MlirValue row = in_shape(b, row_of(b, whole, node.whole), box.row);
  MlirValue written = is_at_one_place(lowering) ? b.update(row, fresh, box.begins)
                                                : b.update_at(row, fresh, begins_of(lowering, box, elements));
  if (c10::multiply_integers(box.row) != elements)
    written = b.slice(b.reshape(written, {c10::multiply_integers(box.row)}), {0}, {elements});
  lowering.write(node, 0, whole_of(b, written, node.whole));
}

void empty(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0, lowering.builder().filled(0, lowering.type_of(node.writes[0])));
}

void convert(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0, lowering.read(node, 0));
}

}  // namespace

const LoweringRules& view_rules() {
  static const LoweringRules rules = {
      {"view", view}, {"write", write_part}, {"empty", empty}, {"convert", convert}};
  return rules;
}

}  // namespace tessera::plan
