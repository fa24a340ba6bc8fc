// Types in MLIR's text form: `tensor<2x3xf32>`.
#pragma once

#include <optional>
#include <vector>

#include "plan/mlir_text.h"
#include "plan/trace.h"

namespace tessera::plan {

using MlirType = std::optional<TensorShape>;  // nothing for a type that is not a tensor, such as a token
using MlirTypes = std::vector<MlirType>;

// Reads at a cursor. Throws Error(kInput) as the cursor does, for a shape that is not static, for one of more
// than 2^52 elements, and for numbers that libtorch lacks.
class MlirTypeReader {
 public:
  explicit MlirTypeReader(MlirText& text) : text_(text) {}

  MlirType type();
  MlirTypes list();  // "t, t", in brackets or without

 private:
  TensorShape tensor();
  at::ScalarType element();

  MlirText& text_;
};

}  // namespace tessera::plan
