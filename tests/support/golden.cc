#include "tests/support/golden.h"

#include <algorithm>

#include "weights/safetensors.h"

namespace tessera {

std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(TESSERA_GOLDEN_DIR) / name;
}

std::map<std::string, at::Tensor> read_golden(const std::string& name) {
  const weights::SafetensorsFile file(golden_folder(name));
  std::map<std::string, at::Tensor> result;
  for (const auto& [key, entry] : file.header().tensors) {
    const auto bytes = file.bytes(entry);
    const at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
    result.emplace(key, tensor);
  }
  return result;
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

}  // namespace tessera
