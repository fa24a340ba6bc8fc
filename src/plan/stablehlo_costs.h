// What an operation of a program in StableHLO costs, from the types of its operands and results.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "plan/stablehlo_reader.h"

namespace tessera::plan {

// The text after "name =" among the attributes of an operation; empty if the attribute is missing.
std::string_view attribute_of(const ProgramOperation& operation, std::string_view name);
// The numbers of the first bracket of a text, at any depth: "[[0, 1], [2, 3]] : ..." has 0, 1, 2 and 3.
std::vector<int64_t> numbers_in(std::string_view text);

// The types of its operands and results, as far as these are tensors.
std::vector<TensorShape> shapes_of(const ProgramFunction& function, const std::vector<size_t>& values);
int64_t bytes_of(const std::vector<TensorShape>& shapes);
int64_t elements_of(const std::vector<int64_t>& sizes);

// A product of matrices [batch, m, k] and [batch, k, n].
struct DotSizes {
  std::optional<int64_t> batch;
  int64_t m = 0, k = 0, n = 0;
};
bool is_dot(const ProgramOperation& operation);
// Throws Error(kInput) for attributes that do not match the types.
DotSizes dot_sizes(const StablehloModule& module, const ProgramFunction& function,
                   const ProgramOperation& operation);

// A product counts 2 m k n for each batch element, and a convolution those of its direct form. Additions,
// subtractions, multiplications, divisions, reciprocal square roots, negations and exponentials count one for
// each number that they write, and nothing else counts (docs/published.md).
int64_t flops_of(const StablehloModule& module, const ProgramFunction& function,
                 const ProgramOperation& operation);

}  // namespace tessera::plan
