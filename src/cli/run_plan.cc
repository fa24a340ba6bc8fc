#include "cli/run_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cli/field_options.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"
#include "job/job.h"
#include "launch/aside.h"
#include "launch/cores.h"
#include "launch/streams.h"
#include "parallel/options.h"
#include "plan/calibration/kept_machine.h"
#include "plan/find_machine.h"
#include "plan/planner/planner.h"

namespace tessera::cli {
namespace {

// What a wish may contain besides the layout: the number of ranks, and how they encode and decode.
constexpr std::array<std::string_view, 3> kBesidesLayout = {"nproc", "text_encoder_parallel", "vae_parallel"};

// Roughly how long the first plan measures this host. docs/planning.md explains what fewer seconds change.
constexpr double kSecondsToMeasure = 20, kFewestSeconds = 1, kMostSeconds = 3600;

void say(const job::GenerateArguments& arguments, const std::string& line) {
  if (!arguments.run.quiet) launch::say(spell(line, option_name) + "\n");
}

double seconds_to_measure() {
  const char* const value = std::getenv("TESSERA_CALIBRATION_SECONDS");
  if (value == nullptr) return kSecondsToMeasure;
  const std::string_view text = value;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(seconds >= kFewestSeconds && seconds <= kMostSeconds))
    usage_error("TESSERA_CALIBRATION_SECONDS", "must be from {} to {} seconds, got '{}'", kFewestSeconds,
                kMostSeconds, printable(text));
  return seconds;
}

// Returns the request as one rank would have it, or in the given layout. Parts of a video that begin with
// given frames are planned as if they did not.
job::Job checked_job(const job::GenerateArguments& arguments) {
  const ComputesAlone alone;  // the ranks may be forks of this process
  job::GenerateArguments checked = arguments;
  if (arguments.run.parallel) {
    checked.parallel = {};
    checked.messages = {};
    checked.run.record.reset();  // the number of groups of pictures depends on the layout
  }
  job::Job job = job::plan_job(checked, std::nullopt);
  job::require_outputs(job);
  for (auto& paths : job.settings.video.references) paths.clear();
  for (auto& ranges : job.settings.video.given) ranges.clear();
  return job;
}

int64_t threads_of(const job::GenerateArguments& arguments, int64_t ranks) {
  const auto cores = static_cast<int64_t>(launch::allowed_cores().size());
  return arguments.run.threads.value_or(static_cast<int>(ranks > 1 ? 1 : cores));
}

plan::Machine this_host(const job::GenerateArguments& arguments, int64_t ranks) {
  plan::CalibrationOptions options;
  options.threads = threads_of(arguments, ranks);
  const auto cores = static_cast<int64_t>(launch::allowed_cores().size());
  if (options.threads > cores)
    usage_error(field("threads"),
                "is {}, but this host can only be measured with the {} that it has; give fewer, or a "
                "machine file with {}",
                options.threads, counted(cores, "core"), field("machine"));
  options.ranks = std::max<int64_t>(cores / options.threads, 2);
  options.dtypes = plan::host_dtypes();
  options.seconds = seconds_to_measure();
  const auto measure = [&] {
    const auto calibrate = [&] {
      try {
        return plan::calibrate(options, [](const std::string&) {}).dump();
      } catch (const plan::RanksFailed& failed) {
        throw launch::FailedAside{failed.failure};
      }
    };
    return OrderedJson::parse(launch::run_aside(calibrate));
  };
  return plan::machine_of_host(options, measure, [&](const std::string& line) { say(arguments, line); });
}

plan::Machine machine_for(const job::GenerateArguments& arguments, const job::Job& job, int64_t ranks) {
  const at::Device device = job.settings.request.device;
  if (!arguments.run.machine) {
    if (!device.is_cpu())
      usage_error(field("parallel"),
                  "auto measures only processors; for {} give {}: a machine file, or the name of a "
                  "machine that ships",
                  device.str(), field("machine"));
    return this_host(arguments, ranks);
  }
  plan::Machine machine = plan::read_named_machine(*arguments.run.machine);
  if ((machine.device == "cpu") != device.is_cpu())
    usage_error(field("machine"), "{} is of {} devices, and the run is on {}", machine.name, machine.device,
                device.str());
  const Json threads = machine.text.value("calibration", Json::object()).value("threads", Json());
  if (device.is_cpu() && threads.is_number_integer() && threads != threads_of(arguments, ranks))
    say(arguments, fmt::format("warning: {} was measured with {} a rank, but the run has {}", machine.where,
                               counted(threads.get<int64_t>(), "thread"), threads_of(arguments, ranks)));
  return machine;
}

plan::PlannedLayout soonest(const job::GenerateArguments& arguments, const job::Job& job,
                            const plan::Machine& machine, int64_t ranks) {
  plan::PlanOptions options{.devices = ranks, .memory_bytes = {}};
  // Ranks share the memory that this host has now, which a machine file cannot know.
  if (job.settings.request.device.is_cpu())
    options.memory_bytes = static_cast<double>(total_memory()) / static_cast<double>(ranks);
  options.allows_stale = allows_stale(arguments.run.max_staleness.value_or("none"));
  options.uses_all = true;
  options.count = 1;
  options.compares = false;
  options.fixed = arguments.parallel;
  plan::Plan found =
      plan::make_plan(job.settings, job.model, machine, plan::links_of_machine(machine, ranks), options);
  if (!found.best.empty()) return std::move(found.best.front());
  // Whether there is enough memory is checked before the run, for whatever layout.
  if (found.least_memory) return std::move(*found.least_memory);
  usage_error(field("nproc"), "no {}layout of {} fits this request; give another number, or {} any",
              options.allows_stale ? "" : "exact ", counted(ranks, "rank"), field("max_staleness"));
}

// The plan of the run, for its report.
OrderedJson planned(const job::GenerateArguments& arguments, const job::Job& job,
                    const plan::Machine& machine, int64_t ranks) {
  const SuppressLog suppress_log;  // the run repeats the warnings
  const auto given = [&] {
    plan::Predictor predictor(job.settings, job.model, machine, plan::links_of_machine(machine, ranks));
    return plan::predict_wish(predictor, arguments.parallel, engine::workload(job.settings, job.model));
  };
  const plan::PlannedLayout layout =
      arguments.run.parallel ? soonest(arguments, job, machine, ranks) : given();
  OrderedJson json = plan::layout_json(layout);
  json["machine"] = machine.name;
  json["file"] = machine.where;
  json["basis"] = plan::basis_of(machine);
  json["wish"] = write_fields(parallel::parallel_fields(), layout.wish);
  return json;
}

// `is_kept`: the file is the one kept for this host; without it, another run would measure the host again.
std::string summary(const OrderedJson& plan, bool is_chosen, bool is_kept) {
  const auto seconds = [&](const char* name) { return seconds_text(plan.at(name).get<double>()); };
  const std::string options = options_text(plan.at("options")), basis = plan.at("basis").get<std::string>();
  return fmt::format("planned: {} on {}, {} s for the request and {} s for a step, by {} ({}){}{}",
                     plan.at("layout").get<std::string>(), counted(plan.at("devices").get<int64_t>(), "rank"),
                     seconds("seconds"), seconds("step_seconds"), basis, plan.at("file").get<std::string>(),
                     is_kept && basis.starts_with("poor")
                         ? "; delete it to have this host measured again when it is idle"
                         : "",
                     is_chosen && !options.empty() ? "; " + options + " asks for it" : "");
}

}  // namespace

