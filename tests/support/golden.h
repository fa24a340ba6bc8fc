// Reads golden tensors, which tools/golden/ makes with the reference implementations.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace tessera {

std::filesystem::path golden_folder(const std::string& name);  // tests/golden/`name`

// Returns all tensors of tests/golden/`name`, a safetensors file.
std::map<std::string, at::Tensor> read_golden(const std::string& name);

double relative_error(const at::Tensor& got, const at::Tensor& expected);  // max |a - b| / max |b|

// This is the relative tolerance for every fp32 golden of a component.
constexpr double kComponentTolerance = 1e-5;

}  // namespace tessera
