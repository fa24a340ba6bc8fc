#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/field_options.h"
#include "cli/nearest_word.h"
#include "core/error.h"

namespace tessera::cli {
namespace {

constexpr const char* kMainFooter = R"(Examples:
  tessera generate "a red circle above a blue square on a white background" -o out.png
  tessera generate "a green star on a yellow background" --seed 7 --num-inference-steps 30
  tessera generate "a red star on a white background" --use-cfg-parallel --ulysses-degree 2
  tessera models path/to/checkpoint
  tessera generate --help

Exit codes: 0 done, 1 a mistake of this program, 2 usage, 3 model or input file, 4 a rank was lost, 5 out of memory,
130 Ctrl-C.)";

constexpr const char* kGenerateFooter =
    R"(Option names may be spelled with underscores as well (--guidance_scale).

Examples:
  The small model that ships, one picture:
    tessera generate "a red circle on a white background" -o circle.png
  A PixArt checkpoint that diffusers saved, 1024 x 1024, the seed fixed:
    tessera generate "a lighthouse at dusk" --model PixArt-Sigma --seed 42
  Two prompts with three pictures each (out-0.png to out-5.png):
    tessera generate "a red star on a white background" "a blue square on a white background" --num-images-per-prompt 3
  Another sampler, and what the time went into:
    tessera generate "a red star on a white background" --scheduler ddim --num-inference-steps 50 --report run.json
  The final latents instead of a picture:
    tessera generate "a red star on a white background" --output-type latent -o star.safetensors
  Four ranks on this host, each with two threads:
    tessera generate "a red star on a white background" --use-cfg-parallel --ulysses-degree 2 --threads 2
  Two ranks with displaced patches (DistriFusion), of the model in the form of Stable Diffusion XL:
    tessera generate "a red star on a white background" --model shapes-xl --displaced-patch-degree 2
  Ranks that another launcher starts, on one host or several (torchrun, mpirun, srun):
    torchrun --no-python --nproc-per-node 2 tessera generate "a red star on a white background" --use-cfg-parallel)";

constexpr const char* kModelsFooter =
    R"(Prints the parts of a checkpoint with classes, sizes and dtypes, and whether it can run (exit code 0) or why
not (exit code 3).)";

constexpr const char* kMeshFooter =
    R"(Prints which ranks form the groups of each axis, and the place of each rank on every axis. Axes from the
fastest: tp, tp2, ulysses, ring, displaced, pp, cfg, dp; a replica is all ranks that paint the same pictures together. With a
model also what each rank does and holds of it.

Examples:
  tessera mesh --model shapes --pipefusion-parallel-degree 2 --ulysses-degree 2
  tessera mesh --world 16 --data-parallel-degree 2 --use-cfg-parallel --pipefusion-parallel-degree 2 \
    --ulysses-degree 2)";

// Of `tessera mesh` alone.
const Fields<MeshArguments>& mesh_fields() {
  using M = MeshArguments;
  static const Fields<M> fields = {
      plain_field(&M::world, {"world", "How many ranks there are [the product of the degrees]", "", "N", 1}),
      plain_field(&M::model,
                  {"model", "Folder in diffusers' format, or a model that ships: shapes, shapes-xl", "Model",
                   "FOLDER"}),
      plain_field(&M::json, {"json", "Print JSON", ""})};
  return fields;
}

void add_generate_options(FieldOptions& options) {
  const auto all = [](const FieldInfo&) { return true; };
  options.add(run_fields(), all);
  options.add(engine::request_fields(), all);
  options.add(parallel::parallel_fields(), all);
  options.add(message_fields(), all);
}

// A mesh asks for the degrees, and for what the shares of a model depend on.
void add_mesh_options(FieldOptions& options) {
  options.add(mesh_fields(), [](const FieldInfo&) { return true; });
  options.add(engine::request_fields(), [](const FieldInfo& info) {
    return info.name == "height" || info.name == "width" || info.name == "dtype";
  });
  options.add(parallel::parallel_fields(),
              [](const FieldInfo& info) { return info.group == parallel::kDegreeGroup; });
}

