// Reads a program in StableHLO's text form (github.com/openxla/stablehlo, docs/spec.md): its operations with
// the types of their operands and results. Nothing is executed, and the contents of constants are skipped.
//
// Both the short and the generic form of operations are supported, as in programs of this project, of JAX and
// of torch_xla. Shapes are static. Regions that combine numbers, as in a sort, are skipped; the two regions
// of a while and the branches of a case are read; an `if` is refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plan/mlir_types.h"

namespace tessera::plan {

struct ProgramOperation;

struct ProgramBlock {
  std::vector<size_t> arguments;
  std::vector<ProgramOperation> operations;  // the last one returns
};

struct ProgramOperation {
  std::string_view name;              // without "stablehlo." and "func.": "dot_general", "call", "chlo.erf"
  std::string_view words;             // the text between the name and the types: operands and attributes
  std::vector<size_t> reads, writes;  // values of the function
  std::string_view callee = {};       // of a call
  std::string_view location = {};     // the contents of loc(...); empty if absent
  std::vector<ProgramBlock> regions = {};  // of a while: the condition and the body; of a case: its branches
  size_t place = 0;                        // in the text
};

struct ProgramFunction {
  MlirTypes values;
  std::map<size_t, int64_t> integers;  // values that are constant integers
  ProgramBlock body;
};

// Consists of parts of the text, which must outlive it.
struct StablehloModule {
  std::string_view text;
  std::string where;
  std::string_view name, location;
  std::map<std::string_view, ProgramFunction> functions;
  std::string_view entry;                                // "main", or the first function
  std::map<std::string_view, std::string_view> aliases;  // of locations: "loc4" -> the contents of loc(...)

  // Throws Error(kInput) that names the line of the operation.
  [[noreturn]] void fail(const ProgramOperation& operation, const std::string& what) const;
};

// Whether a text looks like a program rather than JSON.
bool is_mlir(std::string_view text);

// Throws Error(kInput) naming `where` and the line for a text that is malformed, contains operations of other
// dialects, or has a shape that is unknown or has more than 2^52 elements.
StablehloModule read_stablehlo(std::string_view text, const std::string& where);

}  // namespace tessera::plan
