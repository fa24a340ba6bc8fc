#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/field_options.h"
#include "core/error.h"
#include "engine/find_model.h"
#include "plan/find_machine.h"
#include "samplers/sampler.h"

namespace tessera::cli {
namespace {

struct Option {
  std::vector<std::string> names;  // with their dashes
  std::string help;                // one line
  bool takes_value;
  CompletionValues values;
};

// The names that an option takes beside others, in whatever command.
std::vector<std::string> known_names(const std::string& option) {
  std::vector<std::string> names;
  if (option == option_name("scheduler")) {
    for (const auto& sampler : samplers::known_samplers()) names.push_back(sampler.short_name);
  } else if (option == option_name("model")) {
    for (const auto& model : engine::shipped_models()) names.push_back(model.filename().string());
  } else if (option == option_name("machine")) {
    names = plan::shipped_machines();
  }
  return names;
}

std::vector<Option> options_of(const CLI::App& command, const CommandCompletion& completion) {
  std::vector<Option> options;
  for (const CLI::Option* option : command.get_options()) {
    Option made{{}, option->get_description(), option->get_items_expected_max() > 0, {}};
    for (const std::string& name : option->get_snames()) made.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) made.names.push_back("--" + name);
    if (made.names.empty()) continue;  // prompts, a model's folder
    std::replace(made.help.begin(), made.help.end(), '\n', ' ');
    const std::string unit = option->get_type_name();
    made.values.files = unit == "FILE" || unit == "FOLDER" || unit == "PATH" || unit == "PATHS";
    const auto found = completion.choices.find(made.names.back());
    made.values.words = found == completion.choices.end() ? known_names(made.names.back()) : found->second;
    options.push_back(made);
  }
  return options;
}

CommandCompletion completion_of(const std::map<std::string, CommandCompletion>& commands,
                                const CLI::App& command) {
  const auto found = commands.find(command.get_name());
  return found == commands.end() ? CommandCompletion() : found->second;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// In single quotes, which a shell takes as they are.
std::string in_quotes(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

using Commands = std::map<std::string, CommandCompletion>;

std::string bash_values(const CompletionValues& values) {
  std::string sources;
  if (!values.words.empty())
    sources += fmt::format("$(compgen -W {} -- \"$word\")", in_quotes(joined(values.words)));
  if (values.files) sources += std::string(sources.empty() ? "" : " ") + "$(compgen -f -- \"$word\")";
  return fmt::format("COMPREPLY=({})", sources);
}

std::string bash(const CLI::App& app, const Commands& commands) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(app)) {
    const CommandCompletion completion = completion_of(commands, *command);
    names += command->get_name() + " ";
    std::string words;
    for (const Option& option : options_of(*command, completion)) {
      for (const std::string& name : option.names) {
        words += name + " ";
        if (!option.takes_value) continue;
        cases += fmt::format("    {}:{}) {} ;;\n", command->get_name(), name, bash_values(option.values));
      }
    }
    cases += fmt::format(
        "    {}:*)\n      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W {} -- \"${{word//_/-}}\"))\n"
        "      elif [ \"$COMP_CWORD\" = 2 ]; then {}\n      else {}; fi ;;\n",
        command->get_name(), in_quotes(words), bash_values(completion.first), bash_values(completion.others));
  }
  // Bash makes a word of the = in --name=value. Names of options may be spelled with underscores.
  return fmt::format(R"(_tessera() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W {} -- "$word"))
    return
  fi
  if [ "$word" = = ]; then word=
  elif [ "$before" = = ]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case ${{COMP_WORDS[1]}}:${{before//_/-}} in
{}  esac
}}
complete -o filenames -F _tessera tessera
)",
                     in_quotes(names), cases);
}

// The action of _arguments.
std::string zsh_values(const CompletionValues& values) {
  if (values.words.empty()) return values.files ? "file:_files" : "value: ";
  const std::string words = joined(values.words);
  return values.files ? fmt::format("value:{{compadd {}; _files}}", words) : fmt::format("value:({})", words);
}

std::string zsh(const CLI::App& app, const Commands& commands) {
  std::string names, cases;
  const auto described = [](const std::string& text) {
    std::string result;
    for (const char c : text)
      result += std::string(c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + c;
    return result;
  };
  for (const CLI::App* command : commands_of(app)) {
    const CommandCompletion completion = completion_of(commands, *command);
    names += " " + in_quotes(command->get_name() + ":" + command->get_description());
    cases += fmt::format("    {}) _arguments -M 'm:_=-'", command->get_name());
    for (const Option& option : options_of(*command, completion)) {
      const std::string value = option.takes_value ? ":" + zsh_values(option.values) : "";
      for (const std::string& name : option.names)
        cases += " \\\n      " + in_quotes(fmt::format("*{}[{}]{}", name, described(option.help), value));
    }
    cases += fmt::format(" \\\n      {} {} ;;\n", in_quotes("1:" + zsh_values(completion.first)),
                         in_quotes("*:" + zsh_values(completion.others)));
  }
  return fmt::format(R"(#compdef tessera
_tessera() {{
  local -a commands=({})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [ "$funcstack[1]" = _tessera ]; then _tessera "$@"; else compdef _tessera tessera; fi
)",
                     names, cases);
}

// -f: no files beside the words; -F: files, too.
std::string fish_values(const CompletionValues& values) {
  return (values.files ? " -F" : " -f") +
         (values.words.empty() ? "" : " -a " + in_quotes(joined(values.words)));
}

std::string fish(const CLI::App& app, const Commands& commands) {
  std::string script = "complete -c tessera -e\n";
  for (const CLI::App* command : commands_of(app)) {
    const CommandCompletion completion = completion_of(commands, *command);
    const std::string name_of_command = command->get_name();
    const std::string in_command = "__fish_seen_subcommand_from " + name_of_command;
    script += fmt::format("complete -c tessera -n __fish_use_subcommand -f -a {} -d {}\n", name_of_command,
                          in_quotes(command->get_description()));
    const std::string is_first = completion.first.words.empty() ? ""
                                                                : "; and not __fish_seen_subcommand_from " +
                                                                      joined(completion.first.words);
    script += fmt::format("complete -c tessera -n {}{}\n", in_quotes(in_command + is_first),
                          fish_values(completion.first));
    for (const Option& option : options_of(*command, completion)) {
      script += "complete -c tessera -n " + in_quotes(in_command);
      for (const std::string& name : option.names)
        script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.takes_value) script += " -r" + fish_values(option.values);
      script += " -d " + in_quotes(option.help) + "\n";
    }
  }
  return script;
}

}  // namespace

const std::vector<std::string>& completion_shells() {
  static const std::vector<std::string> shells = {"bash", "zsh", "fish"};
  return shells;
}

std::string completion_script(const CLI::App& app, const Commands& commands, const std::string& shell) {
  if (shell == "bash") return bash(app, commands);
  if (shell == "zsh") return zsh(app, commands);
  if (shell == "fish") return fish(app, commands);
  usage_error("SHELL", "no completion for '{}'; there is one for {}", shell,
              fmt::join(completion_shells(), ", "));
}

}  // namespace tessera::cli
