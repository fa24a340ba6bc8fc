// A message queue in memory mapped by two processes: one writes and the other reads.
//
// Neither side trusts the other: the file is sealed and cannot shrink, the positions of messages are checked
// before use, and each side keeps its own count.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::comm {

// Holds a memory file as mapped by this process; it is unmapped and closed on destruction.
class SharedFile {
 public:
  explicit SharedFile(int descriptor);  // takes ownership
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::byte* at(uint64_t offset) const { return data_ + offset; }
  uint64_t size() const { return size_; }
  // Enlarges the file. Throws std::bad_alloc if there is no memory, and Error(kUsage) if a limit of the user
  // forbids it.
  void grow(uint64_t size);
  // Maps what the other side has added.
  void follow();
  // release() returns the memory of a part to the system; restore() allocates it again, filled with zeros, or
  // throws as grow() does.
  void release(uint64_t offset, uint64_t bytes);
  void restore(uint64_t offset, uint64_t bytes);

 private:
  void map(uint64_t size);

  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Holds the position of a message in the file.
struct QueueEntry {
  uint64_t offset = 0;  // of the message's block
  uint64_t bytes = 0;
  int64_t tag = 0;
};

struct QueueHead;

// The writing end, which creates the file. Blocks that have not been used for a while are returned to the
// system.
class QueueWriter {
 public:
  QueueWriter();  // throws as SharedFile::grow() does
  int descriptor() const { return file_.descriptor(); }

  // Copies `bytes` into the file and wakes the reader. Returns false if 1,024 messages are unread.
  bool write(int64_t tag, std::span<const std::byte> bytes);
  // Releases blocks that no message has used since the last call.
  void trim();

 private:
  struct Block {
    uint64_t offset, capacity;
    uint32_t last_used;     // the number of the last message in it
    bool released = false;  // all but its first page
  };
  QueueHead& head() const;
  bool is_free(const Block& block) const;
  Block& find_block(uint64_t bytes);
  void release_unused_since(uint32_t message);

  SharedFile file_;
  uint64_t end_;           // the end of the last block
  uint32_t written_ = 0;   // number of messages so far, modulo 2^32
  uint32_t released_ = 0;  // the value of written_ when idle blocks were last released
  uint32_t trimmed_ = 0;   // the value of written_ at the last trim()
  std::vector<Block> blocks_;
};

// The reading end of what rank `peer` of the world writes. All functions throw Error(kPeer) with that rank if
// the contents of the file are invalid.
class QueueReader {
 public:
  QueueReader(int descriptor, int64_t peer);  // takes ownership of the descriptor

  // Returns the next message, if there is one. Its bytes stay in the file.
  std::optional<QueueEntry> next();
  // The bytes of a message; valid until it is dropped or next() is called.
  std::span<const std::byte> bytes(const QueueEntry& entry) const;
  // Lets the writer reuse the message's memory.
  void drop(const QueueEntry& entry);
  // Sleeps until a message arrives, `time` has passed or the thread is woken.
  void sleep(std::chrono::milliseconds time);

 private:
  QueueHead& head() const;

  SharedFile file_;
  int64_t peer_;
  uint32_t seen_ = 0;
};

}  // namespace tessera::comm
