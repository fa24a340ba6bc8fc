#include "cli/commands.h"

#include <fmt/ranges.h>

#include <cstdio>

#include "core/error.h"
#include "core/folders.h"
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
  Two copies of the model, each on one rank, behind a proxy on the same host:
    tessera serve --worlds 2 --listen unix:/run/tessera/socket --allow-host pictures.example.org)";

void add_serve_options(FieldOptions& options) {
  FieldList fields = fields_of(serve::serve_fields());
  append(fields, engine::request_fields(),
         [](const FieldInfo& info) { return info.name == "device" || info.name == "dtype"; });
  append(fields, parallel::parallel_fields(),
         [](const FieldInfo& info) { return info.name != "simulate_ranks"; });
  append(fields, job::message_fields(), [](const FieldInfo&) { return true; });
  options.add(std::move(fields), {"model", "listen", "api_keys", "folder", "nproc", "worlds"});
}

serve::ServeOptions serve_options(const FieldOptions& options) {
  serve::ServeOptions serve = options.read(serve::serve_fields());
  serve.defaults = options.read(engine::request_fields());
  serve.parallel = options.read(parallel::parallel_fields());
  serve.messages = options.read(job::message_fields());
  if (!serve.folder.empty()) return serve;
  const auto folder = state_folder();
  if (!folder) usage_error("--folder", "is needed where neither XDG_STATE_HOME nor HOME names a folder");
  serve.folder = (*folder / "serve").string();
  return serve;
}

int run_serve(const serve::ServeOptions& options) {
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
