// Operators as a machine runs them: elementwise operators and norms (vector), products with weights (GEMM),
// and attention that never stores its scores (flash attention). A list of them is all that an analysis needs.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera::plan {

// [rows, width] -> [rows, width]; a row is a token, so that batch and sequence are one dimension.
struct VectorWork {
  int64_t rows = 0, width = 0;
  double operations_per_element = 0;
  int64_t inputs = 1;       // tensors of that shape that are read
  int64_t weights = 0;      // elements that every row needs
  double others = 0;        // elements of smaller tensors, which are read once, a part with each row
  bool is_by_head = false;  // whether each head of a row is normalised by itself

  auto operator<=>(const VectorWork&) const = default;  // NOLINT(modernize-use-nullptr): it has no pointer
};

// [rows, inner] x [inner, columns] -> [rows, columns], with an activation applied to the output.
struct GemmWork {
  int64_t rows = 0, inner = 0, columns = 0;
  double activation_operations = 0;  // for each element of the output
  // The number of rows that contain an element of the input: rows of a convolution overlap, and shared
  // elements are read once.
  double overlap = 1;
  int64_t bias = 0;             // elements, which are read once
  bool is_convolution = false;  // other kernels than those of products compute it, even if rows do not
                                // overlap

  auto operator<=>(const GemmWork&) const = default;  // NOLINT(modernize-use-nullptr): as above
};

// For each of batch x heads: [queries, head_dim], keys and values [keys, head_dim] -> [queries, head_dim].
struct AttentionWork {
  int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0;

  auto operator<=>(const AttentionWork&) const = default;  // NOLINT(modernize-use-nullptr): as above
};

using Work = std::variant<VectorWork, GemmWork, AttentionWork>;

struct Operator {
  std::string name;
  Work work;
  int64_t count = 1;  // how often it runs
};

// Softmax of a score: scale, maximum, subtraction, exponential, sum.
inline constexpr double kSoftmaxOperations = 5;
// An activation of an element, such as a tanh GELU.
inline constexpr double kActivationOperations = 7;

// The work that an operator has to do in any case, whatever its split.
struct Demand {
  double gemm_operations = 0;    // a multiplication and an addition count as two
  double vector_operations = 0;  // elementwise
  double elements = 0;           // read or written, each once
};
Demand demand_of(const Work& work);

std::string kind_name(const Work& work);   // "vector", "gemm", "attention"
std::string shape_text(const Work& work);  // "110400 x 1152"

}  // namespace tessera::plan
