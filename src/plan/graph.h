// What a rank computes in one evaluation of a part of a model, value by value: a program in static single
// assignment. It is recorded from shapes alone, as a trace is, but it knows which value each operation reads,
// where a trace knows only its shape.
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
inline constexpr ValueId kNoValue = -1;  // of an operand that an operation does without

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

// What a collective says of itself.
struct GraphCollective {
  std::string axis;
  std::vector<int64_t> ranks;  // of the group, in the world
  int64_t dim = 0;
  std::vector<int64_t> parts;  // sizes along `dim`, by rank of the group
  int64_t to = -1, from = -1;  // of messages to one rank, in the world
};

struct GraphNode {
  // Of an operation (ops::Dataflow); "aten::NAME" of libtorch; "view", of the value of a storage; "write",
  // into a part of it: what it held and the new part; "bitcast", its bytes as another dtype; "empty", a
  // storage that is written part by part; or "unwritten", one that is read before: then something that writes
  // it was not recorded.
  std::string name;
  std::string role = {};
  int64_t block = -1;
  std::vector<ValueId> reads = {}, writes = {};
  std::vector<std::pair<std::string, GraphAttribute>> attributes = {};
  // Of libtorch: the arguments in the order of the schema, tensors as references.
  std::vector<GraphAttribute> arguments = {};
  GraphCollective collective = {};  // of "collective.NAME"
  // Of a view or a write: of the value of the storage, and of the part.
  Geometry whole = {}, part = {};

  const GraphAttribute* find(const std::string& attribute) const;
};

// What a program is given. A cache is what something before it has left.
struct GraphArgument {
  enum class Kind { kWeight, kInput, kConstant, kCache };
  Kind kind = Kind::kInput;
  ValueId value = kNoValue;
  std::string name = {};            // of all but a weight
  std::string part = {}, key = {};  // of a weight: its folder, and its name in the file
  // Of a weight, the sizes of the tensor in the file, and what the program takes of it. Of the latents of a
  // rank, the same of those of all lines.
  std::vector<int64_t> whole = {};
  std::vector<weights::Slice> slices = {};
  at::Tensor contents = {};  // of a constant, on the CPU
  std::string shown = {};    // of a constant that was read from a trace: its contents there, as JSON
  bool is_zero = false;      // in a program of all ranks: only others have it
};

struct GraphResult {
  std::string name;
  ValueId value = kNoValue;
  // Where the result of a rank is in that of all of them.
  std::vector<int64_t> whole = {};
  std::vector<weights::Slice> slices = {};
};

struct Graph {
  std::vector<int64_t> prompt_of_sample;  // of a denoiser: the numbers of its prompts
  std::optional<Range> images = {};       // of a denoiser: those of the request that the rank has
  std::map<std::string, double> numbers;  // inputs of one number, and what they are in the run
  std::vector<TensorShape> values;        // by id
  std::vector<GraphArgument> arguments;
  std::vector<GraphNode> nodes;  // in the order of the program
  std::vector<GraphResult> results;
};

}  // namespace tessera::plan
