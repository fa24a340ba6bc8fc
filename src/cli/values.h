// From the text of an option to its value. Each throws Error(kUsage) with the option, what is expected and
// the text.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace tessera::cli {

int64_t parse_integer(const std::string& option, const std::string& text);
uint64_t parse_seed(const std::string& option, const std::string& text);
double parse_number(const std::string& option, const std::string& text);
at::Device parse_device(const std::string& option, const std::string& text);
engine::OutputType parse_output_type(const std::string& option, const std::string& text);

// `auto` is bf16 where the device multiplies it in hardware, else fp32.
at::ScalarType parse_dtype(const std::string& option, const std::string& text, at::Device device);

// The word of `known` that begins with `word`, or that is nearest by edit distance; nothing when none is
// near.
std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace tessera::cli
