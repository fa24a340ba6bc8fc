#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <random>

#include "cli/values.h"
#include "core/error.h"
#include "samplers/sampler.h"

namespace tessera::cli {
namespace {

constexpr const char* kMainFooter = R"(Examples:
  tessera generate "a red circle above a blue square on a white background" -o out.png
  tessera generate "a green star on a yellow background" --seed 7 --num-inference-steps 30
  tessera generate "a red star on a blue background" --use-cfg-parallel --ulysses-degree 2
  tessera models path/to/checkpoint
  tessera generate --help

Exit codes: 0 done, 2 usage, 3 model or input file, 4 a rank was lost, 5 out of memory, 130 Ctrl-C.)";

constexpr const char* kGenerateFooter =
    R"(Option names may be spelled with underscores as well (--guidance_scale).

Examples:
  The small model that ships, one picture:
    tessera generate "a red circle on a white background" -o circle.png
  A PixArt checkpoint that diffusers saved, 1024 x 1024, the seed fixed:
    tessera generate "a lighthouse at dusk" --model PixArt-Sigma --seed 42
  Two prompts with three pictures each (out-0.png to out-5.png):
    tessera generate "a red star on a blue background" "a blue square on a white background" --num-images-per-prompt 3
  Another sampler, and what the time went into:
    tessera generate "a red star on a blue background" --scheduler ddim --num-inference-steps 50 --report run.json
  The final latents instead of a picture:
    tessera generate "a red star on a blue background" --output-type latent -o star.safetensors
  Four ranks on this host, each with two threads:
    tessera generate "a red star on a blue background" --use-cfg-parallel --ulysses-degree 2 --threads 2
  Ranks that another launcher starts, on one host or several (torchrun, mpirun, srun):
    torchrun --no-python --nproc-per-node 2 tessera generate "a red star on a blue background" --use-cfg-parallel)";

constexpr const char* kModelsFooter =
    R"(Prints the parts of a checkpoint with classes, sizes and dtypes, and whether it can run (exit code 0) or why
not (exit code 3).)";

constexpr const char* kMeshFooter =
    R"(Prints which ranks form the groups of each axis, and the place of each rank on every axis. Axes from the
fastest: tp, ulysses, ring, pp, cfg, dp; a replica is all ranks that paint the same pictures together. With a
model also what each rank does and holds of it.

Examples:
  tessera mesh --model shapes --pipefusion-parallel-degree 2 --ulysses-degree 2
  tessera mesh --world 16 --data-parallel-degree 2 --use-cfg-parallel --pipefusion-parallel-degree 2 \
    --ulysses-degree 2)";

// The texts of the options; values are parsed after CLI11 is done, so that every error has one form.
struct GenerateTexts {
  std::vector<std::string> prompts;
  std::optional<std::string> model, output, negative_prompt, height, width, steps, guidance, seed, images,
      scheduler, max_sequence_length, report, trace, threads;
  std::string output_type = "image", dtype = "auto", device = "cpu";
  bool no_binning = false, quiet = false;
  ParallelTexts parallel;
};

struct MeshTexts {
  std::optional<std::string> world, model, height, width;
  std::string dtype = "auto";
  ParallelTexts parallel;
  bool json = false;
};

std::string scheduler_names() {
  std::vector<std::string> names;
  for (const samplers::SamplerName& known : samplers::known_samplers()) names.push_back(known.short_name);
  return fmt::format("Sampler instead of the model's own: {}", fmt::join(names, ", "));
}

