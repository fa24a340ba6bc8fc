#include "cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "cli/field_options.h"
#include "cli/trace_programs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "engine/find_model.h"
#include "engine/lone_denoiser.h"
#include "engine/observer.h"
#include "job/job.h"
#include "job/outputs.h"
#include "job/progress.h"
#include "job/recording.h"
#include "job/trace_cache.h"
#include "job/traced_job.h"
#include "launch/signals.h"
#include "launch/streams.h"
#include "plan/trace_model.h"

namespace tessera::cli {
namespace {

std::vector<int64_t> ranks_of(const std::optional<std::string>& text, int64_t count) {
  std::vector<int64_t> ranks;
  if (!text || *text == "all") {
    for (int64_t rank = 0; rank < count; ++rank) ranks.push_back(rank);
    return ranks;
  }
  int64_t rank = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), rank);
  if (error != std::errc() || end != text->data() + text->size() || rank < 0 || rank >= count)
    usage_error("--rank", "must be 'all' or {}, got '{}'",
                count == 1 ? "0" : fmt::format("a rank from 0 to {}", count - 1), printable(*text));
  return {rank};
}

// What a rank does in a phase.
struct Sums {
  int64_t operations = 0, flops = 0, collectives = 0, sent = 0;
};

Sums sums_of(const plan::RankTrace& trace, plan::Phase phase) {
  Sums sums;
  for (const plan::Event& event : trace.events) {
    if (event.phase != phase) continue;
    if (const auto* operation = std::get_if<plan::OperationEvent>(&event.what)) {
      ++sums.operations;
      sums.flops += operation->flops;
    } else if (const auto* collective = std::get_if<plan::CollectiveEvent>(&event.what)) {
      ++sums.collectives;
      sums.sent += collective->bytes;
    }
  }
  return sums;
}

// Returns what a reader of the summary has to know besides its numbers.
std::vector<std::string> notes_of(const job::Job& job, const plan::Trace& trace) {
  std::vector<std::string> notes;
  if (trace.traced_steps < trace.steps)
    notes.push_back(fmt::format(
        "denoise: of {}, {} traced", counted(trace.steps, "step"),
        trace.traced_steps == 1 ? "the first is" : fmt::format("the first {} are", trace.traced_steps)));
  const engine::Settings& settings = job.settings;
  if (const int64_t groups = plan::groups_of(settings, job.layout); groups > 1)
    notes.push_back(fmt::format("pictures: the first of {} groups, which follow one another", groups));
  if (job.model.parts.size() == 1) {  // what the config of a denoiser leaves open
    notes.push_back(fmt::format(
        "only the denoiser, with the defaults of {}: prompts of {} tokens, {}, {} pixels to "
        "a latent",
        job.model.family->title, settings.max_sequence_length, settings.scheduler, job.model.scale.pixels));
  } else if (!plan::encodes_prompts(job.model)) {
    notes.push_back(fmt::format("without a tokenizer: prompts of {} tokens, whose encoding is left out",
                                settings.max_sequence_length));
  }
  return notes;
}

void print_summary(const job::Job& job, const plan::Trace& trace) {
  std::string text = fmt::format("{}, {}, {}\n", trace.model, engine::dtype_name(*job.settings.request.dtype),
                                 counted(trace.world_size, "rank"));
  text += fmt::format("{:>4}  {:<8} {:>10} {:>10} {:>11} {:>10} {:>10} {:>10}\n", "rank", "phase",
                      "operations", "FLOP", "collectives", "sent", "weights", "peak");
  for (const plan::RankTrace& rank : trace.ranks) {
    for (const plan::Phase phase : plan::kAllPhases) {
      const Sums sums = sums_of(rank, phase);
      if (sums.operations == 0) continue;
      text += fmt::format("{:>4}  {:<8} {:>10} {:>10} {:>11} {:>10} {:>10} {:>10}\n", rank.rank,
                          phase_name(phase), sums.operations, count_text(static_cast<uint64_t>(sums.flops)),
                          sums.collectives, bytes_text(static_cast<uint64_t>(sums.sent)),
                          bytes_text(static_cast<uint64_t>(rank.weights_bytes[static_cast<size_t>(phase)])),
                          bytes_text(static_cast<uint64_t>(rank.peak_bytes(phase))));
    }
  }
  for (const std::string& note : notes_of(job, trace)) text += note + '\n';
  launch::say(text);
}

OrderedJson summary_json(const job::Job& job, const plan::Trace& trace, const std::string& path) {
  OrderedJson rows = OrderedJson::array();
  for (const plan::RankTrace& rank : trace.ranks) {
    for (const plan::Phase phase : plan::kAllPhases) {
      const Sums sums = sums_of(rank, phase);
      if (sums.operations == 0) continue;
      rows.push_back({{"rank", rank.rank},
                      {"phase", plan::phase_name(phase)},
                      {"operations", sums.operations},
                      {"flops", sums.flops},
                      {"collectives", sums.collectives},
                      {"sent_bytes", sums.sent},
                      {"weights_bytes", rank.weights_bytes[static_cast<size_t>(phase)]},
                      {"peak_bytes", rank.peak_bytes(phase)}});
    }
  }
  return {{"output", path},
          {"model", trace.model},
          {"dtype", engine::dtype_name(*job.settings.request.dtype)},
          {"world_size", trace.world_size},
          {"steps", trace.steps},
          {"traced_steps", trace.traced_steps},
          {"phases", std::move(rows)},
          {"notes", notes_of(job, trace)}};
}

