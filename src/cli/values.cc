#include "cli/values.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/cpu.h"
#include "core/error.h"

namespace tessera::cli {
namespace {

// The whole of `text` as a number, or nothing.
template <typename Number>
std::optional<Number> parse_whole(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

int64_t parse_integer(const std::string& option, const std::string& text) {
  if (const auto value = parse_whole<int64_t>(text)) return *value;
  usage_error(option, "expected an integer, got '{}'", text);
}

uint64_t parse_seed(const std::string& option, const std::string& text) {
  if (const auto value = parse_whole<uint64_t>(text)) return *value;
  usage_error(option, "expected an integer from 0 to 18446744073709551615, got '{}'", text);
}

double parse_number(const std::string& option, const std::string& text) {
  if (const auto value = parse_whole<double>(text)) return *value;
  usage_error(option, "expected a number, got '{}'", text);
}

at::Device parse_device(const std::string& option, const std::string& text) {
  if (text == "cpu") return at::kCPU;
  const bool numbered = text.starts_with("cuda:");
  const auto index = parse_whole<int8_t>(numbered ? text.substr(5) : "0");
  if ((text != "cuda" && !numbered) || !index || *index < 0) {
    usage_error(option, "expected cpu, cuda or cuda:N, got '{}'", text);
  }
  // Whether there is one is not asked here: that would start CUDA, and ranks are forked after this.
  return numbered ? at::Device(at::kCUDA, *index) : at::Device(at::kCUDA);
}

engine::OutputType parse_output_type(const std::string& option, const std::string& text) {
  if (text == "image" || text == "pil") return engine::OutputType::kImage;  // diffusers says pil
  if (text == "latent") return engine::OutputType::kLatent;
  usage_error(option, "expected image or latent, got '{}'", text);
}

at::ScalarType parse_dtype(const std::string& option, const std::string& text, at::Device device) {
  if (text == "auto") return device.is_cuda() || cpu_has_bf16() ? at::kBFloat16 : at::kFloat;
  if (text == "fp32") return at::kFloat;
  if (text == "bf16") return at::kBFloat16;
  if (text == "fp16") return at::kHalf;
  usage_error(option, "expected auto, fp32, bf16 or fp16, got '{}'", text);
}

std::optional<std::string> nearest_word(const std::string& word, const std::vector<std::string>& known) {
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // The beginning of a word counts as nearly that word.
    const size_t distance = candidate.starts_with(word) ? 1 : edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tessera::cli
