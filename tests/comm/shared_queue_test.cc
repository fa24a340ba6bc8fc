#include "comm/shared_queue.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <thread>

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

TEST(SharedQueue, KeepsOrderAndMayBeReadLate) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()));
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

TEST(SharedQueue, UsesMemoryAgain) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()));
  off_t size = 0;
  for (int64_t i = 0; i < 5000; ++i) {
    // Two under way at any time, of which the later is dropped first.
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

TEST(SharedQueue, RefusesWhatNobodyTakes) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()));
  int64_t taken = 0;
  while (writer.write(taken, bytes_of(taken, 8))) ASSERT_LT(++taken, 100'000);
  EXPECT_GE(taken, 1000);
  ASSERT_TRUE(reader.next());
  EXPECT_TRUE(writer.write(taken, bytes_of(taken, 8)));
}

TEST(SharedQueue, AReaderThatSleepsIsWoken) {
  constexpr int64_t kMessages = 2000;
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()));
  std::thread other([&] {
    std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same each time
    for (int64_t i = 0; i < kMessages; ++i) {
      while (!writer.write(i, bytes_of(i, static_cast<size_t>(i)))) std::this_thread::yield();
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int64_t i = 0; i < kMessages; ++i) {
    std::optional<QueueEntry> entry = reader.next();
    // Were a wake-up lost, this would take an hour.
    while (!entry) {
      reader.sleep(std::chrono::hours(1));
      entry = reader.next();
    }
    EXPECT_TRUE(holds(reader, *entry, i, static_cast<size_t>(i)));
    reader.drop(*entry);
  }
  other.join();
}

TEST(SharedQueue, SleepEndsByItself) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()));
  reader.sleep(std::chrono::milliseconds(1));
  EXPECT_FALSE(reader.next());
}

}  // namespace
}  // namespace tessera::comm
