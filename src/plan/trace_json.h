// What all parts of a trace's file read and write in the same way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "plan/trace.h"

namespace tessera::plan {

// The largest number in a trace; doubles beyond it are not exact.
inline constexpr int64_t kMostInTrace = int64_t{1} << 52;

// "fp32", "int64"; checks that traces have a name for the dtype.
std::string_view trace_name(at::ScalarType dtype);
Json json_of(const TensorShape& shape);

// Reads an object of the file; every error names its place in the file.
class TraceReader {
 public:
  TraceReader(const Json& json, std::string where) : config_(json, std::move(where)) {}

  int64_t number(const std::string& key, int64_t least = 0) const;
  // Absent in a trace of meta tensors.
  std::optional<TimeSpan> time() const;
  std::string text(const std::string& key) const { return config_.string(key); }
  bool has(const std::string& key) const { return config_.has(key); }
  std::vector<int64_t> numbers(const std::string& key, int64_t least = 0) const;
  at::ScalarType dtype(const std::string& key) const;
  const Json& list(const std::string& key) const;
  const Json& object(const std::string& key) const;
  const Json& value(const std::string& key) const;  // of any type
  const Json& values() const { return config_.values(); }
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    config_.fail(key, expected);
  }
  const std::string& where() const { return config_.where(); }

 private:
  JsonConfig config_;
};

TensorShape read_shape(const Json& json, const std::string& where);

}  // namespace tessera::plan
