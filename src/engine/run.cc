#include "engine/run.h"

#include <utility>

#include "core/error.h"

namespace tessera::engine {

void Run::advance() {
  switch (stands_) {
    case Stands::kAtStart:
      prepare(context_);
      encode(context_);
      encode_references(context_);
      begin_turn(saved_ ? take_up(context_, *std::exchange(saved_, nullptr)) : std::nullopt);
      break;
    case Stands::kInSteps:
      denoising_->advance();
      if (denoising_->is_done()) end_turn();
      break;
    case Stands::kAtEnd:
      break;
  }
}

void Run::begin_turn(std::optional<DenoiseState> state) {
  denoising_ = std::make_unique<DenoisePhase>(context_, encode_given(context_), std::move(state));
  stands_ = Stands::kInSteps;
}

void Run::end_turn() {
  const at::Tensor z = denoising_->end();
  denoising_.reset();
  decode(context_, z);
  if (context_.next_turn()) return begin_turn(std::nullopt);
  stands_ = Stands::kAtEnd;
}

void Run::require_savable() const {
  if (!context_.ranks.layout.is_exact())
    usage_error("save", "the ranks work with activations of earlier steps, which are not saved");
  if (context_.has_given()) usage_error("save", "a video that begins from frames cannot be taken up again");
}

SavedRun Run::save() {
  if (stands_ == Stands::kAtStart && saved_) return *saved_;
  SavedRun saved;
  saved.requests = {context_.requests.begin(), context_.requests.end()};
  if (!denoising_) return saved;
  DenoiseState state = denoising_->save();
  if (context_.ranks.world.rank > 0) return saved;
  saved.denoising = std::move(state);
  saved.group = context_.turn.group;
  saved.latents = context_.latents;
  saved.images = context_.result.images;
  saved.step_seconds = context_.result.step_seconds;
  return saved;
}

}  // namespace tessera::engine
