// What a rank computes in one evaluation of a part of a model, value by value: a program in static single
// assignment. Like a trace, it is recorded from shapes alone, but it records which value each operation
// reads, where a trace has only its shape.
//
// The memory of tensors is a value too. A tensor is a view of the value that its storage holds, and a write
// to a part of a storage makes a new value of all of it; so views and writes in place need no rules of their
// own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/range.h"
#include "plan/trace.h"
#include "weights/source.h"

namespace tessera::plan {

using ValueId = int64_t;
inline constexpr ValueId kNoValue = -1;  // for an operand that an operation leaves out

// Where the elements of a tensor are in its storage, counted in elements.
struct Geometry {
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;

  static Geometry of(const at::Tensor& x);
  bool operator==(const Geometry&) const = default;
};

struct ValueRef {
  ValueId id = kNoValue;
  bool operator==(const ValueRef&) const = default;
};
using GraphAttribute = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                                    std::vector<double>, ValueRef, std::vector<ValueRef>>;

// The attributes of a collective.
struct GraphCollective {
  std::string axis;
  std::vector<int64_t> ranks;  // of the group, in the world
  int64_t dim = 0;
  std::vector<int64_t> parts;  // sizes along `dim`, by rank of the group
  int64_t to = -1, from = -1;  // for messages to one rank, in the world
};

struct GraphNode {
  // An operation (ops::Dataflow); "aten::NAME", a call of libtorch; "view", of the value of a storage;
  // "write", into a part of a storage, from its old value and the new part; "bitcast", its bytes as another
  // dtype; "empty", a storage that is written part by part; or "unwritten", a storage that is read before
  // anything has written it, which means that a write was not recorded.
  std::string name;
  std::string role = {};
  int64_t block = -1;
  std::vector<ValueId> reads = {}, writes = {};
  std::vector<std::pair<std::string, GraphAttribute>> attributes = {};
  // For calls of libtorch: the arguments in the order of the schema, with tensors as references.
  std::vector<GraphAttribute> arguments = {};
  GraphCollective collective = {};  // for "collective.NAME"
  // For a view or a write: the geometry of the storage's value, and that of the part.
  Geometry whole = {}, part = {};

  const GraphAttribute* find(const std::string& attribute) const;
};

// An input of a program. A cache is what an earlier program has left.
struct GraphArgument {
  enum class Kind { kWeight, kInput, kConstant, kCache };
  Kind kind = Kind::kInput;
  ValueId value = kNoValue;
  std::string name = {};            // for everything but a weight
  std::string part = {}, key = {};  // for a weight: its folder, and its name in the file
  // For a weight, the sizes of the tensor in the file, and the part that the program takes. For latents of a
  // rank, the same with respect to all lines.
  std::vector<int64_t> whole = {};
  std::vector<weights::Slice> slices = {};
  at::Tensor contents = {};  // for a constant, on the CPU
  std::string shown = {};    // for a constant that was read from a trace: its contents in the trace, as JSON
  bool is_zero = false;      // in a program for all ranks: only other ranks have it
};

struct GraphResult {
  std::string name;
  ValueId value = kNoValue;
  // Where a rank's result is within that of all ranks.
  std::vector<int64_t> whole = {};
  std::vector<weights::Slice> slices = {};
};

struct Graph {
  std::vector<int64_t> prompt_of_sample;  // for a denoiser: the numbers of its prompts
  std::optional<Range> images = {};       // for a denoiser: those images of the request that the rank has
  std::map<std::string, double> numbers;  // inputs with a single number, and their values in the run
  std::vector<TensorShape> values;        // by id
  std::vector<GraphArgument> arguments;
  std::vector<GraphNode> nodes;  // in the order of the program
  std::vector<GraphResult> results;
};

}  // namespace tessera::plan
