// Turns pictures and previews of jobs into files.
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "serve/service_parts.h"

namespace tessera::serve {

void Service::previewed(const Run& run, WorldEvent event) {
  const auto picture = picture_of(run, event.index);
  if (!picture) return;
  metrics_->previews.add();
  encoder_->preview(std::move(event.image), [this, picture = *picture](const Encoder::Made& made) {
    const auto& [job, index] = picture;
    const auto* file = std::get_if<Encoder::File>(&made);
    if (job->has_ended() || file == nullptr) return;
    job->preview = file->bytes;
    job->view.has_preview = true;
    tell(job, JobUpdate::Kind::kPreview, index, file->bytes, "image/jpeg");
  });
}

void Service::pictured(const Run& run, WorldEvent event) {
  const auto picture = picture_of(run, event.index);
  if (!picture) return;
  const auto& [job, index] = *picture;
  if (job->files.contains(index)) return;  // from an earlier run, which was lost after it
  Encoder::Picture place{.job = job->id(), .request = job->view.request.request, .index = index};
  place.suffix = job->view.request.suffix;
  auto done = [this, picture = *picture](const Encoder::Made& bytes) {
    made(picture.first, picture.second, bytes);
  };
  if (event.kind == WorldEvent::Kind::kPicture) {
    encoder_->encode(std::move(place), std::move(event.image), std::move(done));
  } else {
    encoder_->add_frames(std::move(place), std::move(event.frames), std::move(done));
  }
}

void Service::made(const JobPtr& job, int64_t index, const Encoder::Made& made) {
  if (job->has_ended() || job->files.contains(index)) return;
  if (const auto* why = std::get_if<std::string>(&made)) {
    log_warning("a result of job {} cannot be encoded: {}", job->id(), *why);
    const JobError error{.code = "failed",
                         .message = "the result cannot be encoded; the server's log says why"};
    job->why = error;
    if (job->view.state == JobState::kEncoding) {
      scheduler_.finished(job->id());
      return end(job, JobState::kFailed, error);
    }
    cancel_job(job, error);
    return;
  }
  const auto& [bytes, seconds] = std::get<Encoder::File>(made);
  job->writing += seconds;
  const std::string type(content_type_of(job->view.request.suffix));
  job->files[index] = {.content_type = type, .bytes = bytes};
  tell(job, JobUpdate::Kind::kResult, index, bytes, type);
  if (!job->has_ended() && job->view.state == JobState::kEncoding) finish(job);
}

// Its run has ended; the job has succeeded when all files are made, and are on disk if they are to be stored.
void Service::finish(const JobPtr& job) {
  if (std::ssize(job->files) < job->view.pictures || job->is_storing) return;
  std::vector<JournalThread::File> files;
  for (const auto& [index, file] : job->files) files.push_back(file);
  if (std::optional<engine::Seconds>& seconds = job->view.seconds) {
    seconds->write = job->writing;
    seconds->total += job->writing;
  }
  if (!job->view.request.is_stored) {
    for (const JournalThread::File& file : files)
      job->view.results.push_back(
          {.path = {}, .content_type = file.content_type, .bytes = file.bytes->size()});
    scheduler_.finished(job->id());
    return end(job, JobState::kSucceeded);
  }
  job->is_storing = true;
  journal_->succeed(
      job->id(), std::move(files), job->view.started, write_stored_seconds(job->view),
      [this, job](std::variant<std::vector<StoredResult>, std::string> answer) {
        scheduler_.finished(job->id());
        if (auto* results = std::get_if<std::vector<StoredResult>>(&answer)) {
          job->view.results = std::move(*results);
          return end(job, JobState::kSucceeded);
        }
        end(job, JobState::kFailed,
            JobError{.code = "storage", .message = "the results cannot be stored", .status = 503});
      });
}

// Uploads.

namespace {

std::vector<std::string> write_all(const std::filesystem::path& folder, const std::string& name,
                                   const std::vector<std::string>& files) {
  std::vector<std::string> paths;
  for (const std::string& bytes : files) {
    const std::filesystem::path path = folder / fmt::format("{}-{}", name, paths.size());
    AtomicFile file(path);
    file.write(bytes);
    file.commit();
    paths.push_back(path.string());
  }
  return paths;
}

}  // namespace

// Worlds read them by their paths. The names have no suffix: the bytes of a file determine its type.
void Service::keep_uploads(JobRequest request, Submitted done) {
  const std::filesystem::path folder = options_.journal.folder / "uploads";
  encoder_->run([this, folder, request = std::move(request), done = std::move(done)]() mutable {
    bool is_kept = true;
    try {
      std::error_code ignored;
      std::filesystem::create_directories(folder, ignored);
      const std::string name = new_job_id(hooks_.wall_clock());
      request.request.images = write_all(folder, name + "-image", request.images);
      std::vector<std::string>& references = request.request.video.reference_paths;
      references = write_all(folder, name + "-reference", request.references);
    } catch (const std::exception& error) {
      log_warning("{}", error.what());
      is_kept = false;
    }
    request.images.clear();
    request.references.clear();
    hooks_.post([this, is_kept, request = std::move(request), done = std::move(done)]() mutable {
      if (is_kept) return admit_and_submit(std::move(request), std::move(done));
      done(
          JobRefusal{
              .error = {.code = "storage", .message = "the server cannot write to its disk", .status = 503},
              .retry_after = Seconds(10)},
          false);
    });
  });
}

void Service::remove_uploads(std::vector<std::string> paths) {
  if (paths.empty()) return;
  encoder_->run([paths = std::move(paths)] {
    std::error_code ignored;
    for (const std::string& path : paths) std::filesystem::remove(path, ignored);
  });
}

// Uploads of jobs that had ended, or were never accepted, when the previous process ended.
void Service::remove_stray_uploads() {
  std::error_code code;
  std::vector<std::string> strays;
  for (const std::filesystem::path& path : list_folder(options_.journal.folder / "uploads", code))
    strays.push_back(path.string());
  for (const auto& [id, job] : jobs_) {
    const engine::Request& request = job->view.request.request;
    for (const std::string& path : request.images) std::erase(strays, path);
    for (const std::string& path : request.video.reference_paths) std::erase(strays, path);
  }
  remove_uploads(std::move(strays));
}

}  // namespace tessera::serve