// Returns the trace kept for the same inputs, or traces the ranks and keeps the result.
std::vector<plan::RankTrace> trace_ranks(const job::Job& job, const std::vector<int64_t>& ranks,
                                         plan::Trace trace, const TraceArguments& arguments,
                                         const job::Progress& progress) {
  const bool uses_cache = arguments.cache;
  const std::string inputs = uses_cache ? job::trace_inputs(job, ranks, arguments.graph) : "";
  if (uses_cache) {
    if (auto kept = job::read_kept_trace(inputs)) return std::move(kept->ranks);
  }
  const int64_t steps = plan::steps_to_trace(job.settings, job.layout);
  for (const int64_t rank : ranks) {
    if (launch::interrupted()) throw engine::Cancelled();
    trace.ranks.push_back(
        plan::trace_rank(job.settings, job.model, job.layout, rank, steps, {.keeps_graph = arguments.graph}));
  }
  // A trace with warnings is not kept, so that they are printed again next time.
  if (uses_cache && progress.warnings().empty()) job::keep_trace(inputs, trace);
  return std::move(trace.ranks);
}

}  // namespace

const Fields<TraceArguments>& trace_fields() {
  using T = TraceArguments;
  static const Fields<T> fields = {
      plain_field(&T::rank, {"rank", "Rank to trace, or all [all]", FieldGroup::kOutput, "R"}),
      plain_field(&T::output, {"output", "File for the trace, JSON; - for standard output [trace.json]",
                               FieldGroup::kOutput, "FILE"}),
      plain_field(&T::graph, {"graph",
                              "Also write to the trace which values a step of the denoiser reads and writes "
                              "(docs/trace.md)",
                              FieldGroup::kOutput}),
      plain_field(&T::stablehlo,
                  {"stablehlo",
                   "Write a part of the model as a program in StableHLO, and its description beside "
                   "it, instead of a trace (docs/stablehlo.md)",
                   FieldGroup::kOutput, "FILE.mlir"}),
      plain_field(&T::part,
                  {"part",
                   "Part for --stablehlo: denoiser (one evaluation), first_step (with PipeFusion and "
                   "displaced patches: returns the caches that denoiser takes), decoder (a picture, or "
                   "a clip), or a text encoder by its name in model_index.json [denoiser]",
                   FieldGroup::kOutput, "NAME"}),
      plain_field(&T::sharding,
                  {"sharding",
                   "sdy: with --stablehlo, write one program of the whole model with Shardy's shardings of "
                   "these methods, instead of one for each rank",
                   FieldGroup::kOutput, "sdy"}),
      plain_field(
          &T::mesh,
          {"mesh", "With --sharding: the mesh has axes x and y of these sizes [an axis for each method]",
           FieldGroup::kOutput, "XxY"}),
      plain_field(&T::stages,
                  {"stages",
                   "With --sharding: write a program for each stage of the denoiser, given by its first "
                   "and last block, such as 0-13,14-27 [one program]",
                   FieldGroup::kOutput, "A-B,..."}),
      plain_field(&T::sequence_parallel,
                  {"sequence_parallel",
                   "With --sharding and tensor parallelism: divide the activations between its layers "
                   "by tokens, as in Megatron-LM",
                   FieldGroup::kOutput}),
      plain_field(&T::json, {"json", "Print the summary as JSON on standard output, instead of the path",
                             FieldGroup::kOutput}),
      plain_field(&T::quiet, {"quiet", "Print no summary on stderr", FieldGroup::kOutput}),
      plain_field(&T::cache,
                  {"cache", "Use the trace kept from an earlier command with the same inputs [yes]",
                   FieldGroup::kOutput},
                  "Trace again, and do not keep the result")};
  return fields;
}

void run_trace(const TraceArguments& arguments) {
  job::Progress progress(/*quiet=*/true, option_name);  // prints warnings
  const job::Job job = job::traced_job(arguments.run);
  const std::vector<int64_t> ranks = ranks_of(arguments.rank, job.ranks());
  require_options_of_programs(arguments);
  if (arguments.stablehlo) {
    for (const std::string& warning : job.settings.warnings) log_warning("{}", warning);
    return write_programs(arguments, job, ranks);
  }
  const std::string path = arguments.output.value_or("trace.json");
  job::require_result_path("--output", path);
  if (arguments.json && (job::is_standard_output(path) || path == "/dev/stdout"))
    usage_error("--json", "prints the summary on standard output, where the trace goes; name a file for it");
  plan::Trace trace = job::trace_without_ranks(job);
  trace.ranks = trace_ranks(job, ranks, trace, arguments, progress);
  for (const std::string& warning : job.settings.warnings) log_warning("{}", warning);
  const bool is_file = job::write_result(path, plan::write_trace(trace));
  if (!arguments.quiet) print_summary(job, trace);
  if (arguments.json) {
    fmt::print("{}\n", summary_json(job, trace, path).dump());
  } else if (is_file) {
    fmt::print("{}\n", path);
  }
}

}  // namespace tessera::cli