bool allows_stale(const std::string& text) {
  if (text == "none") return false;
  if (text == "any") return true;
  int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0)
    usage_error(field("max_staleness"), "must be none, any or a number of steps, got '{}'", printable(text));
  return steps >= 1;  // no layout works with anything older than one step
}

void require_plan_options(const Json& given) {
  if (given.contains("max_staleness")) {
    if (!given.contains("parallel"))
      usage_error(field("max_staleness"), "is for {} auto; leave it out", field("parallel"));
    allows_stale(given["max_staleness"].get<std::string>());
  }
  if (!given.contains("parallel")) return;
  for (const FieldInfo& info : parallel::parallel_fields()) {
    const bool is_besides =
        std::find(kBesidesLayout.begin(), kBesidesLayout.end(), info.name) != kBesidesLayout.end();
    if (!is_besides && given.contains(info.name))
      usage_error(field("parallel"), "auto chooses the layout; leave out {}", field(info.name));
  }
}

void refuse_plan_of_ranks(const job::GenerateArguments& arguments) {
  for (const auto& [given, name] : {std::pair(arguments.run.parallel.has_value(), "parallel"),
                                    std::pair(arguments.run.machine.has_value(), "machine")}) {
    if (given)
      usage_error(field(name),
                  "plans ranks that {} starts on this host; for those of a launcher, tessera plan "
                  "finds the degrees to give",
                  field("nproc"));
  }
}

job::GenerateArguments with_plan(job::GenerateArguments arguments) {
  const bool chooses = arguments.run.parallel.has_value();
  if (!chooses && !arguments.run.machine) return arguments;
  if (chooses && !arguments.parallel.nproc)
    usage_error(field("parallel"), "auto needs {}: how many ranks to start", field("nproc"));
  const job::Job job = checked_job(arguments);
  const int64_t ranks = chooses ? *arguments.parallel.nproc : job.ranks();
  if (ranks == 1 && !arguments.run.machine) return arguments;  // there is nothing to choose
  const plan::Machine machine = machine_for(arguments, job, ranks);
  arguments.plan =
      OrderedJson::parse(launch::run_aside([&] { return planned(arguments, job, machine, ranks).dump(); }));
  if (chooses) {
    const std::optional<int64_t> nproc = arguments.parallel.nproc;
    arguments.parallel = read_fields(parallel::parallel_fields(), Json(arguments.plan.at("wish")));
    arguments.parallel.nproc = nproc;
  }
  arguments.plan.erase("wish");
  say(arguments, summary(arguments.plan, chooses, !arguments.run.machine));
  return arguments;
}

}  // namespace tessera::cli
