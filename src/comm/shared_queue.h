// A queue of messages in memory that two processes map: one writes, the other reads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::comm {

// A file in memory as this process sees it. Closed and unmapped with its life.
class SharedFile {
 public:
  explicit SharedFile(int descriptor);  // takes it over
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::byte* at(uint64_t offset) const { return data_ + offset; }
  uint64_t size() const { return size_; }
  // Makes the file larger. Throws std::bad_alloc where there is no memory for it.
  void grow(uint64_t size);
  // Maps what the other side has added.
  void follow(uint64_t size);

 private:
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Where a message stands in the file.
struct QueueEntry {
  uint64_t offset = 0;  // of its block
  uint64_t bytes = 0;
  int64_t tag = 0;
};

struct QueueHead;

// The writing end. Makes the file.
class QueueWriter {
 public:
  QueueWriter();  // throws std::bad_alloc
  int descriptor() const { return file_.descriptor(); }

  // Copies `bytes` in, and wakes the reader. False when 1,024 messages lie unseen.
  bool write(int64_t tag, std::span<const std::byte> bytes);

 private:
  struct Block {
    uint64_t offset, capacity;
  };
  QueueHead& head() const;
  uint64_t find_block(uint64_t bytes);

  SharedFile file_;
  uint64_t end_;  // of the last block
  std::vector<Block> blocks_;
};

// The reading end.
class QueueReader {
 public:
  explicit QueueReader(int descriptor);

  // The next message, if one came.
  std::optional<QueueEntry> next();
  // Its bytes; valid until it is dropped or another is asked for.
  std::span<const std::byte> bytes(const QueueEntry& entry);
  // Gives its memory back to the writer.
  void drop(const QueueEntry& entry);
  // Sleeps until a message comes, `time` has passed or something wakes this thread.
  void sleep(std::chrono::milliseconds time);

 private:
  QueueHead& head() const;

  SharedFile file_;
  uint32_t seen_ = 0;
};

}  // namespace tessera::comm
