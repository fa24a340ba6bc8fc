// What a server counts, in the text format of Prometheus (version 0.0.4).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serve {

// Metrics with their names, help texts and labels. A series appears with its first value; a series without
// labels is there from the start. Thread-safe.
class Metrics {
 public:
  class Family;

  // `labels` are the names of the labels, whose values add() and set() take in the same order. Each name may
  // be declared only once. The references live as long as this object.
  Family& counter(std::string name, std::string help, std::vector<std::string> labels = {});
  Family& gauge(std::string name, std::string help, std::vector<std::string> labels = {});
  // `bounds` are the upper bounds of the buckets in ascending order, without infinity.
  Family& histogram(std::string name, std::string help, std::vector<double> bounds,
                    std::vector<std::string> labels = {});

  // "Content-Type: text/plain; version=0.0.4; charset=utf-8"
  std::string text() const;

 private:
  enum class Kind { kCounter, kGauge, kHistogram };
  Family& declare(Kind kind, std::string name, std::string help, std::vector<double> bounds,
                  std::vector<std::string> labels);

  mutable std::mutex mutex_;
  std::deque<Family> families_;
};

class Metrics::Family {
 public:
  using Labels = std::vector<std::string>;  // values

  Family(Kind kind, std::string name, std::string help, std::vector<double> bounds, Labels names,
         std::mutex& mutex);

  void add(const Labels& labels, double value = 1);  // for counters and gauges
  void add(double value = 1) { add(Labels(), value); }
  void set(const Labels& labels, double value);  // gauges
  void set(double value) { set(Labels(), value); }
  void observe(const Labels& labels, double value);  // histograms
  void observe(double value) { observe(Labels(), value); }

 private:
  friend class Metrics;
  struct Series {
    double value = 0;              // for a histogram, the sum
    std::vector<uint64_t> counts;  // for a histogram: by bucket, that of infinity last
  };

  Series& series(const Labels& labels);
  void write(std::string& text) const;
  std::string label_text(const Labels& values, std::string_view bound = {}) const;

  Kind kind_;
  std::string name_, help_;
  std::vector<double> bounds_;
  Labels names_;
  std::map<Labels, Series> series_;
  std::mutex& mutex_;
};

}  // namespace tessera::serve
