#include "job/job.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "comm/collectives.h"
#include "comm/nccl.h"
#include "comm/peer_error.h"
#include "core/error.h"
#include "core/file.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"
#include "engine/decode.h"
#include "engine/engine.h"
#include "engine/find_model.h"
#include "job/communication.h"
#include "job/outputs.h"
#include "job/progress.h"
#include "job/recording.h"
#include "job/report.h"
#include "job/timeline.h"
#include "launch/streams.h"
#include "launch/thread_share.h"
#include "media/still_image.h"
#include "parallel/ranks.h"
#include "weights/safetensors.h"

namespace tessera::job {
namespace {

// A warm-up step computes what one rank would compute, and sends all its messages.
void warn_of_endless_warmup(Job& job) {
  const parallel::Layout& layout = job.layout;
  const bool is_synchronous =
      layout.displacement && layout.displacement->mode == parallel::DisplacedMode::kFullSync;
  if (is_synchronous && job.arguments.parallel.warmup_steps)
    job.settings.warnings.push_back(field("warmup_steps") +
                                    " has no effect: in the mode full_sync every step is synchronous");
  if (is_synchronous || !layout.is_all_warmup || (layout.patches == 1 && !layout.displacement)) return;
  job.settings.warnings.push_back(
      fmt::format("every step is a warm-up step, which is synchronous and slower; lower {}, or raise {}",
                  field("warmup_steps"), field("num_inference_steps")));
}

std::string machine_text(const Job& job) {
  const engine::Request& request = job.settings.request;
  if (!request.device.is_cpu()) return request.device.str();
  const int threads = at::get_num_threads();
  std::string threads_text = counted(threads, "thread");
  if (job.ranks() == 1) return threads_text;
  std::vector<std::string> sizes;
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis) {
    const int64_t size = job.layout.sizes[*axis];
    if (size > 1) sizes.push_back(fmt::format("{} {}", parallel::axis_name(*axis), size));
  }
  if (!job.layout.rank_shares.empty())
    sizes.push_back(fmt::format("shares {}", fmt::join(job.arguments.parallel.rank_shares, ":")));
  return fmt::format("{} ranks ({}) with {} each", job.ranks(), fmt::join(sizes, ", "), threads_text);
}

// Returns a text such as "2 images" or "1 video of 51 frames".
std::string outputs_text(const Job& job) {
  const int64_t count = job.settings.pictures(), frames = job.settings.all_frames();
  const bool moves = frames > 1;
  const std::string things = counted(count, moves ? "video" : "image");
  return moves ? fmt::format("{} of {} frames", things, frames) : things;
}

media::VideoFormat format_of(const Job& job, int64_t video) {
  return video_format(job.settings, png_text(job, video));
}

void write_image(const Job& job, int64_t number, const Image& image) {
  const std::string& path = job.outputs[static_cast<size_t>(number)];
  const ImageText text = png_text(job, number);
  if (is_standard_output(path)) {
    fmt::print("{}", encode_png(image, text));
  } else {
    write_text(path, media::encode_image(path, image, text));
  }
}

void write_latents(const Job& job, const engine::Result& result) {
  const ImageText text = png_text(job, 0);
  weights::write_safetensors(job.outputs[0], {{"latents", result.latents}}, {text.begin(), text.end()});
}

// Throws Error for a size or a text that the files' formats cannot hold. Videos differ only in their texts,
// which all of their formats can hold.
void require_encodable_outputs(const Job& job) {
  const engine::Settings& settings = job.settings;
  if (settings.request.output_type == engine::OutputType::kLatent) return;
  if (!are_images(job.outputs, settings)) return media::require_encodable(job.outputs[0], format_of(job, 0));
  for (size_t i = 0; i < job.outputs.size(); ++i)
    media::require_encodable(job.outputs[i], settings.height, settings.width,
                             png_text(job, static_cast<int64_t>(i)));
}

// Prints the paths of the written files.
void print_paths(const Job& job, const std::vector<std::string>& outputs) {
  if (outputs.empty() || is_standard_output(job.outputs.front())) return;
  for (const std::string& path : written_paths(outputs, job.settings)) fmt::print("{}\n", path);
}

// Writes images and videos as they are decoded, on the first rank.
class Writer {
 public:
  Writer(const Job& job, launch::RankStatus& status)
      : job_(job), status_(status), videos_(job.outputs, job.settings.all_frames(), [this](int64_t video) {
          return format_of(job_, video);
        }) {}

