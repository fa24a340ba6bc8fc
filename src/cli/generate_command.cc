#include "cli/generate_command.h"

#include <ATen/Parallel.h>

#include <cstdio>

#include "cli/find_model.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "core/error.h"
#include "core/file.h"
#include "weights/safetensors.h"

namespace tessera::cli {
namespace {

// One file for one picture or for latents, else name-0.png, name-1.png, ...
std::vector<std::string> output_paths(const std::filesystem::path& path,
                                      const pipelines::Settings& settings) {
  const int64_t pictures = settings.pictures();
  if (pictures == 1 || settings.request.output_type == pipelines::OutputType::kLatent) return {path.string()};
  std::vector<std::string> paths;
  for (int64_t i = 0; i < pictures; ++i) {
    const std::string name = fmt::format("{}-{}{}", path.stem().string(), i, path.extension().string());
    paths.push_back((path.parent_path() / name).string());
  }
  return paths;
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto canonical = [](const std::filesystem::path& path) {
    std::error_code code;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, code), code);
  };
  return canonical(a) == canonical(b);
}

std::string headline(const pipelines::Settings& settings, const pipelines::Model& model) {
  const pipelines::Request& request = settings.request;
  const int64_t pictures = settings.pictures();
  const int threads = at::get_num_threads();
  return fmt::format("{} ({}): {} {} of {} x {}, {} {}, guidance {}, seed {}, {} on {}", model_name(model),
                     model.family->title, pictures, pictures == 1 ? "picture" : "pictures", settings.width,
                     settings.height, settings.steps, settings.steps == 1 ? "step" : "steps",
                     settings.guidance, request.seed, dtype_name(request.dtype),
                     request.device.is_cpu()
                         ? fmt::format("{} {}", threads, threads == 1 ? "thread" : "threads")
                         : request.device.str());
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void write_outputs(const pipelines::Settings& settings, const pipelines::Model& model,
                   const pipelines::Result& result, const std::vector<std::string>& paths) {
  if (settings.request.output_type == pipelines::OutputType::kLatent) {
    weights::write_safetensors(paths[0], {{"latents", result.latents}});
    return;
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    write_text(paths[i], encode_png(result.images[i], png_text(settings, model, static_cast<int64_t>(i))));
  }
}

}  // namespace

void run_generate(const GenerateArguments& arguments) {
  if (arguments.threads) at::set_num_threads(*arguments.threads);
  const pipelines::Model model = pipelines::read_model(find_model(arguments.model));
  const pipelines::Settings settings = pipelines::resolve(arguments.request, model);
  const std::vector<std::string> paths = output_paths(arguments.output, settings);
  for (const std::string& path : paths) require_writable(path);
  if (arguments.report) {
    require_writable(*arguments.report);
    for (const std::string& path : paths) {
      if (same_file(path, *arguments.report))
        usage_error("--report", "'{}' is also where a result goes", path);
    }
  }

  Progress progress(arguments.quiet);
  if (!arguments.quiet) progress.line(headline(settings, model));
  const pipelines::Result result = pipelines::generate(settings, model, progress.observer());
  write_outputs(settings, model, result, paths);
  if (arguments.report) {
    const OrderedJson report = make_report(settings, model, result, paths);
    write_text(*arguments.report, report.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }
  progress.summary(result.seconds);
  for (const std::string& path : paths) fmt::print("{}\n", path);
}

}  // namespace tessera::cli
