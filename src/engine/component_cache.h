// Keeps the components of a model in memory, within a budget.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "engine/model.h"
#include "models/family.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// Components in the order in which a request needs them.
enum class ComponentKind { kTextEncoder, kEncoder, kDenoiser, kDecoder };
inline constexpr size_t kComponentKinds = 4;
// By kind, the form of each component that a request needs.
using ComponentForms = std::array<std::optional<models::LoadOptions>, kComponentKinds>;

// Returns the forms in which a rank needs the components of a run of this dtype on this device.
ComponentForms component_forms(at::ScalarType dtype, at::Device device, const parallel::Ranks& ranks,
                               bool encodes_frames);

// A component in memory.
struct LoadedComponent {
  ComponentKind kind;
  models::LoadOptions options;
  uint64_t bytes = 0;  // as the budget counts it
  // A models::TextEncoder, Encoder, Denoiser or Decoder.
  std::shared_ptr<void> part;
  // The cost of loading it: memory of its weights, including those read at use, and bytes read from files.
  uint64_t memory_bytes = 0, bytes_read = 0;
};

// Keeps a component in each form (dtype, device, ranks, blocks) that requests need, as long as the budget
// allows. One thread at a time may use it.
class ComponentCache {
 public:
  // `model` must outlive this. `budget` limits the bytes of weights in memory at a time, as computed from
  // shapes and dtypes. A component larger than the budget is alone in memory while it is used.
  ComponentCache(const Model& model, uint64_t budget) : model_(model), budget_(budget) {}

  // Announces the forms that the next request needs (`stays` is ignored), and decides which components stay
  // after use: first the denoiser, then the decoder, then the encoder of given frames, then the text encoder.
  // The text encoder comes last because it reads each weight once for all prompts, so reading from the files
  // loses little. On the meta device none stays, and none counts.
  void expect(const ComponentForms& forms);

  // Returns the bytes of a component in the announced form, as the budget counts them; 0 if none is needed.
  uint64_t bytes_of(ComponentKind kind) const;
  bool is_loaded(ComponentKind kind) const;
  // Returns the component in the announced form; loads it if necessary, and drops others for which the budget
  // has no room. A dropped component lives as long as a caller holds it, and others get the same one
  // meanwhile. Throws as loading does.
  std::shared_ptr<const LoadedComponent> get(ComponentKind kind);

  // Returns the bytes of the components that stay, as the budget counts them.
  uint64_t bytes() const;

 private:
  struct Form {
    ComponentKind kind;
    models::LoadOptions options;
    uint64_t bytes = 0, bytes_at_use = 0;  // the latter are read at each use, if it does not stay
  };

  const Form& form_of(ComponentKind kind, const models::LoadOptions& options);
  std::shared_ptr<void> load(ComponentKind kind, models::LoadOptions options,
                             models::LoadStatistics& cost) const;
  const Form& expected(ComponentKind kind) const { return *expected_[static_cast<size_t>(kind)]; }
  std::shared_ptr<const LoadedComponent> find(ComponentKind kind) const;
  void make_room(uint64_t bytes);

  const Model& model_;
  uint64_t budget_;
  std::list<Form> forms_;  // every form that was announced
  std::array<const Form*, kComponentKinds> expected_{};
  std::array<bool, kComponentKinds> stays_{};
  std::vector<std::shared_ptr<const LoadedComponent>> loaded_;                // those that stay
  std::array<std::weak_ptr<const LoadedComponent>, kComponentKinds> in_use_;  // the last of each kind
};

}  // namespace tessera::engine
