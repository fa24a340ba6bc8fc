// What AUTOMATIC1111's API reports about itself.
#pragma once

#include "serve/api_request.h"

namespace tessera::serve {

OrderedJson sd_models(const ModelTraits& model);
// The settings that clients read; none of them can be changed.
OrderedJson sd_options(const ModelTraits& model);
// Throws ApiError for a setting that is not among these, or has another value.
void check_sd_options(const Json& wanted, const ModelTraits& model);
OrderedJson sd_memory();
// For a PNG with text: {info, items, parameters}. Throws ApiError for any other file.
OrderedJson png_info(std::string_view png);
// What every server has: empty lists, and the two upscalers that do nothing. Pairs of a path and its answer.
std::vector<std::pair<std::string, OrderedJson>> sd_lists();

}  // namespace tessera::serve
