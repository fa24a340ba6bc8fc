#include "serve/openai_videos.h"

#include <algorithm>

#include "serve/openai_images.h"
#include "serve/openai_video_request.h"

namespace tessera::serve {
namespace {

using VideoTraits = std::shared_ptr<const ModelTraits>;

constexpr FieldName kVideoNames[] = {{"width", "size"}, {"height", "size"}, {"reference", "input_reference"}};

void respond_with_video(const std::shared_ptr<Exchange>& exchange, const JobView& job,
                        const ModelTraits& model) {
  HttpResponse response = json_response(video_object(job, model));
  if (!has_ended(job.state)) {
    // Clients that wait ask again after this many milliseconds.
    const double seconds = job.outlook ? job.outlook->begins_in.count() : 1;
    response.headers.emplace_back("openai-poll-after-ms",
                                  fmt::format("{:.0f}", 1000 * std::clamp(seconds, 0.5, 5.0)));
  }
  exchange->respond(std::move(response));
}

void video_not_found(const std::shared_ptr<Exchange>& exchange, std::string_view what) {
  exchange->respond(error_response(exchange->request().path, 404, "not_found", what));
}

void create_video(JobService& service, const VideoTraits& traits, const std::shared_ptr<Exchange>& exchange) {
  const ApiBody body = read_body(exchange->request());
  JobRequest job = read_video_creation(body, *traits);
  job.owner = exchange->request().owner;
  read_resend_of(exchange->request(), body, job);
  service.submit(std::move(job), [exchange, traits](const auto& answer, bool) {
    if (const auto* const refusal = std::get_if<JobRefusal>(&answer)) {
      exchange->respond(refusal_response(exchange->request().path, *refusal, kVideoNames));
    } else {
      respond_with_video(exchange, std::get<JobView>(answer), *traits);
    }
  });
}

// Makes the call with the video that the path names, if this owner has it.
void with_video(JobService& service, const std::shared_ptr<Exchange>& exchange,
                std::function<void(const JobView&)> call) {
  const HttpRequest& request = exchange->request();
  service.find(request.owner, request.parameters.at(0),
               [exchange, call = std::move(call)](const std::optional<JobView>& job) {
                 if (!job || job->request.api != "videos")
                   return video_not_found(exchange, "there is no such video");
                 call(*job);
               });
}

void list_videos(JobService& service, const VideoTraits& traits, const std::shared_ptr<Exchange>& exchange) {
  const VideoList wanted = read_video_list(exchange->request());
  service.list(exchange->request().owner, wanted.filter,
               [exchange, traits, wanted](std::vector<JobView> jobs) {
                 exchange->respond(json_response(video_list(wanted, std::move(jobs), *traits)));
               });
}

void delete_video(JobService& service, const std::shared_ptr<Exchange>& exchange) {
  with_video(service, exchange, [&service, exchange](const JobView& job) {
    service.remove(exchange->request().owner, job.id, [exchange, id = job.id](bool was_there) {
      if (!was_there) return video_not_found(exchange, "there is no such video");
      exchange->respond(json_response({{"id", id}, {"object", "video.deleted"}, {"deleted", true}}));
    });
  });
}

void get_video_content(JobService& service, const std::shared_ptr<Exchange>& exchange) {
  const std::string_view variant = text_of(exchange->request().query, "variant");
  if (!variant.empty() && variant != "video")
    throw ApiError(400, "unsupported_value", "'variant' can be video alone", "variant");
  with_video(service, exchange, [exchange](const JobView& job) {
    if (job.state != JobState::kSucceeded) {
      // Clients repeat a request that got status 409 unless the answer forbids it.
      const bool is_under_way = !has_ended(job.state);
      HttpResponse response = error_response(
          exchange->request().path, is_under_way ? 409 : 404, is_under_way ? "not_ready" : "not_found",
          is_under_way ? "the video is not there yet" : "the video was not made; see its error");
      response.headers.emplace_back("x-should-retry", "false");
      return exchange->respond(std::move(response));
    }
    if (job.results.empty() || job.results.front().path.empty())
      return video_not_found(exchange, "the video has expired");
    const StoredResult& result = job.results.front();
    exchange->respond({.content_type = result.content_type, .body = {}, .headers = {}, .file = result.path});
  });
}

}  // namespace

std::vector<Route> openai_video_routes(JobService& service, const ApiOptions& options) {
  const auto traits = std::make_shared<const ModelTraits>(traits_of(service));
  const auto retrieve = [&service, traits](const std::shared_ptr<Exchange>& exchange) {
    with_video(service, exchange,
               [exchange, traits](const auto& job) { respond_with_video(exchange, job, *traits); });
  };
  const auto of_service = [&service](void (*call)(JobService&, const std::shared_ptr<Exchange>&)) {
    return answering_errors([&service, call](const auto& exchange) { call(service, exchange); });
  };
  const auto of_model =
      [&service, traits](void (*call)(JobService&, const VideoTraits&, const std::shared_ptr<Exchange>&)) {
        return answering_errors(
            [&service, traits, call](const auto& exchange) { call(service, traits, exchange); });
      };
  const std::string why = "is not supported; POST /v1/videos makes a video from a prompt";
  return {{"POST", "/v1/videos", of_model(create_video), options.upload_bytes},
          {"GET", "/v1/videos", of_model(list_videos)},
          {"POST", "/v1/videos/edits", refusing("to edit a video " + why), options.upload_bytes},
          {"POST", "/v1/videos/extensions", refusing("to extend a video " + why), options.upload_bytes},
          {"GET", "/v1/videos/{id}", answering_errors(retrieve)},
          {"DELETE", "/v1/videos/{id}", of_service(delete_video)},
          {"GET", "/v1/videos/{id}/content", of_service(get_video_content)},
          {"POST", "/v1/videos/{id}/remix", refusing("to remix a video " + why), options.body_bytes}};
}

}  // namespace tessera::serve
