#include "plan/hardware/trace_analysis.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "core/error.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

// A row of a vector operator that reduces nothing may end anywhere; rows of images are too short for some
// machines and flat tensors too long.
constexpr int64_t kLeastWidth = 16, kMostWidth = 8192, kFlatWidth = 256;
// What reads more tensors of the size of its output than this reads them one after the other.
constexpr int64_t kMostInputs = 8;

double real(int64_t value) {
  return static_cast<double>(value);
}

int64_t elements_of(const TensorShape& shape) {
  return c10::multiply_integers(shape.sizes);
}

bool is_positive(const TensorShape& shape) {
  return std::all_of(shape.sizes.begin(), shape.sizes.end(), [](int64_t size) { return size > 0; });
}

// Reads and writes as many bytes as the operation, in rows of its output.
VectorWork vector_work(const OperationEvent& operation, int64_t element_bytes) {
  const std::vector<int64_t>& sizes = operation.output.sizes;
  const int64_t last = sizes.empty() ? 1 : sizes.back();
  VectorWork work;
  work.reduces = operation.name.ends_with("layer_norm") || operation.name == "rms_norm";
  work.width = work.reduces || (last >= kLeastWidth && last <= kMostWidth) ? last : kFlatWidth;
  const int64_t out = std::max<int64_t>(operation.output.bytes(), 1);
  work.inputs = std::clamp<int64_t>((operation.bytes - out / 2) / out, 0, kMostInputs);
  const int64_t elements = divide_up(std::max(operation.bytes, out), element_bytes);
  work.rows = divide_up(divide_up(elements, work.inputs + 1), work.width);
  const bool has_samples = sizes.size() > 1 && work.rows % sizes.front() == 0;
  work.sequence = has_samples ? work.rows / sizes.front() : work.rows;
  work.operations_per_element = real(operation.flops) / (real(work.rows) * real(work.width));
  return work;
}

// Elements of the third operand of a layer or a convolution.
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

// A row for each pixel of the output, with the inputs of its window side by side.
std::optional<GemmWork> convolution_work(const OperationEvent& operation) {
  if (operation.inputs.size() < 2 || operation.inputs[1].sizes.empty()) return std::nullopt;
  const int64_t columns = operation.inputs[1].sizes[0], outputs = elements_of(operation.output);
  const int64_t inner = operation.flops / (2 * outputs);
  if (outputs % columns != 0 || inner < 1) return std::nullopt;
  GemmWork work{outputs / columns, inner, columns};
  work.overlap = real(work.rows) * real(inner) / real(elements_of(operation.inputs[0]));
  return work;
}

// Operands as ops/attention.cc shows them: queries [B, heads, S, D]; keys and values [2, B, their heads,
// count, D], or keys alone [B, heads, count, D].
std::optional<AttentionWork> attention_work(const OperationEvent& operation) {
  if (operation.inputs.size() < 2 || operation.inputs[0].sizes.size() != 4) return std::nullopt;
  const std::vector<int64_t>&queries = operation.inputs[0].sizes, &keys = operation.inputs[1].sizes;
  if (keys.size() != 4 && keys.size() != 5) return std::nullopt;
  return AttentionWork{queries[0], queries[1], queries[2], keys[keys.size() - 2], queries[3]};
}

// Reads the bias and adds it to the scores.
VectorWork bias_work(const OperationEvent& operation, const AttentionWork& attention, int64_t element_bytes) {
  const TensorShape& bias = operation.inputs[3];
  VectorWork work{.rows = 0, .width = kFlatWidth};
  work.rows = divide_up(divide_up(bias.bytes(), element_bytes), work.width);
  work.sequence = work.rows;
  const double scores =
      real(attention.batch) * real(attention.heads) * real(attention.queries) * real(attention.keys);
  work.operations_per_element = scores / (real(work.rows) * real(work.width));
  work.inputs = 1;
  return work;
}

std::string dtype_of(const TensorShape& shape) {
  if (shape.dtype == at::kHalf) return "fp16";
  return c10::elementSize(shape.dtype) >= 4 ? "fp32" : "bf16";
}

const OperationEvent* operation_at(const RankTrace& rank, size_t index) {
  return index < rank.events.size() ? std::get_if<OperationEvent>(&rank.events[index].what) : nullptr;
}

