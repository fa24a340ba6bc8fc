#include "core/file_sequence.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/folder_fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class FileSequenceTest : public FolderFixture {};

TEST_F(FileSequenceTest, AppearsWholeOrNotAtAll) {
  {
    AtomicSequence sequence(folder_ / "a.txt");
    sequence.add("zero");
    sequence.add("one");
  }
  EXPECT_TRUE(names().empty());
  AtomicSequence sequence(folder_ / "a.txt");
  for (const char* text : {"zero", "one", "two"}) sequence.add(text);
  EXPECT_FALSE(fs::exists(folder_ / "a-0000.txt"));
  sequence.commit();
  EXPECT_EQ(names(), (std::vector<std::string>{"a-0000.txt", "a-0001.txt", "a-0002.txt"}));
  EXPECT_EQ(read_file(folder_ / "a-0001.txt", 10), "one");
}

TEST_F(FileSequenceTest, IsRemovedBySignalHandlersAndByItsLauncher) {
  AtomicSequence sequence(folder_ / "a.txt");
  for (int i = 0; i < 12; ++i) sequence.add("text");
  AtomicFile file(folder_ / "b");
  remove_unfinished_files();  // as the signal handler does
  EXPECT_TRUE(names().empty());

  const fs::path of_a_fork = folder_ / ("c.txt." + temporary_token() + ".tmp");
  fs::create_directory(of_a_fork);
  std::ofstream(of_a_fork / "0") << "half";
  remove_unfinished_file(folder_ / "c.txt");
  EXPECT_TRUE(names().empty());
}

TEST_F(FileSequenceTest, TakesTurnsWithAnotherOfTheSameName) {
  AtomicSequence first(folder_ / "a.txt"), second(folder_ / "a.txt");
  first.add("first");
  second.add("second");
  second.commit();
  first.commit();
  EXPECT_EQ(read_file(folder_ / "a-0000.txt", 10), "first");
  EXPECT_EQ(names(), std::vector<std::string>{"a-0000.txt"});
}

TEST_F(FileSequenceTest, LeavesNothingIfItFails) {
  EXPECT_THROW(AtomicSequence(folder_ / "missing" / "a.txt"), Error);
  {
    const FileSizeLimit full(100);
    AtomicSequence sequence(folder_ / "b.txt");
    sequence.add("text");
    EXPECT_THROW(sequence.add(std::string(200, 'x')), Error);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(FileSequenceTest, SaysIfItsFolderIsRemovedMeanwhile) {
  const fs::path folder = folder_ / "removed";
  for (const bool is_complete : {false, true}) {
    fs::create_directory(folder);
    AtomicSequence sequence(folder / "a.txt");
    sequence.add("text");
    fs::remove_all(folder);
    std::string why;
    try {
      is_complete ? sequence.commit() : sequence.add("text");
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_TRUE(
        why.ends_with("/a.txt] what was written of it is gone, as if its folder had been removed; run again"))
        << is_complete << why;
  }
}

TEST_F(FileSequenceTest, KeepsAllFilesIfOneCannotTakeItsPlace) {
  fs::create_directory(folder_ / "a-0001.txt");
  std::string error;
  {
    AtomicSequence sequence(folder_ / "a.txt");
    for (int i = 0; i < 3; ++i) sequence.add("text");
    try {
      sequence.commit();
    } catch (const Error& refused) {
      error = refused.what();
    }
  }
  ASSERT_EQ(names().size(), 2U);
  const fs::path kept = folder_ / names()[1];
  EXPECT_EQ(names()[0], "a-0001.txt") << "the folder that was in the way";
  EXPECT_TRUE(error.ends_with("Is a directory; all files are in " + kept.string())) << error;
  for (const char* number : {"0", "1", "2"}) EXPECT_EQ(read_file(kept / number, 10), "text");
  remove_unfinished_file(folder_ / "a.txt");  // as a launcher does after a failure
  EXPECT_TRUE(fs::exists(kept));
}

}  // namespace
}  // namespace tessera
