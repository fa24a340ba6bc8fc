#include "launch/status.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "core/error.h"
#include "launch/cores.h"

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
  table.rank(0).failed({5, std::string(4094, 'x') + "\u00e9"});
  EXPECT_EQ(table.rank(0).failure()->message, std::string(4094, 'x')) << "no half of a character";
  table.rank(0).failed({4, "[rank 3] lost", 3});
  EXPECT_EQ(table.rank(0).failure()->peer, 3);
}

TEST(StatusOfRanks, IsSeenByWhoInheritsTheFile) {
  StatusTable own(2);
  const StatusTable inherited(comm::Descriptor(::dup(own.file())), 2);
  own.rank(1).preparing();
  EXPECT_EQ(inherited.rank(1).place(), "before the first stage");
  EXPECT_NE(::ftruncate(own.file(), 0), 0) << "sealed";
  EXPECT_THROW(StatusTable(comm::Descriptor(::dup(own.file())), 3), Error) << "of another size";
  EXPECT_THROW(StatusTable(comm::Descriptor(), 2), Error);
}

TEST(StatusOfRanks, SurvivesWhatIsWrittenOverIt) {
  const StatusTable table(1);
  const std::vector<char> noise(64 + sizeof(RankStatus), '\x7f');
  ASSERT_EQ(::pwrite(table.file(), noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
  EXPECT_EQ(table.rank(0).place(), "in an unknown stage");
  ASSERT_TRUE(table.rank(0).failure());
  EXPECT_LE(table.rank(0).failure()->message.size(), 4096U);
  EXPECT_EQ(table.rank(0).failure()->exit_code, kInternalError);
}

TEST(StatusOfRanks, AllSeeThatTheyAreToEnd) {
  StatusTable own(2);
  const StatusTable inherited(comm::Descriptor(::dup(own.file())), 2);
  EXPECT_FALSE(inherited.must_end());
  own.ask_to_end();
  EXPECT_TRUE(inherited.must_end());
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

TEST(Cores, AreSharedEvenly) {
  const std::vector<int> cores = {1, 2, 4, 5, 7};
  EXPECT_EQ(share_of(cores, 0, 2, 1), (std::vector<int>{1, 2}));
  EXPECT_EQ(share_of(cores, 1, 2, 2), (std::vector<int>{4, 5}));
  EXPECT_EQ(share_of(cores, 4, 5, 1), (std::vector<int>{7}));
  EXPECT_TRUE(share_of(cores, 0, 2, 3).empty());  // more threads than cores
  EXPECT_TRUE(share_of(cores, 5, 6, 1).empty());
}

}  // namespace
}  // namespace tessera::launch
