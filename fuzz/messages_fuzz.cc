// Fuzzes the data that another process of the host may send: the greetings and descriptors by which ranks
// connect, and the memory that holds messages. All of it must be accepted, or refused with an error that
// names the peer; accepted messages must lie in the memory.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "comm/local_peers.h"
#include "comm/shared_queue.h"
#include "fuzz/check.h"

namespace tessera::comm {
namespace {

using fuzz::require;

// Whether `work` accepted its input.
template <typename Work>
bool takes(const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kPeer, "a bad peer is a peer's error");
    return false;
  }
}

// Reads numbers from the input, one after another.
class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool any() const { return !bytes_.empty(); }
  uint64_t next(size_t size) {
    uint64_t value = 0;
    const size_t taken = std::min(size, bytes_.size());
    std::memcpy(&value, bytes_.data(), taken);
    bytes_ = bytes_.subspan(taken);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

// Reads from a correct writer whose memory is overwritten by the input, piece by piece.
void read_forged_queue(Numbers numbers) {
  QueueWriter writer;
  QueueReader reader(::dup(writer.descriptor()), 1);
  const std::array<std::byte, 100> message = {};
  while (numbers.any()) {
    switch (numbers.next(1) % 4) {
      case 0:
        writer.write(static_cast<int64_t>(numbers.next(1)), std::span(message).first(numbers.next(1) % 100));
        break;
      case 1: {  // an entry of the list, or the header before it
        const auto offset = static_cast<off_t>(numbers.next(1) * 8);
        const uint64_t value = numbers.next(8);
        (void)::pwrite(writer.descriptor(), &value, sizeof(value), offset);
        break;
      }
      case 2: {  // nearly correct values: a page, and the bytes behind it
        const auto offset = static_cast<off_t>(128 + numbers.next(1) * 24);
        const std::array<uint64_t, 2> values = {numbers.next(1) * 4096 + numbers.next(1) % 2,
                                                numbers.next(2)};
        (void)::pwrite(writer.descriptor(), values.data(), sizeof(values), offset);
        break;
      }
      default:
        takes([&] {
          const auto entry = reader.next();
          if (!entry) return;
          struct stat status = {};
          ::fstat(writer.descriptor(), &status);
          require(entry->offset < static_cast<uint64_t>(status.st_size) &&
                      entry->bytes <= static_cast<uint64_t>(status.st_size) - entry->offset,
                  "a message lies in the file");
          uint64_t sum = 0;
          for (const std::byte byte : reader.bytes(*entry)) sum += static_cast<uint64_t>(byte);
          require(sum < UINT64_MAX, "every byte can be read");
          reader.drop(*entry);
        });
    }
  }
}

void greet(std::span<const std::byte> bytes, bool with_file) {
  if (const auto greeting = parse_greeting(bytes))
    require(greeting->from >= 0 && greeting->to >= 0, "ranks are numbers");
  std::array<int, 2> pair = {};
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0, "there are sockets");
  const Descriptor theirs(pair[1]);
  const Descriptor file(::memfd_create("fuzz", MFD_CLOEXEC));
  iovec data = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (with_file) {
    // One descriptor, or two.
    const std::array<int, 2> files = {file.number(), file.number()};
    const size_t size = (1 + bytes.size() % 2) * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), files.data(), size);
  }
  if (::sendmsg(theirs.number(), &message, MSG_NOSIGNAL) < 0) return;
  std::map<int64_t, Descriptor> sockets;
  sockets.emplace(1, Descriptor(pair[0]));
  takes([&] {
    const PeerConnections peers = greet_local_peers(
        0, std::move(sockets), [&](int64_t) { return file.number(); }, std::chrono::steady_clock::now());
    require(peers.at(1).file.number() >= 0, "who greets hands over a file");
  });
}

void run(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto kind = static_cast<uint8_t>(bytes[0]) % 4;
  bytes = bytes.subspan(1);
  if (kind < 2) return read_forged_queue(Numbers(bytes));
  greet(bytes, kind == 2);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string one(text.substr(0, text.size() / 2)), other(text.substr(text.size() / 2));
  require(same_host(one, other) == same_host(other, one), "a host is the same both ways");
}

}  // namespace
}  // namespace tessera::comm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::comm::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
