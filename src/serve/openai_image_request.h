// A request to OpenAI's images API.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api_request.h"

namespace tessera::serve {

struct ImageCall {
  JobRequest job;  // without an owner
  bool is_streamed = false;
  int64_t partial_images = 0;  // of each picture, at most
  bool with_bytes = true, with_urls = false;
  std::string output_format = "png", quality = "auto";
  std::vector<std::string> warnings;  // about fields that have no effect here
};

// Both throw ApiError. Unknown fields are named in the warnings, because newer clients send more than they
// need. The `body` of an edit may be a form, whose files are taken from it.
ImageCall read_image_generation(const Json& fields, const ModelTraits& model, const ApiOptions& options);
ImageCall read_image_edit(const ApiBody& body, const ModelTraits& model, const ApiOptions& options);

// Throws ApiError (404) unless the field `model` of a body is absent, empty or the model's name.
void require_model(ApiFields& fields, const ModelTraits& model);

// "1024x768": the size of a job's pictures.
std::string size_text(const JobView& job);
// The JSON that answers with the pictures of a job that has succeeded, which are in `files`, and the events
// of a stream. `url` is where the results are, without their numbers.
std::string image_answer(const ImageCall& call, const JobView& job,
                         const std::vector<std::shared_ptr<const std::string>>& files,
                         const std::string& url);
OrderedJson partial_image_event(const ImageCall& call, const JobView& job, int64_t image, int64_t partial,
                                std::string_view jpeg, std::string_view type);
OrderedJson completed_image_event(const ImageCall& call, const JobView& job, int64_t image,
                                  std::string_view file, std::string_view type);

}  // namespace tessera::serve
