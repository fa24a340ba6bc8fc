#include "plan/graph.h"

namespace tessera::plan {

Geometry Geometry::of(const at::Tensor& x) {
  Geometry geometry{.offset = x.storage_offset(), .sizes = x.sizes().vec(), .strides = x.strides().vec()};
  // The stride of a dimension with one element is meaningless.
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] == 1) geometry.strides[i] = 0;
  }
  return geometry;
}

const GraphAttribute* GraphNode::find(const std::string& attribute) const {
  for (const auto& [name, value] : attributes) {
    if (name == attribute) return &value;
  }
  return nullptr;
}

}  // namespace tessera::plan
