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

Machine read_named_machine(const std::string& name) {
  const std::vector<std::string> names = shipped_machines();
  const size_t dash = name.rfind('-');
  const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
  const std::string device = name.substr(0, dash);
  if (is_known || dash == std::string::npos || std::find(names.begin(), names.end(), device) == names.end())
    return read_machine(find_machine(name));
  Machine machine = read_machine(find_machine(device));
  std::vector<Link>& links = machine.links;
  const auto chosen = std::find_if(links.begin(), links.end(),
                                   [&](const Link& link) { return link.kind == name.substr(dash + 1); });
  if (chosen == links.end()) return read_machine(find_machine(name));
  std::rotate(links.begin(), chosen, chosen + 1);
  // From the others, removes those that join more devices.
  std::erase_if(links, [&](const Link& link) {
    return &link != &links.front() && link.devices == links.front().devices;
  });
  machine.name = name;
  return machine;
}

}  // namespace tessera::plan
