#include "serve/metrics.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tessera::serve {
namespace {

// Returns the text with `characters` escaped by a backslash; a line feed becomes "\n".
std::string escaped(std::string_view text, std::string_view characters) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (characters.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

Metrics::Family& Metrics::counter(std::string name, std::string help, std::vector<std::string> labels) {
  return declare(Kind::kCounter, std::move(name), std::move(help), {}, std::move(labels));
}

Metrics::Family& Metrics::gauge(std::string name, std::string help, std::vector<std::string> labels) {
  return declare(Kind::kGauge, std::move(name), std::move(help), {}, std::move(labels));
}

Metrics::Family& Metrics::histogram(std::string name, std::string help, std::vector<double> bounds,
                                    std::vector<std::string> labels) {
  TESSERA_CHECK(std::is_sorted(bounds.begin(), bounds.end()), "bounds of {}", name);
  return declare(Kind::kHistogram, std::move(name), std::move(help), std::move(bounds), std::move(labels));
}

Metrics::Family& Metrics::declare(Kind kind, std::string name, std::string help, std::vector<double> bounds,
                                  std::vector<std::string> labels) {
  const std::lock_guard lock(mutex_);
  for (const Family& family : families_) TESSERA_CHECK(family.name_ != name, "{} is declared twice", name);
  Family& family = families_.emplace_back(kind, std::move(name), std::move(help), std::move(bounds),
                                          std::move(labels), mutex_);
  if (family.names_.empty()) family.series({});
  return family;
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Family& family : families_) family.write(text);
  return text;
}

Metrics::Family::Family(Kind kind, std::string name, std::string help, std::vector<double> bounds,
                        Labels names, std::mutex& mutex)
    : kind_(kind),
      name_(std::move(name)),
      help_(std::move(help)),
      bounds_(std::move(bounds)),
      names_(std::move(names)),
      mutex_(mutex) {}

Metrics::Family::Series& Metrics::Family::series(const Labels& labels) {
  TESSERA_CHECK(labels.size() == names_.size(), "{} has other labels", name_);
  Series& series = series_[labels];
  if (kind_ == Kind::kHistogram) series.counts.resize(bounds_.size() + 1);
  return series;
}

void Metrics::Family::add(const Labels& labels, double value) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(kind_ != Kind::kHistogram && (kind_ == Kind::kGauge || value >= 0), "{} cannot add {}", name_,
                value);
  series(labels).value += value;
}

void Metrics::Family::set(const Labels& labels, double value) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(kind_ == Kind::kGauge, "{} is no gauge", name_);
  series(labels).value = value;
}

void Metrics::Family::observe(const Labels& labels, double value) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(kind_ == Kind::kHistogram, "{} is no histogram", name_);
  Series& found = series(labels);
  found.value += value;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++found.counts[static_cast<size_t>(bucket - bounds_.begin())];
}

std::string Metrics::Family::label_text(const Labels& values, std::string_view bound) const {
  std::string text;
  for (size_t i = 0; i < names_.size(); ++i)
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", names_[i], escaped(values[i], "\\\""));
  if (!bound.empty()) text += fmt::format("{}le=\"{}\"", text.empty() ? "" : ",", bound);
  return text.empty() ? text : "{" + text + "}";
}

void Metrics::Family::write(std::string& text) const {
  if (series_.empty()) return;
  const char* const kind = kind_ == Kind::kCounter ? "counter"
                           : kind_ == Kind::kGauge ? "gauge"
                                                   : "histogram";
  text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name_, escaped(help_, "\\"), name_, kind);
  for (const auto& [labels, series] : series_) {
    if (kind_ != Kind::kHistogram) {
      text += fmt::format("{}{} {}\n", name_, label_text(labels), number_text(series.value));
      continue;
    }
    uint64_t count = 0;
    for (size_t i = 0; i <= bounds_.size(); ++i) {
      count += series.counts[i];
      const std::string bound = i < bounds_.size() ? number_text(bounds_[i]) : "+Inf";
      text += fmt::format("{}_bucket{} {}\n", name_, label_text(labels, bound), count);
    }
    text += fmt::format("{}_sum{} {}\n", name_, label_text(labels), number_text(series.value));
    text += fmt::format("{}_count{} {}\n", name_, label_text(labels), count);
  }
}

}  // namespace tessera::serve
