#include "cli/trace_programs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "engine/component_cache.h"
#include "engine/observer.h"
#include "job/outputs.h"
#include "launch/signals.h"
#include "launch/streams.h"
#include "plan/record_program.h"
#include "plan/stablehlo.h"

namespace tessera::cli {
namespace {

// Returns the path for programs without ".mlir".
std::string stem_of(const TraceArguments& arguments) {
  const std::string& name = *arguments.stablehlo;
  constexpr std::string_view kSuffix = ".mlir";
  if (!name.ends_with(kSuffix) || name.size() == kSuffix.size())
    usage_error("--stablehlo", "must name a file that ends in .mlir, got '{}'", printable(name));
  job::require_result_path("--stablehlo", name);
  return name.substr(0, name.size() - kSuffix.size());
}

bool is_description(const std::string& path) {
  try {
    return plan::is_program_description(read_json(path));
  } catch (const Error&) {
    return false;
  }
}

plan::ProgramInfo info_of(const TraceArguments& arguments, const job::Job& job) {
  return {.model = job.model.family->class_name,
          .part = arguments.part.value_or("denoiser"),
          .dtype = engine::dtype_name(*job.settings.request.dtype)};
}

// `path` is the program's path without ".mlir".
void require_program_path(const std::string& path) {
  for (const char* const suffix : {".mlir", ".json"}) job::require_result_path("--stablehlo", path + suffix);
  const std::string description = path + ".json";
  if (type_at(description) == std::filesystem::file_type::regular && !is_description(description))
    usage_error("--stablehlo",
                "writes the description of the program to '{}', which holds something else; move that file, "
                "or name another FILE.mlir",
                printable(description));
}

std::string ranks_text(const OrderedJson& description) {
  const int64_t world_size = description.at("world_size");
  if (description.contains("mesh")) return counted(world_size, "device");
  if (world_size == 1) return counted(world_size, "rank");
  return fmt::format("rank {} of {}, {}", description.at("rank").get<int64_t>(), world_size,
                     counted(std::ssize(description.at("partitions")), "partition"));
}

// "p.mlir: PixArtSigmaPipeline, denoiser, fp32, 1 rank: 62 arguments, 61.2 KiB of weights, 40.1 KiB of text"
std::string summary_of(const std::string& path, const plan::Program& program) {
  const OrderedJson& description = program.description;
  const auto word = [&](const char* key) { return description.at(key).get<std::string>(); };
  return fmt::format(
      "{}.mlir: {}, {}, {}, {}: {}, {} of weights, {} of text\n", path, word("model"), word("part"),
      word("dtype"), ranks_text(description), counted(std::ssize(description.at("arguments")), "argument"),
      bytes_text(static_cast<uint64_t>(program.weights_bytes)), bytes_text(program.text.size()));
}

// Writes a program and its description: both, or neither.
void write_program(const std::string& path, const plan::Program& program, bool is_quiet) {
  if (launch::interrupted()) throw engine::Cancelled();
  AtomicFile text(path + ".mlir"), description(path + ".json");
  text.write(program.text);
  description.write(program.description.dump() + '\n');
  text.commit();
  description.commit();
  if (!is_quiet) launch::say(summary_of(path, program));
  fmt::print("{}.mlir\n", path);
}

// Returns the two numbers of a text such as "2x4", or nothing for any other text.
std::optional<std::array<int64_t, 2>> two_numbers(std::string_view text, char between) {
  std::array<int64_t, 2> numbers{};
  const char *const end = text.data() + text.size(), *at = text.data();
  for (size_t i = 0; i < 2; ++i) {
    if (at == end || *at < '0' || *at > '9') return std::nullopt;
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    const bool is_followed = i == 0 ? next != end && *next == between : next == end;
    if (error != std::errc() || !is_followed) return std::nullopt;
    at = next + 1;
  }
  return numbers;
}

std::array<int64_t, 2> mesh_of(const std::string& text) {
  const auto sizes = two_numbers(text, 'x');
  if (!sizes || sizes->front() < 1 || sizes->back() < 1)
    usage_error("--mesh", "must be two sizes such as 2x4, got '{}'", printable(text));
  return *sizes;
}

// The first and the last block of each stage.
std::vector<std::array<int64_t, 2>> stages_of(const std::string& text, const job::Job& job) {
  if (!job.model.shape.has_streams)
    usage_error(
        "--stages",
        "divides a model between its blocks, which the skip connections of a U-Net join; leave it out");
  const int64_t blocks = job.model.shape.blocks;
  std::vector<std::array<int64_t, 2>> stages;
  int64_t next = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string each = text.substr(begin, end - begin);
    const auto range = two_numbers(each, '-');
    if (!range || range->back() < range->front())
      usage_error("--stages", "must be first and last blocks such as 0-13,14-27, got '{}'", printable(text));
    if (range->front() != next)
      usage_error("--stages", "'{}' begins at block {} where block {} is next", each, range->front(), next);
    next = range->back() + 1;
    stages.push_back(*range);
    begin = end + 1;
  }
  if (next != blocks)
    usage_error("--stages", "end at block {}, but the last block of the model is {}", next - 1, blocks - 1);
  return stages;
}

// Writes programs with the shardings of all ranks: one, or one for each stage.
void write_sharded_programs(const TraceArguments& arguments, const job::Job& job) {
  if (*arguments.sharding != "sdy")
    usage_error("--sharding", "must be sdy, got '{}'", printable(*arguments.sharding));
  if (arguments.rank)
    usage_error("--rank",
                "does not go with --sharding, which writes one program for all ranks; leave it out");
  const std::string stem = stem_of(arguments);
  const plan::ProgramInfo info = info_of(arguments, job);
  plan::ShardingOptions options;
  options.sequence_parallel = arguments.sequence_parallel;
  if (arguments.mesh) options.mesh = mesh_of(*arguments.mesh);
  std::vector<std::array<int64_t, 2>> stages;
  if (arguments.stages) {
    if (info.part != engine::kDenoiser)
      usage_error("--stages",
                  "divides the blocks of the denoiser, and --part names '{}'; leave one of the two out",
                  info.part);
    stages = stages_of(*arguments.stages, job);
  }
  const auto path_of = [&](size_t i) { return stages.empty() ? stem : fmt::format("{}.{}", stem, i); };
  for (size_t i = 0; i < std::max<size_t>(stages.size(), 1); ++i) require_program_path(path_of(i));
  for (const auto& [first, last] : stages) options.stage_blocks.push_back(last - first + 1);
  const std::vector<plan::ShardedGraph> graphs =
      plan::record_sharded_programs(info.part, job.settings, job.model, job.layout, options);
  std::vector<plan::Program> programs;
  for (size_t i = 0; i < graphs.size(); ++i) {
    programs.push_back(plan::stablehlo_program({&graphs[i].graph, 1}, 0, info, &graphs[i].sharding));
    if (!stages.empty()) programs[i].description["blocks"] = stages[i];
  }
  for (size_t i = 0; i < programs.size(); ++i) write_program(path_of(i), programs[i], arguments.quiet);
}

// Writes the programs of these ranks.
void write_programs_of_ranks(const TraceArguments& arguments, const job::Job& job,
                             const std::vector<int64_t>& ranks) {
  const std::string stem = stem_of(arguments);
  plan::ProgramInfo info = info_of(arguments, job);
  const auto path_of = [&](int64_t rank) {
    return job.ranks() == 1 ? stem : fmt::format("{}.{}", stem, rank);
  };
  for (const int64_t rank : ranks) require_program_path(path_of(rank));
  std::vector<plan::Graph> of_ranks;
  for (int64_t rank = 0; rank < job.ranks(); ++rank) {
    if (launch::interrupted()) throw engine::Cancelled();
    of_ranks.push_back(plan::record_program(info.part, job.settings, job.model, job.layout, rank));
  }
  for (const int64_t rank : ranks) {
    info.rank = rank;
    info.world_size = job.ranks();
    write_program(path_of(rank), plan::stablehlo_program(of_ranks, static_cast<size_t>(rank), info),
                  arguments.quiet);
  }
}

}  // namespace

void require_options_of_programs(const TraceArguments& arguments) {
  if (!arguments.stablehlo && (arguments.part || arguments.sharding))
    usage_error(arguments.part ? "--part" : "--sharding", "needs --stablehlo, which writes a program");
  if ((arguments.mesh || arguments.stages || arguments.sequence_parallel) && !arguments.sharding)
    usage_error(arguments.mesh     ? "--mesh"
                : arguments.stages ? "--stages"
                                   : "--sequence-parallel",
                "needs --sharding sdy, which writes a program with shardings");
  if (arguments.stablehlo && (arguments.output || arguments.json || arguments.graph))
    usage_error(arguments.output ? "--output"
                : arguments.json ? "--json"
                                 : "--graph",
                "does not go with --stablehlo, which writes a program instead of a trace; leave it "
                "out");
}

void write_programs(const TraceArguments& arguments, const job::Job& job, const std::vector<int64_t>& ranks) {
  if (arguments.sharding) return write_sharded_programs(arguments, job);
  write_programs_of_ranks(arguments, job, ranks);
}

}  // namespace tessera::cli
