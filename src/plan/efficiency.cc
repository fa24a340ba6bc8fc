#include "plan/efficiency.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr double kAbovePoints = 1.5;
constexpr double kLeastShare = 1e-6, kMostShare = 1e3, kMostSize = 1e18;
constexpr double kLeastDistance = 1e-9;  // squared, in logarithms; closer sizes count as the same
constexpr size_t kNeighbours = 8;
constexpr double kLevel = 1e-2;  // the pull of a plane towards being level, relative to the weight of what it
                                 // fits
constexpr double kBeyond =
    0.25;  // how far a share may lie beyond its neighbours, relative to the logarithm of their ratio
// Other windows use other kernels: twice as many windows count as distant as 16 times as many rows.
constexpr double kOfWindows = 4;
constexpr const char* kDtypes[] = {"fp32", "fp16", "bf16", "fp8"};

double real(int64_t value) {
  return static_cast<double>(value);
}

constexpr const char* kHeads = "heads";

std::optional<WorkKind> find_kind(const std::string& name) {
  if (name == kHeads) return WorkKind::kVector;
  for (const WorkKind kind : kAllWorkKinds) {
    if (work_kind_name(kind) == name) return kind;
  }
  return std::nullopt;
}

bool is_share(const Json& value) {
  return value.is_number() && value.get<double>() >= kLeastShare && value.get<double>() <= kMostShare;
}

ShareTable constant(double share) {
  return {{{{}, std::log(share)}}};
}

ShareTable read_table(const JsonConfig& config, const std::string& key, WorkKind kind) {
  const size_t sizes = size_count(kind);
  const std::string expected =
      fmt::format("a share such as 0.5, or a list of points, each {} and the share there",
                  sizes == 1 ? "a size" : fmt::format("{} sizes", sizes));
  const Json& value = *config.value(key);
  if (is_share(value)) return constant(value.get<double>());
  if (!value.is_array() || value.empty()) config.fail(key, expected);
  ShareTable table;
  if (kind == WorkKind::kConvolution) table.scales = {1, 1, 1, kOfWindows};
  for (const Json& each : value) {
    const bool is_point =
        each.is_array() && each.size() == sizes + 1 && is_share(each.back()) &&
        std::all_of(each.begin(), each.end() - 1, [](const Json& size) {
          return size.is_number() && size.get<double>() > 0 && size.get<double>() <= kMostSize;
        });
    if (!is_point) config.fail(key, expected);
    ShareTable::Point& point = table.points.emplace_back();
    for (size_t i = 0; i < sizes; ++i) point.log_size.push_back(std::log(each[i].get<double>()));
    point.log_share = std::log(each.back().get<double>());
  }
  return table;
}

OrderedJson table_json(const ShareTable& table) {
  if (table.points.size() == 1 && table.points.front().log_size.empty())
    return std::exp(table.points.front().log_share);
  OrderedJson points = OrderedJson::array();
  for (const ShareTable::Point& point : table.points) {
    OrderedJson row = OrderedJson::array();
    for (const double size : point.log_size) row.push_back(std::round(std::exp(size) * 1000) / 1000);
    row.push_back(std::exp(point.log_share));
    points.push_back(std::move(row));
  }
  return points;
}

// Returns the steps from one size to another, in the table's distances.
std::vector<double> steps_between(const ShareTable& table, const std::vector<double>& from,
                                  const std::vector<double>& to) {
  std::vector<double> steps(from.size());
  for (size_t k = 0; k < from.size(); ++k)
    steps[k] = (to[k] - from[k]) * (table.scales.empty() ? 1 : table.scales[k]);
  return steps;
}

double squared(const std::vector<double>& steps) {
  return std::inner_product(steps.begin(), steps.end(), steps.begin(), 0.0);
}

// Solves a system of n equations; the matrix [n, n + 1] is symmetric and positive definite before its last
// column.
std::vector<double> solve(std::vector<std::vector<double>> rows) {
  const size_t n = rows.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t below = i + 1; below < n; ++below) {
      const double factor = rows[below][i] / rows[i][i];
      for (size_t k = i; k <= n; ++k) rows[below][k] -= factor * rows[i][k];
    }
  }
  std::vector<double> values(n);
  for (size_t i = n; i-- > 0;) {
    values[i] = rows[i][n];
    for (size_t k = i + 1; k < n; ++k) values[i] -= rows[i][k] * values[k];
    values[i] /= rows[i][i];
  }
  return values;
}

