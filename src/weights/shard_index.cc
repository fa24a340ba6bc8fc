#include "weights/shard_index.h"

#include "core/error.h"

namespace tessera::weights {
namespace {

// A name that contains a folder could point anywhere on the machine.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(const JsonConfig& index) {
  if (!index.has("weight_map") || !index.values()["weight_map"].is_object())
    index.fail("weight_map", "an object");
  std::map<std::string, std::string> file_of;
  for (const auto& [key, name] : index.values()["weight_map"].items()) {
    if (!name.is_string()) index.fail("weight_map", "an object of file names");
    const auto& file = name.get_ref<const std::string&>();
    if (!is_plain_name(file)) input_error(index.where(), "'{}' must name a file in the same folder", key);
    file_of[key] = file;
  }
  return file_of;
}

}  // namespace tessera::weights
