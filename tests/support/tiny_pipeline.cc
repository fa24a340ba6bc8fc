#include "tests/support/tiny_pipeline.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/support/degrees.h"
#include "tests/support/generate.h"
#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"

namespace tessera::engine {

TinyPipeline::TinyPipeline(const std::string& folder)
    : folder_(folder), model_(read_model(golden_folder(folder))) {}

Request TinyPipeline::request(const std::string& run) const {
  const Json file = read_json(golden_folder(folder_) / "golden" / "runs.json");
  Json json = file.at("runs").at(run);
  json["seed"] = file.at("seed");
  json["dtype"] = "fp32";
  if (json.contains("image")) {
    for (Json& path : json["image"])
      path = (golden_folder(folder_) / "golden" / path.get<std::string>()).string();
  }
  return read_fields(request_fields(), json);
}

void TinyPipeline::expect_golden(const Result& result, const std::string& run,
                                 const std::string& what) const {
  const auto golden = read_golden(folder_ + "/golden/golden.safetensors");
  const at::Tensor latents = golden.at(run + ".latents"), pixels = golden.at(run + ".pixels");
  ASSERT_EQ(result.latents.sizes(), latents.sizes()) << run << ", " << what;
  EXPECT_LE((result.latents - latents).abs().max().item<double>(), 1e-3) << run << ", " << what;
  ASSERT_EQ(result.images.size(), static_cast<size_t>(pixels.size(0))) << run << ", " << what;
  EXPECT_LE(pixel_difference(pixels_of(result.images), pixels), 2) << run << ", " << what;
}

void TinyPipeline::expect_golden(const std::vector<std::string>& runs) const {
  for (const std::string& run : runs) expect_golden(generate(settings(run), model_), run, "one rank");
}

void TinyPipeline::expect_golden_on_ranks(int64_t ranks, const std::vector<std::string>& runs,
                                          const std::vector<parallel::ParallelOptions>& layouts) const {
  constexpr uint64_t kAllStays = uint64_t{1} << 40;
  comm::run_ranks_as_threads(
      ranks,
      [&](const comm::World& world) {
        Engine engine(model_, kAllStays, world);
        for (const std::string& run : runs) {
          for (const parallel::ParallelOptions& options : layouts) {
            const Settings chosen = settings(run);
            const auto layout = parallel::resolve_layout(options, workload(chosen, model_), std::nullopt);
            const Result result = engine.run(chosen, layout);
            if (world.rank() == 0) expect_golden(result, run, parallel::degrees_text(options));
          }
        }
      },
      comm::Wire::kShared);
}

const TinyPipeline& z_image_pipeline() {
  static const TinyPipeline pipeline("tiny-z-image");
  return pipeline;
}

const Model& tiny_z_image() {
  return z_image_pipeline().model();
}

const TinyPipeline& klein_pipeline() {
  static const TinyPipeline pipeline("tiny-flux2-klein");
  return pipeline;
}

const Model& tiny_klein() {
  return klein_pipeline().model();
}

const TinyPipeline& dev_pipeline() {
  static const TinyPipeline pipeline("tiny-flux2-dev");
  return pipeline;
}

const Model& tiny_dev() {
  return dev_pipeline().model();
}

Request small_request() {
  Request request;
  request.prompts = {"a cat"};
  request.height = request.width = 32;
  request.num_inference_steps = 2;
  request.seed = 1;
  request.dtype = at::kFloat;
  return request;
}

Model with_scheduler(Model model, const Json& options) {
  Json all = model.scheduler.values();
  all.update(options);
  model.scheduler = {all, "scheduler.json"};
  return model;
}

std::vector<parallel::ParallelOptions> exact_methods(int64_t ranks) {
  using parallel::degrees;
  std::vector<parallel::ParallelOptions> methods = {
      degrees(1, false, 1, ranks, 1, 1), degrees(1, false, 1, 1, 1, 1, ranks), {}};
  methods.back().displaced_patch_degree = ranks;
  methods.back().displaced_mode = parallel::DisplacedMode::kFullSync;
  if (ranks == 2) {
    for (const auto& more : {degrees(1, true, 1, 1, 1, 1), degrees(1, false, 1, 1, 2, 1),
                             degrees(1, false, 1, 1, 1, 2), degrees(2, false, 1, 1, 1, 1)})
      methods.push_back(more);
  }
  return methods;
}

std::string refusal_with_code(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{} {}", error.exit_code(), spell(error.what()));
  }
  return "accepted";
}

at::Tensor pixels_of(const std::vector<Image>& images) {
  std::vector<at::Tensor> all;
  all.reserve(images.size());
  for (const Image& image : images)
    all.push_back(at::tensor(at::ArrayRef<uint8_t>(image.pixels), at::kByte)
                      .to(at::kInt)
                      .view({image.height, image.width, 3}));
  return at::stack(all);
}

int64_t pixel_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int64_t>();
}

}  // namespace tessera::engine
