#include "comm/shared_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <new>
#include <random>
#include <thread>

#include "core/error.h"

namespace {
std::deque<int> failures_of_fallocate;  // of the next calls; then they succeed
}  // namespace

// Stands for the C library's, since no signal can be sent while it waits for the kernel.
extern "C" int posix_fallocate(int descriptor, off_t offset, off_t length) {
  if (!failures_of_fallocate.empty()) {
    const int code = failures_of_fallocate.front();
    failures_of_fallocate.pop_front();
    return code;
  }
  return ::fallocate(descriptor, 0, offset, length) == 0 ? 0 : errno;
}

namespace tessera::comm {
namespace {

std::vector<std::byte> bytes_of(int64_t number, size_t length) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(static_cast<size_t>(number) * 31 + i);
  return bytes;
}

bool holds(QueueReader& reader, const QueueEntry& entry, int64_t number, size_t length) {
  const std::span<const std::byte> bytes = reader.bytes(entry);
  const std::vector<std::byte> expected = bytes_of(number, length);
  return entry.tag == number && std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end());
}

off_t file_size(const QueueWriter& writer) {
  struct stat status = {};
  ::fstat(writer.descriptor(), &status);
  return status.st_size;
}

TEST(SharedQueueOfRanks, KeepsOrderAndMayBeReadLate) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  EXPECT_FALSE(reader.next());
  std::vector<size_t> lengths;
  for (int64_t i = 0; i < 30; ++i) {
    lengths.push_back(static_cast<size_t>(1 + 7919 * i));
    ASSERT_TRUE(writer.write(i, bytes_of(i, lengths.back())));
  }
  std::vector<QueueEntry> entries;
  while (const auto entry = reader.next()) entries.push_back(*entry);
  ASSERT_EQ(entries.size(), lengths.size());
  for (int64_t i = 29; i >= 0; --i) {
    const size_t at = static_cast<size_t>(i);
    EXPECT_TRUE(holds(reader, entries[at], i, lengths[at])) << i;
    reader.drop(entries[at]);
  }
}

