#include "cli/measured_runs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "cli/commands.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "job/traced_job.h"
#include "plan/find_machine.h"
#include "plan/planner/prediction.h"
#include "plan/planner/recorded_run.h"
#include "plan/trace_views.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Unit = Table::Column::Unit;

constexpr uint64_t kMostTableBytes = 16 << 20;
constexpr std::array kColumns = {"model", "height",  "width", "frames", "steps",
                                 "batch", "devices", "flags", "seconds"};

// Returns the cells of a line; some may be in double quotes.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (is_quoted && i + 1 < line.size() && line[i + 1] == '"')
        cells.back() += line[++i];
      else
        is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

struct Line {
  int64_t number = 0;
  std::map<std::string, std::string> cells;  // by column
};

std::vector<Line> read_lines(const std::string& path) {
  const std::string text = read_file_or_stream(path, kMostTableBytes);
  std::vector<Line> lines;
  std::vector<std::string> header;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r,") == std::string::npos || line.front() == '#') continue;
    const std::vector<std::string> cells = cells_of(line);
    if (header.empty()) {
      header = cells;
      for (const char* const column : kColumns) {
        if (std::find(header.begin(), header.end(), column) == header.end())
          input_error(path, "line {}: the header has no column '{}'; it needs {}", number, column,
                      fmt::join(kColumns, ","));
      }
      continue;
    }
    if (cells.size() != header.size())
      input_error(path, "line {}: has {} cells, and the header has {}", number, cells.size(), header.size());
    Line& made = lines.emplace_back();
    made.number = number;
    for (size_t i = 0; i < cells.size(); ++i) made.cells[header[i]] = cells[i];
  }
  if (header.empty()) input_error(path, "is empty; its first line is {}", fmt::join(kColumns, ","));
  if (lines.empty()) input_error(path, "has no row below its header");
  return lines;
}

std::string place_of(const std::string& path, const Line& line) {
  return fmt::format("{}, line {}", path, line.number);
}

double seconds_of_row(const std::string& path, const Line& line) {
  const std::string& text = line.cells.at("seconds");
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) || seconds > 1e9)
    input_error(place_of(path, line), "'seconds' must be a positive number, got '{}'", printable(text));
  return seconds;
}

