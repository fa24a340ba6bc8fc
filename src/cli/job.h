// One run of `tessera generate`, as every rank of it carries it out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "comm/world.h"
#include "engine/model.h"
#include "engine/request.h"
#include "launch/status.h"
#include "parallel/layout.h"

namespace tessera::cli {

// The command line with every choice made, before any weight is read.
struct Job {
  GenerateArguments arguments;
  engine::Model model;
  engine::Settings settings;
  parallel::Layout layout;
  std::vector<std::string> outputs;  // paths

  int64_t ranks() const;
};

// Throws Error for whatever can be known before the run.
// world_size: ranks that a launcher started.
Job plan_job(const GenerateArguments& arguments, std::optional<int64_t> world_size);

// Throws Error(kUsage) unless all files of the run can be written.
void require_outputs(const Job& job);

// Paints, and on rank 0 writes the files and prints their paths on stdout. All ranks of `world` call it with
// the same job. Throws Error and engine::Cancelled.
void run_job(const Job& job, comm::World& world, launch::RankStatus& status,
             const std::function<bool()>& cancelled);

}  // namespace tessera::cli
