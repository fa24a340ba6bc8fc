#include "bench/worker.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>

#include "core/error.h"
#include "engine/denoiser_stage.h"
#include "models/autoencoder_kl.h"
#include "models/pixart.h"
#include "models/unet_2d_condition.h"

namespace tessera {
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

namespace {

// One denoising step with guidance: a batch of two, with an empty negative prompt and one of `tokens`. For
// U-Nets both are padded to CLIP's length.
std::function<void()> denoiser_work(const std::filesystem::path& model, const models::LoadOptions& options,
                                    int64_t height, int64_t width, int64_t tokens) {
  models::LoadStatistics statistics;
  const bool is_unet = std::filesystem::exists(model / "unet");
  const std::shared_ptr<models::Denoiser> denoiser = is_unet
                                                         ? models::load_unet(model, options, statistics)
                                                         : models::load_pixart(model, options, statistics);
  if (is_unet) tokens = 77;
  const models::DenoiserShape shape =
      is_unet ? models::read_unet_shape(model) : models::read_pixart_shape(model);
  const int64_t width_of_tokens = denoiser->conditioning_width();
  std::vector<models::Conditioning> prompts = {
      {{models::kTokens, at::randn({is_unet ? tokens : 1, width_of_tokens})}},
      {{models::kTokens, at::randn({tokens, width_of_tokens})}}};
  if (is_unet) {
    const models::UNet2DConfig config(JsonConfig::read(model / "unet" / "config.json"));
    const int64_t pooled = config.addition_inputs - 6 * config.addition_time_embed_dim;
    for (models::Conditioning& prompt : prompts) prompt[models::kPooled] = at::randn({pooled});
  }
  parallel::Ranks alone;
  const models::LatentShape latent_shape{height / 8, width / 8, 8};
  const auto stage = std::make_shared<engine::DenoiserStage>(*denoiser, shape, prompts,
                                                             std::vector<int64_t>{0, 1}, latent_shape, alone);
  const at::Tensor z = at::randn({2, shape.latent_channels, height / 8, width / 8});
  const models::Timestep timestep{500.0, at::full({1}, 500.0)};
  // Each call is a separate step.
  return [denoiser, stage, z, timestep, step = int64_t{0}]() mutable {
    stage->run({step++, std::numeric_limits<int64_t>::max(), timestep}, {0, 1}, {z});
  };
}

std::function<void()> decoder_work(const std::filesystem::path& model, const models::LoadOptions& options,
                                   int64_t height, int64_t width) {
  models::LoadStatistics statistics;
  const std::shared_ptr<models::Decoder> decoder =
      models::load_autoencoder_kl_decoder(model / "vae", options, statistics);
  const at::Tensor z = at::randn({1, 4, height / 8, width / 8});
  return [=] { decoder->decode(z); };
}

}  // namespace

int run_worker(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: tessera_bench worker denoiser|denoiser-300|decoder FOLDER fp32|bf16 THREADS "
                 "HEIGHT WIDTH\n";
    return 2;
  }
  const c10::InferenceMode inference_mode;
  at::set_num_threads(std::stoi(argv[3]));
  models::LoadOptions options;
  options.placement.dtype = std::string(argv[2]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const std::string part = argv[0];
  const int64_t height = std::stoll(argv[4]), width = std::stoll(argv[5]);
  const std::function<void()> work =
      part == "decoder" ? decoder_work(argv[1], options, height, width)
                        : denoiser_work(argv[1], options, height, width, part == "denoiser-300" ? 300 : 25);
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
