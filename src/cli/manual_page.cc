#include "cli/manual_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace tessera::cli {
namespace {

// Returns the text as roff prints it: backslashes and dashes are characters, and no line is a request.
std::string roff(const std::string& text) {
  std::string result;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    begins = c == '\n';
  }
  return result;
}

// Lines that are printed as they are.
std::string verbatim(const std::string& text) {
  return fmt::format(".nf\n{}\n.fi\n", roff(text));
}

std::string option_entry(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(roff("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(roff("--" + name));
  if (names.empty()) names.push_back(roff(option.get_name()));  // prompts, a model's folder
  const std::string value = option.get_items_expected_max() > 0 ? option.get_type_name() : "";
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", fmt::join(names, "\\fR, \\fB"),
                     value.empty() ? "" : " \\fI" + roff(value) + "\\fR", roff(option.get_description()));
}

std::string command_section(const CLI::App& command) {
  std::string section =
      fmt::format(".SS tessera {}\n{}.\n", roff(command.get_name()), roff(command.get_description()));
  std::string group;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // not in the help either
    if (option->get_group() != group) {
      group = option->get_group();
      section += fmt::format(".PP\n{}:\n", roff(group));
    }
    section += option_entry(*option);
  }
  if (!command.get_footer().empty()) section += ".PP\n" + verbatim(command.get_footer());
  return section;
}

}  // namespace

std::string manual_page(const CLI::App& app) {
  std::string commands, synopsis;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    synopsis += fmt::format(".B tessera {}\n.RI [ arguments ]\n.br\n", roff(command->get_name()));
    commands += command_section(*command);
  }
  return fmt::format(
      ".TH TESSERA 1 \"\" \"tessera {}\" \"User Commands\"\n"
      ".SH NAME\ntessera \\- parallel inference for diffusion models\n"
      ".SH SYNOPSIS\n{}.SH DESCRIPTION\n{}\n.SH COMMANDS\n{}.SH EXAMPLES AND EXIT STATUS\n{}",
      TESSERA_VERSION, synopsis, roff(app.get_description()), commands, verbatim(app.get_footer()));
}

}  // namespace tessera::cli
