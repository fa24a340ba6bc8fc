// Texts about all commands: scripts that complete command lines, and the manual page.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/field_options.h"

namespace tessera::cli {

const std::vector<std::string>& completion_shells();

// What a word may be.
struct CompletionValues {
  std::vector<std::string> words = {};
  bool files = false;
};

// The options of a command, and the possible values of words that are not options: of the first after the
// command, and of the others.
struct CommandCompletion {
  const FieldOptions* options = nullptr;
  CompletionValues first = {}, others = {};
};

// Returns the script for one of the shells: commands, options, and values of options: a few words, names of
// things that ship, or files. `app` has all commands.
std::string completion_script(const CLI::App& app, const std::map<std::string, CommandCompletion>& commands,
                              const std::string& shell);

// Returns tessera(1) in the man macros of roff: all commands with their options, in the words and the groups
// of
// --help. `app` has all commands.
std::string manual_page(const CLI::App& app);

}  // namespace tessera::cli
