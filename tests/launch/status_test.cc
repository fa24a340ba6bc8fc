#include "launch/status.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <vector>

#include "core/error.h"

namespace tessera::launch {
namespace {

TEST(StatusOfRanks, SaysWhereARankStands) {
  StatusTable table(3);
  RankStatus& status = table.rank(2);
  EXPECT_EQ(status.place(), "while joining");
  status.preparing();
  EXPECT_EQ(status.place(), "before the first stage");
  status.started(engine::Phase::kEncode);
  EXPECT_EQ(status.place(), "in stage 'encode'");
  status.started(engine::Phase::kDenoise);
  EXPECT_EQ(status.place(), "at step 1");
  status.step_done(4);
  status.collective_began({.axis = "ulysses", .name = "all_to_all"});
  EXPECT_EQ(status.place(), "at step 5, in all_to_all (ulysses)");
  status.collective_ended();
  EXPECT_EQ(status.place(), "at step 5, after all_to_all (ulysses)");
  status.collective_began({.axis = std::string(100, 'a'), .name = "send"});
  EXPECT_TRUE(status.place().starts_with("at step 5, in send (aaaa")) << status.place();
  status.finishing();
  EXPECT_TRUE(status.place().starts_with("after the last stage")) << status.place();
  EXPECT_EQ(table.rank(1).place(), "while joining");
}

TEST(StatusOfRanks, KeepsWhyARankFailed) {
  StatusTable table(1);
  EXPECT_FALSE(table.rank(0).failure());
  table.rank(0).failed({5, std::string(10000, 'x')});
  ASSERT_TRUE(table.rank(0).failure());
  EXPECT_EQ(table.rank(0).failure()->exit_code, 5);
  EXPECT_EQ(table.rank(0).failure()->message, std::string(4095, 'x'));
  EXPECT_FALSE(table.rank(0).failure()->peer);
  std::string message(4094, 'x');
  message += "\u00e9";
  table.rank(0).failed({5, message});
  EXPECT_EQ(table.rank(0).failure()->message, std::string(4094, 'x')) << "no half of a character";
  table.rank(0).failed({4, "[rank 3] lost", 3});
  EXPECT_EQ(table.rank(0).failure()->peer, 3);
}

// Runs `change` in a fork and waits for its end.
void in_fork(const std::function<void()>& change) {
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    change();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(process, nullptr, 0), process);
}

TEST(StatusOfRanks, IsSharedWithForks) {
  StatusTable table(2);
  in_fork([&] { table.rank(1).preparing(); });
  EXPECT_EQ(table.rank(1).place(), "before the first stage");
  EXPECT_EQ(table.rank(0).place(), "while joining");
  EXPECT_FALSE(table.must_end());
  in_fork([&] { table.ask_to_end(); });
  EXPECT_TRUE(table.must_end());
}

TEST(StatusOfRanks, SurvivesWhatIsWrittenOverIt) {
  StatusTable table(1);
  std::memset(static_cast<void*>(&table.rank(0)), 0x7f, sizeof(RankStatus));
  EXPECT_EQ(table.rank(0).place(), "in an unknown stage");
  ASSERT_TRUE(table.rank(0).failure());
  EXPECT_LE(table.rank(0).failure()->message.size(), 4096U);
  EXPECT_EQ(table.rank(0).failure()->exit_code, kInternalError);
}

// A request that failed leaves messages under way that nobody waits for any more.
TEST(StatusOfRanks, ARequestBeginsAnew) {
  StatusTable table(1);
  RankStatus& status = table.rank(0);
  status.preparing();
  status.started(engine::Phase::kDenoise);
  status.collective_began({.axis = "ulysses", .name = "all_to_all"});
  EXPECT_EQ(status.place(), "at step 1, in all_to_all (ulysses)");
  status.preparing();
  EXPECT_EQ(status.place(), "before the first stage");
  status.started(engine::Phase::kEncode);
  status.collective_began({.axis = "world", .name = "gather"});
  status.collective_ended();
  EXPECT_EQ(status.place(), "in stage 'encode', after gather (world)");
}

}  // namespace
}  // namespace tessera::launch
