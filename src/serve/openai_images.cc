#include "serve/openai_images.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/text.h"
#include "serve/awaited_job.h"
#include "serve/job_json.h"
#include "serve/openai_image_request.h"

namespace tessera::serve {
namespace {

constexpr FieldName kImageNames[] = {
    {"width", "size"}, {"height", "size"}, {"num_images_per_prompt", "n"}, {"format", "output_format"}};

// The parts of the header are in milliseconds.
std::string server_timing(const engine::Seconds& seconds) {
  const OrderedJson parts = seconds_json(seconds);
  std::string text;
  for (const auto& [name, value] : parts.items())
    text += fmt::format("{}{};dur={:.3f}", text.empty() ? "" : ", ", name, value.get<double>() * 1e3);
  return text;
}

// A client that waits for pictures.
class ImageAnswer : public std::enable_shared_from_this<ImageAnswer> {
 public:
  ImageAnswer(std::shared_ptr<Exchange> exchange, ImageCall call, bool is_edit)
      : exchange_(std::move(exchange)), call_(std::move(call)), is_edit_(is_edit) {}

  void begin(JobService& service) {
    const auto self = shared_from_this();
    exchange_->on_gone([self] { self->leave(); });
    job_ = std::make_shared<AwaitedJob>(
        service,
        AwaitedJob::Calls{.refused = [self](const auto& refusal) { self->refuse(refusal); },
                          .ended = [self] { self->end(); },
                          .preview_every = [self](const auto& view) { return self->preview_every(view); },
                          .previewed = [self](const auto& update) { self->preview(update); }});
    job_->submit(call_.job);
  }

 private:
  void leave() {
    job_->leave();
    exchange_.reset();
  }
  void refuse(const JobRefusal& refusal) {
    exchange_->respond(refusal_response(exchange_->request().path, refusal, kImageNames));
    exchange_.reset();
  }

  // Spreads previews evenly over the steps. A stream also begins here.
  int64_t preview_every(const JobView& view) {
    if (!call_.is_streamed) return 0;
    exchange_->begin_events();
    is_begun_ = true;
    if (call_.partial_images == 0) return 0;
    return std::max<int64_t>(1, view.steps / (call_.partial_images + 1));
  }
  void preview(const JobUpdate& update) {
    if (update.job.step >= update.job.steps && update.job.steps > 0) return;
    int64_t& sent = partials_[update.index];
    if (sent >= call_.partial_images) return;
    send(type("partial_image"),
         partial_image_event(call_, update.job, update.index, sent, *update.bytes, type("partial_image")));
    ++sent;
  }
  void end() {
    const auto self = shared_from_this();
    const JobView& view = job_->view();
    if (view.state != JobState::kSucceeded) {
      fail(view.error.value_or(JobError{"failed", "the job has failed", 500}));
    } else if (call_.is_streamed) {
      complete();
    } else {
      answer();
    }
    exchange_.reset();
  }

  std::vector<std::shared_ptr<const std::string>> files() const {
    std::vector<std::shared_ptr<const std::string>> all;
    for (int64_t i = 0; i < job_->view().pictures; ++i) all.push_back(job_->result(static_cast<size_t>(i)));
    return all;
  }
  static bool are_whole(const std::vector<std::shared_ptr<const std::string>>& files) {
    return std::find(files.begin(), files.end(), nullptr) == files.end();
  }
  static JobError lost() { return {"not_found", "the pictures are not there any more", 404}; }

  void answer() {
    const auto all = files();
    if (call_.with_bytes && !are_whole(all)) return fail(lost());
    const std::string url =
        fmt::format("{}/v1/images/{}/content", base_url(exchange_->request()), job_->view().id);
    HttpResponse response{.body = image_answer(call_, job_->view(), all, url) + "\n"};
    if (job_->view().seconds)
      response.headers.emplace_back("Server-Timing", server_timing(*job_->view().seconds));
    exchange_->respond(std::move(response));
  }
  // Sends an event for each picture when all are done, since the seeds are known then.
  void complete() {
    if (!is_begun_) exchange_->begin_events();
    is_begun_ = true;
    const auto all = files();
    if (!are_whole(all)) return fail(lost());
    for (size_t i = 0; i < all.size(); ++i)
      send(type("completed"),
           completed_image_event(call_, job_->view(), static_cast<int64_t>(i), *all[i], type("completed")));
    // A client that did not read earlier data may be gone by now.
    if (exchange_) exchange_->end_events();
  }
  void fail(const JobError& error) {
    HttpResponse response = job_error_response(exchange_->request().path, error);
    if (!is_begun_) return exchange_->respond(std::move(response));
    response.body.pop_back();  // the end of the line
    const auto exchange = exchange_;
    exchange->send({.name = "error", .data = response.body});
    exchange->end_events();
  }