// Folds '_' to '-' in names of options and splits `--name=value` (CLI11 would skip an empty value). Values
// stay as they are: the word after an option that takes a value is that value.
std::vector<std::string> normalize(const std::vector<std::string>& arguments, const CLI::App& command,
                                   const FieldOptions& options) {
  std::vector<std::string> result = {arguments[0]};
  bool is_value = false, only_prompts = false;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (std::exchange(is_value, false) || only_prompts || !argument.starts_with("-")) {
      result.push_back(guard_brackets(argument));
      continue;
    }
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = command.get_option_no_throw(name);
    const bool takes_value = option && option->get_items_expected_max() > 0;
    only_prompts = name == "--";
    is_value = takes_value && equals == std::string::npos;
    result.push_back(name);
    if (is_value && options.takes_list(name)) {
      if (const size_t length = list_length(arguments, i + 1); length > 0) {
        const auto first = arguments.begin() + static_cast<int64_t>(i) + 1;
        result.push_back(fmt::format("{}", fmt::join(first, first + static_cast<int64_t>(length), " ")));
        i += length;
        is_value = false;
      }
    }
    if (equals == std::string::npos) continue;
    if (takes_value) {
      result.push_back(guard_brackets(argument.substr(equals + 1)));
    } else if (option) {
      usage_error(name, "takes no value, got '{}'", argument.substr(equals + 1));
    } else {
      result.back() += argument.substr(equals);
    }
  }
  return result;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void refuse_unknown(const CLI::App& command, const std::string& word) {
  const std::string option = word.substr(0, word.find('='));
  const std::string help = fmt::format("see tessera {} --help", command.get_name());
  if (!word.starts_with("-")) usage_error(word, "one argument too many; {}", help);
  if (const auto nearest = nearest_word(option, option_names(command))) {
    usage_error(option, "unknown option; did you mean {}? ({})", *nearest, help);
  }
  usage_error(option, "unknown option; {}", help);
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
  if (word.starts_with("-")) usage_error(word, "a command comes first: {}", fmt::join(names, " or "));
  if (const auto nearest = nearest_word(word, names)) {
    usage_error(word, "unknown command; did you mean {}?", *nearest);
  }
  usage_error(word, "unknown command; to paint a prompt: tessera generate \"{}\"", word);
}

GenerateArguments generate_arguments(const FieldOptions& options) {
  GenerateArguments arguments = {options.read(engine::request_fields()),
                                 options.read(parallel::parallel_fields()), options.read(run_fields()),
                                 options.read(message_fields())};
  output_path(arguments);  // for what it throws
  return arguments;
}

MeshArguments mesh_arguments(const FieldOptions& options) {
  MeshArguments arguments = options.read(mesh_fields());
  arguments.parallel = options.read(parallel::parallel_fields());
  arguments.request = options.read(engine::request_fields());
  arguments.request.prompts = {""};
  if (!arguments.model && (arguments.request.height || arguments.request.width || arguments.request.dtype))
    usage_error("mesh", "--height, --width and --dtype say what a --model is to paint; give that too");
  return arguments;
}

}  // namespace

Command parse_arguments(std::vector<std::string> arguments) {
  CLI::App app("Tessera paints pictures from text with diffusion models.", "tessera");
  app.set_version_flag("--version", "tessera " TESSERA_VERSION, "Print the version");
  app.require_subcommand(1);
  app.footer(kMainFooter);
  app.get_formatter()->column_width(34);

  CLI::App* generate = app.add_subcommand("generate", "Paint pictures from prompts");
  generate->footer(kGenerateFooter);
  FieldOptions generate_options(*generate);
  add_generate_options(generate_options);

  ModelsArguments models_arguments;
  CLI::App* models = app.add_subcommand("models", "Tell what is in a checkpoint and whether it can run");
  models->footer(kModelsFooter);
  models->add_option("FOLDER", models_arguments.model,
                     "Checkpoint in diffusers' format [the model that ships]");
  const FieldInfo variant = variant_info();
  models->add_option(option_name(variant.name), models_arguments.variant, variant.help)
      ->type_name(variant.unit);

  CLI::App* mesh = app.add_subcommand("mesh", "Show how ranks are grouped for given degrees");
  mesh->footer(kMeshFooter);
  FieldOptions mesh_options(*mesh);
  add_mesh_options(mesh_options);

  if (arguments.empty()) return ShowText{app.help()};
  check_command(app, arguments);
  const CLI::App* command = &app;
  for (const CLI::App* known : {generate, models, mesh}) {
    if (known->get_name() == arguments[0]) command = known;
  }
  arguments = normalize(arguments, *command, command == mesh ? mesh_options : generate_options);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes words from the back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return ShowText{app.help()};
  } catch (const CLI::CallForVersion&) {
    return ShowText{"tessera " TESSERA_VERSION "\n"};
  } catch (const CLI::ExtrasError&) {
    refuse_unknown(*command, command->remaining().front());
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();  // "--seed: 1 required N missing"
    usage_error(what.substr(0, what.find(':')), "needs a value; see tessera {} --help", command->get_name());
  } catch (const CLI::ParseError& error) {
    usage_error("command line", "{}; see tessera {} --help", error.what(), command->get_name());
  }
  if (command == models) return models_arguments;
  if (command == mesh) return mesh_arguments(mesh_options);
  return generate_arguments(generate_options);
}

}  // namespace tessera::cli
