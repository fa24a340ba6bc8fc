// Keeps the components of a model in memory, within a budget.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/preview_matrix.h"
#include "models/family.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// The names of components. A text encoder has the name of its part (models::TextEncoderPart).
inline constexpr const char *kDenoiser = "denoiser", *kDecoder = "decoder", *kEncoder = "encoder";

// A component in the form in which a rank needs it.
struct ComponentForm {
  std::string name;
  models::LoadOptions options;
};

// Returns what a rank needs for a run of this dtype on this device, in the order of preference for staying in
// memory.
std::vector<ComponentForm> component_forms(const Model& model, at::ScalarType dtype, at::Device device,
                                           const parallel::Ranks& ranks, bool encodes_frames);

// A component in memory.
struct LoadedComponent {
  ComponentForm form;
  uint64_t bytes = 0;  // as the budget counts it
  std::shared_ptr<models::Component> part;
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

  // Announces the forms that the next request needs (`stays` is ignored), and decides in their order which
  // components stay after use. On the meta device none stays, and none counts.
  void expect(const std::vector<ComponentForm>& forms);

  // Returns the bytes of a component in the announced form, as the budget counts them; 0 if none is needed.
  uint64_t bytes_of(const std::string& name) const;
  bool is_loaded(const std::string& name) const;
  // Whether the component in the announced form stays after use.
  bool stays(const std::string& name) const;
  // Returns the component in the announced form; loads it if necessary, and drops others for which the budget
  // has no room. A dropped component lives as long as a caller holds it, and others get the same one
  // meanwhile. Throws as loading does.
  std::shared_ptr<const LoadedComponent> get(const std::string& name);

  // Returns the matrix for previews of the model's decoder, which is found at the first call; the decoder
  // must have been announced. Throws as loading and decoding do.
  const PreviewMatrix& preview_matrix();

  // Returns the bytes of the components that stay, as the budget counts them.
  uint64_t bytes() const;

 private:
  struct Sized {
    ComponentForm form;
    uint64_t bytes = 0, bytes_at_use = 0;  // the latter are read at each use if the component does not stay
  };
  struct Expected {
    const Sized* sized;
    bool stays = false;
  };

  const Sized& sized(const ComponentForm& form);
  std::unique_ptr<models::Component> load(const ComponentForm& form, models::LoadStatistics& cost) const;
  const Expected* expected(const std::string& name) const;
  std::shared_ptr<const LoadedComponent> find(const std::string& name) const;
  void make_room(uint64_t bytes);

  const Model& model_;
  uint64_t budget_;
  std::list<Sized> sized_;                                      // every form that was announced
  std::vector<Expected> expected_;                              // by need
  std::vector<std::shared_ptr<const LoadedComponent>> loaded_;  // those that stay
  std::vector<std::weak_ptr<const LoadedComponent>> in_use_;    // the others, while a caller holds them
  std::optional<PreviewMatrix> preview_matrix_;
};

}  // namespace tessera::engine
