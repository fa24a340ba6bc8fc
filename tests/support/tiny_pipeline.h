// Whole tiny models of the goldens with requests that diffusers ran, and comparisons with its results.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "parallel/layout.h"

namespace tessera::engine {

// tests/golden/`folder`, which tools/golden/tiny_*.py have written.
class TinyPipeline {
 public:
  explicit TinyPipeline(const std::string& folder);

  const Model& model() const { return model_; }
  // The request of a run that diffusers made.
  Request request(const std::string& run) const;
  Settings settings(const std::string& run) const { return resolve(request(run), model_); }

  void expect_golden(const Result& result, const std::string& run, const std::string& what) const;
  // Runs on one rank.
  void expect_golden(const std::vector<std::string>& runs) const;
  // Runs on so many ranks, which are threads, with each layout.
  void expect_golden_on_ranks(int64_t ranks, const std::vector<std::string>& runs,
                              const std::vector<parallel::ParallelOptions>& layouts) const;

 private:
  std::string folder_;
  Model model_;
};

const TinyPipeline& z_image_pipeline();
const Model& tiny_z_image();
const TinyPipeline& klein_pipeline();
const Model& tiny_klein();
const TinyPipeline& dev_pipeline();
const Model& tiny_dev();

// An image of 32 x 32 pixels in two steps, in fp32.
Request small_request();

// A model whose scheduler has these options besides its own or in their place.
Model with_scheduler(Model model, const Json& options);

// Each method that gives on so many ranks what one rank gives, for any request of a transformer.
std::vector<parallel::ParallelOptions> exact_methods(int64_t ranks);

// The exit code and the line with which a call is refused, in the names of fields; or "accepted".
std::string refusal_with_code(const std::function<void()>& call);

// [N, H, W, 3], signed so that differences can be taken.
at::Tensor pixels_of(const std::vector<Image>& images);
int64_t pixel_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace tessera::engine
