// What a user is told who writes an option that a command does not have.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tessera::cli {

// Throws Error(kUsage) that names the nearest option, what other programs' option is called here, or that the
// option is of something that cannot be done yet.
[[noreturn]] void refuse_unknown_option(const CLI::App& command, const std::string& word);

}  // namespace tessera::cli
