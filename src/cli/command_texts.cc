#include "cli/command_texts.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

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

// The names that a field accepts besides other values, in any command.
std::vector<std::string> known_names(const std::string& field) {
  std::vector<std::string> names;
  if (field == "scheduler") {
    for (const auto& sampler : samplers::known_samplers()) names.push_back(sampler.short_name);
  } else if (field == "model") {
    for (const auto& model : engine::shipped_models()) names.push_back(model.filename().string());
  } else if (field == "machine") {
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
    if (made.names.empty()) continue;  // prompts, the folder of a model
    std::replace(made.help.begin(), made.help.end(), '\n', ' ');
    if (const FieldInfo* const info = completion.options->field_of(*option)) {
      made.values.files = info->unit == "FILE" || info->unit == "FOLDER" || info->unit.starts_with("PATH");
      made.values.words = info->choices.empty() ? known_names(info->name) : info->choices;
    }
    options.push_back(made);
  }
  return options;
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
    const CommandCompletion& completion = commands.at(command->get_name());
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
  // Bash splits --name=value at the =. Names of options may be spelled with underscores.
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
    const CommandCompletion& completion = commands.at(command->get_name());
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
    const CommandCompletion& completion = commands.at(command->get_name());
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

constexpr const char* kDate = "November 2026";

// Returns the text such that roff prints it unchanged: backslashes and dashes are characters, and no line is
// a request.
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

// A command line that is wider than a page continues on the next line, in the way that shells accept.
std::string command_line(const std::string& text) {
  constexpr size_t kWidth = 64;
  std::string result, line;
  bool quoted = false;
  std::string word;
  const auto end_word = [&] {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      result += line + " \\\n";
      line = "    " + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
    word.clear();
  };
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (c == ' ' && !quoted) {
      end_word();
    } else {
      word += c;
    }
  }
  end_word();
  return result + line;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    // A command line that continues on the next line of the help.
    if (!lines.empty() && lines.back().ends_with('\\')) {
      lines.back().resize(lines.back().size() - 1);
      line = lines.back() + line.substr(line.find_first_not_of(' '));
      lines.pop_back();
    }
    lines.push_back(line);
  }
  return lines;
}

// The text below the options in a help: paragraphs are filled, command lines are not, and an indented line
// with a gap in it is a term with its meaning.
std::string body(const std::string& text) {
  std::string result = ".PP\n";
  bool in_commands = false, in_term = false;
  for (const std::string& line : lines_of(text)) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string words = line.substr(indent);
    const bool is_command = indent > 0 && (words.starts_with("tessera ") || words.starts_with("torchrun "));
    if (is_command != in_commands) result += is_command ? ".RS 4\n.nf\n" : ".fi\n.RE\n";
    in_commands = is_command;
    const size_t gap = words.find("  ");
    const bool is_term = indent == 2 && !is_command && gap != std::string::npos;
    if (is_command) {
      result += roff(command_line(words)) + "\n";
    } else if (words.empty()) {
      result += ".PP\n";
    } else if (is_term) {
      result += ".TP\n" + roff(words.substr(0, gap)) + "\n" +
                roff(words.substr(words.find_first_not_of(' ', gap))) + "\n";
    } else {
      if ((in_term && indent < 3) || indent == 2) result += ".PP\n";
      result += roff(words) + "\n";
    }
    in_term = is_term || (in_term && indent > 2);
  }
  return result + (in_commands ? ".fi\n.RE\n" : "");
}

