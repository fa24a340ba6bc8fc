#include "engine/saved_run.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/json.h"
#include "engine/phases.h"
#include "weights/safetensors.h"

namespace tessera::engine {
namespace {

// What the ranks have to know before tensors arrive: whether the run has begun its first step, where it
// stands, and how many tensors the solver has.
struct Header {
  bool has_begun = false;
  size_t group = 0;
  int64_t next_step = 0;
  size_t history = 0, extra = 0;
};

Header share(const SavedRun& saved, const comm::Group& world) {
  std::string text;
  if (world.rank == 0 && saved.denoising) {
    const samplers::SamplerState& solver = saved.denoising->solver;
    text = fmt::format("{} {} {} {}", saved.group, saved.denoising->next_step, solver.history.size(),
                       solver.extra.size());
  }
  Header header;
  std::istringstream numbers(comm::broadcast_bytes(text, 0, world));
  header.has_begun =
      static_cast<bool>(numbers >> header.group >> header.next_step >> header.history >> header.extra);
  return header;
}

// Restores on rank 0 the results of the finished groups.
void add_done(RunContext& run, const SavedRun& saved) {
  for (size_t i = 0; i < run.turn.group; ++i) {
    run.images_done += run.ranks.data.part(run.groups[i].count()).length;
    run.frames_done += run.groups[i].count() * run.settings.all_frames();
  }
  if (run.ranks.world.rank != 0) return;
  run.latents = saved.latents;
  run.result.images = saved.images;
  run.result.step_seconds = saved.step_seconds;
}

}  // namespace

std::optional<DenoiseState> take_up(RunContext& run, const SavedRun& saved) {
  std::optional<DenoiseState> state;
  run.stages.run(Messages::kSome, [&] {
    const comm::Group& world = run.ranks.world;
    const Header header = share(saved, world);
    if (!header.has_begun) return;
    run.turn.group = header.group;
    add_done(run, saved);
    state.emplace();
    state->next_step = header.next_step;
    state->noise = Noise(run.batch->noise).of(run.group().pictures);
    const auto receive = [&](const at::Tensor& like) {
      at::Tensor tensor = world.rank == 0 ? like.contiguous() : at::empty_like(like);
      comm::broadcast(tensor, 0, world);
      return tensor;
    };
    const at::Tensor blank = at::empty(run.latent_sizes(), at::kFloat);
    const DenoiseState* const own = world.rank == 0 ? &*saved.denoising : nullptr;
    state->latents = receive(own ? own->latents : blank);
    for (size_t i = 0; i < header.history; ++i)
      state->solver.history.push_back(receive(own ? own->solver.history[i] : blank));
    for (size_t i = 0; i < header.extra; ++i)
      state->solver.extra.push_back(receive(own ? own->solver.extra[i] : blank));
    std::vector<at::Tensor> generators = own ? own->noise.states() : state->noise.states();
    for (at::Tensor& each : generators) each = receive(each);
    state->noise.set_states(generators);
    run.noise = state->noise;
  });
  return state;
}

namespace {

constexpr const char* kRun = "run";  // the key in the metadata

// "history.0", "history.1", ...
void put(std::map<std::string, at::Tensor>& tensors, const std::string& name,
         const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) tensors[fmt::format("{}.{}", name, i)] = values[i];
}

std::vector<at::Tensor> get(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  std::vector<at::Tensor> values;
  for (auto found = tensors.find(name + ".0"); found != tensors.end();
       found = tensors.find(fmt::format("{}.{}", name, values.size())))
    values.push_back(found->second);
  return values;
}

at::Tensor tensor_of(const Image& image) {
  at::Tensor tensor = at::empty({image.height, image.width, 3}, at::kByte);
  std::copy(image.pixels.begin(), image.pixels.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

// Returns the noise of a run's pictures, whose generators still need their states.
Noise noise_of(const std::vector<Settings>& requests) {
  std::vector<Noise::Share> shares;
  shares.reserve(requests.size());
  for (const Settings& each : requests) shares.push_back({*each.request.seed, each.pictures()});
  return Noise(shares);
}

// Whether the state is a state between two steps of these requests.
bool fits(const DenoiseState& state, const std::vector<Settings>& requests) {
  const models::LatentShape& latents = requests.front().latents;
  const at::Tensor& z = state.latents;
  if (!z.defined() || z.dim() < 4 || z.size(-1) != latents.latent_width ||
      z.size(-2) != latents.latent_height || state.next_step < 0)
    return false;
  const auto is_like = [&](const at::Tensor& each) {
    return each.sizes() == z.sizes() && each.scalar_type() == at::kFloat;
  };
  const auto& [history, extra] = state.solver;
  return is_like(z) && std::all_of(history.begin(), history.end(), is_like) &&
         std::all_of(extra.begin(), extra.end(), is_like);
}

}  // namespace

std::string write_saved_run(const SavedRun& saved) {
  weights::FileContents contents;
  OrderedJson run = {
      {"group", saved.group}, {"step_seconds", saved.step_seconds}, {"requests", OrderedJson::array()}};
  for (const Settings& each : saved.requests)
    run["requests"].push_back(write_fields(request_fields(), each.request));
  if (saved.denoising) {
    const DenoiseState& state = *saved.denoising;
    run["next_step"] = state.next_step;
    contents.tensors["latents"] = state.latents;
    put(contents.tensors, "history", state.solver.history);
    put(contents.tensors, "extra", state.solver.extra);
    put(contents.tensors, "generator", state.noise.states());
    put(contents.tensors, "done", saved.latents);
    for (size_t i = 0; i < saved.images.size(); ++i)
      contents.tensors[fmt::format("image.{}", i)] = tensor_of(saved.images[i]);
  }
  contents.metadata[kRun] = run.dump();
  return weights::write_safetensors(contents);
}

SavedRun read_saved_run(std::string_view bytes, const Model& model, const std::string& where) {
  const weights::FileContents contents = weights::read_safetensors(bytes, where);
  const auto text = contents.metadata.find(kRun);
  if (text == contents.metadata.end()) input_error(where, "is no saved run");
  SavedRun saved;
  try {
    const Json run = parse_json(text->second, where);
    for (const Json& each : run.at("requests"))
      saved.requests.push_back(resolve(read_fields(request_fields(), each), model));
    saved.group = run.at("group").get<size_t>();
    saved.step_seconds = run.at("step_seconds").get<std::vector<double>>();
    if (!run.contains("next_step")) return saved;
    saved.denoising.emplace();
    saved.denoising->next_step = run.at("next_step").get<int64_t>();
  } catch (const Json::exception& error) {
    input_error(where, "is no saved run: {}", error.what());
  }
  if (saved.requests.empty()) input_error(where, "is a saved run without requests");
  DenoiseState& state = *saved.denoising;
  state.solver = {.history = get(contents.tensors, "history"), .extra = get(contents.tensors, "extra")};
  if (const auto latents = contents.tensors.find("latents"); latents != contents.tensors.end())
    state.latents = latents->second;
  if (!fits(state, saved.requests)) input_error(where, "the latents are not those of a run of this model");
  state.noise = noise_of(saved.requests);
  const std::vector<at::Tensor> generators = get(contents.tensors, "generator"), fresh = state.noise.states();
  const auto is_state = [](const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
  };
  if (!std::equal(generators.begin(), generators.end(), fresh.begin(), fresh.end(), is_state))
    input_error(where, "the generators are not those of the requests");
  state.noise.set_states(generators);
  saved.latents = get(contents.tensors, "done");
  for (const at::Tensor& pixels : get(contents.tensors, "image")) {
    if (pixels.dim() != 3 || pixels.size(2) != 3 || pixels.scalar_type() != at::kByte)
      input_error(where, "a picture has the shape of none");
    const auto* const first = pixels.const_data_ptr<uint8_t>();
    saved.images.push_back({pixels.size(0), pixels.size(1), {first, first + pixels.numel()}});
  }
  return saved;
}

}  // namespace tessera::engine
