// Fuzzes what reads the requests of the APIs of a server: a body becomes a job or a refusal that names what
// is wrong, whatever it holds, and what is said of the job can be written.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/check.h"
#include "serve/openai_image_request.h"
#include "serve/openai_video_request.h"
#include "serve/sdapi_lists.h"
#include "serve/sdapi_request.h"

namespace serve = tessera::serve;
using tessera::fuzz::require;

namespace {

// Calls it; a refusal must have a text, and a status of the client's mistakes or of what is not here.
template <typename Call>
void reads(const Call& call) {
  try {
    call();
  } catch (const serve::ApiError& error) {
    require(error.status >= 400 && error.status <= 500 && !error.message.empty() && !error.code.empty(),
            "a refusal says what is wrong");
  }
}

serve::JobView view_of(const serve::JobRequest& request) {
  serve::JobView view;
  view.id = "id";
  view.request = request;
  view.pictures = request.request.num_images_per_prompt;
  require(view.pictures >= 1 && view.pictures <= 16, "a job has pictures, and not too many");
  require(request.request.prompts.size() == 1, "a job has a prompt");
  require(request.request.images.empty() && request.request.video.reference_paths.empty(),
          "a client names no file of the server");
  return view;
}

void read_all(const serve::ApiBody& body) {
  const serve::ApiOptions options;
  for (const char* const scheduler : {"DPMSolverMultistepScheduler", "FlowMatchEulerDiscreteScheduler"}) {
    serve::ModelTraits model = {.name = "m", .scheduler = scheduler};
    model.takes_pictures = model.takes_clip_skip = true;
    reads([&] {
      const auto call = serve::read_image_generation(body.fields, model, options);
      serve::dump(serve::image_answer(call, view_of(call.job), {nullptr}, "url"));
    });
    reads([&] {
      const auto call = serve::read_image_edit(body, model, options);
      require(!call.job.images.empty(), "an edit has a picture");
      serve::dump(serve::completed_image_event(call, view_of(call.job), 0, "x", "type"));
    });
    reads([&] {
      const auto call = serve::read_txt2img(body.fields, model, options, 1);
      require(!call.jobs.empty() && std::ssize(call.jobs) <= options.max_pictures, "a job for each picture");
      serve::dump(serve::picture_answer(call, {view_of(call.jobs.front())}, {"x"}, model));
    });
    reads([&] { serve::check_sd_options(body.fields, model); });
    model.makes_videos = true;
    reads([&] {
      const auto job = serve::read_video_creation(body, model);
      serve::dump(serve::video_object(view_of(job), model));
    });
  }
}

}  // namespace

// The first line is the content type.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), size);
  serve::HttpRequest request;
  request.headers = {{"Content-Type", std::string(text.substr(0, line))}};
  request.body = text.substr(std::min(line + 1, size));
  reads([&] { read_all(serve::read_body(request)); });
  reads([&] { serve::png_info(request.body); });
  return 0;
}