void add_generate_options(CLI::App& app, GenerateTexts& texts) {
  app.add_option("PROMPT,--prompt", texts.prompts, "What to paint; several prompts give several pictures")
      ->type_name("TEXT");
  const auto add = [&app](const char* group, const char* names, auto& value, const char* type,
                          const std::string& description) {
    app.add_option(names, value, description)->type_name(type)->group(group)->take_last();
  };
  add("Output", "-o,--output", texts.output, "FILE", "Where to [out.png, or out.safetensors for latents]");
  add("Output", "--output-type", texts.output_type, "TYPE", "image [default] or latent");
  add("Output", "--report", texts.report, "FILE", "Write settings, times and memory as JSON");
  add("Output", "--trace", texts.trace, "FILE",
      "Write a timeline of all ranks for Perfetto (ui.perfetto.dev)");
  app.add_flag("-q,--quiet", texts.quiet, "No progress on stderr; paths still go to stdout")->group("Output");

  add("Picture", "--negative-prompt", texts.negative_prompt, "TEXT", "What to keep away from [nothing]");
  add("Picture", "--height", texts.height, "PIXELS", "Height [the model's]");
  add("Picture", "--width", texts.width, "PIXELS", "Width [the model's]");
  add("Picture", "--seed", texts.seed, "N", "Seed of the noise [random]");
  add("Picture", "--num-images-per-prompt", texts.images, "N", "Pictures of each prompt [1]");
  app.add_flag("--no-resolution-binning,--no-use-resolution-binning", texts.no_binning,
               "Paint at exactly this size, not at the nearest one of the training")
      ->group("Picture");

  add("Model", "--model", texts.model, "FOLDER", "Checkpoint in diffusers' format [the model that ships]");
  add("Model", "--num-inference-steps", texts.steps, "N", "Denoising steps [the model's, often 20]");
  add("Model", "--guidance-scale", texts.guidance, "X",
      "How closely to follow the prompt; 1: no guidance [4.5]");
  add("Model", "--scheduler", texts.scheduler, "NAME", scheduler_names());
  add("Model", "--max-sequence-length", texts.max_sequence_length, "N",
      "Tokens of a prompt that count [the model's]");

  add("Machine", "--dtype", texts.dtype, "TYPE", "auto [bf16 where the hardware has it], fp32, bf16, fp16");
  add("Machine", "--device", texts.device, "DEVICE", "cpu [default], cuda or cuda:N");
  add("Machine", "--threads", texts.threads, "N", "Threads of each rank [1; all cores for a rank alone]");

  add_run_options(app, texts.parallel);
  add_degree_options(app, texts.parallel);
}

void add_mesh_options(CLI::App& app, MeshTexts& texts) {
  const auto add = [&app](const char* name, auto& value, const char* type, const char* description) {
    app.add_option(name, value, description)->type_name(type)->take_last();
  };
  add("--world", texts.world, "N", "How many ranks there are [the product of the degrees]");
  add("--model", texts.model, "FOLDER",
      "Checkpoint to share out: blocks, rows, heads and weights of each rank");
  add("--height", texts.height, "PIXELS", "Of the picture to share out [the model's]");
  add("--width", texts.width, "PIXELS", "Of the picture to share out [the model's]");
  add("--dtype", texts.dtype, "TYPE", "Of the weights: auto, fp32, bf16, fp16");
  app.add_flag("--json", texts.json, "Print JSON");
  add_degree_options(app, texts.parallel);
}

// CLI11 takes a prompt in brackets for a list of words; this mark before it keeps it whole.
constexpr char kMark = '\x01';

std::string guard(const std::string& prompt) {
  return prompt.starts_with("[") ? kMark + prompt : prompt;
}

std::string unguard(const std::string& prompt) {
  return prompt.starts_with(kMark) ? prompt.substr(1) : prompt;
}

