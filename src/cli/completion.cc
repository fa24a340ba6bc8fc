#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "cli/field_options.h"
#include "cli/generate_arguments.h"
#include "core/error.h"
#include "samplers/sampler.h"

namespace tessera::cli {
namespace {

struct Option {
  std::vector<std::string> names;  // with their dashes
  std::string help;                // one line
  bool takes_value, takes_file;
  std::vector<std::string> choices;
};

std::map<std::string, std::vector<std::string>> choices_by_option() {
  std::map<std::string, std::vector<std::string>> choices;
  const auto add = [&](const auto& fields) {
    for (const FieldInfo& info : fields) choices[option_name(info.name)] = info.choices;
  };
  add(engine::request_fields());
  add(parallel::parallel_fields());
  add(run_fields());
  for (const auto& sampler : samplers::known_samplers())
    choices[option_name("scheduler")].push_back(sampler.short_name);
  return choices;
}

std::vector<Option> options_of(const CLI::App& command) {
  static const auto choices = choices_by_option();
  std::vector<Option> options;
  for (const CLI::Option* option : command.get_options()) {
    Option made{{}, option->get_description(), option->get_items_expected_max() > 0, false, {}};
    for (const std::string& name : option->get_snames()) made.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) made.names.push_back("--" + name);
    if (made.names.empty()) continue;  // prompts, a model's folder
    std::replace(made.help.begin(), made.help.end(), '\n', ' ');
    const std::string unit = option->get_type_name();
    made.takes_file = unit == "FILE" || unit == "FOLDER" || unit == "PATH" || unit == "PATHS";
    if (const auto found = choices.find(made.names.back()); found != choices.end())
      made.choices = found->second;
    options.push_back(made);
  }
  return options;
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

std::string bash(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(app)) {
    names += command->get_name() + " ";
    std::string words;
    for (const Option& option : options_of(*command)) {
      for (const std::string& name : option.names) {
        words += name + " ";
        if (!option.takes_value) continue;
        const std::string values =
            option.takes_file ? "COMPREPLY=($(compgen -f -- \"$word\"))"
            : option.choices.empty()
                ? "COMPREPLY=()"
                : fmt::format("COMPREPLY=($(compgen -W {} -- \"$word\"))",
                              in_quotes(fmt::format("{}", fmt::join(option.choices, " "))));
        cases += fmt::format("    {}:{}) {} ;;\n", command->get_name(), name, values);
      }
    }
    cases += fmt::format(
        "    {}:*)\n      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W {} -- \"$word\")); "
        "else COMPREPLY=($(compgen -f -- \"$word\")); fi ;;\n",
        command->get_name(), in_quotes(words));
  }
  return fmt::format(R"(_tessera() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W {} -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}}:$before in
{}  esac
}}
complete -o filenames -F _tessera tessera
)",
                     in_quotes(names), cases);
}

std::string zsh(const CLI::App& app) {
  std::string names, cases;
  const auto described = [](const std::string& text) {
    std::string result;
    for (const char c : text)
      result += std::string(c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + c;
    return result;
  };
  for (const CLI::App* command : commands_of(app)) {
    names += " " + in_quotes(command->get_name() + ":" + command->get_description());
    cases += fmt::format("    {}) _arguments", command->get_name());
    for (const Option& option : options_of(*command)) {
      const std::string value = !option.takes_value ? ""
                                : option.takes_file ? ":file:_files"
                                : option.choices.empty()
                                    ? ":value: "
                                    : fmt::format(":value:({})", fmt::join(option.choices, " "));
      for (const std::string& name : option.names)
        cases += " \\\n      " + in_quotes(fmt::format("*{}[{}]{}", name, described(option.help), value));
    }
    cases += " \\\n      '*:file:_files' ;;\n";
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

std::string fish(const CLI::App& app) {
  std::string script = "complete -c tessera -e\n";
  for (const CLI::App* command : commands_of(app)) {
    script += fmt::format("complete -c tessera -n __fish_use_subcommand -f -a {} -d {}\n",
                          command->get_name(), in_quotes(command->get_description()));
    for (const Option& option : options_of(*command)) {
      script += fmt::format("complete -c tessera -n '__fish_seen_subcommand_from {}'", command->get_name());
      for (const std::string& name : option.names)
        script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.takes_value) script += option.takes_file ? " -r -F" : " -x";
      if (!option.choices.empty())
        script += " -a " + in_quotes(fmt::format("{}", fmt::join(option.choices, " ")));
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

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash(app);
  if (shell == "zsh") return zsh(app);
  if (shell == "fish") return fish(app);
  usage_error("SHELL", "no completion for '{}'; there is one for {}", shell,
              fmt::join(completion_shells(), ", "));
}

}  // namespace tessera::cli
