// The graph of a trace: which node of a graph each event corresponds to, and the part of the graph that a
// trace stores.
#pragma once

#include <vector>

#include "engine/observer.h"
#include "plan/graph_recorder.h"
#include "plan/recorder.h"

namespace tessera::plan {

// Follows a run that both recorders record; they must outlive this.
class GraphTracer {
 public:
  // `folder` is the denoiser's.
  GraphTracer(const Recorder& recorder, GraphRecorder& graph, std::string folder);

  // Makes the tracer follow the phases and steps of a run. The recorder must already follow them.
  void follow(engine::Observer& observer);

  // In a trace of `steps` steps, determines the role of attention from the edges (plan/graph_roles.h). With
  // `keeps_graph`, the trace gets the graph of what a run does once before its steps and of the steady step,
  // and each of their events gets its node. Values that earlier steps and phases have left are arguments of
  // the graph; values that later ones read, or that are never read, are its results. Ends the recording of
  // the graph.
  void finish(RankTrace& trace, int64_t steps, bool keeps_graph);

 private:
  // A position in the recording: where nodes from this one on belong.
  struct Mark {
    int64_t node;
    Phase phase;
    int64_t step;
    bool is_loading;
  };

  void mark();
  // For each node, whether a trace of this many steps stores it.
  std::vector<bool> are_held(int64_t nodes, int64_t steps) const;

  const Recorder& recorder_;
  GraphRecorder& graph_;
  std::string folder_;
  std::vector<Mark> marks_;
};

}  // namespace tessera::plan