  std::string type(std::string_view what) const {
    return fmt::format("image_{}.{}", is_edit_ ? "edit" : "generation", what);
  }
  // Events have no id: the Python client would read the comments that keep a stream alive as events after one
  // with an id.
  void send(const std::string& name, const OrderedJson& data) {
    if (exchange_) exchange_->send({.name = name, .data = dump(data)});
  }

  std::shared_ptr<Exchange> exchange_;
  const ImageCall call_;
  const bool is_edit_;
  std::shared_ptr<AwaitedJob> job_;
  std::map<int64_t, int64_t> partials_;  // the number sent, by picture
  bool is_begun_ = false;
};

void begin_images(JobService& service, const std::shared_ptr<Exchange>& exchange, const ApiBody& body,
                  ImageCall call, bool is_edit) {
  call.job.owner = exchange->request().owner;
  read_resend_of(exchange->request(), body, call.job);
  std::make_shared<ImageAnswer>(exchange, std::move(call), is_edit)->begin(service);
}

// GET /v1/images/{id}/content?index=0
void get_image_content(JobService& service, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const std::string_view text = text_of(request.query, "index");
  size_t index = 0;
  const char* const end = text.data() + text.size();
  if (const auto read = std::from_chars(text.data(), end, index);
      !text.empty() && (read.ec != std::errc() || read.ptr != end))
    throw ApiError(400, "invalid_value", "'index' must be a number from 0", "index");
  service.find(request.owner, request.parameters.at(0), [exchange, index](const auto& job) {
    const std::string& path = exchange->request().path;
    if (!job || job->request.api != "images" || index >= job->results.size() ||
        job->results[index].path.empty())
      return exchange->respond(error_response(path, 404, "not_found", "there is no such picture"));
    const StoredResult& result = job->results[index];
    exchange->respond({.content_type = result.content_type, .body = {}, .headers = {}, .file = result.path});
  });
}

OrderedJson model_object(const JobService& service) {
  return {{"id", service.model_name()},
          {"object", "model"},
          {"created", seconds_of(service.started())},
          {"owned_by", "tessera"}};
}

}  // namespace

Handler refusing(std::string why) {
  return [why = std::move(why)](const std::shared_ptr<Exchange>& exchange) {
    exchange->respond(error_response(exchange->request().path, 400, "unsupported_operation", why));
  };
}

std::vector<Route> openai_image_routes(JobService& service, const ApiOptions& options) {
  const auto traits = std::make_shared<const ModelTraits>(traits_of(service));
  const auto generate = [&service, options, traits](const std::shared_ptr<Exchange>& exchange) {
    ApiBody body;
    body.fields = read_json_body(exchange->request());
    begin_images(service, exchange, body, read_image_generation(body.fields, *traits, options), false);
  };
  const auto edit = [&service, options, traits](const std::shared_ptr<Exchange>& exchange) {
    const ApiBody body = read_body(exchange->request());
    begin_images(service, exchange, body, read_image_edit(body, *traits, options), true);
  };
  const auto models = [&service](const std::shared_ptr<Exchange>& exchange) {
    OrderedJson list = {{"object", "list"}, {"data", OrderedJson::array()}};
    list["data"].push_back(model_object(service));
    exchange->respond(json_response(list));
  };
  const auto one_model = [&service](const std::shared_ptr<Exchange>& exchange) {
    const std::string& name = exchange->request().parameters.at(0);
    if (name != service.model_name())
      throw ApiError(404, "model_not_found", fmt::format("there is no model '{}'", printable(name)), "model");
    exchange->respond(json_response(model_object(service)));
  };
  const auto content = [&service](const auto& exchange) { get_image_content(service, exchange); };
  return {{"POST", "/v1/images/generations", answering_errors(generate), options.body_bytes},
          {"POST", "/v1/images/edits", answering_errors(edit), options.upload_bytes},
          {"POST", "/v1/images/variations",
           refusing("variations are not supported; /v1/images/generations makes pictures from a prompt"),
           options.upload_bytes},
          {"GET", "/v1/images/{id}/content", answering_errors(content)},
          {"GET", "/v1/models", answering_errors(models)},
          {"GET", "/v1/models/{id}", answering_errors(one_model)}};
}

}  // namespace tessera::serve
