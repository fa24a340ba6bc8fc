#include "serve/awaited_job.h"

#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace tessera::serve {

void AwaitedJob::submit(JobRequest request) {
  owner_ = request.owner;
  service_.submit(std::move(request), [self = shared_from_this()](const auto& answer, bool) {
    if (const auto* const refusal = std::get_if<JobRefusal>(&answer)) {
      const auto calls = std::exchange(self->calls_, nullptr);
      if (!std::exchange(self->is_over_, true)) calls->refused(*refusal);
      return;
    }
    self->view_ = std::get<JobView>(answer);
    // Without a follower, the job ends by itself.
    if (!self->is_over_) self->follow();
  });
}

void AwaitedJob::follow() {
  if (has_ended()) return end();
  const auto calls = calls_;
  const int64_t every = calls->preview_every ? calls->preview_every(view_) : 0;
  if (is_over_) return;
  follower_ = service_.follow(owner_, view_.id, every, [weak = weak_from_this()](const JobUpdate& update) {
    if (const auto self = weak.lock(); self && !self->is_over_) self->update(update);
  });
  if (is_over_) return follower_.reset();
  if (follower_) return;
  service_.find(owner_, view_.id, [self = shared_from_this()](const std::optional<JobView>& found) {
    if (self->is_over_) return;
    if (found) self->view_ = *found;
    if (!self->has_ended()) {
      self->view_.state = JobState::kFailed;
      self->view_.error = {"failed", "the job is not there any more", 500};
    }
    self->end();
  });
}

void AwaitedJob::update(const JobUpdate& update) {
  view_ = update.job;
  const auto calls = calls_;
  if (update.kind == JobUpdate::Kind::kPreview && update.bytes && calls->previewed) calls->previewed(update);
  if (update.kind == JobUpdate::Kind::kResult && update.index >= 0)
    add_result(static_cast<size_t>(update.index), update.bytes);
  if (!is_over_ && has_ended()) end();
}

void AwaitedJob::add_result(size_t index, std::shared_ptr<const std::string> bytes) {
  if (results_.size() <= index) results_.resize(index + 1);
  if (bytes) results_[index] = std::move(bytes);
}

void AwaitedJob::end() {
  // A job that had ended before it was followed has its results only on disk.
  constexpr uint64_t kMost = uint64_t{1} << 30;
  for (size_t i = 0; i < view_.results.size() && view_.state == JobState::kSucceeded; ++i) {
    if (result(i) || view_.results[i].path.empty()) continue;
    try {
      add_result(i, std::make_shared<const std::string>(read_file(view_.results[i].path, kMost)));
    } catch (const Error&) {
      continue;  // it has expired
    }
  }
  if (std::exchange(is_over_, true)) return;
  const auto self = shared_from_this();
  const auto calls = std::exchange(calls_, nullptr);
  calls->ended();
  follower_.reset();
}

void AwaitedJob::cancel() {
  if (!view_.id.empty() && !has_ended()) service_.cancel(owner_, view_.id, [](const auto&) {});
}

void AwaitedJob::leave() {
  is_over_ = true;
  calls_.reset();
  follower_.reset();
}

}  // namespace tessera::serve
