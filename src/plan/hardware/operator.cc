#include "plan/hardware/operator.h"

#include <fmt/format.h>

namespace tessera::plan {
namespace {

double product(std::initializer_list<int64_t> sizes) {
  double result = 1;
  for (const int64_t size : sizes) result *= static_cast<double>(size);
  return result;
}

Demand demand(const VectorWork& work) {
  const double elements = product({work.rows, work.width});
  return {.vector_operations = elements * work.operations_per_element,
          .elements = elements * static_cast<double>(work.inputs + 1) + work.others +
                      static_cast<double>(work.weights)};
}

Demand demand(const GemmWork& work) {
  const double output = product({work.rows, work.columns});
  return {.gemm_operations = 2 * output * static_cast<double>(work.inner),
          .vector_operations = output * work.activation_operations,
          .elements = product({work.rows, work.inner}) / work.overlap + product({work.inner, work.columns}) +
                      output + static_cast<double>(work.bias)};
}

Demand demand(const AttentionWork& work) {
  const double scores = product({work.batch, work.heads, work.queries, work.keys});
  return {.gemm_operations = 4 * scores * static_cast<double>(work.head_dim),
          .vector_operations = scores * kSoftmaxOperations,
          .elements = 2 * product({work.batch, work.heads, work.queries + work.keys, work.head_dim})};
}

}  // namespace

Demand demand_of(const Work& work) {
  return std::visit([](const auto& each) { return demand(each); }, work);
}

std::string kind_name(const Work& work) {
  constexpr const char* kNames[] = {"vector", "gemm", "attention"};
  return kNames[work.index()];
}

std::string shape_text(const Work& work) {
  if (const auto* vector = std::get_if<VectorWork>(&work))
    return fmt::format("{} x {}", vector->rows, vector->width);
  if (const auto* gemm = std::get_if<GemmWork>(&work))
    return fmt::format("{} x {} x {}", gemm->rows, gemm->inner, gemm->columns);
  const auto& attention = std::get<AttentionWork>(work);
  return fmt::format("{} x {} of {} x {} x {}", attention.batch, attention.heads, attention.queries,
                     attention.keys, attention.head_dim);
}

}  // namespace tessera::plan
