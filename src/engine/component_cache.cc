#include "engine/component_cache.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "weights/memory_counter.h"

namespace tessera::engine {
namespace {

// Compares everything that affects what is loaded, but not whether the component stays.
bool same_form(const ComponentForm& a, const ComponentForm& b) {
  const weights::Placement &p = a.options.placement, &q = b.options.placement;
  const auto same_parts = [](const comm::Group& one, const comm::Group& other) {
    return one.ranks == other.ranks && one.shares == other.shares;
  };
  return a.name == b.name && p.dtype == q.dtype && p.device == q.device &&
         same_parts(p.groups.inner, q.groups.inner) && same_parts(p.groups.outer, q.groups.outer) &&
         a.options.blocks == b.options.blocks;
}

}  // namespace

// Text encoders come last because they read each weight once for all prompts, so reading from the files loses
// little.
std::vector<ComponentForm> component_forms(const Model& model, at::ScalarType dtype, at::Device device,
                                           const parallel::Ranks& ranks, bool encodes_frames) {
  models::LoadOptions whole;
  whole.placement.dtype = dtype;
  whole.placement.device = device;
  whole.may_lack_weights = device.is_meta();
  whole.single_file = model.single_file;
  whole.variant = model.variant;
  models::LoadOptions text = whole, stage = whole;
  if (ranks.layout.text_encoder_parallel) text.placement.groups.inner = ranks.replica;
  stage.placement.groups = {ranks.tensor_inner, ranks.tensor_outer};
  if (ranks.pipeline.size > 1) stage.blocks = ranks.layout.stage(ranks.pipeline.rank);
  std::vector<ComponentForm> forms = {{kDenoiser, stage}, {kDecoder, whole}};
  if (encodes_frames) forms.push_back({kEncoder, whole});
  for (const models::TextEncoderPart& each : model.text_encoders()) forms.push_back({each.name, text});
  return forms;
}

std::unique_ptr<models::Component> ComponentCache::load(const ComponentForm& form,
                                                        models::LoadStatistics& cost) const {
  const models::Family& family = *model_.family;
  const auto load_part = [&]() -> std::unique_ptr<models::Component> {
    if (form.name == kDenoiser) return family.load_denoiser(model_.folder, form.options, cost);
    if (form.name == kDecoder) return family.load_decoder(model_.folder, form.options, cost);
    if (form.name == kEncoder) return family.load_encoder(model_.folder, form.options, cost);
    for (const models::TextEncoderPart& each : family.text_encoders) {
      if (each.name == form.name) return each.load(model_.folder, form.options, cost);
    }
    TESSERA_CHECK(false, "{} has no component '{}'", family.title, form.name);
  };
  model_.stamps.require_unchanged();  // a better explanation than that something does not fit
  auto part = load_part();
  // The component's files are open from here on, so these are the files as of the start.
  model_.stamps.require_unchanged();
  return part;
}

// The first call for a form finds its size on the meta device.
const ComponentCache::Sized& ComponentCache::sized(const ComponentForm& form) {
  for (const Sized& each : sized_) {
    if (same_form(each.form, form)) return each;
  }
  if (form.options.placement.device.is_meta()) return sized_.emplace_back(Sized{form});
  ComponentForm shapes = form;
  shapes.options.placement.device = at::kMeta;
  shapes.options.stays = false;
  models::LoadStatistics cost;
  const SuppressLog suppress_log;  // the warnings are repeated when the component is loaded
  load(shapes, cost);
  return sized_.emplace_back(Sized{form, cost.bytes_held, cost.bytes_at_use});
}

void ComponentCache::expect(const std::vector<ComponentForm>& forms) {
  uint64_t left = budget_;
  expected_.clear();
  for (const ComponentForm& form : forms) {
    const Sized& each = sized(form);
    const bool stays = !form.options.placement.device.is_meta() && each.bytes <= left;
    expected_.push_back({&each, stays});
    if (stays) left -= each.bytes;
  }
}

const ComponentCache::Expected* ComponentCache::expected(const std::string& name) const {
  const auto found = std::find_if(expected_.begin(), expected_.end(),
                                  [&](const Expected& each) { return each.sized->form.name == name; });
  return found == expected_.end() ? nullptr : &*found;
}

std::shared_ptr<const LoadedComponent> ComponentCache::find(const std::string& name) const {
  const Expected* const wanted = expected(name);
  if (!wanted) return nullptr;
  for (const auto& each : in_use_) {
    const auto part = each.lock();
    if (part && same_form(part->form, wanted->sized->form)) return part;
  }
  return nullptr;
}

uint64_t ComponentCache::bytes_of(const std::string& name) const {
  const Expected* const each = expected(name);
  return each ? each->sized->bytes : 0;
}

bool ComponentCache::is_loaded(const std::string& name) const {
  return find(name) != nullptr;
}

const PreviewMatrix& ComponentCache::preview_matrix() {
  if (preview_matrix_) return *preview_matrix_;
  const auto loaded = get(kDecoder);
  const auto& decoder = dynamic_cast<const models::Decoder&>(*loaded->part);
  return preview_matrix_.emplace(decoder, model_.scale.channels, loaded->form.options.placement.device);
}

bool ComponentCache::stays(const std::string& name) const {
  const Expected* const each = expected(name);
  return each && each->stays;
}

uint64_t ComponentCache::bytes() const {
  uint64_t sum = 0;
  for (const auto& part : loaded_) sum += part->bytes;
  return sum;
}

// Drops components until there is room for this many more bytes: first those that the current request does
// not need, then those that it needs least; among equals, those that were loaded first.
void ComponentCache::make_room(uint64_t bytes) {
  const auto need = [&](const std::shared_ptr<const LoadedComponent>& part) {
    const auto place = std::find_if(expected_.begin(), expected_.end(), [&](const Expected& each) {
      return each.sized->form.name == part->form.name;
    });
    return std::pair(find(part->form.name) == part, expected_.end() - place);
  };
  while (!loaded_.empty() && this->bytes() + bytes > budget_) {
    loaded_.erase(std::min_element(loaded_.begin(), loaded_.end(),
                                   [&](const auto& a, const auto& b) { return need(a) < need(b); }));
  }
}

std::shared_ptr<const LoadedComponent> ComponentCache::get(const std::string& name) {
  if (auto there = find(name)) return there;
  const Expected* const wanted = expected(name);
  TESSERA_CHECK(wanted, "component '{}' was not announced", name);
  ComponentForm form = wanted->sized->form;
  form.options.stays = wanted->stays;
  make_room(wanted->sized->bytes - (wanted->stays ? 0 : wanted->sized->bytes_at_use));
  auto part = std::make_shared<LoadedComponent>(LoadedComponent{form, wanted->sized->bytes, nullptr});
  models::LoadStatistics cost;
  const weights::MemoryCounter memory;
  part->part = load(form, cost);
  part->memory_bytes = memory.bytes() + cost.bytes_at_use;
  part->bytes_read = cost.bytes_read;
  if (wanted->stays) loaded_.push_back(part);
  std::erase_if(in_use_, [](const auto& each) { return each.expired(); });
  in_use_.push_back(part);
  return part;
}

}  // namespace tessera::engine
