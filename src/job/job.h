// A job is one run of `tessera generate`, as each of its ranks executes it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/error.h"
#include "engine/model.h"
#include "engine/request.h"
#include "job/arguments.h"
#include "launch/status.h"
#include "parallel/layout.h"

namespace tessera::job {

// The command line with every choice made; no weight has been read yet.
struct Job {
  GenerateArguments arguments;
  engine::Model model;
  engine::Settings settings;
  parallel::Layout layout;
  std::vector<std::string> outputs;  // paths

  int64_t ranks() const;
};

// Throws Error for everything that can be checked before the run. `world_size` is the number of ranks that a
// launcher has started.
Job plan_job(const GenerateArguments& arguments, std::optional<int64_t> world_size);
// The same for a run that may be traced instead, whose ranks do not need a way to send messages.
Job plan_job(const GenerateArguments& arguments, engine::Model model, std::optional<int64_t> world_size);
// Reads the JSON files of the model that the arguments name.
engine::Model read_model(const GenerateArguments& arguments);

// The line that describes the run: model, images, sampler, seed, dtype and ranks.
std::string headline(const Job& job);

// Throws Error(kUsage) unless all output files can be written.
void require_outputs(const Job& job);

// Runs the job; rank 0 writes the files and prints their paths on stdout. All ranks of `world` must call it
// with the same job. Printed messages spell fields as the front end does. Throws Error and engine::Cancelled.
void run_job(const Job& job, comm::World& world, launch::RankStatus& status,
             const std::function<bool()>& cancelled, const FieldSpelling& spelling);

}  // namespace tessera::job
