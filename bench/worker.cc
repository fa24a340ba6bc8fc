#include "bench/worker.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>

#include "core/json.h"
#include "engine/denoiser_stage.h"
#include "models/family.h"

namespace tessera {
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

namespace {

models::Family family_of(const std::filesystem::path& model) {
  const JsonConfig index = JsonConfig::read(model / "model_index.json");
  return models::find_family(index.string("_class_name"), index.where());
}

// The tokens of a negative prompt and of a positive one that go through the denoiser: an empty one and one of
// 25, or 300, for U-Nets padded to CLIP's length, for FLUX.2 klein to that of its pipeline, and for Z-Image
// with its chat template.
std::vector<int64_t> prompt_tokens(const models::Family& family, bool is_unet, const std::string& part) {
  if (is_unet) return {77, 77};
  if (family.class_name == "Flux2KleinPipeline") return {512, 512};
  if (family.class_name == "ZImagePipeline") return {8, 25};
  return {1, part == "denoiser-300" ? 300 : 25};
}

// A denoiser, and what must live as long as its stage.
struct DenoiserWork {
  std::shared_ptr<models::Denoiser> denoiser;
  std::vector<models::Conditioning> prompts;
  models::LatentShape latent_shape;
  parallel::Ranks alone;
  std::optional<engine::DenoiserStage> stage;
};

// One denoising step: of two samples, or of the positive one alone without guidance.
std::function<void()> denoiser_work(const std::filesystem::path& model, const models::LoadOptions& options,
                                    int64_t height, int64_t width, const std::string& part) {
  const models::Family family = family_of(model);
  models::LoadStatistics statistics;
  const models::DenoiserShape shape = family.read_shape(model);
  const int64_t scale = family.read_latent_scale(model, shape.latent_channels).pixels;
  const auto work = std::make_shared<DenoiserWork>();
  work->denoiser = family.load_denoiser(model, options, statistics);
  work->latent_shape = {height / scale, width / scale, scale};
  std::vector<int64_t> lengths = prompt_tokens(family, std::filesystem::exists(model / "unet"), part);
  if (part == "denoiser-unguided") lengths.erase(lengths.begin());
  for (const int64_t length : lengths) {
    models::Conditioning& prompt = work->prompts.emplace_back();
    prompt[models::kTokens] = at::randn({length, work->denoiser->conditioning_width()});
    if (const int64_t pooled = work->denoiser->pooled_width(); pooled > 0)
      prompt[models::kPooled] = at::randn({pooled});
  }
  std::vector<int64_t> prompt_of(lengths.size());
  std::iota(prompt_of.begin(), prompt_of.end(), 0);
  work->stage.emplace(*work->denoiser, shape, work->prompts, prompt_of, work->latent_shape, work->alone);
  const at::Tensor z = at::randn(shape.latent_sizes(work->latent_shape, work->stage->samples()));
  const models::Timestep timestep{500.0, at::full({1}, 500.0)};
  // Each call is a separate step.
  return [work, z, timestep, step = int64_t{0}]() mutable {
    work->stage->run({step++, std::numeric_limits<int64_t>::max(), timestep}, {0, 1}, {z});
  };
}

std::function<void()> decoder_work(const std::filesystem::path& model, const models::LoadOptions& options,
                                   int64_t height, int64_t width) {
  const models::Family family = family_of(model);
  models::LoadStatistics statistics;
  const std::shared_ptr<models::Decoder> decoder = family.load_decoder(model, options, statistics);
  const int64_t channels = family.read_shape(model).latent_channels;
  const int64_t scale = family.read_latent_scale(model, channels).pixels;
  const at::Tensor z = at::randn({1, channels, height / scale, width / scale});
  return [=] { decoder->decode(z); };
}

}  // namespace

int run_worker(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: tessera_bench worker denoiser|denoiser-300|denoiser-unguided|decoder FOLDER "
                 "fp32|bf16 THREADS HEIGHT WIDTH\n";
    return 2;
  }
  const c10::InferenceMode inference_mode;
  at::set_num_threads(std::stoi(argv[3]));
  models::LoadOptions options;
  options.placement.dtype = std::string(argv[2]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const std::string part = argv[0];
  const int64_t height = std::stoll(argv[4]), width = std::stoll(argv[5]);
  const std::function<void()> work = part == "decoder" ? decoder_work(argv[1], options, height, width)
                                                       : denoiser_work(argv[1], options, height, width, part);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << seconds.count() << " " << peak_bytes() << std::endl;
  }
  return 0;
}

}  // namespace tessera