  void follow(engine::Observer& observer) {
    const auto take_image = [this](int64_t number, const Image& image) {
      write_image(job_, number, image);
      finish(number);
    };
    observer.decoded_image = take_image;
    observer.decoded = [this, take_image](int64_t number, const at::Tensor& frames) {
      if (are_images(job_.outputs, job_.settings)) {
        take_image(number, engine::image_of(frames[0]));
      } else if (videos_.add(number, frames)) {
        finish(number);
      }
    };
  }
  // If a run fails, prints the files that are finished.
  ~Writer() {
    if (is_told_) return;
    try {
      print_paths(job_, finished_);
    } catch (const std::exception&) {  // nobody reads standard output
    }
    std::fflush(stdout);  // a rank ends without cleanup
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Prints all files of a run.
  void tell() {
    is_told_ = true;
    print_paths(job_, job_.outputs);
  }

 private:
  void finish(int64_t number) {
    finished_.push_back(job_.outputs[static_cast<size_t>(number)]);
    status_.wrote_file();
  }

  const Job& job_;
  launch::RankStatus& status_;
  VideoFiles videos_;
  std::vector<std::string> finished_;
  bool is_told_ = false;
};

// Files that this run does not replace are not removed either, because they may belong to somebody else.
void warn_of_leftovers(const Job& job) {
  const auto path = output_path(job.arguments, job.settings);
  const std::vector<std::string> paths = leftover_paths(path, job.outputs, job.settings);
  if (paths.size() == 1)
    log_warning("[{}] was left by another run; remove it unless it belongs to the new files", paths[0]);
  if (paths.size() > 1) {
    log_warning(
        "[{}] and {} more, up to {}, were left by another run; remove them unless they belong to the new "
        "files",
        paths[0], paths.size() - 1, paths.back());
  }
}

engine::Observer with_status(const engine::Observer& observer, launch::RankStatus& status) {
  engine::Observer both = observer;
  both.started = [observer, &status](engine::Phase stage) {
    status.started(stage);
    if (observer.started) observer.started(stage);
  };
  both.progressed = [observer, &status](engine::Phase stage, int64_t done, int64_t total) {
    if (stage == engine::Phase::kDenoise && done < total) status.step_done(done);
    if (observer.progressed) observer.progressed(stage, done, total);
  };
  return both;
}

// The number of threads is set before the first of them computes.
void use_threads(const Job& job) {
  const int wanted = at::get_num_threads(), threads = set_threads(wanted);
  if (threads < wanted && job.arguments.run.threads)
    log_warning("{}: {} of {} threads compute, because OMP_THREAD_LIMIT or another limit allows no more",
                field("threads"), threads, wanted);
}

// Ranks of one host have one thread each unless the user gives a number; a rank that is alone takes as many
// threads as cores are free.
engine::Result generate(const Job& job, engine::Observer observer, const std::function<bool()>& cancelled,
                        const comm::World& world) {
  std::optional<launch::ThreadShare> share;
  if (job.ranks() == 1 && !job.arguments.run.threads) share.emplace();
  observer.cancelled = [&] {
    if (share) share->fit();
    return cancelled();
  };
  const auto start = std::chrono::steady_clock::now();
  engine::Result result =
      engine::Engine(job.model, /*budget=*/0, world).run(job.settings, job.layout, observer);
  result.seconds.total = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void add_timeline(engine::Observer& observer, Timeline& timeline) {
  observer.computed = [&timeline](int64_t step, int64_t first, int64_t count,
                                  Timeline::Clock::time_point begin, Timeline::Clock::time_point end) {
    timeline.add_compute(step, first, count, begin, end);
  };
  observer.finished = [&timeline, told = observer.finished](engine::Phase stage, double seconds) {
    timeline.add_phase(stage, seconds);
    if (told) told(stage, seconds);
  };
}

// Reads the message of rank `rank`.
OrderedJson parse_told(const std::string& text, int64_t rank) {
  OrderedJson told = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [](const OrderedJson& value) { return value.is_string(); };
  const auto has = [&](const char* key) { return told.is_object() && told.contains(key); };
  const bool whole = has("warnings") && told["warnings"].is_array() &&
                     std::all_of(told["warnings"].begin(), told["warnings"].end(), is_text) &&
                     has("report") && has("timeline") && told["timeline"].is_array();
  if (!whole) throw comm::PeerError(rank, "sent no report");
  return told;
}

// Gathers the final messages of all ranks on rank 0, in the order of ranks. No rank returns before all have
// called.
std::vector<OrderedJson> gather_told(const OrderedJson& own, const comm::Group& world) {
  const std::vector<std::string> texts =
      comm::gather_bytes(own.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), 0, world);
  comm::barrier(world);
  std::vector<OrderedJson> all;
  all.reserve(texts.size());
  for (const std::string& text : texts) all.push_back(parse_told(text, static_cast<int64_t>(all.size())));
  return all;
}

// Prints the warnings of other ranks that rank 0 has not printed yet, each once.
void tell_warnings(Progress& progress, const std::vector<OrderedJson>& told) {
  std::vector<std::string> known = progress.warnings();
  for (size_t rank = 1; rank < told.size(); ++rank) {
    for (const auto& warning : told[rank]["warnings"].get<std::vector<std::string>>()) {
      if (std::find(known.begin(), known.end(), warning) != known.end()) continue;
      known.push_back(warning);
      progress.line(fmt::format("[rank {}] warning: {}", rank, warning));
    }
  }
}

// Writes the timeline and the report if they are requested.
void write_reports(const Job& job, const engine::Result& result, std::vector<OrderedJson> told) {
  if (job.arguments.run.timeline) {
    OrderedJson events = OrderedJson::array();
    for (const OrderedJson& each : told)
      events.insert(events.end(), each["timeline"].begin(), each["timeline"].end());
    write_text(*job.arguments.run.timeline, OrderedJson{{"traceEvents", std::move(events)}}.dump());
  }
  if (job.arguments.run.report) {
    std::vector<OrderedJson> reports;
    reports.reserve(told.size());
    for (OrderedJson& each : told) reports.push_back(std::move(each["report"]));
    const OrderedJson report = make_report(job, result, reports, written_paths(job.outputs, job.settings));
    write_text(*job.arguments.run.report,
               report.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }
}

// Returns the files besides the results: the option that names each of them, and its path.
std::vector<std::pair<std::string, std::filesystem::path>> more_files(const Job& job) {
  std::vector<std::pair<std::string, std::filesystem::path>> files;
  const RunOptions& run = job.arguments.run;
  for (const auto& [name, path] : {std::pair("report", run.report), std::pair("timeline", run.timeline),
                                   std::pair("record", run.record)}) {
    if (path) files.emplace_back(field(name), *path);
  }
  return files;
}

// Returns the files that the run reads, and the options that name them.
std::map<std::filesystem::path, std::string> given_files(const Job& job) {
  std::map<std::filesystem::path, std::string> files;
  const RunOptions& run = job.arguments.run;
  for (const auto& [name, path] :
       {std::pair("request", run.request), std::pair("prompt_file", run.prompt_file)}) {
    if (path && !is_stream(*path)) files.emplace(real_path(*path), field(name));
  }
  for (const std::vector<std::string>& paths : job.settings.video.references) {
    for (const std::string& path : paths) files.emplace(real_path(path), field("reference_path"));
  }
  for (const std::string& path : job.settings.request.images) files.emplace(real_path(path), field("image"));
  return files;
}

// Files that are meant to be passed on name references without their folders.
void require_references(const Job& job) {
  const auto require = [](const std::string& file, const std::string& path, const char* name) {
    std::error_code code;
    if (!std::filesystem::exists(path, code))
      input_error(file,
                  "its reference '{}' is not here; run it in the folder of that file, or give its path "
                  "with {}",
                  path, field(name));
  };
  if (const auto& file = job.arguments.names_from) {
    for (const std::vector<std::string>& paths : job.settings.video.references) {
      for (const std::string& path : paths) require(*file, path, "reference_path");
    }
  }
  if (const auto& file = job.arguments.images_from) {
    for (const std::string& path : job.settings.request.images) require(*file, path, "image");
  }
}

// Without quotes, each word is a prompt of its own. Languages that are written without spaces are not
// affected.
void warn_of_single_words(Job& job) {
  const std::vector<std::string>& prompts = job.arguments.request.prompts;
  const bool are_words = std::all_of(prompts.begin(), prompts.end(), [](const std::string& text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  });
  if (prompts.size() >= 3 && are_words && !job.arguments.run.prompt_file && !job.arguments.run.request)
    job.settings.warnings.push_back(fmt::format(
        "{} prompts of one word each make as many images; put quotes round a text of several words",
        prompts.size()));
}

}  // namespace

std::string headline(const Job& job) {
  const engine::Settings& settings = job.settings;
  const std::vector<std::string>& options = settings.request.scheduler_options;
  const std::string sampler =
      options.empty() ? ""
                      : printable(fmt::format("{} with {}, ", settings.scheduler, fmt::join(options, ", ")));
  return fmt::format("{} ({}): {} of {} x {}, {}{}, guidance {}, seed {}, {} on {}", model_name(job.model),
                     job.model.family->title, outputs_text(job), settings.height, settings.width, sampler,
                     counted(settings.steps, "step"), settings.guidance, *settings.request.seed,
                     engine::dtype_name(*settings.request.dtype), machine_text(job));
}

int64_t Job::ranks() const {
  return parallel::Mesh(layout.sizes).world_size();
}

engine::Model read_model(const GenerateArguments& arguments) {
  const engine::ModelFiles files = engine::find_model_files(arguments.run.model, arguments.run.config);
  return engine::read_model(files.folder, files.single_file, arguments.run.variant.value_or(""));
}

Job plan_job(const GenerateArguments& arguments, std::optional<int64_t> world_size) {
  require_known_suffix(arguments);
  if (arguments.run.record) require_one_part(arguments.request.video);
  Job job = plan_job(arguments, read_model(arguments), world_size);
  if (job.ranks() > 1 && !arguments.request.device.is_cpu() && !comm::has_nccl())
    usage_error(field("device"),
                "several ranks need NCCL, with which this program was not built; use {} cpu, or one rank",
                field("device"));
  require_recordable(job);
  return job;
}

Job plan_job(const GenerateArguments& arguments, engine::Model model, std::optional<int64_t> world_size) {
  Job job;
  job.arguments = arguments;
  job.model = std::move(model);
  job.settings = engine::resolve(arguments.request, job.model);
  require_references(job);
  job.layout = resolve_layout(arguments.parallel, workload(job.settings, job.model), world_size);
  warn_of_endless_warmup(job);
  warn_of_single_words(job);
  job.outputs = output_paths(output_path(arguments, job.settings), job.settings);
  if (job.ranks() == 1) {
    const auto refuse = [](bool given, const std::string& name) {
      if (given)
        usage_error(name, "applies to runs with several ranks only; leave it out, or give {} or a degree",
                    field("nproc"));
    };
    refuse(arguments.messages.timeout.has_value(), field("timeout"));
    refuse(arguments.messages.interface.has_value(), field("interface"));
    refuse(!arguments.messages.shared_memory, field("shared_memory", false));
  } else if (const at::Device device = arguments.request.device; !device.is_cpu() && device.has_index()) {
    usage_error(
        field("device"),
        "'{}' is one GPU for several ranks; with cuda, each rank takes the GPU of its number on its host",
        device.str());
  }
  return job;
}

void require_outputs(const Job& job) {
  const engine::Settings& settings = job.settings;
  const auto given = given_files(job);
  const auto keep_given = [&](const std::string& option, const std::string& path) {
    if (const auto found = given.find(real_path(path)); found != given.end())
      usage_error(option, "'{}' is the file of {}, which would be lost; name another", path, found->second);
  };
  if (is_standard_output(job.outputs.front())) {
    if (::isatty(STDOUT_FILENO) == 1)
      usage_error(field("output"), "standard output is a terminal; redirect it, or name a file");
    if (launch::was_output_missing()) usage_error(field("output"), "standard output is closed; name a file");
  } else {
    for (const std::string& path : written_paths(job.outputs, settings)) {
      keep_given(field("output"), path);
      require_writable_for(field("output"), path);
    }
    require_encodable_outputs(job);
  }
  const std::vector<std::pair<std::string, std::filesystem::path>> more = more_files(job);
  for (size_t i = 0; i < more.size(); ++i) {
    const auto& [option, file] = more[i];
    keep_given(option, file);
    require_writable_for(option, file);
    for (const std::string& path : written_paths(job.outputs, settings)) {
      if (same_file(path, file)) usage_error(option, "'{}' is also where a result goes", path);
    }
    for (size_t j = 0; j < i; ++j) {
      if (same_file(more[j].second, file))
        usage_error(option, "'{}' is also the file of {}", file.string(), more[j].first);
    }
  }
}

void run_job(const Job& job, comm::World& world, launch::RankStatus& status,
             const std::function<bool()>& cancelled, const FieldSpelling& spelling) {
  status.preparing();
  const uint64_t first_rss_bytes = resident_bytes();
  Communication communication;
  std::optional<Timeline> timeline;
  const comm::ScopedHooks hooks(
      world, {.began = [&status](const comm::Collective& collective) { status.collective_began(collective); },
              .ended =
                  [&](const comm::Collective& collective, std::chrono::nanoseconds under_way,
                      std::chrono::nanoseconds waited) {
                    status.collective_ended();
                    communication.add(collective, under_way, waited);
                    if (timeline) timeline->add_collective(collective, under_way, waited);
                  }});
  const parallel::Ranks ranks(world, job.layout);
  comm::barrier(ranks.world);
  if (job.arguments.run.timeline) timeline.emplace(world.rank());
  const bool first = world.rank() == 0;
  std::vector<std::string> warnings;
  std::optional<ScopedLogSink> collector;
  std::optional<Progress> progress;
  if (first) {
    progress.emplace(job.arguments.run.quiet, spelling);
    use_threads(job);
    if (!job.arguments.run.quiet) progress->line(headline(job));
    for (const std::string& warning : job.settings.warnings) log_warning("{}", warning);
    if (job.layout.displaced_mode_was_changed) {
      log_info("{} is sync_gn: with so few rows per rank, corrected_async_gn is known to fail",
               field("displaced_mode"));
    }
  } else {
    collector.emplace([&](LogLevel level, const std::string& message) {
      if (level == LogLevel::kWarning) warnings.push_back(message);
    });
    use_threads(job);
  }
  engine::Observer observer = with_status(first ? progress->observer() : engine::Observer{}, status);
  std::optional<Writer> writer;
  if (first) writer.emplace(job, status).follow(observer);
  if (timeline) add_timeline(observer, *timeline);
  std::optional<Recording> recording;
  if (job.arguments.run.record) recording.emplace(job, world).follow(observer);
  const engine::Result result = generate(job, observer, cancelled, world);

  status.finishing();
  if (recording) recording->write(ranks.world);
  std::vector<OrderedJson> told =
      gather_told({{"warnings", warnings},
                   {"report", rank_report(world.rank(), first_rss_bytes, result, communication.report())},
                   {"timeline", timeline ? timeline->events() : OrderedJson::array()}},
                  ranks.world);
  if (!first) return;
  tell_warnings(*progress, told);
  if (job.settings.request.output_type == engine::OutputType::kLatent) write_latents(job, result);
  warn_of_leftovers(job);
  write_reports(job, result, std::move(told));
  progress->summary(result.seconds);
  writer->tell();
}

}  // namespace tessera::job
