#include "serve/frames.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace tessera::serve {
namespace {

// Packets arrive whole, so that frames need no delimiters. Larger frames than this go through memory: the
// kernel takes a packet only if a socket's buffer has room for it (212,992 bytes by default).
constexpr size_t kMostInPacket = 32 << 10;
// No process of a server sends this much: a damaged header must not make the reader request all memory.
constexpr uint64_t kMostInMemory = uint64_t{4} << 30;

struct Header {
  uint64_t text = 0, data = 0;  // bytes
};

[[noreturn]] void closed() {
  throw Error(ErrorKind::kPeer, "frames", "the other process has closed its end");
}

bool is_closed(int code) {
  return code == EPIPE || code == ECONNRESET || code == ENOTCONN;
}

// A message of bytes, with room for a descriptor beside them.
class Message {
 public:
  Message(void* bytes, size_t size) : piece_{bytes, size} {
    message_.msg_iov = &piece_;
    message_.msg_iovlen = 1;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  void attach(int descriptor) {
    room();
    cmsghdr* const header = CMSG_FIRSTHDR(&message_);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  void room() {
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
  }
  Descriptor attached() {
    const cmsghdr* const header = CMSG_FIRSTHDR(&message_);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return Descriptor();
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    return Descriptor(descriptor);
  }
  ssize_t send(int socket) const {
    return uninterrupted([&] { return ::sendmsg(socket, &message_, MSG_NOSIGNAL | MSG_DONTWAIT); });
  }
  ssize_t receive(int socket) {
    room();
    return uninterrupted([&] { return ::recvmsg(socket, &message_, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  }
  bool is_cut() const { return (message_.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0; }

 private:
  iovec piece_;
  msghdr message_ = {};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_ = {};
};

Descriptor shared_memory(const Frame& frame) {
  Descriptor memory(::memfd_create("tessera-frame", MFD_CLOEXEC));
  const auto write = [&](const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t put =
          uninterrupted([&] { return ::write(memory.number(), bytes.data() + at, bytes.size() - at); });
      if (put <= 0) throw Error(ErrorKind::kMemory, "frames", "no shared memory: " + system_reason(errno));
      at += static_cast<size_t>(put);
    }
  };
  if (memory.number() < 0)
    throw Error(ErrorKind::kMemory, "frames", "no shared memory: " + system_reason(errno));
  write(frame.text);
  write(frame.data);
  return memory;
}

std::string read_memory(int memory, uint64_t begin, uint64_t size) {
  std::string bytes(size, '\0');
  for (size_t at = 0; at < size;) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(memory, bytes.data() + at, size - at, static_cast<off_t>(begin + at)); });
    if (got <= 0) throw Error(ErrorKind::kPeer, "frames", "a frame has less memory than it says");
    at += static_cast<size_t>(got);
  }
  return bytes;
}

// `attached` came with the packet. It is taken if it is the frame's memory, and stays if it was passed.
Frame frame_of(std::string_view packet, Descriptor& attached) {
  Header header;
  const auto damaged = [] { throw Error(ErrorKind::kPeer, "frames", "this is no frame"); };
  if (packet.size() < sizeof header) damaged();
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.text > kMostInMemory || header.data > kMostInMemory) damaged();
  const bool is_in_packet = packet.size() == sizeof header + header.text + header.data;
  if (attached.number() >= 0 && !is_in_packet) {
    const Descriptor memory = std::exchange(attached, Descriptor());
    return {.text = read_memory(memory.number(), 0, header.text),
            .data = read_memory(memory.number(), header.text, header.data)};
  }
  if (!is_in_packet) damaged();
  return {.text = std::string(packet.substr(sizeof header, header.text)),
          .data = std::string(packet.substr(sizeof header + header.text))};
}

}  // namespace

FrameSocket::FrameSocket(Descriptor socket) : socket_(std::move(socket)) {}

std::pair<Descriptor, Descriptor> FrameSocket::make_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorKind::kPeer, "frames", "cannot make a pair of sockets: " + system_reason(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

FrameSocket::Packet FrameSocket::packet_of(const Frame& frame, Descriptor passed) {
  const Header header{.text = frame.text.size(), .data = frame.data.size()};
  Packet packet{.bytes = std::string(reinterpret_cast<const char*>(&header), sizeof header),
                .attached = std::move(passed)};
  if (frame.text.size() + frame.data.size() > kMostInPacket) {
    TESSERA_CHECK(packet.attached.number() < 0, "a descriptor goes with a small frame only");
    packet.attached = shared_memory(frame);
  } else {
    packet.bytes += frame.text + frame.data;
  }
  return packet;
}

bool FrameSocket::send_packet(const Packet& packet) {
  std::string bytes = packet.bytes;
  Message message(bytes.data(), bytes.size());
  if (packet.attached.number() >= 0) message.attach(packet.attached.number());
  if (message.send(socket_.number()) >= 0) return true;
  if (is_closed(errno)) closed();
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS) return false;
  throw Error(ErrorKind::kPeer, "frames", "cannot send: " + system_reason(errno));
}

void FrameSocket::send(const Frame& frame, Descriptor passed) {
  Packet packet = packet_of(frame, std::move(passed));
  if (!flush() || !send_packet(packet)) unsent_.push_back(std::move(packet));
}

bool FrameSocket::flush() {
  while (!unsent_.empty() && send_packet(unsent_.front())) unsent_.pop_front();
  return unsent_.empty();
}

std::optional<Frame> FrameSocket::read(std::chrono::milliseconds wait) {
  const Deadline end = std::chrono::steady_clock::now() + wait;
  packet_.resize(sizeof(Header) + kMostInPacket);
  while (true) {
    Message message(packet_.data(), packet_.size());
    const ssize_t got = message.receive(socket_.number());
    if (got > 0) {
      passed_ = message.attached();
      if (message.is_cut()) throw Error(ErrorKind::kPeer, "frames", "a frame is too long");
      return frame_of(std::string_view(packet_).substr(0, static_cast<size_t>(got)), passed_);
    }
    // If the other end was closed before it had read everything, the system reports that once before it
    // delivers what that end had sent.
    if (got < 0 && errno == ECONNRESET && !std::exchange(is_reset_, true)) continue;
    if (got == 0 || is_closed(errno)) closed();
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      throw Error(ErrorKind::kPeer, "frames", "cannot read: " + system_reason(errno));
    if (std::chrono::steady_clock::now() >= end) return std::nullopt;
    // The other end may be waiting for something that it had no room for before.
    pollfd poll = {socket_.number(), static_cast<short>(POLLIN | (flush() ? 0 : POLLOUT)), 0};
    ::poll(&poll, 1, static_cast<int>(time_left(end).count()));
  }
}

}  // namespace tessera::serve
