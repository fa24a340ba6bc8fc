#include "comm/shared_queue.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <new>
#include <utility>

#include "comm/transport.h"
#include "core/error.h"
#include "core/system_call.h"
#include "core/text.h"

namespace tessera::comm {

namespace {
constexpr uint64_t kMostEntries = 1024;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kLine = 64;  // cache line; the bytes of a block begin at this offset
// A block is released when this many messages in a row have not used it.
constexpr uint32_t kIdle = 2048;

// Located at the beginning of each block; tells whether the writer may reuse it.
struct BlockHead {
  std::atomic<uint32_t> is_free;
};

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

BlockHead& block_at(const SharedFile& file, uint64_t offset) {
  return *reinterpret_cast<BlockHead*>(file.at(offset));
}

[[noreturn]] void cannot(const char* action, int code) {
  if (code == ENOMEM || code == ENOSPC) throw std::bad_alloc();
  usage_error("shared memory", "cannot {}: {}; raise that limit, or use {} to run without shared memory",
              action, system_reason(code), field("shared_memory", false));
}
}  // namespace

// Located at the beginning of the file, which is zero when new. The fields of each side have their own cache
// line.
struct QueueHead {
  alignas(kLine) std::atomic<uint32_t> written;  // number of messages so far, modulo 2^32; the reader sleeps
                                                 // on it
  alignas(kLine) std::atomic<uint32_t> seen;     // number of messages that the reader has seen
  std::atomic<uint32_t> sleeps;
  alignas(kLine) std::array<QueueEntry, kMostEntries> entries;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

namespace {
constexpr uint64_t kHeadBytes = (sizeof(QueueHead) + kPage - 1) / kPage * kPage;
}  // namespace

SharedFile::SharedFile(int descriptor) : descriptor_(descriptor) {}

SharedFile::~SharedFile() {
  if (data_) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SharedFile::grow(uint64_t size) {
  // The memory is allocated here, where a lack of it is an error instead of a SIGBUS.
  restore(size_, size - size_);
  map(size);
}

void SharedFile::follow() {
  struct stat status = {};
  if (::fstat(descriptor_, &status) == 0 && status.st_size > 0) map(static_cast<uint64_t>(status.st_size));
}

void SharedFile::map(uint64_t size) {
  if (size <= size_) return;
  // mremap is avoided because ThreadSanitizer does not intercept it.
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) cannot("map memory", errno);
  if (data_) ::munmap(data_, size_);
  data_ = static_cast<std::byte*>(data);
  size_ = size;
}

void SharedFile::release(uint64_t offset, uint64_t bytes) {
  // A failure only costs memory.
  ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

void SharedFile::restore(uint64_t offset, uint64_t bytes) {
  int code = 0;
  do {  // any signal interrupts it, even one that has no handler
    code = ::posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0) cannot("take memory", code);
}

QueueWriter::QueueWriter()
    : file_(::memfd_create("tessera-messages", MFD_CLOEXEC | MFD_ALLOW_SEALING)), end_(kHeadBytes) {
  // The file grows with its messages. It must not shrink, because its reader would get SIGBUS.
  if (file_.descriptor() < 0 || ::fcntl(file_.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    cannot("create a memory file", errno);
  file_.grow(end_);
}

QueueHead& QueueWriter::head() const {
  return *reinterpret_cast<QueueHead*>(file_.at(0));
}

bool QueueWriter::is_free(const Block& block) const {
  return block_at(file_, block.offset).is_free.load(std::memory_order_acquire) != 0;
}

// Returns the smallest free block that is large enough, or a new one. Small messages do not use large blocks,
// which could otherwise never be released.
QueueWriter::Block& QueueWriter::find_block(uint64_t bytes) {
  const uint64_t most = 4 * bytes + 16 * kPage;
  Block* best = nullptr;
  for (Block& block : blocks_) {
    if (block.capacity >= bytes && block.capacity <= most && (!best || block.capacity < best->capacity) &&
        is_free(block))
      best = &block;
  }
  if (best) {
    if (best->released) file_.restore(best->offset, kLine + best->capacity);
    best->released = false;
    return *best;
  }
  const uint64_t size = round_up(kLine + bytes, kPage);
  file_.grow(end_ + size);
  blocks_.push_back({.offset = end_, .capacity = size - kLine, .last_used = written_});
  end_ += size;
  return blocks_.back();
}

void QueueWriter::trim() {
  release_unused_since(std::exchange(trimmed_, written_));
}

void QueueWriter::release_unused_since(uint32_t message) {
  for (Block& block : blocks_) {
    const uint64_t size = kLine + block.capacity;
    const bool was_used = written_ - block.last_used <= written_ - message;
    if (block.released || size == kPage || was_used || !is_free(block)) continue;
    file_.release(block.offset + kPage, size - kPage);  // the first page holds is_free
    block.released = true;
  }
}

bool QueueWriter::write(int64_t tag, std::span<const std::byte> bytes) {
  if (written_ - head().seen.load(std::memory_order_acquire) >= kMostEntries) return false;
  if (written_ - released_ >= kIdle) {
    released_ = written_;
    release_unused_since(written_ - kIdle + 1);
  }
  Block& block = find_block(bytes.size());
  block.last_used = written_;
  block_at(file_, block.offset).is_free.store(0, std::memory_order_relaxed);
  std::copy(bytes.begin(), bytes.end(), file_.at(block.offset + kLine));
  QueueHead& queue = head();  // the file may have moved
  queue.entries[written_ % kMostEntries] = {block.offset, bytes.size(), tag};
  // Sequentially consistent with the reader's sleep(): either it sees the message, or the writer sees it
  // asleep.
  queue.written.store(++written_, std::memory_order_seq_cst);
  if (queue.sleeps.load(std::memory_order_seq_cst) != 0)
    ::syscall(SYS_futex, &queue.written, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return true;
}

QueueReader::QueueReader(int descriptor, int64_t peer) : file_(descriptor), peer_(peer) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) lost_peer(peer_, "its memory is not sealed");
  file_.follow();
  if (file_.size() < kHeadBytes) lost_peer(peer_, "its memory is too small");
}

QueueHead& QueueReader::head() const {
  return *reinterpret_cast<QueueHead*>(file_.at(0));
}

std::optional<QueueEntry> QueueReader::next() {
  const uint32_t written = head().written.load(std::memory_order_acquire);
  if (written == seen_) return std::nullopt;
  if (written - seen_ > kMostEntries)
    lost_peer(peer_, fmt::format("it claims to have sent {} messages at once", written - seen_));
  const QueueEntry entry = head().entries[seen_ % kMostEntries];
  head().seen.store(++seen_, std::memory_order_release);
  const auto lies_inside = [&] {
    return entry.offset <= file_.size() - kLine && entry.bytes <= file_.size() - kLine - entry.offset;
  };
  if (!lies_inside()) file_.follow();
  if (entry.offset % kPage != 0 || entry.offset < kHeadBytes || !lies_inside()) {
    lost_peer(peer_,
              fmt::format("it sent {} at {} of a memory of {}",
                          counted(static_cast<int64_t>(entry.bytes), "byte"), entry.offset, file_.size()));
  }
  return entry;
}

std::span<const std::byte> QueueReader::bytes(const QueueEntry& entry) const {
  return {file_.at(entry.offset + kLine), entry.bytes};
}

void QueueReader::drop(const QueueEntry& entry) {
  block_at(file_, entry.offset).is_free.store(1, std::memory_order_release);
}

void QueueReader::sleep(std::chrono::milliseconds time) {
  QueueHead& queue = head();
  queue.sleeps.store(1, std::memory_order_seq_cst);
  const timespec limit = {.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
  // Returns at once if the number has already changed.
  ::syscall(SYS_futex, &queue.written, FUTEX_WAIT, seen_, &limit, nullptr, 0);
  queue.sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace tessera::comm