// The command line of `tessera plan` for a row.
std::vector<std::string> words_of(const std::string& path, const Line& line, const std::string& machine) {
  std::string model = line.cells.at("model");
  const fs::path beside = fs::path(path).parent_path() / model;
  std::error_code code;
  if (!fs::exists(model, code) && fs::exists(beside, code)) model = beside.string();
  std::vector<std::string> words = {"plan", "--machine", machine, "--model", model};
  const auto add = [&](const char* column, const char* option) {
    const std::string& value = line.cells.at(column);
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("height", "--height");
  add("width", "--width");
  if (line.cells.at("frames") != "1") add("frames", "--num-frames");
  add("steps", "--num-inference-steps");
  add("batch", "--images");
  std::string word;
  for (const char c : line.cells.at("flags") + ' ') {
    if (c != ' ' && c != '\t') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

job::Job job_of(const std::string& path, const Line& line, const std::string& machine) {
  try {
    auto arguments = std::get<PlanArguments>(parse_arguments(words_of(path, line, machine)));
    const plan::Machine read = plan::read_named_machine(machine);
    take_from_machine(arguments, read);
    return job::traced_job(arguments.run);
  } catch (const Error& error) {
    throw Error(error.kind(), place_of(path, line), error.message());
  }
}

plan::MeasuredRun run_of(const std::string& path, const Line& line, const std::string& machine_name,
                         const plan::Machine& machine, const std::vector<plan::Link>& links) {
  const job::Job job = job_of(path, line, machine_name);
  const std::string& devices = line.cells.at("devices");
  if (!devices.empty() && devices != std::to_string(job.ranks()))
    input_error(place_of(path, line), "'devices' is {}, but the flags are for {}", printable(devices),
                counted(job.ranks(), "device"));
  plan::Predictor predictor(job.settings, job.model, machine, links);
  plan::MeasuredRun run;
  run.name = fmt::format("{} x {}{}, {}", job.settings.height, job.settings.width,
                         job.settings.all_frames() > 1 ? fmt::format(" x {}", job.settings.all_frames()) : "",
                         line.cells.at("flags").empty() ? "one device" : line.cells.at("flags"));
  run.seconds = seconds_of_row(path, line);
  run.devices = job.ranks();
  run.pieces = predictor.pieces(job.layout);
  return run;
}

// A run counts as missed if the fit is too long or too short by this factor. Among the fits to published runs
// that ship, the worst rows are 1.25 and 1 / 1.28.
constexpr double kMuch = 1.35;

// What all records of a fit have in common, taken from the first of them.
struct Common {
  std::string path;
  plan::RecordedOn on;
};

std::string threads_text(int64_t threads) {
  return counted(threads, "thread") + " a rank";
}

void require_of(const plan::Machine& machine, const plan::RecordedOn& on, const std::string& path) {
  if (machine.device != "cpu")
    input_error(path, "the run was on processors, like all recorded runs, but {} is a machine of {}",
                machine.where, machine.device);
  if (!machine.gemm_rates.contains(on.dtype))
    input_error(path, "the run was in {}, for which {} has no rate", on.dtype, machine.where);
  const JsonConfig text(machine.text, machine.where);
  const Json* const calibration = text.value("calibration");
  if (calibration == nullptr || !calibration->is_object()) return;
  const auto threads = calibration->find("threads");
  if (threads != calibration->end() && *threads != on.threads)
    input_error(path, "the run had {}, but {} was measured with {}", threads_text(on.threads), machine.where,
                threads->dump());
}

void require_alike(const Common& first, const plan::RecordedOn& on, const std::string& path) {
  if (on.dtype != first.on.dtype)
    input_error(path, "the run was in {}, but {} has a run in {}; fit each dtype by itself", on.dtype,
                first.path, first.on.dtype);
  if (on.threads != first.on.threads)
    input_error(path, "the run had {}, but the run of {} had {}; a device is a rank with its threads",
                threads_text(on.threads), first.path, first.on.threads);
}

}  // namespace

RunsFit fit_table(const std::string& path, const std::string& machine_name) {
  const std::vector<Line> lines = read_lines(path);
  const plan::Machine machine = plan::read_named_machine(machine_name);
  RunsFit fitted;
  for (const Line& line : lines)
    fitted.runs.push_back(run_of(path, line, machine_name, machine, machine.links));
  const bool has_ranks = std::any_of(fitted.runs.begin(), fitted.runs.end(),
                                     [](const plan::MeasuredRun& run) { return run.devices > 1; });
  if (has_ranks && machine.links.empty())
    input_error(machine.where, "'links' is empty, but rows of {} are of several devices", path);
  fitted.fit = plan::fit_machine(machine, machine.links, fitted.runs);
  return fitted;
}

RunsFit fit_records(const std::vector<std::string>& paths, const std::string& machine_name) {
  const plan::Machine machine = plan::read_named_machine(machine_name);
  plan::OperationCosts costs(machine);
  RunsFit fitted;
  std::optional<Common> first;
  for (const std::string& path : paths) {
    const plan::Trace trace = plan::read_trace_file(path);
    const plan::RecordedOn on = plan::recorded_on(trace, path);
    require_of(machine, on, path);
    if (first) require_alike(*first, on, path);
    if (!first) first = Common{path, on};
    if (trace.world_size > 1 && machine.links.empty())
      input_error(machine.where, "'links' is empty, but the run of {} is on {} ranks", path,
                  trace.world_size);
    for (plan::MeasuredRun& run : plan::measured_phases(trace, costs, path))
      fitted.runs.push_back(std::move(run));
  }
  fitted.fit = plan::fit_machine(machine, machine.links, fitted.runs);
  return fitted;
}

OrderedJson fitted_machine(const RunsFit& fitted) {
  const plan::Machine& machine = fitted.fit.machine;
  OrderedJson json = OrderedJson::parse(machine.text.dump());
  json["name"] = machine.name;
  json["efficiency"] = machine.efficiency.json();
  json["launch_us"] = machine.launch * 1e6;
  json["links"] = plan::links_json(machine.links);
  OrderedJson& told = json["calibration"] = OrderedJson::object();
  told["fitted"] = OrderedJson::object();
  for (const plan::FittedNumber& number : fitted.fit.numbers) {
    OrderedJson& own = told["fitted"][number.name];
    own["value"] = number.value;
    if (!number.unit.empty()) own["unit"] = number.unit;
    if (number.factor) own["factor"] = *number.factor;
  }
  told["rows"] = runs_table(fitted).json();
  return json;
}

std::string numbers_text(const RunsFit& fitted) {
  std::string text;
  for (const plan::FittedNumber& number : fitted.fit.numbers) {
    text += fmt::format("{:<24} {:.4g}{}{}{}\n", number.name, number.value,
                        number.unit.empty() ? "" : " " + number.unit,
                        number.factor ? fmt::format(" ({:.3f} x where the fit began)", *number.factor) : "",
                        number.is_told ? "" : "; no run depends on it");
  }
  return text;
}

std::string misses_text(const RunsFit& fitted) {
  const auto ratio = [&](size_t run) { return fitted.fit.seconds[run] / fitted.runs[run].seconds; };
  size_t worst = 0;
  int64_t count = 0;
  for (size_t i = 0; i < fitted.runs.size(); ++i) {
    const auto distance = [&](size_t run) { return std::abs(std::log(ratio(run))); };
    if (distance(i) > std::log(kMuch)) ++count;
    if (distance(i) > distance(worst)) worst = i;
  }
  if (count == 0) return "";
  return fmt::format(
      "warning: the fit is far off for {} of {}: {} is predicted at {:.2f} times what it "
      "took; such a run was disturbed, or was not as described, and the numbers are of "
      "little use\n",
      count, counted(std::ssize(fitted.runs), "run"), fitted.runs[worst].name, ratio(worst));
}

Table runs_table(const RunsFit& fitted) {
  Table table({{"run", "run"},
               {"devices", "devices"},
               {"measured_seconds", "measured", Unit::kSeconds},
               {"predicted_seconds", "predicted", Unit::kSeconds},
               {"error", "error", Unit::kShare}});
  for (size_t i = 0; i < fitted.runs.size(); ++i) {
    const plan::MeasuredRun& run = fitted.runs[i];
    table.add(
        {run.name, run.devices, run.seconds, fitted.fit.seconds[i], fitted.fit.seconds[i] / run.seconds - 1});
  }
  return table;
}

}  // namespace tessera::cli
