// What a run leaves behind about itself: the JSON of --report, and the text in PNG files.
#pragma once

#include <string>
#include <vector>

#include "core/image.h"
#include "core/json.h"
#include "engine/generate.h"

namespace tessera::cli {

// `settings`, `seconds` {load, encode, denoise, decode, total}, `step_seconds` [one per step], `ranks`
// [rank_report() of each] and `outputs` [paths]. `layout`: with its ranks in the settings unless it is of
// one.
OrderedJson make_report(const engine::Settings& settings, const engine::Model& model,
                        const parallel::Layout& layout, const engine::Result& result,
                        const std::vector<OrderedJson>& ranks, const std::vector<std::string>& outputs);

// One rank's numbers: `rank`, `peak_rss_bytes`, `weights_bytes` and `bytes_read` of engine::Result, and
// `communication` of Communication::report().
OrderedJson rank_report(int64_t rank, const engine::Result& result, OrderedJson communication);

// `parameters` as most image tools read it, and `tessera` with everything as JSON, for picture `index` of the
// run.
ImageText png_text(const engine::Settings& settings, const engine::Model& model,
                   const parallel::Layout& layout, int64_t index);

// The model's folder without where it lies.
std::string model_name(const engine::Model& model);

}  // namespace tessera::cli
