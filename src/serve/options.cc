#include "serve/options.h"

namespace tessera::serve {
namespace {

constexpr FieldGroup kServer = FieldGroup::kServer, kLimits = FieldGroup::kLimits;
using O = ServeOptions;

Fields<O> server_fields() {
  return {
      plain_field(&O::listen, {"listen",
                               "Where to listen: HOST:PORT (port 0: any), [IPv6]:PORT or unix:PATH; may be "
                               "given several times [127.0.0.1:8188]",
                               kServer, "ADDRESS"}),
      plain_field(&O::api_keys,
                  {"api_keys",
                   "File with a line NAME KEY for each user of the server, which only its owner can "
                   "read [everybody may use it]",
                   kServer, "FILE"}),
      plain_field(&O::allow_origin,
                  {"allow_origin",
                   "Origin of web pages elsewhere that may use the server, such as https://example.org, "
                   "or *; may be given several times [none]",
                   kServer, "ORIGIN"}),
      plain_field(&O::allow_host,
                  {"allow_host",
                   "Host name by which the server may be called, without a port; may be given several "
                   "times [any; without keys, names and addresses of this host]",
                   kServer, "NAME"}),
      plain_field(
          &O::listen_without_keys,
          {"listen_without_keys",
           "Let everybody who can reach an address beyond this host use the server without keys", kServer}),
      plain_field(&O::folder, {"folder",
                               "Folder of the queue and the results, for one server at a time "
                               "[$XDG_STATE_HOME/tessera/serve; ~/.local/state/tessera/serve]",
                               kServer, "FOLDER"}),
      plain_field(&O::worlds,
                  {"worlds", "Number of copies of the model that work on jobs, each on its own ranks [1]",
                   kServer, "N", 1, 64}),
      plain_field(&O::drain,
                  {"drain",
                   "After SIGTERM or Ctrl-C, running jobs have this long to end; after that, they and "
                   "the waiting ones continue at the next start [30]",
                   kServer, "SECONDS", 0, 86400}),
  };
}

Fields<O> limit_fields() {
  return {
      plain_field(&O::max_queue, {"max_queue", "Maximum number of jobs that are waiting or running [1000]",
                                  kLimits, "JOBS", 1, 1'000'000}),
      plain_field(&O::max_body, {"max_body", "Maximum size of a request's body [33554432]", kLimits, "BYTES",
                                 1024, int64_t{1} << 32}),
      plain_field(&O::max_pixels, {"max_pixels", "Maximum number of pixels in a picture or a frame [4194304]",
                                   kLimits, "PIXELS", 64, int64_t{1} << 32}),
      plain_field(&O::max_steps,
                  {"max_steps", "Maximum number of denoising steps [250]", kLimits, "STEPS", 1, 10'000}),
      plain_field(&O::max_prompts, {"max_prompts", "Maximum number of pictures or videos in a request [16]",
                                    kLimits, "N", 1, 1024}),
      plain_field(&O::results_ttl,
                  {"results_ttl", "How long results are kept [86400]", kLimits, "SECONDS", 1, 1e9}),
      plain_field(
          &O::max_results_bytes,
          {"max_results_bytes", "Maximum size of all results; the oldest are removed first [10737418240]",
           kLimits, "BYTES", 0, 1e18}),
  };
}

}  // namespace

const Fields<ServeOptions>& serve_fields() {
  static const Fields<O> fields = [] {
    Fields<O> all = server_fields();
    for (Field<O>& each : limit_fields()) all.push_back(std::move(each));
    all.push_back(plain_field(&O::model, job::model_info()));
    all.push_back(plain_field(&O::config, job::config_info()));
    all.push_back(plain_field(&O::variant, job::variant_info()));
    all.push_back(plain_field(&O::threads, job::threads_info()));
    all.push_back(plain_field(
        &O::max_weights,
        {"max_weights", "Maximum size of the weights that a rank keeps in memory between jobs [all]",
         FieldGroup::kMemory, "BYTES", 0, 1e18}));
    return all;
  }();
  return fields;
}

}  // namespace tessera::serve
