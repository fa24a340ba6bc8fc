#include "plan/trace_json.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace tessera::plan {
namespace {

struct NamedDtype {
  at::ScalarType dtype;
  std::string_view name;
};
constexpr std::array kDtypes = {
    NamedDtype{at::kFloat, "fp32"}, NamedDtype{at::kBFloat16, "bf16"}, NamedDtype{at::kHalf, "fp16"},
    NamedDtype{at::kDouble, "fp64"}, NamedDtype{at::kByte, "uint8"}, NamedDtype{at::kChar, "int8"},
    NamedDtype{at::kShort, "int16"}, NamedDtype{at::kInt, "int32"}, NamedDtype{at::kLong, "int64"},
    NamedDtype{at::kBool, "bool"},
    // Dtypes that only checkpoints have.
    NamedDtype{at::kFloat8_e4m3fn, "fp8_e4m3"}, NamedDtype{at::kFloat8_e5m2, "fp8_e5m2"},
    NamedDtype{at::kUInt16, "uint16"}, NamedDtype{at::kUInt32, "uint32"}, NamedDtype{at::kUInt64, "uint64"}};

}  // namespace

std::string_view trace_name(at::ScalarType dtype) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const NamedDtype& each) { return each.dtype == dtype; });
  TESSERA_CHECK(found != kDtypes.end(), "a trace has no name for {}", c10::toString(dtype));
  return found->name;
}

Json json_of(const TensorShape& shape) {
  return {{"shape", shape.sizes}, {"dtype", trace_name(shape.dtype)}};
}

int64_t TraceReader::number(const std::string& key, int64_t least) const {
  const int64_t value = config_.integer(key);
  if (value < least || value > kMostInTrace)
    config_.fail(key, fmt::format("a number from {} to {}", least, kMostInTrace));
  return value;
}

std::optional<TimeSpan> TraceReader::time() const {
  if (!has("begin") && !has("end")) return std::nullopt;
  constexpr double kMostSeconds = 1e9;
  const double begin = config_.number_within("begin", 0, kMostSeconds);
  return TimeSpan{begin, config_.number_within("end", begin, kMostSeconds)};
}

std::vector<int64_t> TraceReader::numbers(const std::string& key, int64_t least) const {
  std::vector<int64_t> values = config_.integers(key);
  for (const int64_t value : values) {
    if (value < least || value > kMostInTrace)
      config_.fail(key, fmt::format("numbers from {} to {}", least, kMostInTrace));
  }
  return values;
}

at::ScalarType TraceReader::dtype(const std::string& key) const {
  const std::string name = text(key);
  const auto found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const NamedDtype& each) { return each.name == name; });
  if (found == kDtypes.end()) config_.fail(key, "a dtype");
  return found->dtype;
}

const Json& TraceReader::list(const std::string& key) const {
  const Json* value = config_.value(key);
  if (value == nullptr || !value->is_array()) config_.fail(key, "a list");
  return *value;
}

const Json& TraceReader::object(const std::string& key) const {
  const Json* value = config_.value(key);
  if (value == nullptr || !value->is_object()) config_.fail(key, "an object");
  return *value;
}

const Json& TraceReader::value(const std::string& key) const {
  const Json* value = config_.value(key);
  if (value == nullptr) config_.fail(key, "there");
  return *value;
}

TensorShape read_shape(const Json& json, const std::string& where) {
  const TraceReader reader(json, where);
  TensorShape shape{reader.numbers("shape"), reader.dtype("dtype")};
  double elements = 1;
  for (const int64_t size : shape.sizes) elements *= static_cast<double>(size);
  if (elements > static_cast<double>(kMostInTrace)) reader.fail("shape", "a shape of fewer elements");
  return shape;
}

}  // namespace tessera::plan
