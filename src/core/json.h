// JSON as diffusers and transformers write it: strict JSON plus the bare words NaN, Infinity and -Infinity,
// which Python's json module emits.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order in which keys were added

// Parses a whole document. The words for non-finite numbers become floating-point values. Nesting is limited
// to 100 levels. Throws Error(kInput) with `where` and the position of the first mistake.
Json parse_json(std::string_view text, const std::string& where);

// Reads and parses a file. Throws Error(kInput) when it is missing, unreadable or larger than 256 MiB.
Json read_json(const std::filesystem::path& path);

// How a null in place of a number, text or list is read. Most parameters of diffusers and transformers fail
// on None; kDefault is for those for which the libraries then choose a value themselves.
enum class Null { kRefused, kDefault };

// Typed access to a JSON object, for config files. An absent key gives the default. Null is Python's None:
// false for a boolean, otherwise refused or the default. A value of another type is an Error(kInput) that
// names the key, the expectation, the value and the file.
//
// It remembers which keys were read, so that a key that nobody reads does not go unnoticed.
class JsonConfig {
 public:
  JsonConfig();
  // Throws Error(kInput) when `values` is not an object. Every error names `where` (a path).
  JsonConfig(Json values, std::string where);
  static JsonConfig read(const std::filesystem::path& path);

  bool has(const std::string& key) const;  // present and not null
  int64_t integer(const std::string& key, std::optional<int64_t> fallback = std::nullopt,
                  Null null = Null::kRefused) const;
  // A size or a number of things, from 1 to `most`.
  int64_t count(const std::string& key, int64_t most, std::optional<int64_t> fallback = std::nullopt) const;
  // NaN and the infinities count as numbers; a number that overflows fp32 is an error.
  double number(const std::string& key, std::optional<double> fallback = std::nullopt,
                Null null = Null::kRefused) const;
  // A number from `least` to `most`; NaN is an error.
  double number_within(const std::string& key, double least, double most,
                       std::optional<double> fallback = std::nullopt) const;
  bool boolean(const std::string& key, std::optional<bool> fallback = std::nullopt) const;
  std::string string(const std::string& key, const std::optional<std::string>& fallback = std::nullopt,
                     Null null = Null::kRefused) const;
  // A single integer counts as a list.
  std::vector<int64_t> integers(const std::string& key,
                                const std::optional<std::vector<int64_t>>& fallback = std::nullopt) const;
  std::vector<double> numbers(const std::string& key) const;  // required
  std::vector<std::string> strings(
      const std::string& key, const std::optional<std::vector<std::string>>& fallback = std::nullopt) const;

  // A value of any type, null included; nullptr if the key is absent.
  const Json* value(const std::string& key) const;

  // The object under a key, empty if it is absent. Errors name the key.
  JsonConfig object(const std::string& key) const;
  // The same file with other values, for example if it lacks what another version of it contains.
  JsonConfig with(Json values) const;

  // Does not count as reading a key.
  const Json& values() const { return values_; }
  // Returns the keys that no other function has read, in alphabetical order, with those of object() after a
  // dot, and without those that are null or false, since these switch an option off. Copies and with() share
  // this record. Threads may read keys at the same time.
  std::vector<std::string> unread() const;
  const std::string& where() const { return where_; }

  // Throws Error(kInput): `[where] 'key' must be EXPECTED, got VALUE`.
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;
  // Throws Error(kInput) for a value that is valid in other cases: `[where] 'key' is VALUE: WHY`.
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;

 private:
  // nullptr if absent, or if null means the default
  const Json* find(const std::string& key, Null null = Null::kDefault) const;
  std::string value_text(const std::string& key) const;  // for messages

  struct Asked;
  static void add_unread(const Json& values, Asked& asked, const std::string& prefix,
                         std::vector<std::string>& keys);

  Json values_;
  std::string where_;
  std::shared_ptr<Asked> asked_;
};

}  // namespace tessera
