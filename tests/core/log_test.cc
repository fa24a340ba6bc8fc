#include "core/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

TEST(SuppressLog, KeepsWhatItsThreadSaysFromTheSink) {
  std::vector<std::string> said;
  const ScopedLogSink sink([&](LogLevel, const std::string& message) { said.push_back(message); });
  log_info("before");
  {
    const SuppressLog outer;
    log_info("in one");
    {
      const SuppressLog inner;
      log_info("in two");
    }
    log_info("in one again");
    std::thread([] { log_info("of another thread"); }).join();
  }
  log_info("after");
  EXPECT_EQ(said, (std::vector<std::string>{"before", "of another thread", "after"}));
}

}  // namespace
}  // namespace tessera
