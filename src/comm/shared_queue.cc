#include "comm/shared_queue.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <new>
#include <utility>

#include "core/error.h"

namespace tessera::comm {

namespace {
constexpr uint64_t kMostEntries = 1024;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kLine = 64;  // of the cache: where a block's bytes begin

// At the begin of each block: what the writer may use again.
struct BlockHead {
  std::atomic<uint32_t> is_free;
};

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

BlockHead& block_at(const SharedFile& file, uint64_t offset) {
  return *reinterpret_cast<BlockHead*>(file.at(offset));
}
}  // namespace

// At the begin of the file. Each side's numbers have a cache line of their own. A new file is zero.
struct QueueHead {
  alignas(kLine) std::atomic<uint32_t> written;  // messages so far, modulo 2^32; the reader sleeps on it
  std::atomic<uint64_t> file_size;
  alignas(kLine) std::atomic<uint32_t> seen;  // by the reader
  std::atomic<uint32_t> sleeps;
  alignas(kLine) std::array<QueueEntry, kMostEntries> entries;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

SharedFile::SharedFile(int descriptor) : descriptor_(descriptor) {}

SharedFile::~SharedFile() {
  if (data_) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SharedFile::grow(uint64_t size) {
  // Memory is taken here, where a lack of it is an error and not a signal.
  if (::posix_fallocate(descriptor_, static_cast<off_t>(size_), static_cast<off_t>(size - size_)) != 0)
    throw std::bad_alloc();
  follow(size);
}

void SharedFile::follow(uint64_t size) {
  if (size <= size_) return;
  // Not by mremap, of which ThreadSanitizer takes no notice.
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  if (data_) ::munmap(data_, size_);
  data_ = static_cast<std::byte*>(data);
  size_ = size;
}

QueueWriter::QueueWriter()
    : file_(::memfd_create("tessera-messages", MFD_CLOEXEC)), end_(round_up(sizeof(QueueHead), kPage)) {
  if (file_.descriptor() < 0) throw std::bad_alloc();
  file_.grow(end_);
  head().file_size.store(end_, std::memory_order_release);
}

QueueHead& QueueWriter::head() const {
  return *reinterpret_cast<QueueHead*>(file_.at(0));
}

// The smallest block that is free and large enough, or a new one.
uint64_t QueueWriter::find_block(uint64_t bytes) {
  const Block* best = nullptr;
  for (const Block& block : blocks_) {
    if (block.capacity >= bytes && (!best || block.capacity < best->capacity) &&
        block_at(file_, block.offset).is_free.load(std::memory_order_acquire) != 0) {
      best = &block;
    }
  }
  if (best) return best->offset;
  const uint64_t size = round_up(kLine + bytes, kPage);
  file_.grow(end_ + size);
  head().file_size.store(end_ + size, std::memory_order_release);
  blocks_.push_back({end_, size - kLine});
  return std::exchange(end_, end_ + size);
}

bool QueueWriter::write(int64_t tag, std::span<const std::byte> bytes) {
  const uint32_t number = head().written.load(std::memory_order_relaxed);
  if (number - head().seen.load(std::memory_order_acquire) >= kMostEntries) return false;
  const uint64_t offset = find_block(bytes.size());
  block_at(file_, offset).is_free.store(0, std::memory_order_relaxed);
  std::copy(bytes.begin(), bytes.end(), file_.at(offset + kLine));
  QueueHead& queue = head();  // the file may have moved
  queue.entries[number % kMostEntries] = {offset, bytes.size(), tag};
  // In one order with the reader's: either it sees the message, or it is seen asleep.
  queue.written.store(number + 1, std::memory_order_seq_cst);
  if (queue.sleeps.load(std::memory_order_seq_cst) != 0)
    ::syscall(SYS_futex, &queue.written, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return true;
}

QueueReader::QueueReader(int descriptor) : file_(descriptor) {
  file_.follow(round_up(sizeof(QueueHead), kPage));
}

QueueHead& QueueReader::head() const {
  return *reinterpret_cast<QueueHead*>(file_.at(0));
}

std::optional<QueueEntry> QueueReader::next() {
  if (head().written.load(std::memory_order_acquire) == seen_) return std::nullopt;
  const QueueEntry entry = head().entries[seen_ % kMostEntries];
  head().seen.store(++seen_, std::memory_order_release);
  return entry;
}

std::span<const std::byte> QueueReader::bytes(const QueueEntry& entry) {
  const uint64_t end = entry.offset + kLine + entry.bytes;
  if (end > file_.size()) file_.follow(head().file_size.load(std::memory_order_acquire));
  TESSERA_CHECK(end <= file_.size(), "a message of {} bytes at {} in a file of {}", entry.bytes, entry.offset,
                file_.size());
  return {file_.at(entry.offset + kLine), entry.bytes};
}

void QueueReader::drop(const QueueEntry& entry) {
  block_at(file_, entry.offset).is_free.store(1, std::memory_order_release);
}

void QueueReader::sleep(std::chrono::milliseconds time) {
  QueueHead& queue = head();
  queue.sleeps.store(1, std::memory_order_seq_cst);
  const timespec limit = {.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
  // Returns at once when the number has changed already.
  ::syscall(SYS_futex, &queue.written, FUTEX_WAIT, seen_, &limit, nullptr, 0);
  queue.sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace tessera::comm
