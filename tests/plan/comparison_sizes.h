// The sizes of most values that the comparison is tested with.
#pragma once

#include <gtest/gtest.h>

#include "plan/comparison.h"

namespace tessera::plan {

// The sizes of the values below; one layer where they are of a layer.
inline Sizes sizes_of_one_layer(int64_t degree = 8) {
  return {.layers = 1, .hidden = 1024, .heads = 16, .sequence = 2048, .degree = degree};
}

inline Sizes all_layers(int64_t batch, int64_t degree = 8) {
  Sizes sizes = sizes_of_one_layer(degree);
  sizes.layers = 24;
  sizes.batch = batch;
  return sizes;
}

inline Method method_of(const Sizes& sizes, const std::string& name, bool train) {
  for (const Method& method : compare(resolve(sizes), train)) {
    if (method.name == name) return method;
  }
  ADD_FAILURE() << "no method " << name;
  return {};
}

}  // namespace tessera::plan
