// The parts of a model that are in memory, and how long they stay there.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "engine/model.h"
#include "models/family.h"

namespace tessera::engine {

// In the order in which a request needs them.
enum class ComponentKind { kTextEncoder, kDenoiser, kDecoder };
inline constexpr size_t kComponentKinds = 3;

// A part in memory.
struct LoadedComponent {
  ComponentKind kind;
  models::LoadOptions options;
  uint64_t bytes = 0;          // by the estimate that the budget counts in
  std::shared_ptr<void> part;  // a models::TextEncoder, Denoiser or Decoder
  // What loading it cost: memory of its weights, once used at the latest, and bytes of files.
  uint64_t weights_bytes = 0, bytes_read = 0;
};

// A part is kept in each form (dtype, device, ranks, blocks) that requests want, while the budget allows. Not
// to be used by two threads at once.
class ComponentCache {
 public:
  // `model` must outlive this. `budget`: of the weights in memory at one time, in bytes, as their shapes and
  // dtypes say. Where one part alone takes more, it is alone in memory while it is used.
  ComponentCache(const Model& model, uint64_t budget) : model_(model), budget_(budget) {}

  // What the next request will need, by ComponentKind (`stays` is not read). Now it is decided what stays
  // after its use: first the denoiser, then the decoder, last the text encoder, which reads every weight once
  // for all prompts, so that little is lost when that reading is from the files.
  void expect(const std::array<models::LoadOptions, kComponentKinds>& forms);

  bool is_loaded(ComponentKind kind) const;
  // The part in the form that is expected; loads it where it is not there, and drops others that the budget
  // has no room for beside it. Whoever has it when the budget drops it keeps it alive, and while it lives it
  // is there for others too. Throws as loading does.
  std::shared_ptr<const LoadedComponent> get(ComponentKind kind);

  // Bytes of the parts that stay, by the estimate.
  uint64_t bytes() const;

 private:
  struct Form {
    ComponentKind kind;
    models::LoadOptions options;
    uint64_t bytes = 0, bytes_at_use = 0;  // of those, what is read when used, where the part does not stay
  };

  const Form& form_of(ComponentKind kind, const models::LoadOptions& options);
  std::shared_ptr<void> load(ComponentKind kind, models::LoadOptions options,
                             models::LoadStatistics& cost) const;
  const Form& expected(ComponentKind kind) const { return *expected_[static_cast<size_t>(kind)]; }
  std::shared_ptr<const LoadedComponent> find(ComponentKind kind) const;
  void make_room(uint64_t bytes);

  const Model& model_;
  uint64_t budget_;
  std::list<Form> forms_;  // that were ever expected
  std::array<const Form*, kComponentKinds> expected_{};
  std::array<bool, kComponentKinds> stays_{};
  std::vector<std::shared_ptr<const LoadedComponent>> loaded_;                // that stay
  std::array<std::weak_ptr<const LoadedComponent>, kComponentKinds> in_use_;  // the last of each kind
};

}  // namespace tessera::engine
