// A request to AUTOMATIC1111's txt2img, and the description of its pictures.
#pragma once

#include <string>
#include <vector>

#include "serve/api_request.h"
#include "serve/sdapi_samplers.h"

namespace tessera::serve {

struct PictureCall {
  // One for each picture, because AUTOMATIC1111 gives the pictures of a request ascending seeds. They can
  // share a batch.
  std::vector<JobRequest> jobs;  // without an owner
  SamplerChoice sampler;
  std::string prompt, negative_prompt;
  int64_t batch_size = 1;
  std::optional<double> denoising_strength;
  bool sends_images = true;
  std::string task;                   // the client's own name for it; may be empty
  std::vector<std::string> warnings;  // about fields that have no effect here
  Json echo;                          // the request as received
};

// `drawn_seed` is for a request without a seed. Every field is honoured, has no effect in AUTOMATIC1111
// either, or is named by a warning; fields that would change the picture but are not supported are refused. A
// client that leaves out steps, size or guidance gets those of the model instead of the web UI's. Throws
// ApiError.
PictureCall read_txt2img(const Json& object, const ModelTraits& model, const ApiOptions& options,
                         uint64_t drawn_seed);

// Whether this is the model's title or another name that clients use for it.
bool is_title(const std::string& text, const ModelTraits& model);
std::string title_of(const ModelTraits& model);

// "20261130093000", in UTC.
std::string timestamp(WallTime time);
// The text that describes how a picture was made, as other programs read it.
std::string infotext(const PictureCall& call, const JobView& job, const ModelTraits& model);
// The answer for the jobs of a call, each with its picture's file, which is empty for a job that ended
// without one. If no picture is done, the answer describes what they would have been, as AUTOMATIC1111 does.
OrderedJson picture_answer(const PictureCall& call, const std::vector<JobView>& jobs,
                           const std::vector<std::string_view>& files, const ModelTraits& model);

}  // namespace tessera::serve
