#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace tessera::serve {
namespace {

// As the exposition format of Prometheus describes it.
TEST(Metrics, AreWrittenAsPrometheusReadsThem) {
  Metrics metrics;
  Metrics::Family& requests = metrics.counter("requests_total", "Requests by\nroute \\", {"route", "code"});
  Metrics::Family& queued = metrics.gauge("queued", "Jobs that wait");
  Metrics::Family& seconds = metrics.histogram("seconds", "Time", {0.5, 1, 2.5});
  EXPECT_EQ(metrics.text(),
            "# HELP queued Jobs that wait\n# TYPE queued gauge\nqueued 0\n"
            "# HELP seconds Time\n# TYPE seconds histogram\nseconds_bucket{le=\"0.5\"} 0\n"
            "seconds_bucket{le=\"1\"} 0\nseconds_bucket{le=\"2.5\"} 0\nseconds_bucket{le=\"+Inf\"} 0\n"
            "seconds_sum 0\nseconds_count 0\n");
  requests.add({"/a", "200"});
  requests.add({"/a", "200"}, 2);
  requests.add({"say \"\\\n", "404"});
  queued.set(7);
  queued.add(-3);
  for (const double value : {0.25, 0.5, 0.75, 3.0}) seconds.observe(value);
  EXPECT_EQ(metrics.text(),
            "# HELP requests_total Requests by\\nroute \\\\\n# TYPE requests_total counter\n"
            "requests_total{route=\"/a\",code=\"200\"} 3\n"
            "requests_total{route=\"say \\\"\\\\\\n\",code=\"404\"} 1\n"
            "# HELP queued Jobs that wait\n# TYPE queued gauge\nqueued 4\n"
            "# HELP seconds Time\n# TYPE seconds histogram\nseconds_bucket{le=\"0.5\"} 2\n"
            "seconds_bucket{le=\"1\"} 3\nseconds_bucket{le=\"2.5\"} 3\nseconds_bucket{le=\"+Inf\"} 4\n"
            "seconds_sum 4.5\nseconds_count 4\n");
  queued.set(std::numeric_limits<double>::infinity());
  EXPECT_NE(metrics.text().find("queued +Inf\n"), std::string::npos);
}

TEST(Metrics, RefuseWhatTheyAreNot) {
  Metrics metrics;
  Metrics::Family& counter = metrics.counter("c", "", {"label"});
  EXPECT_THROW(metrics.gauge("c", ""), InternalError);
  EXPECT_THROW(counter.add(), InternalError);
  EXPECT_THROW(counter.add({"x"}, -1), InternalError);
  EXPECT_THROW(counter.set({"x"}, 1), InternalError);
  EXPECT_THROW(counter.observe({"x"}, 1), InternalError);
  EXPECT_THROW(metrics.histogram("h", "", {2, 1}), InternalError);
}

}  // namespace
}  // namespace tessera::serve
