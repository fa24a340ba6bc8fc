#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "cli/command_texts.h"
#include "cli/commands.h"
#include "cli/field_options.h"
#include "cli/run_plan.h"
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
  options.add(fields_of(job::run_fields(), engine::request_fields(), parallel::parallel_fields(),
                        job::message_fields()),
              {"prompt", "model", "output", "height", "width", "num_inference_steps", "guidance_scale",
               "seed", "negative_prompt"});
}

// A mesh takes the degrees, and the options that a model's shares depend on.
void add_mesh_options(FieldOptions& options) {
  FieldList fields = fields_of(mesh_fields());
  append(fields, engine::request_fields(), [](const FieldInfo& info) {
    return info.name == "height" || info.name == "width" || info.name == "num_frames" || info.name == "dtype";
  });
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.group == FieldGroup::kDegrees; });
  options.add(std::move(fields));
}

void add_compare_options(FieldOptions& options) {
  options.add(fields_of(plan::sizes_fields(), compare_fields()));
}

void add_calibrate_options(FieldOptions& options) {
  options.add(fields_of(calibrate_fields()));
}

// A trace takes the options that determine which operations run. Its ranks are traced, not simulated.
void add_trace_options(FieldOptions& options) {
  FieldList fields = fields_of(trace_fields(), engine::request_fields());
  append(fields, job::run_fields(), [](const FieldInfo& info) { return info.group == FieldGroup::kModel; });
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.name != "simulate_ranks"; });
  options.add(std::move(fields));
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

job::GenerateArguments generate_arguments(const FieldOptions& options) {
  Json given = options.given(engine::request_fields());
  given.update(options.given(parallel::parallel_fields()));
  given.update(options.given(job::run_fields()));
  given.update(options.given(job::message_fields()));
  require_plan_options(given);
  return job::make_arguments(std::move(given));
}

void add_models_options(FieldOptions& options) {
  FieldList fields;
  append(fields, models_fields(), [](const FieldInfo& info) { return info.name != "model"; });
  options.add_operand(models_fields().front());
  options.add(std::move(fields));
}

ModelsArguments models_arguments(const FieldOptions& options) {
  return options.read(models_fields());
}

MeshArguments mesh_arguments(const FieldOptions& options) {
  MeshArguments arguments = options.read(mesh_fields());
  arguments.parallel = options.read(parallel::parallel_fields());
  arguments.request = options.read(engine::request_fields());
  arguments.request.prompts = {""};
  const engine::Request& request = arguments.request;
  if (!arguments.model && (request.height || request.width || request.video.num_frames || request.dtype))
    usage_error("mesh", "--height, --width, --num-frames and --dtype need a --model; give that too");
  return arguments;
}

CompareArguments compare_arguments(const FieldOptions& options) {
  CompareArguments arguments = options.read(compare_fields());
  arguments.sizes = plan::resolve(options.read(plan::sizes_fields()));
  if (arguments.json && arguments.csv) usage_error("--csv", "and --json are two forms; leave one out");
  return arguments;
}

CalibrateArguments calibrate_arguments(const FieldOptions& options) {
  return options.read(calibrate_fields());
}

TraceArguments trace_arguments(const FieldOptions& options) {
  TraceArguments arguments = options.read(trace_fields());
  Json given = options.given(engine::request_fields());
  given.update(options.given(parallel::parallel_fields()));
  given.update(options.given(job::run_fields()));
  arguments.run = job::make_arguments(std::move(given));
  return arguments;
}

// A command of the program: its options, and what their values mean.
struct Subcommand {
  CLI::App* app;
  std::unique_ptr<FieldOptions> options;
  std::function<Command()> read = {};
};

class CommandLine {
 public:
  CommandLine() : app_("Tessera: parallel inference for diffusion models.", "tessera") {
    app_.set_version_flag("--version", "tessera " TESSERA_VERSION "\n", "Print the version");
    app_.require_subcommand(1);
    app_.footer(kMainFooter);
    app_.get_formatter()->column_width(kHelpColumn);
    add_of_fields("generate", "Generate images or videos from text prompts", kGenerateFooter,
                  add_generate_options, generate_arguments);
    add_of_fields("serve", "Keep a model loaded, and generate what clients ask for over HTTP", kServeFooter,
                  add_serve_options, serve_options);
    add_of_fields("models", "List the models that ship, or describe a checkpoint and say whether it can run",
                  kModelsFooter, add_models_options, models_arguments);
    add_of_fields("mesh", "Show how ranks are grouped for given degrees", kMeshFooter, add_mesh_options,
                  mesh_arguments);
    add_of_fields("trace", "Record what each rank of a run would do, without weights", kTraceFooter,
                  add_trace_options, trace_arguments);
    add_of_fields("analyze", "Show what is in a trace, or estimate the time of a model on a machine",
                  kAnalyzeFooter, add_analyze_options, analyze_arguments);
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
    const auto command = std::find_if(commands_.begin(), commands_.end(), [&](const Subcommand& each) {
      return each.app->get_name() == arguments[0];
    });
    if (command == commands_.end())
      return ShowText{general_.parse(arguments).value()};  // --help or --version
    if (const auto help = command->options->parse({arguments.begin() + 1, arguments.end()}))
      return ShowText{*help};
    return command->read();
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
                     void (*add_options)(FieldOptions&), Arguments (*read)(const FieldOptions&)) {
    Subcommand& command = add(name, description, footer);
    add_options(*command.options);
    command.read = [&options = *command.options, read] { return read(options); };
  }

  void add_commands_of_texts() {
    Subcommand& completion =
        add("completion", "Print a script that completes command lines", kCompletionFooter);
    completion.app->add_option("SHELL", shell_, fmt::format("{}", fmt::join(completion_shells(), ", ")))
        ->type_name("")
        ->required();
    completion.read = [this] { return ShowText{completion_script(app_, completions(), printable(shell_))}; };
    add("man", "Print the manual page", kManualFooter).read = [this] { return ShowText{manual_page(app_)}; };
  }

  std::map<std::string, CommandCompletion> completions() const {
    std::map<std::string, CommandCompletion> all;
    for (const Subcommand& each : commands_) all[each.app->get_name()].options = each.options.get();
    const CompletionValues files{.files = true};
    for (const char* const name : {"generate", "trace"}) all[name].first = all[name].others = files;
    CompletionValues models = files;
    for (const auto& model : engine::shipped_models()) models.words.push_back(model.filename().string());
    all["models"].first = all["models"].others = models;
    all["analyze"].first.words = analyze_subjects();
    all["analyze"].others = files;
    all["completion"].first.words = completion_shells();
    return all;
  }

  CLI::App app_;
  FieldOptions general_{app_};
  std::deque<Subcommand> commands_;
  std::string shell_;
};

}  // namespace

Command parse_arguments(const std::vector<std::string>& arguments) {
  return CommandLine().parse(arguments);
}

}  // namespace tessera::cli
