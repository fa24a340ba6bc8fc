// Displaced patch parallelism (DistriFusion, arXiv:2402.19481): ranks share the rows of an image. At each
// place of the network where they need each other's data, they use what the others had there one denoising
// step ago; it travels while the step is being computed. This file knows only tensors and the order of the
// places, not their meaning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/collectives.h"
#include "parallel/displaced_mode.h"

namespace tessera::parallel {

// How the data of a place travels in steps that are not synchronous.
enum class Travel {
  kFresh,     // synchronously, for this step
  kTogether,  // for the next step, in one message with other places
  kAlone      // for the next step, in its own messages
};

// The exchanges of one run. Every step visits the same places in the same order on all ranks of the group, so
// a place is identified by its turn. Its memory is allocated at the first visit and stays.
class DisplacedExchange {
 public:
  // Contiguous tensors to and from each rank, by rank; both sides agree on their sizes and dtypes. A tensor
  // is empty where nothing is exchanged, such as with this rank itself.
  struct Transfers {
    std::vector<at::Tensor> sends = {}, receives = {};
    Travel travel = Travel::kTogether;
    at::Tensor whole = {};  // for kAlone: `receives` may be views of it
  };
  struct Place {
    Transfers parts;
    at::Tensor kept = {};   // the caller may keep anything here from step to step
    bool has_come = false;  // whether `receives` holds data of the others, from this step or an earlier one
    size_t index = 0;
  };

  DisplacedExchange(comm::Group group, Displacement displacement);
  ~DisplacedExchange();
  DisplacedExchange(const DisplacedExchange&) = delete;
  DisplacedExchange& operator=(const DisplacedExchange&) = delete;

  DisplacedMode mode() const { return displacement_.mode; }
  // Whether ranks wait for each other in this step.
  bool is_synchronous() const;

  // Begins step `step` of `steps`. All ranks of the group must call this, and the functions below, in the
  // same order.
  void begin(int64_t step, int64_t steps);
  // Returns the next place of the step; `make` is called at its first visit. The data posted for the place in
  // the last step has arrived, and `sends` may be written.
  Place& next(const std::function<Transfers()>& make);
  // Call this after writing `sends`. When it returns, `receives` holds the others' data of this step.
  void exchange(Place& place);
  // Sends the data for the next visit. `receives` may be read until next() is called again; `sends` must not
  // be written until the next visit of this place. Does nothing if no later visit needs data (no_sync, the
  // last step).
  void post(Place& place);
  // Receives messages that are still in flight when a run ends early.
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
  std::deque<Span> spans_;       // empty in the first step
  std::vector<size_t> span_of_;  // by place
  size_t next_ = 0;
  std::vector<size_t> unsent_;  // posted places whose `receives` may be read until next() is called
  std::vector<comm::Pending> of_first_step_;
};

}  // namespace tessera::parallel