// Collects operators, equal ones in one row, each kind of work mapped once.
class Collector {
 public:
  Collector(const Machine& machine, const MapOptions& options) : machine_(machine), options_(options) {}

  void add(Phase phase, const OperationEvent& operation, const std::string& role, bool is_activated,
           int64_t count) {
    const std::string dtype = nearest_dtype(machine_, dtype_of(operation.output));
    for (Work& work : works_of(operation, dtype_bytes(dtype))) {
      if (auto* gemm = std::get_if<GemmWork>(&work); gemm != nullptr && is_activated)
        gemm->activation_operations = kActivationOperations;
      const auto same = [&](const TracedOperator& other) {
        return other.phase == phase && other.name == operation.name && other.role == role &&
               other.dtype == dtype && other.work == work;
      };
      const auto found = std::find_if(operators_.begin(), operators_.end(), same);
      if (found != operators_.end()) {
        found->count += count;
        continue;
      }
      operators_.push_back({phase, operation.name, role, dtype, work, count, mapped(work, dtype)});
    }
  }
  std::vector<TracedOperator> take() { return std::move(operators_); }

 private:
  Mapping mapped(const Work& work, const std::string& dtype) const {
    for (const TracedOperator& other : operators_) {
      if (other.dtype == dtype && other.work == work) return other.mapping;
    }
    MapOptions options = options_;
    options.dtype = dtype;
    return map_operator({{}, work}, machine_, options);
  }

  const Machine& machine_;
  const MapOptions& options_;
  std::vector<TracedOperator> operators_;
};

void add_collective(std::vector<TracedCollective>& rows, const Event& event,
                    const CollectiveEvent& collective, int64_t count, const Link& link) {
  const auto same = [&](const TracedCollective& row) {
    return row.phase == event.phase && row.axis == collective.axis && row.name == collective.name;
  };
  auto row = std::find_if(rows.begin(), rows.end(), same);
  if (row == rows.end())
    row = rows.insert(rows.end(), {.phase = event.phase, .axis = collective.axis, .name = collective.name});
  double received = 0;
  for (const Transfer& each : collective.receives) received += real(each.bytes);
  const double bytes = std::max(real(collective.bytes), received);
  row->count += count;
  row->bytes += bytes * real(count);
  row->seconds += (bytes / *link.bandwidth + link.latency) * real(count);
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

double TraceAnalysis::computing(Phase phase) const {
  double seconds = 0;
  for (const TracedOperator& each : operators) seconds += each.phase == phase ? each.seconds() : 0;
  return seconds;
}

double TraceAnalysis::sending(Phase phase) const {
  double seconds = 0;
  for (const TracedCollective& each : collectives) seconds += each.phase == phase ? each.seconds : 0;
  return seconds;
}

double TraceAnalysis::total() const {
  double seconds = 0;
  for (const Phase phase : kAllPhases) seconds += computing(phase) + sending(phase);
  return seconds;
}

bool has_collectives(const RankTrace& rank) {
  return std::any_of(rank.events.begin(), rank.events.end(),
                     [](const Event& event) { return std::holds_alternative<CollectiveEvent>(event.what); });
}

TraceAnalysis analyze_trace(const Trace& trace, const RankTrace& rank, int64_t steps, const Machine& machine,
                            const MapOptions& options, const std::optional<Link>& link) {
  TESSERA_CHECK((link && link->bandwidth) || !has_collectives(rank), "no bandwidth between devices");
  TraceAnalysis analysis;
  Collector collector(machine, options);
  const std::vector<std::string> roles = roles_of(rank);
  for (size_t i = 0; i < rank.events.size(); ++i) {
    const Event& event = rank.events[i];
    const int64_t count = times_in_run(event, trace.traced_steps, steps);
    if (count == 0) continue;
    if (const OperationEvent* const operation = operation_at(rank, i)) {
      const OperationEvent* const next = operation_at(rank, i + 1);
      const bool is_activated = operation->name == "linear" && next != nullptr && next->bytes == 0 &&
                                next->output == operation->output;
      collector.add(event.phase, *operation, roles[i], is_activated, count);
    } else if (const auto* const collective = std::get_if<CollectiveEvent>(&event.what)) {
      add_collective(analysis.collectives, event, *collective, count, *link);
    }
  }
  analysis.operators = collector.take();
  return analysis;
}

}  // namespace tessera::plan
