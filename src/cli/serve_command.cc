#include "cli/commands.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>

#include "cli/run_plan.h"
#include "core/error.h"
#include "core/folders.h"
#include "launch/aside.h"
#include "launch/failure.h"
#include "launch/streams.h"
#include "serve/server.h"

namespace tessera::cli {

const char* const kServeFooter =
    R"(Keeps a model loaded and generates what clients ask for over HTTP, until SIGTERM or Ctrl-C. Prints where it listens once it
answers. docs/serving.md describes the interfaces, and what a server does when its processes are lost.

Examples:
  The small model that ships, for programs of this host:
    tessera serve
  Two ranks for each picture, for the clients of a file of keys:
    tessera serve --model path/to/PixArt-Sigma-XL-2-1024-MS --use-cfg-parallel --listen 0.0.0.0:8188 --api-keys keys.txt
  As many ranks as there are cores, in the layout that suits this host and the model:
    tessera serve --model path/to/PixArt-Sigma-XL-2-1024-MS --nproc 8 --parallel auto
  Two copies of the model, each on one rank, behind a proxy on the same host:
    tessera serve --worlds 2 --listen unix:/run/tessera/socket --allow-host pictures.example.org)";

void add_serve_options(FieldOptions& options) {
  FieldList fields = fields_of(serve::serve_fields());
  append(fields, engine::request_fields(),
         [](const FieldInfo& info) { return info.name == "device" || info.name == "dtype"; });
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.name != "simulate_ranks"; });
  append(fields, job::run_fields(), [](const FieldInfo& info) {
    return info.name == "parallel" || info.name == "machine" || info.name == "max_staleness";
  });
  append(fields, job::message_fields(), [](const FieldInfo&) { return true; });
  options.add(std::move(fields), {"model", "listen", "api_keys", "folder", "nproc", "worlds"});
}

serve::ServeOptions serve_options(const FieldOptions& options) {
  serve::ServeOptions serve = options.read(serve::serve_fields());
  serve.defaults = options.read(engine::request_fields());
  serve.parallel = options.read(parallel::parallel_fields());
  serve.messages = options.read(job::message_fields());
  serve.plan = options.read(job::run_fields());
  Json layout = options.given(parallel::parallel_fields());
  layout.update(options.given(job::run_fields()));
  require_plan_options(layout);
  if (options.given(serve::serve_fields()).contains("folder")) {
    if (serve.folder.empty()) usage_error("--folder", "names no folder");
    return serve;
  }
  const auto folder = state_folder();
  if (!folder) usage_error("--folder", "is needed if neither XDG_STATE_HOME nor HOME names a folder");
  serve.folder = (*folder / "serve").string();
  return serve;
}

namespace {

// Returns the layout that suits a request for which the model makes every choice.
parallel::ParallelOptions planned_layout(const serve::ServeOptions& options) {
  job::GenerateArguments typical;
  typical.request = options.defaults;
  typical.request.prompts = {""};
  typical.parallel = options.parallel;
  typical.run = options.plan;
  typical.run.model = options.model;
  typical.run.config = options.config;
  typical.run.variant = options.variant;
  typical.run.threads = options.threads;
  typical.run.output = std::filesystem::temp_directory_path() / "planned.png";  // never written
  return with_plan(std::move(typical)).parallel;
}

}  // namespace

int run_serve(const serve::ServeOptions& given) {
  serve::ServeOptions options = given;
  try {
    options.parallel = planned_layout(given);
  } catch (const launch::FailedAside& failed) {
    return launch::print_failure(failed.failure, option_name);
  }
  serve::ServerVoice voice;
  voice.serving = [](const std::vector<std::string>& addresses) {
    std::vector<std::string> urls;
    for (const std::string& address : addresses)
      urls.push_back(address.starts_with("unix:") ? address : "http://" + address);
    fmt::print("listening at {}\n", fmt::join(urls, ", "));
    std::fflush(stdout);
  };
  voice.line = [](const std::string& line) { launch::say("tessera: " + spell(line, option_name) + "\n"); };
  const launch::Failure failure = serve::run_server(options, voice);
  return failure.exit_code == 0 ? 0 : launch::print_failure(failure, option_name);
}

}  // namespace tessera::cli
