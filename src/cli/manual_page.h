// `tessera man`: the manual page.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tessera::cli {

// Returns tessera(1) in the man macros of roff: all commands with their options, in the words and the groups
// of
// --help. `app` has all commands.
std::string manual_page(const CLI::App& app);

}  // namespace tessera::cli
