#include "plan/efficiency.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/text.h"

namespace tessera::plan {
namespace {

constexpr double kLeastShare = 1e-6, kMostShare = 1e3, kMostSize = 1e18;
constexpr double kLeastDistance = 1e-9;  // squared, in logarithms: it is the same size
constexpr const char* kDtypes[] = {"fp32", "fp16", "bf16", "fp8"};

double real(int64_t value) {
  return static_cast<double>(value);
}

std::optional<WorkKind> find_kind(const std::string& name) {
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
    for (const double size : point.log_size) row.push_back(std::round(std::exp(size)));
    row.push_back(std::exp(point.log_share));
    points.push_back(std::move(row));
  }
  return points;
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
  return gemm->overlap == 1 ? WorkKind::kGemm : WorkKind::kConvolution;
}

size_t size_count(WorkKind kind) {
  return kind == WorkKind::kAttention ? 4 : kind == WorkKind::kVector ? 1 : 3;
}

std::vector<double> size_of(const Work& work) {
  if (const auto* gemm = std::get_if<GemmWork>(&work))
    return {real(gemm->rows), real(gemm->inner), real(gemm->columns)};
  if (const auto* attention = std::get_if<AttentionWork>(&work))
    return {real(attention->batch) * real(attention->heads), real(attention->queries), real(attention->keys),
            real(attention->head_dim)};
  return {std::max(demand_of(work).elements, 1.0)};
}

double ShareTable::share(const std::vector<double>& size) const {
  double sum = 0, weights = 0;
  for (const Point& point : points) {
    double distance = 0;
    for (size_t i = 0; i < point.log_size.size(); ++i) {
      const double difference = std::log(size[i]) - point.log_size[i];
      distance += difference * difference;
    }
    if (distance < kLeastDistance) return std::exp(point.log_share);
    const double weight = 1 / (distance * distance);
    sum += weight * point.log_share;
    weights += weight;
  }
  return std::exp(sum / weights);
}

double Efficiency::share(const Work& work, const std::string& dtype) const {
  const auto of_kind = tables_.find(work_kind(work));
  if (of_kind == tables_.end()) return 1;
  auto found = of_kind->second.find(dtype);
  if (found == of_kind->second.end()) found = of_kind->second.find("");
  return found == of_kind->second.end() ? 1 : found->second.share(size_of(work));
}

void Efficiency::set(WorkKind kind, double share) {
  tables_[kind] = {{"", constant(share)}};
}

void Efficiency::scale(WorkKind kind, double factor) {
  auto& of_kind = tables_[kind];
  if (of_kind.empty()) of_kind[""] = constant(1);
  for (auto& [dtype, table] : of_kind) {
    for (ShareTable::Point& point : table.points) point.log_share += std::log(factor);
  }
}

Efficiency Efficiency::read(const JsonConfig& config) {
  Efficiency efficiency;
  for (const auto& [name, value] : config.values().items()) {
    const auto kind = find_kind(name);
    if (!kind)
      input_error(config.where(), "'{}' is no kind of work; there are gemm, convolution, attention, vector",
                  printable(name));
    auto& of_kind = efficiency.tables_[*kind];
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
  for (const auto& [kind, by_dtype] : tables_) {
    OrderedJson& of_kind = json[work_kind_name(kind)];
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
