#include "plan/find_machine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "engine/shipped.h"

namespace tessera::plan {

namespace fs = std::filesystem;

std::vector<std::string> shipped_machines() {
  std::set<std::string> names;
  std::error_code code;
  for (const fs::path& folder : engine::shipped_folders("machines", "TESSERA_MACHINES")) {
    for (const fs::path& each : list_folder(folder, code)) {
      if (each.extension() == ".json") names.insert(each.stem().string());
    }
  }
  return {names.begin(), names.end()};
}

fs::path find_machine(const std::string& name) {
  std::error_code code;
  if (name.find('/') != std::string::npos || name.ends_with(".json") || fs::is_regular_file(name, code))
    return name;
  for (const fs::path& folder : engine::shipped_folders("machines", "TESSERA_MACHINES")) {
    fs::path file = folder / (name + ".json");
    if (!name.empty() && fs::exists(file, code)) return file;
  }
  const std::vector<std::string> names = shipped_machines();
  const auto nearest = nearest_word(name, names);
  input_error(printable(name), "no such file, and not the name of a machine that ships{}",
              nearest         ? fmt::format("; did you mean {}?", *nearest)
              : names.empty() ? ""
                              : fmt::format("; there are {}", fmt::join(names, ", ")));
}

}  // namespace tessera::plan