// Folds '_' to '-' in names of options and splits `--name=value` (CLI11 would skip an empty value). Values
// stay as they are: the word after an option that takes a value is that value.
std::vector<std::string> normalize(const std::vector<std::string>& arguments, const CLI::App& command) {
  std::vector<std::string> result = {arguments[0]};
  bool is_value = false, only_prompts = false;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (std::exchange(is_value, false) || only_prompts || !argument.starts_with("-")) {
      result.push_back(guard(argument));
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
    if (is_value && takes_list(name)) {
      if (const size_t length = list_length(arguments, i + 1); length > 0) {
        const auto first = arguments.begin() + static_cast<int64_t>(i) + 1;
        result.push_back(fmt::format("{}", fmt::join(first, first + static_cast<int64_t>(length), " ")));
        i += length;
        is_value = false;
      }
    }
    if (equals == std::string::npos) continue;
    if (takes_value) {
      result.push_back(guard(argument.substr(equals + 1)));
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

uint64_t random_seed() {
  return std::random_device()();
}

std::filesystem::path output_path(const GenerateTexts& texts, engine::OutputType type) {
  const std::string extension = type == engine::OutputType::kImage ? ".png" : ".safetensors";
  std::filesystem::path path = texts.output.value_or("out" + extension);
  if (path.extension() != extension) {
    usage_error("--output", "'{}' must end in {}: {} are written in that format", path.string(), extension,
                type == engine::OutputType::kImage ? "pictures" : "latents");
  }
  return path;
}

GenerateArguments to_arguments(const GenerateTexts& texts) {
  if (texts.prompts.empty()) usage_error("PROMPT", "give at least one prompt (it may be empty: \"\")");
  GenerateArguments arguments;
  engine::Request& request = arguments.request;
  for (const std::string& prompt : texts.prompts) request.prompts.push_back(unguard(prompt));
  request.negative_prompt = texts.negative_prompt.value_or("");
  if (texts.height) request.height = parse_integer("--height", *texts.height);
  if (texts.width) request.width = parse_integer("--width", *texts.width);
  if (texts.steps) request.num_inference_steps = parse_integer("--num-inference-steps", *texts.steps);
  if (texts.guidance) request.guidance_scale = parse_number("--guidance-scale", *texts.guidance);
  request.seed = texts.seed ? parse_seed("--seed", *texts.seed) : random_seed();
  if (texts.images) request.num_images_per_prompt = parse_integer("--num-images-per-prompt", *texts.images);
  request.scheduler = texts.scheduler;
  if (texts.max_sequence_length) {
    request.max_sequence_length = parse_integer("--max-sequence-length", *texts.max_sequence_length);
  }
  request.resolution_binning = !texts.no_binning;
  request.output_type = parse_output_type("--output-type", texts.output_type);
  request.device = parse_device("--device", texts.device);
  request.dtype = parse_dtype("--dtype", texts.dtype, request.device);
  arguments.model = texts.model;
  arguments.output = output_path(texts, request.output_type);
  if (texts.report) arguments.report = *texts.report;
  if (texts.trace) arguments.trace = *texts.trace;
  if (texts.threads) {
    const int64_t threads = parse_integer("--threads", *texts.threads);
    if (threads < 1 || threads > 1024) usage_error("--threads", "must be from 1 to 1024, got {}", threads);
    arguments.threads = static_cast<int>(threads);
  }
  arguments.quiet = texts.quiet;
  arguments.parallel = parse_parallel_options(texts.parallel);
  arguments.messages = parse_message_options(texts.parallel);
  return arguments;
}

MeshArguments to_arguments(const MeshTexts& texts) {
  MeshArguments arguments;
  arguments.parallel = parse_parallel_options(texts.parallel);
  arguments.json = texts.json;
  if (texts.world) arguments.world = parse_integer("--world", *texts.world);
  arguments.model = texts.model;
  arguments.request.prompts = {""};
  if (texts.height) arguments.request.height = parse_integer("--height", *texts.height);
  if (texts.width) arguments.request.width = parse_integer("--width", *texts.width);
  arguments.request.dtype = parse_dtype("--dtype", texts.dtype, arguments.request.device);
  if (!texts.model && (texts.height || texts.width || texts.dtype != "auto"))
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

  GenerateTexts generate_texts;
  CLI::App* generate = app.add_subcommand("generate", "Paint pictures from prompts");
  generate->footer(kGenerateFooter);
  add_generate_options(*generate, generate_texts);

  ModelsArguments models_arguments;
  CLI::App* models = app.add_subcommand("models", "Tell what is in a checkpoint and whether it can run");
  models->footer(kModelsFooter);
  models->add_option("FOLDER", models_arguments.model,
                     "Checkpoint in diffusers' format [the model that ships]");

  MeshTexts mesh_texts;
  CLI::App* mesh = app.add_subcommand("mesh", "Show how ranks are grouped for given degrees");
  mesh->footer(kMeshFooter);
  add_mesh_options(*mesh, mesh_texts);

  if (arguments.empty()) return ShowText{app.help()};
  check_command(app, arguments);
  const CLI::App* command = &app;
  for (const CLI::App* known : {generate, models, mesh}) {
    if (known->get_name() == arguments[0]) command = known;
  }
  arguments = normalize(arguments, *command);
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
  if (command == mesh) return to_arguments(mesh_texts);
  return to_arguments(generate_texts);
}

}  // namespace tessera::cli
