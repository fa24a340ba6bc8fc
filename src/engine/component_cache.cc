#include "engine/component_cache.h"

#include <algorithm>

#include "core/log.h"
#include "weights/memory_counter.h"

namespace tessera::engine {
namespace {

constexpr std::array kByNeed = {ComponentKind::kDenoiser, ComponentKind::kDecoder, ComponentKind::kEncoder,
                                ComponentKind::kTextEncoder};

bool same_form(const models::LoadOptions& a, const models::LoadOptions& b) {
  const weights::Placement &p = a.placement, &q = b.placement;
  return p.dtype == q.dtype && p.device == q.device && p.groups.inner.ranks == q.groups.inner.ranks &&
         p.groups.outer.ranks == q.groups.outer.ranks && a.blocks == b.blocks;
}

}  // namespace

ComponentForms component_forms(at::ScalarType dtype, at::Device device, const parallel::Ranks& ranks,
                               bool encodes_frames) {
  models::LoadOptions whole;
  whole.placement.dtype = dtype;
  whole.placement.device = device;
  whole.may_lack_weights = device.is_meta();
  models::LoadOptions text = whole, stage = whole;
  if (ranks.layout.text_encoder_parallel) text.placement.groups.inner = ranks.replica;
  stage.placement.groups = {ranks.tensor_inner, ranks.tensor_outer};
  if (ranks.pipeline.size > 1) stage.blocks = ranks.layout.stage(ranks.pipeline.rank);
  return {text, encodes_frames ? std::optional(whole) : std::nullopt, stage, whole};
}

std::shared_ptr<void> ComponentCache::load(ComponentKind kind, models::LoadOptions options,
                                           models::LoadStatistics& cost) const {
  options.single_file = model_.single_file;
  options.variant = model_.variant;
  const models::Family& family = *model_.family;
  const auto load_part = [&]() -> std::shared_ptr<void> {
    switch (kind) {
      case ComponentKind::kTextEncoder:
        return family.load_text_encoder(model_.folder, options, cost);
      case ComponentKind::kDenoiser:
        return family.load_denoiser(model_.folder, options, cost);
      case ComponentKind::kEncoder:
        return family.load_encoder(model_.folder, options, cost);
      case ComponentKind::kDecoder:
        return family.load_decoder(model_.folder, options, cost);
    }
    return nullptr;
  };
  model_.stamps.require_unchanged();  // says more than what does not fit any more
  auto part = load_part();
  // Its files are open from here on, so that they are those of the start.
  model_.stamps.require_unchanged();
  return part;
}

// The first call for a form finds its size on the meta device.
const ComponentCache::Form& ComponentCache::form_of(ComponentKind kind, const models::LoadOptions& options) {
  for (const Form& form : forms_) {
    if (form.kind == kind && same_form(form.options, options)) return form;
  }
  if (options.placement.device.is_meta()) return forms_.emplace_back(Form{kind, options});
  models::LoadOptions shapes = options;
  shapes.placement.device = at::kMeta;
  shapes.stays = false;
  models::LoadStatistics cost;
  const SuppressLog suppress_log;  // loading gives the same warnings later
  load(kind, shapes, cost);
  return forms_.emplace_back(Form{kind, options, cost.bytes_held, cost.bytes_at_use});
}

void ComponentCache::expect(const ComponentForms& forms) {
  uint64_t left = budget_;
  for (const ComponentKind kind : kByNeed) {
    const auto i = static_cast<size_t>(kind);
    expected_[i] = forms[i] ? &form_of(kind, *forms[i]) : nullptr;
    stays_[i] = false;
    if (!forms[i]) continue;
    stays_[i] = !forms[i]->placement.device.is_meta() && expected_[i]->bytes <= left;
    if (stays_[i]) left -= expected_[i]->bytes;
  }
}

std::shared_ptr<const LoadedComponent> ComponentCache::find(ComponentKind kind) const {
  if (!expected_[static_cast<size_t>(kind)]) return nullptr;
  for (const auto& part : loaded_) {
    if (part->kind == kind && same_form(part->options, expected(kind).options)) return part;
  }
  auto in_use = in_use_[static_cast<size_t>(kind)].lock();
  if (in_use && same_form(in_use->options, expected(kind).options)) return in_use;
  return nullptr;
}

uint64_t ComponentCache::bytes_of(ComponentKind kind) const {
  const Form* const form = expected_[static_cast<size_t>(kind)];
  return form ? form->bytes : 0;
}

bool ComponentCache::is_loaded(ComponentKind kind) const {
  return find(kind) != nullptr;
}

uint64_t ComponentCache::bytes() const {
  uint64_t sum = 0;
  for (const auto& part : loaded_) sum += part->bytes;
  return sum;
}

// Drops components until so many bytes fit in beside the rest: first those that the current request does not
// need, then those that are cheapest to load again; of equals, those that were loaded first.
void ComponentCache::make_room(uint64_t bytes) {
  const auto need = [&](const std::shared_ptr<const LoadedComponent>& part) {
    const auto place = std::find(kByNeed.begin(), kByNeed.end(), part->kind);
    return std::pair(find(part->kind) == part, kByNeed.end() - place);
  };
  while (!loaded_.empty() && this->bytes() + bytes > budget_) {
    loaded_.erase(std::min_element(loaded_.begin(), loaded_.end(),
                                   [&](const auto& a, const auto& b) { return need(a) < need(b); }));
  }
}

std::shared_ptr<const LoadedComponent> ComponentCache::get(ComponentKind kind) {
  if (auto there = find(kind)) return there;
  const Form& form = expected(kind);
  models::LoadOptions options = form.options;
  const bool stays = stays_[static_cast<size_t>(kind)];
  options.stays = stays || options.placement.device.is_meta();  // shapes are not read at their use
  make_room(form.bytes - (stays ? 0 : form.bytes_at_use));
  auto part = std::make_shared<LoadedComponent>(LoadedComponent{kind, options, form.bytes, nullptr});
  models::LoadStatistics cost;
  const weights::MemoryCounter memory;
  part->part = load(kind, options, cost);
  part->memory_bytes = memory.bytes() + cost.bytes_at_use;
  part->bytes_read = cost.bytes_read;
  if (stays) loaded_.push_back(part);
  in_use_[static_cast<size_t>(kind)] = part;
  return part;
}

}  // namespace tessera::engine
