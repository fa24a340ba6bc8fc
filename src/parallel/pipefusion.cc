#include "parallel/pipefusion.h"

namespace tessera::parallel {

bool Pipeline::advance() {
  const int64_t step = next_step_;
  if (step == schedule_.first_step && !is_first()) receive_hidden(first_run(step));
  if (!stage_.began(step)) {
    drain(step);
    return false;
  }
  const int64_t length = schedule_.run_length(step);
  for (int64_t begin = 0; begin < schedule_.patches; begin += length) work({step, {begin, length}});
  if (is_first() && (step + 1 == schedule_.steps || stage_.wants_latents(step)))
    wait_for_latents(step, schedule_.patches);
  stage_.ended(step);
  ++next_step_;
  if (is_done()) {
    for (Moving& sent : sent_) sent.wait();
    sent_.clear();
  }
  return true;
}

void Pipeline::catch_up() {
  if (is_first() && next_step_ > schedule_.first_step) wait_for_latents(next_step_ - 1, schedule_.patches);
}

void Pipeline::drop() {
  if (next_step_ > schedule_.first_step && !is_done()) drain(next_step_);
}

void Pipeline::work(const PatchRun& run) {
  Moving arriving;
  if (!is_first()) {
    arriving = std::move(hidden_);
  } else if (run.step > schedule_.first_step) {
    wait_for_latents(run.step - 1, run.patches.end());
  }
  if (!schedule_.receives_late) receive_next(run);
  arriving.wait();
  Tensors hidden = stage_.compute(run.step, run.patches, std::move(arriving.tensors));
  if (is_last()) hidden = {stage_.update(run.step, run.patches, hidden)};
  if (is_alone()) {
    stage_.updated(run.step, run.patches, hidden[0]);
    return;
  }
  send_on(run, std::move(hidden), is_last() ? 0 : group_.rank + 1);
  if (schedule_.receives_late) receive_next(run);
}

// Posts the receive for what depends on the work of `run`: on the first stage, the latents that result from
// it; on other stages, what the previous stage sends for the next run.
void Pipeline::receive_next(const PatchRun& run) {
  if (is_alone()) return;
  if (is_first()) return receive_latents(run);
  PatchRun next{run.step, {run.patches.end(), run.patches.length}};
  if (next.patches.begin == schedule_.patches) {
    if (run.step + 1 == schedule_.steps) return;
    next = first_run(run.step + 1);
  }
  receive_hidden(next);
}

Pipeline::Moving Pipeline::arriving(const PatchRun& run, Tensors tensors, int64_t from,
                                    const comm::Group& group) {
  Moving moving{run, std::move(tensors), {}};
  for (at::Tensor& tensor : moving.tensors) moving.pending.push_back(comm::receive(tensor, from, group));
  return moving;
}

void Pipeline::receive_hidden(const PatchRun& run) {
  hidden_ = arriving(run, stage_.empty_hidden(run.patches), group_.rank - 1, group_);
}

void Pipeline::receive_latents(const PatchRun& run) {
  latents_.push_back(arriving(run, {stage_.empty_latents(run.patches)}, group_.size - 1, group_));
}

// Waits until the latents of `step` have arrived up to patch `end`.
void Pipeline::wait_for_latents(int64_t step, int64_t end) {
  while (!latents_.empty()) {
    Moving& first = latents_.front();
    const bool is_later = first.run.step > step || (first.run.step == step && first.run.patches.begin >= end);
    if (is_later) return;
    first.wait();
    stage_.updated(first.run.step, first.run.patches, first.tensors[0]);
    latents_.pop_front();
  }
}

void Pipeline::send_on(const PatchRun& run, Tensors tensors, int64_t to) {
  // This does not block: the messages sent for these patches one step ago have been used, since this run
  // could not have arrived otherwise.
  while (!sent_.empty() &&
         (sent_.front().run.step + 1 < run.step ||
          (sent_.front().run.step + 1 == run.step && sent_.front().run.patches.end() <= run.patches.end()))) {
    sent_.front().wait();
    sent_.pop_front();
  }
  Moving& moving = sent_.emplace_back(Moving{run, std::move(tensors), {}});
  for (at::Tensor& tensor : moving.tensors) {
    tensor = tensor.contiguous();
    moving.pending.push_back(comm::send(tensor, to, group_));
  }
}

// Called before a step that will not happen. Each rank except the first has posted a receive for the first
// run of this step; sending it, although it is not read, keeps messages of this run apart from those of the
// next one.
void Pipeline::drain(int64_t step) {
  const PatchRun run = first_run(step);
  if (!is_last()) send_on(run, stage_.empty_output(run.patches), group_.rank + 1);
  hidden_.wait();
  for (Moving& latents : latents_) latents.wait();
  for (Moving& sent : sent_) sent.wait();
}

}  // namespace tessera::parallel
