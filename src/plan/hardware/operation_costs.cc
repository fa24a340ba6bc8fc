#include "plan/hardware/operation_costs.h"

#include <algorithm>
#include <optional>

#include "plan/views.h"

namespace tessera::plan {
namespace {

// A row of a vector operator that does not reduce may end anywhere; rows of images are too short for some
// machines, and flat tensors too long.
constexpr int64_t kLeastWidth = 16, kMostWidth = 8192, kFlatWidth = 256;

double real(int64_t value) {
  return static_cast<double>(value);
}

int64_t elements_of(const TensorShape& shape) {
  return c10::multiply_integers(shape.sizes);
}

bool is_positive(const TensorShape& shape) {
  return std::all_of(shape.sizes.begin(), shape.sizes.end(), [](int64_t size) { return size > 0; });
}

// Whether the weights of a norm are those of a head; a row of its input then has several heads.
bool is_by_head(const OperationEvent& operation) {
  return operation.name == "rms_norm" && operation.inputs.size() == 2 && !operation.output.sizes.empty() &&
         elements_of(operation.inputs[1]) < operation.output.sizes.back();
}

// Reads and writes as many bytes as the operation, in rows of its largest tensor, usually its output.
VectorWork vector_work(const OperationEvent& operation, int64_t element_bytes) {
  const std::vector<int64_t>& sizes = operation.output.sizes;
  const int64_t last = sizes.empty() ? 1 : sizes.back();
  VectorWork work;
  const bool reduces = operation.name.ends_with("layer_norm") || operation.name == "rms_norm";
  work.width = reduces || (last >= kLeastWidth && last <= kMostWidth) ? last : kFlatWidth;
  int64_t largest = elements_of(operation.output);
  const bool picks = operation.name == "aten::index_select";  // it reads only as much of its table as it
                                                              // writes
  for (const TensorShape& input : operation.inputs)
    largest = std::max(largest, picks ? 0 : elements_of(input));
  work.rows = divide_up(largest, work.width);
  const double row_elements = real(work.rows) * real(work.width);
  const double elements = real(divide_up(operation.bytes, element_bytes));
  work.inputs = std::max<int64_t>(static_cast<int64_t>(elements / row_elements) - 1, 0);
  work.others = std::max(elements - row_elements * real(work.inputs + 1), 0.0);
  work.operations_per_element = real(operation.flops) / row_elements;
  work.is_by_head = is_by_head(operation);
  return work;
}

// The number of elements of the third operand of a layer or a convolution.
int64_t bias_of(const OperationEvent& operation, int64_t element_bytes) {
  return operation.inputs.size() < 3 ? 0 : divide_up(operation.inputs[2].bytes(), element_bytes);
}

std::optional<GemmWork> layer_work(const OperationEvent& operation) {
  if (operation.inputs.size() < 2 || operation.inputs[1].sizes.size() != 2) return std::nullopt;
  const int64_t inner = operation.inputs[1].sizes[1], columns = operation.inputs[1].sizes[0];
  const int64_t rows = elements_of(operation.inputs[0]) / inner;
  if (rows < 1) return std::nullopt;
  return GemmWork{rows, inner, columns};
}

// One row for each pixel of the output, with the inputs of its window side by side.
std::optional<GemmWork> convolution_work(const OperationEvent& operation) {
  if (operation.inputs.size() < 2 || operation.inputs[1].sizes.empty()) return std::nullopt;
  const int64_t columns = operation.inputs[1].sizes[0], outputs = elements_of(operation.output);
  const int64_t inner = operation.flops / (2 * outputs);
  if (outputs % columns != 0 || inner < 1) return std::nullopt;
  GemmWork work{outputs / columns, inner, columns};
  work.is_convolution = true;
  work.overlap = real(work.rows) * real(inner) / real(elements_of(operation.inputs[0]));
  return work;
}

// Operands in the form that ops/attention.cc reports: queries [B, heads, S, D]; keys and values [2, B, their
// heads, count, D], or only keys [B, heads, count, D].
std::optional<AttentionWork> attention_work(const OperationEvent& operation) {
  if (operation.inputs.size() < 2 || operation.inputs[0].sizes.size() != 4) return std::nullopt;
  const std::vector<int64_t>&queries = operation.inputs[0].sizes, &keys = operation.inputs[1].sizes;
  if (keys.size() != 4 && keys.size() != 5) return std::nullopt;
  return AttentionWork{queries[0], queries[1], queries[2], keys[keys.size() - 2], queries[3]};
}

// Adds the bias to the scores, which stay in place: only the bias moves, once.
VectorWork bias_work(const OperationEvent& operation, const AttentionWork& attention, int64_t element_bytes) {
  const TensorShape& bias = operation.inputs[3];
  VectorWork work{.rows = 0, .width = kFlatWidth};
  work.rows = divide_up(divide_up(bias.bytes(), element_bytes), work.width);
  const double scores =
      real(attention.batch) * real(attention.heads) * real(attention.queries) * real(attention.keys);
  work.operations_per_element = scores / (real(work.rows) * real(work.width));
  work.inputs = 0;
  return work;
}

std::string dtype_of(const TensorShape& shape) {
  if (shape.dtype == at::kHalf) return "fp16";
  return c10::elementSize(shape.dtype) >= 4 ? "fp32" : "bf16";
}

// Whether the next event is the activation that the operation applies to what it writes.
bool is_activated(const RankTrace& rank, size_t event, const OperationEvent& operation) {
  if (operation.name != "linear" || event + 1 >= rank.events.size()) return false;
  const auto* const next = std::get_if<OperationEvent>(&rank.events[event + 1].what);
  return next != nullptr && next->bytes == 0 && next->output == operation.output;
}

}  // namespace

std::vector<Work> works_of(const OperationEvent& operation, int64_t element_bytes) {
  const bool has_elements = is_positive(operation.output) &&
                            std::all_of(operation.inputs.begin(), operation.inputs.end(), is_positive) &&
                            operation.bytes > 0;
  if (!has_elements) return {};
  if (is_attention(operation.name)) {
    if (const auto work = attention_work(operation)) {
      if (operation.inputs.size() < 4) return {*work};
      return {*work, bias_work(operation, *work, element_bytes)};
    }
  } else if (is_product(operation.name)) {
    auto work = is_convolution(operation.name) ? convolution_work(operation) : layer_work(operation);
    if (work) {
      work->bias = bias_of(operation, element_bytes);
      return {*work};
    }
  }
  return {vector_work(operation, element_bytes)};
}

const MappedWork& OperationCosts::mapped(const Work& work, const std::string& dtype) {
  const auto [place, is_new] = mapped_.try_emplace({dtype, work});
  if (is_new) {
    place->second = {dtype, work, map_operator({{}, work}, machine_, dtype)};
    const double share = machine_.efficiency.share(work, dtype);
    place->second.mapping.latency /= share;
    place->second.mapping.utilization *= share;
  }
  return place->second;
}

std::vector<const MappedWork*> OperationCosts::operators(const RankTrace& rank, size_t event) {
  const auto* const operation = std::get_if<OperationEvent>(&rank.events[event].what);
  if (operation == nullptr) return {};
  const std::string dtype = nearest_dtype(machine_, dtype_of(operation->output));
  std::vector<const MappedWork*> all;
  for (Work& work : works_of(*operation, dtype_bytes(dtype))) {
    if (auto* gemm = std::get_if<GemmWork>(&work); gemm != nullptr && is_activated(rank, event, *operation))
      gemm->activation_operations = kActivationOperations;
    all.push_back(&mapped(work, dtype));
  }
  return all;
}

double OperationCosts::least_seconds(const MappedWork& mapped) const {
  const Demand demand = demand_of(mapped.work);
  const double computing = demand.gemm_operations / machine_.gemm_rate(mapped.dtype) +
                           demand.vector_operations / machine_.vector_rate(mapped.dtype);
  return std::max(computing, demand.elements * real(dtype_bytes(mapped.dtype)) / machine_.dram_bandwidth);
}

}  // namespace tessera::plan
