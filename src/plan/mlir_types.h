// Types in MLIR's text form: `tensor<2x3xf32>`.
#pragma once

#include <optional>
#include <vector>

#include "plan/mlir_text.h"
#include "plan/trace.h"

namespace tessera::plan {

using MlirType = std::optional<TensorShape>;  // nothing for what is no tensor, as a token
using MlirTypes = std::vector<MlirType>;

// Reads at a cursor. Throws Error(kInput) as the cursor does, for a shape that is not static, one of more
// than 2^52 elements, and numbers that libtorch does not have.
class MlirTypeReader {
 public:
  explicit MlirTypeReader(MlirText& text) : text_(text) {}

  MlirType type();
  MlirTypes list();  // "t, t", within brackets or not

 private:
  TensorShape tensor();
  at::ScalarType element();

  MlirText& text_;
};

}  // namespace tessera::plan
