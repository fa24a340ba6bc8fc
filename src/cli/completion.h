// `tessera completion SHELL`: a script for the completion of command lines.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

const std::vector<std::string>& completion_shells();

// Returns the script for one of the shells: commands, options, and the values of options that have few or are
// files. `app` has all commands.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace tessera::cli
