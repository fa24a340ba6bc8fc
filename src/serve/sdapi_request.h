// What a request to AUTOMATIC1111's txt2img asks for, and what is said of its pictures.
#pragma once

#include <string>
#include <vector>

#include "serve/api_request.h"
#include "serve/sdapi_samplers.h"

namespace tessera::serve {

struct PictureCall {
  // One for each picture, since there the seeds of a request's pictures ascend. They can share a batch.
  std::vector<JobRequest> jobs;  // without an owner
  SamplerChoice sampler;
  std::string prompt, negative_prompt;
  int64_t batch_size = 1;
  std::optional<double> denoising_strength;
  bool sends_images = true;
  std::string task;                   // the client's own name for it; may be empty
  std::vector<std::string> warnings;  // of what has no effect here
  Json echo;                          // the request as it came
};

// `drawn_seed` is for a request without one. Every field is honoured, or has no effect there either, or is
// named by a warning; what would change the picture and is not here is refused. So a client that leaves out
// steps, size or guidance gets those of the model, and not the web UI's. Throws ApiError.
PictureCall read_txt2img(const Json& object, const ModelTraits& model, const ApiOptions& options,
                         uint64_t drawn_seed);

// Whether this is the model's title or another name that clients have for it.
bool is_title(const std::string& text, const ModelTraits& model);
std::string title_of(const ModelTraits& model);

// "20261130093000", in UTC.
std::string timestamp(WallTime time);
// The text that says how a picture was made, as other programs read it.
std::string infotext(const PictureCall& call, const JobView& job, const ModelTraits& model);
// The answer for the jobs of a call, each with the file of its picture, which is empty for one that has ended
// without it. Where no picture is done, the answer says what they would have been, as there.
OrderedJson picture_answer(const PictureCall& call, const std::vector<JobView>& jobs,
                           const std::vector<std::string_view>& files, const ModelTraits& model);

}  // namespace tessera::serve