std::string option_entry(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(roff("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(roff("--" + name));
  if (names.empty()) names.push_back(roff(option.get_name()));  // prompts, the folder of a model
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
  if (!command.get_footer().empty()) section += body(command.get_footer());
  return section;
}

// The arguments of a command: its operands, then options.
std::string synopsis_of(const CLI::App& command) {
  std::string line = fmt::format(".B tessera {}\n", roff(command.get_name()));
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    const bool many = option->get_items_expected_max() > 1;
    const std::string name = roff(option->get_name(true));
    line += option->get_required() ? fmt::format(".I {}\n", name)
                                   : fmt::format(".RI [ {} {}\n", name, many ? "\\~.\\|.\\|.\\|]" : "]");
  }
  return line + "[options]\n.br\n";
}

constexpr const char* kEnvironment = R"(.SH ENVIRONMENT
.TP
.B TESSERA_MODELS
Folder of the models that have names, searched before those that ship.
.TP
.B TESSERA_MACHINES
Folder of the machine files that have names, searched before those that ship.
.TP
.B TESSERA_MAX_ISA
The newest instructions to use: avx2, avx512 or avx512_bf16.
.TP
.BR OMP_NUM_THREADS ", " OMP_WAIT_POLICY
Threads, where \-\-threads is not given, and how they wait.
.TP
.BR XDG_CACHE_HOME ", " HOME
Traces are kept in tessera/traces of the first, or in .cache/tessera/traces of the second; beside them, in
machines, what \-\-parallel auto has measured of this host.
.TP
.B XDG_STATE_HOME
tessera serve keeps its queue and its results in tessera/serve of this folder [~/.local/state].
.TP
.B TESSERA_CALIBRATION_SECONDS
About how long \-\-parallel auto measures this host, 1 to 3600.
.TP
.BR MASTER_ADDR ", " MASTER_PORT
The host and the port (29500) on which rank 0 listens.
.TP
.BR RANK ", " WORLD_SIZE ", " LOCAL_RANK ", " LOCAL_WORLD_SIZE
The number of a process, as torchrun sets them; the variables of Open MPI, MPICH and Slurm do as well.
.TP
.B NCCL_MULTI_RANK_GPU_ENABLE
With 1, several ranks may share a GPU.
.TP
.B TORCH_CPP_LOG_LEVEL
What libtorch prints; by default fatal errors alone.
.TP
.B TERM
Whether lines of progress may be overwritten.
.SH FILES
.TP
.IR ../share/tessera/models ", " ../share/tessera/machines
What ships, from the folder of the program; in a source tree, ../models and ../machines.
.TP
.I ../share/doc/tessera
The pages docs/*.md.
.TP
.I ~/.cache/tessera/traces
Traces that were made before; they may be deleted at any time.
.TP
.I ~/.cache/tessera/machines
What was measured of this host; deleted, it is measured again when it is needed.
.TP
.I ~/.local/state/tessera/serve
The queue and the results of tessera serve.
)";

// "0 done, 1 internal error, ..." as a list.
std::string exit_status(std::string codes) {
  std::string list;
  std::replace(codes.begin(), codes.end(), '\n', ' ');
  for (size_t begin = 0; begin < codes.size();) {
    const size_t space = codes.find(' ', begin), end = std::min(codes.find(", ", begin), codes.size());
    list += fmt::format(".TP\n.B {}\n{}\n", codes.substr(begin, space - begin),
                        roff(codes.substr(space + 1, end - space - 1)));
    begin = end + 2;
  }
  return list;
}

constexpr const char* kSeeAlso = R"(.SH SEE ALSO
.BR torchrun (1),
.BR mpirun (1),
.BR srun (1),
.BR ffmpeg (1)
)";

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

std::string manual_page(const CLI::App& app) {
  std::string commands, synopsis;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    synopsis += synopsis_of(*command);
    commands += command_section(*command);
  }
  const std::string footer = app.get_footer(), title = "\n\nExit codes: ";
  const size_t codes = footer.find(title), end_of_codes = footer.find(".\n\n", codes);
  const std::string examples = footer.substr(0, codes);
  return fmt::format(
      ".TH TESSERA 1 \"{}\" \"tessera {}\" \"User Commands\"\n"
      ".SH NAME\ntessera \\- parallel inference for diffusion models\n"
      ".SH SYNOPSIS\n.ad l\n{}.SH DESCRIPTION\n{}\n.SH COMMANDS\n{}{}.SH EXIT STATUS\n{}.SH EXAMPLES\n{}{}",
      kDate, TESSERA_VERSION, synopsis, roff(app.get_description()), commands, kEnvironment,
      exit_status(footer.substr(codes + title.size(), end_of_codes - codes - title.size())),
      body(examples.substr(examples.find('\n') + 1)), kSeeAlso);
}

}  // namespace tessera::cli
