// The graph of a trace: which node of a graph each event is, and the part of the graph that a trace holds.
#pragma once

#include <vector>

#include "engine/observer.h"
#include "plan/graph_recorder.h"
#include "plan/recorder.h"

namespace tessera::plan {

// Follows a run that both recorders record. Both must outlive it.
class GraphTracer {
 public:
  // `folder` is that of the denoiser's weights.
  GraphTracer(const Recorder& recorder, GraphRecorder& graph, std::string folder);

  // Has the tracer follow the phases and steps of a run. The recorder must follow them already.
  void follow(engine::Observer& observer);

  // Gives attention, in a trace of `steps` steps, its role from the edges (plan/graph_roles.h). With
  // `keeps_graph`, the trace gets the graph of what a run does once before its steps and of the steady step,
  // and each event of them its node. What earlier steps and phases have left are arguments of it, and what
  // later ones read, or nothing does, are its results. Ends the recording of the graph.
  void finish(RankTrace& trace, int64_t steps, bool keeps_graph);

 private:
  // Where nodes from this one on are.
  struct Mark {
    int64_t node;
    Phase phase;
    int64_t step;
    bool is_loading;
  };

  void mark();
  // Of each node, whether a trace of so many steps holds it.
  std::vector<bool> are_held(int64_t nodes, int64_t steps) const;

  const Recorder& recorder_;
  GraphRecorder& graph_;
  std::string folder_;
  std::vector<Mark> marks_;
};

}  // namespace tessera::plan
