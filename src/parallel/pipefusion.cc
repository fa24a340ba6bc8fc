#include "parallel/pipefusion.h"

#include <deque>

#include "comm/collectives.h"

namespace tessera::parallel {
namespace {

// A run of patches at a step; runs follow each other in one order on all ranks.
struct Run {
  int64_t step;
  Range patches;
};

class Pipeline {
 public:
  Pipeline(const PipelineSchedule& schedule, const PipelineStage& stage, const comm::Group& group)
      : schedule_(schedule), stage_(stage), group_(group) {}

  void run() {
    if (!is_first()) receive_hidden({0, {0, schedule_.run_length(0)}});
    for (int64_t step = 0; step < schedule_.steps; ++step) {
      stage_.began(step);
      const int64_t length = schedule_.run_length(step);
      for (int64_t begin = 0; begin < schedule_.patches; begin += length) work({step, {begin, length}});
      if (is_first() && step + 1 == schedule_.steps) wait_for_latents(step, schedule_.patches);
      stage_.ended(step);
    }
    for (Sent& sent : sent_) sent.pending.wait();
  }

 private:
  struct Arriving {
    Run run;
    at::Tensor tensor;
    comm::Pending pending;
  };
  struct Sent {
    Run run;
    at::Tensor tensor;  // untouched until it is through
    comm::Pending pending;
  };

  bool is_first() const { return group_.rank == 0; }
  bool is_last() const { return group_.rank + 1 == group_.size; }
  bool is_alone() const { return group_.size == 1; }

  void work(const Run& run) {
    at::Tensor x;
    if (is_first()) {
      if (run.step > 0) wait_for_latents(run.step - 1, run.patches.end());
      x = stage_.input(run.step, run.patches);
    } else {
      Arriving arriving = std::move(hidden_);
      receive_next_hidden(run);
      arriving.pending.wait();
      x = std::move(arriving.tensor);
    }
    if (is_first() && !is_alone()) receive_latents(run);
    x = stage_.compute(run.step, run.patches, x);
    if (!is_last()) {
      send_on(run, x.contiguous(), group_.rank + 1);
      return;
    }
    const at::Tensor latents = stage_.update(run.step, run.patches, x);
    if (is_alone()) {
      stage_.updated(run.step, run.patches, latents);
    } else {
      send_on(run, latents.contiguous(), 0);
    }
  }

  // What the stage before gives for the run after this one.
  void receive_next_hidden(const Run& run) {
    Run next{run.step, {run.patches.end(), run.patches.length}};
    if (next.patches.begin == schedule_.patches) {
      next.step = run.step + 1;
      if (next.step == schedule_.steps) return;
      next.patches = {0, schedule_.run_length(next.step)};
    }
    receive_hidden(next);
  }

  void receive_hidden(const Run& run) {
    hidden_ = {run, stage_.empty_hidden(run.patches), {}};
    hidden_.pending = comm::receive(hidden_.tensor, group_.rank - 1, group_);
  }

  void receive_latents(const Run& run) {
    Arriving& arriving = latents_.emplace_back(Arriving{run, stage_.empty_latents(run.patches), {}});
    arriving.pending = comm::receive(arriving.tensor, group_.size - 1, group_);
  }

  // Until the latents of `step` are here up to patch `end`.
  void wait_for_latents(int64_t step, int64_t end) {
    while (!latents_.empty()) {
      Arriving& arriving = latents_.front();
      const bool is_later =
          arriving.run.step > step || (arriving.run.step == step && arriving.run.patches.begin >= end);
      if (is_later) return;
      arriving.pending.wait();
      stage_.updated(arriving.run.step, arriving.run.patches, arriving.tensor);
      latents_.pop_front();
    }
  }

  void send_on(const Run& run, at::Tensor x, int64_t to) {
    // What was sent for these patches one step ago has been used, else this run could not be here: no wait.
    while (!sent_.empty() && (sent_.front().run.step + 1 < run.step ||
                              (sent_.front().run.step + 1 == run.step &&
                               sent_.front().run.patches.end() <= run.patches.end()))) {
      sent_.front().pending.wait();
      sent_.pop_front();
    }
    comm::Pending pending = comm::send(x, to, group_);
    sent_.push_back({run, std::move(x), std::move(pending)});
  }

  const PipelineSchedule& schedule_;
  const PipelineStage& stage_;
  const comm::Group& group_;
  Arriving hidden_;
  std::deque<Arriving> latents_;
  std::deque<Sent> sent_;
};

}  // namespace

void run_pipeline(const PipelineSchedule& schedule, const PipelineStage& stage, const comm::Group& group) {
  Pipeline(schedule, stage, group).run();
}

}  // namespace tessera::parallel
