#include "serve/sdapi_task.h"

#include <algorithm>

namespace tessera::serve {
namespace {

constexpr size_t kMostEnded = 1000;

constexpr FieldName kPictureNames[] = {{"num_inference_steps", "steps"},
                                       {"guidance_scale", "cfg_scale"},
                                       {"scheduler", "sampler_name"},
                                       {"scheduler_option", "scheduler"},
                                       {"clip_skip", "override_settings"}};

}  // namespace

PictureTask::PictureTask(JobService& service, std::shared_ptr<Exchange> exchange, PictureCall call,
                         ModelTraits model)
    : service_(service),
      exchange_(std::move(exchange)),
      call_(std::move(call)),
      model_(std::move(model)),
      owner_(exchange_->request().owner),
      pictures_(call_.jobs.size()) {}

void PictureTask::begin() {
  const auto self = shared_from_this();
  exchange_->on_gone([self] { self->leave(); });
  const std::shared_ptr<Exchange> exchange = exchange_;
  for (size_t i = 0; i < pictures_.size() && is_under_way(); ++i) {
    JobRequest job = call_.jobs[i];
    job.owner = owner_;
    read_resend(exchange->request(), job);
    // The pictures of a request are separate jobs, also if the client sends it again.
    job.body_hash += fmt::format("-{}", i);
    if (job.idempotency_key) *job.idempotency_key += fmt::format("-{}", i);
    pictures_[i].job = std::make_shared<AwaitedJob>(
        service_, AwaitedJob::Calls{.refused = [self](const auto& refusal) { self->refuse(refusal); },
                                    .ended = [self, i] { self->end(i); },
                                    .preview_every = {},
                                    .previewed = {}});
    pictures_[i].job->submit(std::move(job));
  }
  if (!is_under_way()) leave();
}

// One picture will not come, so nobody waits for the others any more.
void PictureTask::abandon() {
  for (const Picture& each : pictures_) {
    if (!each.job) continue;
    each.job->leave();
    each.job->cancel();
  }
}

void PictureTask::leave() {
  for (const Picture& each : pictures_) {
    if (each.job) each.job->leave();
  }
  exchange_.reset();
}

void PictureTask::finish(HttpResponse response) {
  const auto exchange = std::move(exchange_);
  exchange_ = nullptr;
  if (exchange) exchange->respond(std::move(response));
}

void PictureTask::refuse(const JobRefusal& refusal) {
  if (!is_under_way()) return;
  abandon();
  JobRefusal answer = refusal;
  if (answer.error.status == 400) answer.error.status = 422;  // AUTOMATIC1111's status for a wrong field
  finish(refusal_response(exchange_->request().path, answer, kPictureNames));
}

void PictureTask::end(size_t index) {
  Picture& picture = pictures_[index];
  if (std::exchange(picture.has_ended, true) || !is_under_way()) return;
  const JobView& view = picture.job->view();
  const bool is_wanted = is_interrupted_ || is_skipped_;
  if (view.state != JobState::kSucceeded && !(view.state == JobState::kCancelled && is_wanted)) {
    abandon();
    return finish(job_error_response(exchange_->request().path,
                                     view.error.value_or(JobError{"failed", "the job has failed", 500})));
  }
  if (std::all_of(pictures_.begin(), pictures_.end(), [](const auto& each) { return each.has_ended; }))
    answer();
}

void PictureTask::answer() {
  std::vector<JobView> views;
  std::vector<std::string_view> files;
  for (const Picture& each : pictures_) {
    const auto file = each.job->result(0);
    const bool is_done = each.job->view().state == JobState::kSucceeded && file;
    views.push_back(each.job->view());
    files.push_back(is_done ? std::string_view(*file) : std::string_view());
  }
  finish(json_response(picture_answer(call_, views, files, model_)));
}

void PictureTask::interrupt() {
  const auto self = shared_from_this();
  is_interrupted_ = true;
  for (size_t i = 0; i < pictures_.size(); ++i) {
    if (pictures_[i].job && !pictures_[i].has_ended) pictures_[i].job->cancel();
  }
}

void PictureTask::skip() {
  const auto self = shared_from_this();
  is_skipped_ = true;
  if (const Picture* const picture = current()) picture->job->cancel();
}

bool PictureTask::is_running() const {
  return std::any_of(pictures_.begin(), pictures_.end(), [](const Picture& each) {
    return each.job && !each.has_ended && each.job->view().state != JobState::kQueued;
  });
}

const PictureTask::Picture* PictureTask::current() const {
  const auto found = std::find_if(pictures_.begin(), pictures_.end(),
                                  [](const Picture& each) { return each.job && !each.has_ended; });
  return found == pictures_.end() ? nullptr : &*found;
}

OrderedJson PictureTask::progress() const {
  const auto count = static_cast<double>(pictures_.size());
  const auto done =
      std::count_if(pictures_.begin(), pictures_.end(), [](const auto& each) { return each.has_ended; });
  double steps_done = 0;  // for all pictures, in units of one picture
  for (const Picture& each : pictures_) {
    if (each.has_ended) {
      steps_done += 1;
    } else if (each.job && each.job->view().steps > 0) {
      const JobView& view = each.job->view();
      steps_done += static_cast<double>(view.step) / static_cast<double>(view.steps);
    }
  }
  const Picture* const picture = current();
  const JobView* const view = picture ? &picture->job->view() : nullptr;
  const bool is_queued = !is_running();
  const double progress = is_queued ? 0.0 : std::min(1.0, 0.01 + steps_done / count);
  double eta = 0;
  if (view && is_queued && view->outlook) {
    eta = view->outlook->ends_in.count();
  } else if (view && view->started && progress > 0) {
    const Seconds elapsed = std::chrono::system_clock::now() - *view->started;
    eta = std::max(0.0, elapsed.count() / progress - elapsed.count());
  }
  OrderedJson text;
  if (view && is_queued && view->outlook)
    text = fmt::format("In queue: {} before it", view->outlook->jobs_ahead);
  return {{"progress", progress},
          {"eta_relative", eta},
          {"state",
           {{"skipped", is_skipped_},
            {"interrupted", is_interrupted_},
            {"stopping_generation", false},
            {"job", "txt2img"},
            {"job_count", pictures_.size()},
            {"job_timestamp", view ? timestamp(view->accepted) : "0"},
            {"job_no", done},
            {"sampling_step", view ? view->step : 0},
            {"sampling_steps", view ? view->steps : 0}}},
          {"textinfo", std::move(text)},
          {"current_task", call_.task.empty() ? OrderedJson() : OrderedJson(call_.task)}};
}

std::shared_ptr<const std::string> PictureTask::preview() const {
  const Picture* const picture = current();
  return picture ? service_.preview(owner_, picture->job->view().id) : nullptr;
}

void PictureTasks::sweep() {
  std::erase_if(tasks_, [this](const Named& each) {
    const auto task = each.task.lock();
    if (task && task->is_under_way()) return false;
    if (!each.name.empty()) ended_.emplace_back(each.owner, each.name);
    return true;
  });
  while (ended_.size() > kMostEnded) ended_.pop_front();
}

void PictureTasks::add(const std::shared_ptr<PictureTask>& task) {
  sweep();
  tasks_.push_back({task, task->owner(), task->name()});
}

std::vector<std::shared_ptr<PictureTask>> PictureTasks::of(const std::string& owner,
                                                           const std::string& name) {
  sweep();
  std::vector<std::shared_ptr<PictureTask>> found;
  for (const Named& each : tasks_) {
    if (each.owner == owner && (name.empty() || each.name == name)) found.push_back(each.task.lock());
  }
  return found;
}

std::shared_ptr<PictureTask> PictureTasks::current(const std::string& owner, const std::string& name) {
  const auto all = of(owner, name);
  const auto running =
      std::find_if(all.begin(), all.end(), [](const auto& each) { return each->is_running(); });
  if (running != all.end()) return *running;
  return all.empty() ? nullptr : all.front();
}

bool PictureTasks::has_ended(const std::string& owner, const std::string& name) {
  sweep();
  return std::find(ended_.begin(), ended_.end(), std::pair(owner, name)) != ended_.end();
}

}  // namespace tessera::serve