TEST(SharedQueueOfRanks, UsesMemoryAgain) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  off_t size = 0;
  for (int64_t i = 0; i < 5000; ++i) {
    // Two entries are under way at any time, and the later one is dropped first.
    ASSERT_TRUE(writer.write(i, bytes_of(i, 10'000)));
    ASSERT_TRUE(writer.write(i + 1, bytes_of(i + 1, 3'000)));
    const auto first = reader.next(), second = reader.next();
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(holds(reader, *second, i + 1, 3'000));
    reader.drop(*second);
    ASSERT_TRUE(holds(reader, *first, i, 10'000));
    reader.drop(*first);
    if (i == 0) size = file_size(writer);
  }
  EXPECT_EQ(file_size(writer), size);
}

int64_t bytes_in_memory(const QueueWriter& writer) {
  struct stat status = {};
  ::fstat(writer.descriptor(), &status);
  return int64_t{status.st_blocks} * 512;
}

TEST(SharedQueueOfRanks, GivesBackWhatItNoLongerNeeds) {
  constexpr size_t kLarge = 32 << 20;
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  int64_t number = 0;
  const auto pass = [&](size_t length) {
    ASSERT_TRUE(writer.write(number, bytes_of(number, length)));
    const auto entry = reader.next();
    ASSERT_TRUE(entry && holds(reader, *entry, number, length));
    reader.drop(*entry);
    ++number;
  };
  pass(kLarge);
  EXPECT_GT(bytes_in_memory(writer), int64_t{kLarge});
  for (int64_t i = 0; i < 5000; ++i) pass(1000);
  EXPECT_LT(bytes_in_memory(writer), 1 << 20);
  const off_t size = file_size(writer);
  pass(kLarge);
  EXPECT_EQ(file_size(writer), size) << "the place was used again";
  writer.trim();
  EXPECT_GT(bytes_in_memory(writer), int64_t{kLarge}) << "it has been needed since the last time";
  pass(1000);
  writer.trim();
  EXPECT_LT(bytes_in_memory(writer), 1 << 20);
}

// A queue with entries that a faulty or hostile peer may have written.
class ForgedQueue {
 public:
  explicit ForgedQueue(const QueueWriter& writer) : descriptor_(writer.descriptor()) {}
  void write(off_t offset, uint64_t value, size_t bytes) const {
    ASSERT_EQ(::pwrite(descriptor_, &value, bytes, offset), static_cast<ssize_t>(bytes));
  }
  void write_entry(uint64_t offset, uint64_t bytes) const {
    write(kEntries, offset, 8);
    write(kEntries + 8, bytes, 8);
  }
  std::string refusal() const {
    QueueReader reader(::dup(descriptor_), 7);
    try {
      if (const auto entry = reader.next()) return "accepted";
      return "nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeer);
      return error.what();
    }
  }

 private:
  static constexpr off_t kEntries = 128;  // after the count of each side
  int descriptor_;
};

TEST(SharedQueueOfRanks, BelievesNoPlaceAndNoLength) {
  QueueWriter writer;
  ASSERT_TRUE(writer.write(1, bytes_of(1, 100)));
  const ForgedQueue forged(writer);
  EXPECT_EQ(forged.refusal(), "accepted");
  const auto end = static_cast<uint64_t>(file_size(writer)), place = end - 4096;
  constexpr uint64_t kMost = UINT64_MAX;
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{place, 4096 - 63},  // one too many
                                                  {place, kMost},      // the end wraps around
                                                  {place, kMost - place - 63},
                                                  {kMost - 63, 0},
                                                  {kMost - 4095, 8192},
                                                  {end, 0},
                                                  {0, 8},             // the head, which a drop would write to
                                                  {place + 1, 8}}) {  // no block begins there
    forged.write_entry(offset, bytes);
    EXPECT_TRUE(forged.refusal().starts_with("[rank 7] lost: it sent ")) << offset << ", " << bytes;
  }
  forged.write_entry(place, 4096 - 64);
  EXPECT_EQ(forged.refusal(), "accepted");
  forged.write(0, 1025, 4);
  EXPECT_EQ(forged.refusal(), "[rank 7] lost: it claims to have sent 1025 messages at once");
}

TEST(SharedQueueOfRanks, TakesNoMemoryThatMayShrink) {
  const QueueWriter writer;
  EXPECT_NE(::ftruncate(writer.descriptor(), 0), 0) << "sealed";
  const int open = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(open, 1 << 20), 0);
  EXPECT_THROW(QueueReader(::dup(open), 1), Error);
  ASSERT_EQ(::fcntl(open, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_NO_THROW(QueueReader(::dup(open), 1));
  ::close(open);
  const int small = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THROW(QueueReader(small, 1), Error);
  EXPECT_THROW(QueueReader(::open("/dev/zero", O_RDWR | O_CLOEXEC), 1), Error);
}

TEST(SharedQueueOfRanks, ASignalIsNoLackOfMemory) {
  QueueWriter writer;
  failures_of_fallocate = {EINTR, EINTR};
  EXPECT_TRUE(writer.write(1, bytes_of(1, 100)));
  EXPECT_TRUE(failures_of_fallocate.empty());
}

TEST(SharedQueueOfRanks, ALimitOfFilesIsNoLackOfMemory) {
  QueueWriter writer;
  failures_of_fallocate = {ENOSPC};
  EXPECT_THROW(writer.write(1, bytes_of(1, 100)), std::bad_alloc);
  failures_of_fallocate = {EFBIG};
  try {
    writer.write(1, bytes_of(1, 100));
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("File too large (ulimit -f)"), std::string::npos)
        << error.what();
  }
}

TEST(SharedQueueOfRanks, RefusesWhatNobodyTakes) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  int64_t taken = 0;
  while (writer.write(taken, bytes_of(taken, 8))) ASSERT_LT(++taken, 100'000);
  EXPECT_GE(taken, 1000);
  ASSERT_TRUE(reader.next());
  EXPECT_TRUE(writer.write(taken, bytes_of(taken, 8)));
}

TEST(SharedQueueOfRanks, AReaderThatSleepsIsWoken) {
  constexpr int64_t kMessages = 2000;
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  std::thread other([&] {
    std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): repeatable
    for (int64_t i = 0; i < kMessages; ++i) {
      while (!writer.write(i, bytes_of(i, static_cast<size_t>(i)))) std::this_thread::yield();
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int64_t i = 0; i < kMessages; ++i) {
    std::optional<QueueEntry> entry = reader.next();
    // If a wake-up were lost, this would take an hour.
    while (!entry) {
      reader.sleep(std::chrono::hours(1));
      entry = reader.next();
    }
    EXPECT_TRUE(holds(reader, *entry, i, static_cast<size_t>(i)));
    reader.drop(*entry);
  }
  other.join();
}

TEST(SharedQueueOfRanks, SleepEndsByItself) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  reader.sleep(std::chrono::milliseconds(1));
  EXPECT_FALSE(reader.next());
}

}  // namespace
}  // namespace tessera::comm
