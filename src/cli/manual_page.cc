#include "cli/manual_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <vector>

namespace tessera::cli {
namespace {

constexpr const char* kDate = "November 2026";

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

// A command line that is longer than a page is wide goes on in the next line, as a shell takes it.
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
    // A command line that goes on in the next line of the help.
    if (!lines.empty() && lines.back().ends_with('\\')) {
      lines.back().resize(lines.back().size() - 1);
      line = lines.back() + line.substr(line.find_first_not_of(' '));
      lines.pop_back();
    }
    lines.push_back(line);
  }
  return lines;
}

// The text below the options of a help: paragraphs are filled, command lines are not, and an indented line
// with a gap in it is a term and what it means.
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
  if (!command.get_footer().empty()) section += body(command.get_footer());
  return section;
}

// What a command takes: its operands, then options.
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
)";

constexpr const char* kExitStatus = R"(.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
An internal error.
.TP
.B 2
Usage, or an output that cannot be written.
.TP
.B 3
A model or an input file.
.TP
.B 4
A rank was lost.
.TP
.B 5
Out of memory.
.TP
.BR 129 ", " 130 ", " 141 ", " 143
SIGHUP, Ctrl\-C, a closed pipe, SIGTERM.
)";

constexpr const char* kSeeAlso = R"(.SH SEE ALSO
.BR torchrun (1),
.BR mpirun (1),
.BR srun (1),
.BR ffmpeg (1)
)";

}  // namespace

std::string manual_page(const CLI::App& app) {
  std::string commands, synopsis;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    synopsis += synopsis_of(*command);
    commands += command_section(*command);
  }
  const std::string footer = app.get_footer();
  const std::string examples = footer.substr(0, footer.find("\n\nExit codes"));
  return fmt::format(
      ".TH TESSERA 1 \"{}\" \"tessera {}\" \"User Commands\"\n"
      ".SH NAME\ntessera \\- parallel inference for diffusion models\n"
      ".SH SYNOPSIS\n.ad l\n{}.SH DESCRIPTION\n{}\n.SH COMMANDS\n{}{}{}.SH EXAMPLES\n{}{}",
      kDate, TESSERA_VERSION, synopsis, roff(app.get_description()), commands, kEnvironment, kExitStatus,
      body(examples.substr(examples.find('\n') + 1)), kSeeAlso);
}

}  // namespace tessera::cli
