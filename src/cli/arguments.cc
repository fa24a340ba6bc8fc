#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/field_options.h"
#include "cli/manual_page.h"
#include "cli/run_plan.h"
#include "cli/unknown_option.h"
#include "core/error.h"
#include "core/text.h"
#include "engine/find_model.h"

namespace tessera::cli {
namespace {

constexpr const char* kMainFooter = R"(Examples:
  tessera generate "a red circle above a blue square on a white background" -o out.png
  tessera generate "a green star on a yellow background" --seed 7 --num-inference-steps 30
  tessera generate "a red star on a white background" --use-cfg-parallel --ulysses-degree 2
  tessera models path/to/checkpoint
  tessera generate --help

Exit codes: 0 done, 1 internal error, 2 usage or an output that cannot be written, 3 model or input file,
4 a rank was lost, 5 out of memory, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 141 closed pipe.

The pages docs/*.md that a help names are in the source tree, and in share/doc/tessera of an installed program.)";

constexpr const char* kGenerateFooter =
    R"(Option names may be spelled with underscores as well (--guidance_scale).

Examples:
  The small model that ships, one image:
    tessera generate "a red circle on a white background" -o circle.png
  A PixArt checkpoint that diffusers saved, at 1024 x 1024, with a fixed seed:
    tessera generate "a lighthouse at dusk" --model path/to/PixArt-Sigma-XL-2-1024-MS --seed 42
  Two prompts, three images of each (out-0.png to out-5.png):
    tessera generate "a red star on a white background" "a blue square on a white background" --num-images-per-prompt 3
  Another sampler, and a report of where the time went:
    tessera generate "a red star on a white background" --scheduler ddim --num-inference-steps 50 --report run.json
  The final latents instead of an image:
    tessera generate "a red star on a white background" --output-type latent -o star.safetensors
  Four ranks on this host, each with two threads:
    tessera generate "a red star on a white background" --use-cfg-parallel --ulysses-degree 2 --threads 2
  Two ranks with displaced patches (DistriFusion), with the model in the form of Stable Diffusion XL:
    tessera generate "a red star on a white background" --model shapes-xl --displaced-patch-degree 2
  Two ranks in the layout that a plan finds soonest; the first such run measures this host:
    tessera generate "a red star on a white background" --nproc 2 --parallel auto
  Ranks started by torchrun, mpirun or srun, on one host or several:
    torchrun --no-python --nproc-per-node 2 tessera generate "a red star on a white background" --use-cfg-parallel
  One image for each line of a file:
    tessera generate --prompt-file prompts.txt)";

constexpr const char* kModelsFooter =
    R"(Prints the components of a checkpoint with their classes, sizes and dtypes, and whether it can run (exit code 0)
or why not (exit code 3). Without a model, lists those that ship.)";

constexpr const char* kCompletionFooter =
    R"(Bash: put  source <(tessera completion bash)  into ~/.bashrc. Zsh: the same with zsh into ~/.zshrc, after compinit.
Fish: tessera completion fish > ~/.config/fish/completions/tessera.fish)";

constexpr const char* kManualFooter = "To read it:  tessera man | man -l -";

constexpr const char* kMeshFooter =
    R"(Prints the groups of ranks along each axis and the coordinates of each rank. The axes, fastest first: tp, tp2,
ulysses, gather, ring, displaced, pp, cfg, dp. A replica is the set of ranks that generate the same images together.
With --model, each rank's share of the denoiser is printed too: blocks, rows, heads and weights.

Examples:
  tessera mesh --model shapes --pipefusion-parallel-degree 2 --ulysses-degree 2
  tessera mesh --world 16 --data-parallel-degree 2 --use-cfg-parallel --pipefusion-parallel-degree 2 \
    --ulysses-degree 2)";

constexpr const char* kTraceFooter =
    R"(Runs the code of a model on tensors that have shapes alone, as each rank of the layout, and writes every operation,
message and byte in use to a JSON file. It takes seconds, for any size and any number of ranks, and reads no weights. Without
a prompt, the longest that the model takes is traced. --model may name the config.json of a denoiser alone. A trace is kept in
~/.cache/tessera/traces, and the same one is read from there. It shows a plan for GPUs with --device cuda, on any machine. A seed
changes nothing in a trace; without one it is 0.

Examples:
  tessera trace --model path/to/PixArt-XL-2-1024-MS --ulysses-degree 4 -o trace.json
  tessera trace --model path/to/OpenSora --num-frames 51 --resolution 720p --ring-degree 8 --rank 0
  tessera trace --model path/to/OpenSora/transformer/config.json --num-frames 51 --resolution 720p)";

constexpr const char* kCompareFooter =
    R"(Prints by formula what each parallel method makes a rank send, hold and compute, for any transformer, without a
model. docs/comparison.md explains the numbers.

Examples:
  tessera compare --layers 28 --hidden 1152 --heads 16 --sequence 4096 --batch 2 --degree 4
  tessera compare --layers 24 --hidden 1024 --heads 16 --sequence 2048 --batch 8 --degree 8 --train)";

// The fields that only `tessera mesh` has.
const Fields<MeshArguments>& mesh_fields() {
  using M = MeshArguments;
  static const Fields<M> fields = {
      plain_field(&M::world,
                  {"world", "Number of ranks [the product of the degrees]", FieldGroup::kDegrees, "N", 1}),
      plain_field(
          &M::model,
          {"model",
           "Folder in diffusers' format, with or without weights, config.json of a denoiser, or a model "
           "that ships: shapes, shapes-video, shapes-xl",
           FieldGroup::kModel, "FOLDER"}),
      plain_field(&M::json, {"json", "Print JSON", FieldGroup::kOutput})};
  return fields;
}

void add_generate_options(FieldOptions& options) {
  const auto all = [](const FieldInfo&) { return true; };
  FieldList fields;
  append(fields, job::run_fields(), all);
  append(fields, engine::request_fields(), all);
  append(fields, parallel::parallel_fields(), all);
  append(fields, job::message_fields(), all);
  options.add(std::move(fields), {"prompt", "model", "output", "height", "width", "num_inference_steps",
                                  "guidance_scale", "seed", "negative_prompt"});
}

// A mesh takes the degrees, and what the shares of a model depend on.
void add_mesh_options(FieldOptions& options) {
  FieldList fields;
  append(fields, mesh_fields(), [](const FieldInfo&) { return true; });
  append(fields, engine::request_fields(), [](const FieldInfo& info) {
    return info.name == "height" || info.name == "width" || info.name == "num_frames" || info.name == "dtype";
  });
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.group == FieldGroup::kDegrees; });
  options.add(std::move(fields));
}

void add_compare_options(FieldOptions& options) {
  const auto all = [](const FieldInfo&) { return true; };
  FieldList fields;
  append(fields, plan::sizes_fields(), all);
  append(fields, compare_fields(), all);
  options.add(std::move(fields));
}

void add_calibrate_options(FieldOptions& options) {
  FieldList fields;
  append(fields, calibrate_fields(), [](const FieldInfo&) { return true; });
  options.add(std::move(fields));
}

// A trace takes what says which operations run. Its ranks are traced, not simulated.
void add_trace_options(FieldOptions& options) {
  FieldList fields;
  const auto all = [](const FieldInfo&) { return true; };
  append(fields, trace_fields(), all);
  append(fields, job::run_fields(), [](const FieldInfo& info) { return info.group == FieldGroup::kModel; });
  append(fields, engine::request_fields(), all);
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.name != "simulate_ranks"; });
  options.add(std::move(fields));
}

// The words that CLI11 parses, and the values that stand in them by their places.
struct Words {
  std::vector<std::string> words;
  Values values;

  void add_value(std::string value) {
    words.push_back(std::to_string(values.size()));
    values.push_back(std::move(value));
  }
};

// Refuses a word that would be a prompt though it is hardly meant as one, as in `--use-cfg-parallel 2` and
// `--negative-prompt blue green`. `flag` or `option` is what stands right before it, where it does; `others`
// says whether there are prompts elsewhere.
void refuse_stray(const std::string& word, const std::string& flag, const std::string& option, bool others) {
  if (word == "-")
    usage_error(field("prompt"), "a lone - is no prompt; {} - reads prompts from standard input",
                field("prompt_file"));
  for (const std::string_view dash : {"\u2014", "\u2013", "\u2012", "\u2212"}) {
    if (word.starts_with(dash) && std::isalpha(static_cast<unsigned char>(word[dash.size()])) != 0 &&
        word.find(' ') == std::string::npos)
      usage_error(field("prompt"),
                  "'{}' begins with a dash that is none of the keyboard; options begin with --",
                  printable(word));
  }
  static const std::vector<std::string> switches = {"true", "false", "yes", "no", "on", "off"};
  const bool is_setting =
      std::find(switches.begin(), switches.end(), word) != switches.end() || list_length({word}, 0) == 1;
  if (!flag.empty() && is_setting)
    usage_error(flag, "takes no value, got '{}'; a prompt that looks like a value goes first", word);
  const bool is_single_word = !word.empty() && word.find(' ') == std::string::npos;
  if (!option.empty() && others && is_single_word) {
    usage_error(option,
                "takes one value; '{}' after it would be one more prompt: put quotes round a text of several "
                "words, and all prompts in one place",
                printable(word));
  }
}

// Folds '_' to '-' in names of options, splits `--name=value`, `-oVALUE` and `-qo`, and takes values out: the
// word after an option that takes a value, whatever it looks like, and every word that does not begin with
// '-'.
Words take_values_out(std::vector<std::string> arguments, const CLI::App& command,
                      const FieldOptions& options) {
  Words result = {.words = {arguments[0]}, .values = {}};
  bool only_prompts = false, has_prompts = false;
  std::string flag, value_of;  // the flag or the option with a value that was read last
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (only_prompts || argument == "-" || !argument.starts_with("-")) {
      if (!only_prompts && command.get_name() == "generate")
        refuse_stray(argument, flag, value_of, has_prompts);
      has_prompts = true;
      flag.clear();
      value_of.clear();
      result.add_value(argument);
      continue;
    }
    if (argument == "--") {
      only_prompts = true;
      continue;
    }
    const bool is_short = !argument.starts_with("--");
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, is_short ? 2 : equals);
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = command.get_option_no_throw(name);
    if (!option) refuse_unknown_option(command, argument.substr(0, equals));
    std::optional<std::string> value;
    if (equals == name.size()) value = argument.substr(equals + 1);
    const bool takes_value = option->get_items_expected_max() > 0;
    const bool has_more = is_short && !value && argument.size() > name.size();
    if (has_more && takes_value) value = argument.substr(name.size());
    if (value && !takes_value) usage_error(name, "takes no value, got '{}'", printable(*value));
    result.words.push_back(name);
    (takes_value ? value_of : flag) = name;
    (takes_value ? flag : value_of).clear();
    if (!takes_value) {
      if (has_more) arguments[i--].erase(1, 1);  // the next letter is another option
    } else if (value) {
      result.add_value(*value);
    } else if (const size_t length = options.takes_list(name) ? list_length(arguments, i + 1) : 0;
               length > 0) {
      const auto first = arguments.begin() + static_cast<int64_t>(i) + 1;
      result.add_value(fmt::format("{}", fmt::join(first, first + static_cast<int64_t>(length), " ")));
      i += length;
    } else if (i + 1 < arguments.size()) {
      result.add_value(arguments[++i]);
    }
  }
  return result;
}

// The command must be the first word.
void check_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::string& word = arguments.front();
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (word == "-h" || word == "--help" || word == "--version" ||
      std::find(names.begin(), names.end(), word) != names.end()) {
    return;
  }
  if (word.starts_with("-"))
    usage_error(printable(word), "a command comes first: {}", fmt::join(names, " or "));
  if (const auto nearest = word == "help" ? "--help" : nearest_word(word, names)) {
    usage_error(printable(word), "unknown command; did you mean {}?", *nearest);
  }
  usage_error(printable(word), "unknown command; to use it as a prompt: tessera generate \"{}\"",
              printable(word));
}

job::GenerateArguments generate_arguments(const FieldOptions& options, const Values& values) {
  Json given = options.given(engine::request_fields(), values);
  given.update(options.given(parallel::parallel_fields(), values));
  given.update(options.given(job::run_fields(), values));
  given.update(options.given(job::message_fields(), values));
  require_plan_options(given);
  return job::make_arguments(std::move(given));
}

// Places in the values.
struct ModelsPlaces {
  std::optional<size_t> model, config, variant;
  bool json = false;
};

void add_models_options(CLI::App& models, ModelsPlaces& places) {
  const auto add = [&](const std::string& name, std::optional<size_t>& place, const FieldInfo& info) {
    models.add_option(name, place, help_of(info))->type_name(info.unit);
  };
  add("MODEL", places.model, job::model_info());
  add(option_name(job::config_info().name), places.config, job::config_info());
  add(option_name(job::variant_info().name), places.variant, job::variant_info());
  models.add_flag("--json", places.json, "Print JSON");
}

ModelsArguments models_arguments(const ModelsPlaces& places, const Values& values) {
  const auto value = [&](std::optional<size_t> place) {
    return place ? std::optional(values.at(*place)) : std::nullopt;
  };
  return {value(places.model), value(places.config), value(places.variant), places.json};
}

MeshArguments mesh_arguments(const FieldOptions& options, const Values& values) {
  MeshArguments arguments = options.read(mesh_fields(), values);
  arguments.parallel = options.read(parallel::parallel_fields(), values);
  arguments.request = options.read(engine::request_fields(), values);
  arguments.request.prompts = {""};
  const engine::Request& request = arguments.request;
  if (!arguments.model && (request.height || request.width || request.video.num_frames || request.dtype))
    usage_error("mesh", "--height, --width, --num-frames and --dtype need a --model; give that too");
  return arguments;
}

CompareArguments compare_arguments(const FieldOptions& options, const Values& values) {
  CompareArguments arguments = options.read(compare_fields(), values);
  arguments.sizes = plan::resolve(options.read(plan::sizes_fields(), values));
  if (arguments.json && arguments.csv) usage_error("--csv", "and --json are two forms; leave one out");
  return arguments;
}

CalibrateArguments calibrate_arguments(const FieldOptions& options, const Values& values) {
  return options.read(calibrate_fields(), values);
}

TraceArguments trace_arguments(const FieldOptions& options, const Values& values) {
  TraceArguments arguments = options.read(trace_fields(), values);
  Json given = options.given(engine::request_fields(), values);
  given.update(options.given(parallel::parallel_fields(), values));
  Json run = options.given(job::run_fields(), values);
  for (const FieldInfo& own : trace_fields()) run.erase(own.name);
  given.update(run);
  arguments.run = job::make_arguments(std::move(given));
  return arguments;
}

// What CLI11 says is "--seed: 1 required N missing", or "--output: At Most 1 required but received 2".
[[noreturn]] void refuse_mismatch(const CLI::ArgumentMismatch& error, const std::string& command) {
  const std::string what = error.what();
  const bool is_twice = what.find("received") != std::string::npos;
  usage_error(what.substr(0, what.find(':')), "{}; see tessera {} --help",
              is_twice ? "is given more than once" : "needs a value", command);
}

// Has CLI11 parse the words. Returns the text that they ask for, if they do.
std::optional<ShowText> parse_words(CLI::App& app, const CLI::App& command, std::vector<std::string> words,
                                    const Values& values) {
  std::reverse(words.begin(), words.end());  // CLI11 expects the words in reverse
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return ShowText{app.help()};
  } catch (const CLI::CallForVersion&) {
    return ShowText{"tessera " TESSERA_VERSION "\n"};
  } catch (const CLI::ExtrasError&) {
    usage_error(printable(values.at(std::stoul(command.remaining().front()))),
                "one argument too many; see tessera {} --help", command.get_name());
  } catch (const CLI::ArgumentMismatch& error) {
    refuse_mismatch(error, command.get_name());
  } catch (const CLI::ParseError& error) {
    usage_error("command line", "{}; see tessera {} --help", error.what(), command.get_name());
  }
  return std::nullopt;
}

// A command of the program: its options, and what their values mean.
struct Subcommand {
  CLI::App* app;
  std::unique_ptr<FieldOptions> options;
  std::function<Command(const Values&)> read = {};
};

class CommandLine {
 public:
  CommandLine() : app_("Tessera: parallel inference for diffusion models.", "tessera") {
    app_.set_version_flag("--version", "tessera " TESSERA_VERSION, "Print the version");
    app_.require_subcommand(1);
    app_.footer(kMainFooter);
    app_.get_formatter()->column_width(kHelpColumn);
    add_of_fields("generate", "Generate images or videos from text prompts", kGenerateFooter,
                  add_generate_options, generate_arguments);
    add_models();
    add_of_fields("mesh", "Show how ranks are grouped for given degrees", kMeshFooter, add_mesh_options,
                  mesh_arguments);
    add_of_fields("trace", "Record what each rank of a run would do, without weights", kTraceFooter,
                  add_trace_options, trace_arguments);
    add_analyze();
    add_of_fields("plan", "Find the layouts in which devices finish a request soonest", kPlanFooter,
                  add_plan_options, plan_arguments);
    add_of_fields("compare", "Compare parallel methods by formula", kCompareFooter, add_compare_options,
                  compare_arguments);
    add_of_fields("calibrate", "Measure this host, or fit a machine to measured runs, for estimates",
                  kCalibrateFooter, add_calibrate_options, calibrate_arguments);
    add_commands_of_texts();
  }

  Command parse(const std::vector<std::string>& arguments) {
    if (arguments.empty()) return ShowText{app_.help()};
    check_command(app_, arguments);
    const auto found = std::find_if(commands_.begin(), commands_.end(), [&](const Subcommand& each) {
      return each.app->get_name() == arguments[0];
    });
    const bool is_general = found == commands_.end();  // --help or --version
    const CLI::App& app = is_general ? app_ : *found->app;
    auto [words, values] =
        take_values_out(arguments, app, is_general ? *commands_.front().options : *found->options);
    if (const auto text = parse_words(app_, app, std::move(words), values)) return *text;
    return found->read(values);
  }

 private:
  Subcommand& add(const std::string& name, const std::string& description, const char* footer) {
    CLI::App* const app = app_.add_subcommand(name, description);
    app->footer(footer);
    return commands_.emplace_back(Subcommand{app, std::make_unique<FieldOptions>(*app)});
  }

  // Adds a command whose options are all from tables of fields.
  template <typename Arguments>
  void add_of_fields(const std::string& name, const std::string& description, const char* footer,
                     void (*add_options)(FieldOptions&),
                     Arguments (*read)(const FieldOptions&, const Values&)) {
    Subcommand& command = add(name, description, footer);
    add_options(*command.options);
    command.read = [&options = *command.options, read](const Values& values) {
      return read(options, values);
    };
  }

  void add_models() {
    Subcommand& models =
        add("models", "List the models that ship, or describe a checkpoint and say whether it can run",
            kModelsFooter);
    add_models_options(*models.app, models_places_);
    models.read = [this](const Values& values) { return models_arguments(models_places_, values); };
  }

  void add_analyze() {
    Subcommand& analyze =
        add("analyze", "Show what is in a trace, or estimate the time of a model on a machine", "");
    analyze_.emplace(*analyze.app);
    analyze.read = [this](const Values& values) { return analyze_->read(values); };
  }

  void add_commands_of_texts() {
    Subcommand& completion =
        add("completion", "Print a script that completes command lines", kCompletionFooter);
    completion.app->add_option("SHELL", shell_, fmt::format("{}", fmt::join(completion_shells(), ", ")))
        ->type_name("")
        ->required();
    completion.read = [this](const Values& values) {
      return ShowText{completion_script(app_, completions(), printable(values.at(shell_.value())))};
    };
    add("man", "Print the manual page", kManualFooter).read = [this](const Values& /*values*/) {
      return ShowText{manual_page(app_)};
    };
  }

  std::map<std::string, CommandCompletion> completions() const {
    std::map<std::string, CommandCompletion> all;
    for (const Subcommand& each : commands_) all[each.app->get_name()].choices = each.options->choices();
    const CompletionValues files{.files = true};
    all["generate"].first = all["generate"].others = all["trace"].first = all["trace"].others = files;
    CompletionValues models = files;
    for (const auto& model : engine::shipped_models()) models.words.push_back(model.filename().string());
    all["models"].first = all["models"].others = models;
    all["analyze"] = analyze_->completion();
    all["completion"].first.words = completion_shells();
    return all;
  }

  CLI::App app_;
  std::deque<Subcommand> commands_;
  ModelsPlaces models_places_;
  std::optional<AnalyzeOptions> analyze_;
  std::optional<size_t> shell_;
};

}  // namespace

Command parse_arguments(const std::vector<std::string>& arguments) {
  return CommandLine().parse(arguments);
}

}  // namespace tessera::cli
