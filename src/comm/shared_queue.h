// A queue of messages in memory that two processes map: one writes, the other reads.
//
// Neither believes the other: the file cannot shrink (it is sealed), what tells where messages stand is
// checked before it is followed, and each side keeps its own count.
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
  void follow();
  // Gives the memory of a part back to the system, and takes it again, then all zeros (std::bad_alloc).
  void release(uint64_t offset, uint64_t bytes);
  void restore(uint64_t offset, uint64_t bytes);

 private:
  void map(uint64_t size);

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

// The writing end. Makes the file. What has held no message for a while goes back to the system.
class QueueWriter {
 public:
  QueueWriter();  // throws std::bad_alloc
  int descriptor() const { return file_.descriptor(); }

  // Copies `bytes` in, and wakes the reader. False when 1,024 messages lie unseen.
  bool write(int64_t tag, std::span<const std::byte> bytes);
  // Gives back what has held no message since the last time.
  void trim();

 private:
  struct Block {
    uint64_t offset, capacity;
    uint32_t last_used;     // the number of the message
    bool released = false;  // but for its first page
  };
  QueueHead& head() const;
  bool is_free(const Block& block) const;
  Block& find_block(uint64_t bytes);
  void release_unused_since(uint32_t message);

  SharedFile file_;
  uint64_t end_;           // of the last block
  uint32_t written_ = 0;   // messages so far, modulo 2^32
  uint32_t released_ = 0;  // when idle memory was last looked for
  uint32_t trimmed_ = 0;   // at the last trim()
  std::vector<Block> blocks_;
};

// The reading end, of what rank `peer` of the world writes. All throw Error(kPeer) that names it when what
// stands in the file makes no sense.
class QueueReader {
 public:
  QueueReader(int descriptor, int64_t peer);  // takes the descriptor over

  // The next message, if one came. It lies in the file.
  std::optional<QueueEntry> next();
  // Its bytes; valid until it is dropped or another is asked for.
  std::span<const std::byte> bytes(const QueueEntry& entry) const;
  // Gives its memory back to the writer.
  void drop(const QueueEntry& entry);
  // Sleeps until a message comes, `time` has passed or something wakes this thread.
  void sleep(std::chrono::milliseconds time);

 private:
  QueueHead& head() const;

  SharedFile file_;
  int64_t peer_;
  uint32_t seen_ = 0;
};

}  // namespace tessera::comm