// The slopes of the plane through a point that best fits the others, each weighted by the inverse fourth
// power of its distance. In directions that the surrounding points do not determine, it is level.
std::vector<double> slopes_at(const ShareTable& table, const ShareTable::Point& point) {
  const size_t dims = point.log_size.size();
  std::vector<std::vector<double>> rows(dims, std::vector<double>(dims + 1));
  double weights = 0;
  for (const ShareTable::Point& other : table.points) {
    const std::vector<double> steps = steps_between(table, point.log_size, other.log_size);
    const double distance = squared(steps);
    if (distance < kLeastDistance) continue;
    const double weight = 1 / (distance * distance);
    weights += weight * distance;
    for (size_t k = 0; k < dims; ++k) {
      for (size_t l = 0; l < dims; ++l) rows[k][l] += weight * steps[k] * steps[l];
      rows[k][dims] += weight * steps[k] * (other.log_share - point.log_share);
    }
  }
  if (weights == 0) return std::vector<double>(dims);
  for (size_t k = 0; k < dims; ++k) rows[k][k] += kLevel * weights;
  return solve(std::move(rows));
}

}  // namespace

std::string work_kind_name(WorkKind kind) {
  switch (kind) {
    case WorkKind::kGemm:
      return "gemm";
    case WorkKind::kConvolution:
      return "convolution";
    case WorkKind::kAttention:
      return "attention";
    default:
      return "vector";
  }
}

WorkKind work_kind(const Work& work) {
  if (std::holds_alternative<AttentionWork>(work)) return WorkKind::kAttention;
  const auto* const gemm = std::get_if<GemmWork>(&work);
  if (gemm == nullptr) return WorkKind::kVector;
  return gemm->is_convolution ? WorkKind::kConvolution : WorkKind::kGemm;
}

std::string share_name(const Work& work) {
  const auto* const vector = std::get_if<VectorWork>(&work);
  return vector != nullptr && vector->is_by_head ? kHeads : work_kind_name(work_kind(work));
}

size_t size_count(WorkKind kind) {
  return kind == WorkKind::kVector ? 1 : kind == WorkKind::kGemm ? 3 : 4;
}

std::vector<double> size_of(const Work& work) {
  if (const auto* gemm = std::get_if<GemmWork>(&work)) {
    std::vector<double> size = {real(gemm->rows), real(gemm->inner), real(gemm->columns)};
    if (work_kind(work) == WorkKind::kConvolution) size.push_back(gemm->overlap);
    return size;
  }
  if (const auto* attention = std::get_if<AttentionWork>(&work))
    return {real(attention->batch) * real(attention->heads), real(attention->queries), real(attention->keys),
            real(attention->head_dim)};
  return {std::max(demand_of(work).elements, 1.0)};
}

double ShareTable::share(const std::vector<double>& size) const {
  // A point without sizes is the share for all sizes.
  const size_t dims = points.front().log_size.size();
  std::vector<double> at(dims);
  for (size_t k = 0; k < dims; ++k) {
    const auto [least, most] =
        std::minmax_element(points.begin(), points.end(),
                            [k](const Point& a, const Point& b) { return a.log_size[k] < b.log_size[k]; });
    at[k] = std::clamp(std::log(size[k]), least->log_size[k], most->log_size[k]);
  }
  std::vector<std::pair<double, const Point*>> nearest;
  for (const Point& point : points)
    nearest.emplace_back(squared(steps_between(*this, point.log_size, at)), &point);
  const size_t count = std::min(nearest.size(), kNeighbours);
  std::partial_sort(nearest.begin(), nearest.begin() + static_cast<std::ptrdiff_t>(count), nearest.end());
  double sum = 0, weights = 0, least = nearest.front().second->log_share, most = least;
  for (size_t i = 0; i < count; ++i) {
    const auto& [distance, point] = nearest[i];
    const std::vector<double> slopes =
        distance < kLeastDistance ? std::vector<double>(dims) : slopes_at(*this, *point);
    const std::vector<double> steps = steps_between(*this, point->log_size, at);
    const double value = std::inner_product(slopes.begin(), slopes.end(), steps.begin(), point->log_share);
    const double weight = 1 / std::pow(std::max(distance, kLeastDistance), 2);
    sum += weight * value;
    weights += weight;
    least = std::min(least, point->log_share);
    most = std::max(most, point->log_share);
  }
  // Planes must not lead far beyond the measurements around them.
  const double beyond = kBeyond * (most - least);
  return std::exp(std::clamp(sum / weights, least - beyond, most + beyond));
}

