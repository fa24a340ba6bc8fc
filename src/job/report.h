// Writes the records of a run: the JSON of --report and the text in PNG files.
#pragma once

#include <string>
#include <vector>

#include "core/image.h"
#include "core/json.h"
#include "engine/result.h"
#include "job/job.h"

namespace tessera::job {

// Returns the request with every choice made, and everything that follows from it.
OrderedJson settings_json(const Job& job);

// Returns `settings`, `seconds` {load, encode, denoise, decode, total}, `step_seconds` [one per step],
// `ranks` [rank_report() of each] and `outputs` [paths]. With several ranks or patches, the settings include
// `parallel`. with_files() reads the settings. If the run was planned, `plan` has the predictions beside the
// measurements.
OrderedJson make_report(const Job& job, const engine::Result& result, const std::vector<OrderedJson>& ranks,
                        const std::vector<std::string>& outputs);

// Returns the memory that this process has now, as counted by the kernel.
uint64_t resident_bytes();

// Returns one rank's numbers: `rank`, `threads`, `first_rss_bytes` (its resident_bytes() when it began),
// `peak_rss_bytes`, `weights_bytes`, `weights_memory_bytes` and `bytes_read` of engine::Result, and
// `communication` of Communication::report().
OrderedJson rank_report(int64_t rank, uint64_t first_rss_bytes, const engine::Result& result,
                        OrderedJson communication);

// Returns the PNG text of picture `index` of the run: `parameters` as most image tools read it, and `tessera`
// with everything as JSON, which with_files() reads.
ImageText png_text(const Job& job, int64_t index);

// Returns the name of the model's folder without its path.
std::string model_name(const engine::Model& model);

}  // namespace tessera::job
