// Displaced patch parallelism (DistriFusion, arXiv:2402.19481): ranks that share the rows of a picture work
// with what the others had at the same place of the network one denoising step ago, which travels behind the
// work of that step. It knows tensors and the order of places alone, not what they stand for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/collectives.h"
#include "parallel/displaced_mode.h"

namespace tessera::parallel {

// How what is exchanged at a place travels in steps that are not synchronous.
enum class Travel {
  kFresh,     // as in those that are
  kTogether,  // for the next step, with that of other places
  kAlone      // for the next step, in messages of its own
};

// One for a run. A step visits the same places in the same order on all ranks of the group; a place is known
// by its turn. Its memory is allocated at the first visit and stays.
class DisplacedExchange {
 public:
  // To and from each rank: contiguous tensors, on both sides of one size and dtype; empty where nothing goes,
  // as to this rank itself.
  struct Transfers {
    std::vector<at::Tensor> sends = {}, receives = {};
    Travel travel = Travel::kTogether;
    at::Tensor whole = {};  // kAlone: of which they may be parts
  };
  struct Place {
    Transfers parts;
    at::Tensor kept = {};   // whatever the caller keeps here from step to step
    bool has_come = false;  // whether `receives` holds what others had, now or in a step before
    size_t index = 0;
  };

  DisplacedExchange(comm::Group group, Displacement displacement);
  ~DisplacedExchange();
  DisplacedExchange(const DisplacedExchange&) = delete;
  DisplacedExchange& operator=(const DisplacedExchange&) = delete;

  DisplacedMode mode() const { return displacement_.mode; }
  // Whether ranks wait for each other in this step.
  bool is_synchronous() const;

  // A step of `steps`. All ranks of the group must call this, and the functions below, alike.
  void begin(int64_t step, int64_t steps);
  // The next place of the step; make() is called at the first visit. What was posted for it has arrived, and
  // `sends` may be written.
  Place& next(const std::function<Transfers()>& make);
  // After `sends` have been written: returns when `receives` holds the same step's.
  void exchange(Place& place);
  // The same for the next visit: `receives` may be read until the next place is asked for, and `sends` is not
  // to be written until the next visit. Does nothing where nothing travels any more (no_sync, the last step).
  void post(Place& place);
  // Where a run ends early: takes in what is under way.
  void drain();

 private:
  struct Span;

  void flush();
  void make_spans();
  void join(Span& span, std::vector<at::Tensor> Transfers::*side);

  comm::Group group_;
  Displacement displacement_;
  int64_t step_ = -1, steps_ = 0;
  std::deque<Place> places_;
  std::deque<Span> spans_;       // none before the second step
  std::vector<size_t> span_of_;  // by place
  size_t next_ = 0;
  std::vector<size_t> unsent_;  // places whose parts are read until the next one is asked for
  std::vector<comm::Pending> of_first_step_;
};

}  // namespace tessera::parallel