const ShareTable* Efficiency::find(const std::string& name, const std::string& dtype) const {
  const auto of_name = tables_.find(name);
  if (of_name == tables_.end()) return nullptr;
  auto found = of_name->second.find(dtype);
  if (found == of_name->second.end()) found = of_name->second.find("");
  return found == of_name->second.end() ? nullptr : &found->second;
}

double Efficiency::share(const Work& work, const std::string& dtype) const {
  const ShareTable* found = find(share_name(work), dtype);
  if (found == nullptr) found = find(work_kind_name(work_kind(work)), dtype);
  return found == nullptr ? 1 : found->share(size_of(work));
}

double Efficiency::most(WorkKind kind, const std::string& dtype) const {
  const ShareTable* const found = find(work_kind_name(kind), dtype);
  const ShareTable* const heads = kind == WorkKind::kVector ? find(kHeads, dtype) : nullptr;
  double most = found == nullptr ? 1 : 0;
  for (const ShareTable* const table : {found, heads}) {
    if (table == nullptr) continue;
    for (const ShareTable::Point& point : table->points)
      most = std::max(most, std::exp(point.log_share) * (table->points.size() > 1 ? kAbovePoints : 1));
  }
  return most;
}

double Efficiency::mean(WorkKind kind) const {
  const auto of_kind = tables_.find(work_kind_name(kind));
  if (of_kind == tables_.end()) return 1;
  double sum = 0, count = 0;
  for (const auto& [dtype, table] : of_kind->second) {
    for (const ShareTable::Point& point : table.points) sum += point.log_share;
    count += static_cast<double>(table.points.size());
  }
  return count > 0 ? std::exp(sum / count) : 1;
}

void Efficiency::set(WorkKind kind, double share) {
  tables_[work_kind_name(kind)] = {{"", constant(share)}};
  if (kind == WorkKind::kVector) tables_.erase(kHeads);
}

void Efficiency::scale(WorkKind kind, double factor) {
  ByDtype& of_kind = tables_[work_kind_name(kind)];
  if (of_kind.empty()) of_kind[""] = constant(1);
  const auto all = [&](ByDtype& tables) {
    for (auto& [dtype, table] : tables) {
      for (ShareTable::Point& point : table.points) point.log_share += std::log(factor);
    }
  };
  all(of_kind);
  const auto heads = tables_.find(kHeads);
  if (kind == WorkKind::kVector && heads != tables_.end()) all(heads->second);
}

Efficiency Efficiency::read(const JsonConfig& config) {
  Efficiency efficiency;
  for (const auto& [name, value] : config.values().items()) {
    const auto kind = find_kind(name);
    if (!kind)
      input_error(config.where(),
                  "'{}' is no kind of work; there are gemm, convolution, attention, vector, heads",
                  printable(name));
    ByDtype& of_kind = efficiency.tables_[name];
    if (!value.is_object()) {
      of_kind[""] = read_table(config, name, *kind);
      continue;
    }
    const JsonConfig by_dtype = config.object(name);
    for (const auto& [dtype, table] : value.items()) {
      if (std::find(std::begin(kDtypes), std::end(kDtypes), dtype) == std::end(kDtypes))
        by_dtype.fail(dtype, "fp32, fp16, bf16 or fp8 as its name");
      of_kind[dtype] = read_table(by_dtype, dtype, *kind);
    }
    if (of_kind.empty()) config.fail(name, "a share, or shares by dtype");
  }
  return efficiency;
}

OrderedJson Efficiency::json() const {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, by_dtype] : tables_) {
    OrderedJson& of_kind = json[name];
    for (const auto& [dtype, table] : by_dtype) {
      if (dtype.empty()) {
        of_kind = table_json(table);
      } else {
        of_kind[dtype] = table_json(table);
      }
    }
  }
  return json;
}

}  // namespace tessera::plan
