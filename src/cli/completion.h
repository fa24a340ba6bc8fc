// `tessera completion SHELL`: a script for the completion of command lines.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

const std::vector<std::string>& completion_shells();

// What a word may be.
struct CompletionValues {
  std::vector<std::string> words = {};
  bool files = false;
};

// What the values of a command's options may be, and the words that are no options.
struct CommandCompletion {
  std::map<std::string, std::vector<std::string>> choices = {};  // by option, of those that allow only some
  CompletionValues first = {}, others = {};  // the first word after the command, and others
};

// Returns the script for one of the shells: commands, options, and their values that are few, names of what
// ships, or files. `app` has all commands; those that are not in `commands` take options alone.
std::string completion_script(const CLI::App& app, const std::map<std::string, CommandCompletion>& commands,
                              const std::string& shell);

}  // namespace tessera::cli
