#include "cli/unknown_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace tessera::cli {
namespace {

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What other programs call an option.
const std::map<std::string, std::string> kOtherNames = {{"--steps", "--num-inference-steps"},
                                                        {"--sampling-steps", "--num-inference-steps"},
                                                        {"-s", "--num-inference-steps"},
                                                        {"--cfg", "--guidance-scale"},
                                                        {"--cfg-scale", "--guidance-scale"},
                                                        {"--sampler", "--scheduler"},
                                                        {"--sampling-method", "--scheduler"},
                                                        {"--negative", "--negative-prompt"},
                                                        {"--neg-prompt", "--negative-prompt"},
                                                        {"--fp16", "--dtype"},
                                                        {"--half", "--dtype"},
                                                        {"--bf16", "--dtype"},
                                                        {"--size", "--height"},
                                                        {"--image-size", "--height"},
                                                        {"--num-steps", "--num-inference-steps"},
                                                        {"--ddim-steps", "--num-inference-steps"},
                                                        {"--n-samples", "--num-images-per-prompt"},
                                                        {"--n-iter", "--num-images-per-prompt"},
                                                        {"--num-images", "--num-images-per-prompt"},
                                                        {"--batch-count", "--num-images-per-prompt"},
                                                        {"--ckpt", "--model"},
                                                        {"--checkpoint", "--model"},
                                                        {"--model-path", "--model"},
                                                        {"--outdir", "--output"},
                                                        {"--out", "--output"},
                                                        {"--enable-vae-tiling", "--vae-tiling"},
                                                        {"--use-karras-sigmas", "--scheduler-option"},
                                                        {"--karras", "--scheduler-option"},
                                                        {"--nproc-per-node", "--nproc"},
                                                        {"--cpu", "--device"},
                                                        {"--gpu", "--device"},
                                                        {"--cuda", "--device"},
                                                        {"--prompt2", "--prompt-2"},
                                                        {"--negative-prompt2", "--negative-prompt-2"},
                                                        {"--eta-noise", "--eta"},
                                                        {"-n", "--negative-prompt"},
                                                        {"-p", "--prompt"},
                                                        {"-m", "--model"},
                                                        {"-W", "--width"},
                                                        {"-H", "--height"},
                                                        {"--batch-size", "--num-images-per-prompt"},
                                                        {"--precision", "--dtype"},
                                                        {"--type", "--dtype"},
                                                        {"--trace", "--timeline"},
                                                        {"--tp", "--tensor-parallel-degree"},
                                                        {"-t", "--threads"}};

// Options of other programs for what cannot be done here yet.
const std::map<std::string, std::string> kNotHere = {{"--lora", "LoRA files"},
                                                     {"--lora-scale", "LoRA files"},
                                                     {"--lora-dir", "LoRA files"},
                                                     {"--image", "images to begin from"},
                                                     {"--init-image", "images to begin from"},
                                                     {"--init-img", "images to begin from"},
                                                     {"--img2img", "images to begin from"},
                                                     {"--strength", "images to begin from"},
                                                     {"--mask", "inpainting"},
                                                     {"--mask-image", "inpainting"},
                                                     {"--inpaint", "inpainting"},
                                                     {"--controlnet", "ControlNet"},
                                                     {"--control-net", "ControlNet"},
                                                     {"--control-image", "ControlNet"},
                                                     {"--ip-adapter", "IP-Adapter"},
                                                     {"--embeddings", "embedding files"},
                                                     {"--textual-inversion", "embedding files"},
                                                     {"--vae", "a VAE of its own"},
                                                     {"--latents", "latents to begin from"}};

}  // namespace

void refuse_unknown_option(const CLI::App& command, const std::string& word) {
  std::string option = printable(word);
  std::replace(option.begin(), option.end(), '_', '-');
  const std::string help = fmt::format("see tessera {} --help", command.get_name());
  if (const auto missing = kNotHere.find(option); missing != kNotHere.end())
    usage_error(option, "not supported yet ({}); {}", missing->second, help);
  const std::vector<std::string> known = option_names(command);
  const auto other = kOtherNames.find(option.starts_with("--") ? option : option.substr(0, 2));
  const bool has_other =
      other != kOtherNames.end() && std::find(known.begin(), known.end(), other->second) != known.end();
  if (const auto nearest = has_other ? other->second : nearest_word(option, known)) {
    usage_error(option, "unknown option; did you mean {}? ({})", *nearest, help);
  }
  usage_error(option, "unknown option; {}", help);
}

}  // namespace tessera::cli
