#include "comm/meeting.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "core/error.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

[[noreturn]] void cannot(const char* what) {
  throw Error(ErrorKind::kPeer, "shared memory",
              fmt::format("cannot {}: {}; --no-shared-memory does without", what,
                          std::generic_category().message(errno)));
}

// In the abstract namespace, which belongs to the network namespace and leaves nothing in the file system.
sockaddr_un address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  TESSERA_CHECK(name.size() + 1 <= sizeof(address.sun_path), "a socket's name of {} bytes", name.size());
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Empty where the kernel does not say.
std::string host_text() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::error_code none;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", none).string();
  return boot.empty() || network.empty() ? "" : boot + " " + network;
}

std::string random_name() {
  std::random_device random;
  std::string name = "tessera-";
  for (int i = 0; i < 4; ++i) name += fmt::format("{:08x}", random());
  return name;
}

std::pair<std::string, std::string> host_and_name(const std::string& place) {
  const size_t end = place.rfind(' ');
  if (end == std::string::npos) return {"", place};
  return {place.substr(0, end), place.substr(end + 1)};
}

void wait_for(int socket, short events, Clock::time_point deadline) {
  pollfd poll = {.fd = socket, .events = events, .revents = 0};
  while (true) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    const int count = ::poll(&poll, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (count > 0) return;
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ETIMEDOUT;
    cannot("meet another rank");
  }
}

// A rank's number, and with it a descriptor, as sendmsg and recvmsg want them.
struct Parcel {
  Parcel() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  int64_t rank = -1;
  iovec data = {.iov_base = &rank, .iov_len = sizeof(rank)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr header = {};
};

void send_descriptor(int socket, int64_t rank, int descriptor) {
  Parcel parcel;
  parcel.rank = rank;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  if (::sendmsg(socket, &parcel.header, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(rank)))
    cannot("hand memory to another rank");
}

std::pair<int64_t, Descriptor> receive_descriptor(int socket, Clock::time_point deadline) {
  wait_for(socket, POLLIN, deadline);
  Parcel parcel;
  const ssize_t bytes = ::recvmsg(socket, &parcel.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = bytes < 0 ? nullptr : CMSG_FIRSTHDR(&parcel.header);
  if (bytes != static_cast<ssize_t>(sizeof(parcel.rank)) || !header || header->cmsg_type != SCM_RIGHTS) {
    if (bytes >= 0) errno = ECONNRESET;
    cannot("get memory from another rank");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return {parcel.rank, Descriptor(descriptor)};
}

bool is_of_this_user(int socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

MeetingPlace::MeetingPlace() {
  const std::string name = random_name();
  socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, length);
  if (socket() < 0 || ::bind(socket(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket(), SOMAXCONN) != 0) {
    cannot("listen");
  }
  text_ = host_text() + " " + name;
}

bool same_host(const std::string& place, const std::string& other) {
  const std::string host = host_and_name(place).first;
  return !host.empty() && host == host_and_name(other).first;
}

std::map<int64_t, Neighbour> meet(int64_t rank, const MeetingPlace& own,
                                  const std::vector<std::string>& places,
                                  const std::function<int(int64_t peer)>& file_for, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::map<int64_t, Neighbour> met;
  // Every rank calls on those with smaller numbers, without waiting for an answer, before it answers any: so
  // nobody waits in a circle.
  int64_t callers = 0;
  for (int64_t peer = 0; peer < static_cast<int64_t>(places.size()); ++peer) {
    const std::string& place = places[static_cast<size_t>(peer)];
    if (peer == rank || !same_host(place, places[static_cast<size_t>(rank)])) continue;
    if (peer > rank) {
      ++callers;
      continue;
    }
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    socklen_t length = 0;
    const sockaddr_un address = address_of(host_and_name(place).second, length);
    if (socket.number() < 0 ||
        ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      cannot(fmt::format("call on rank {}", peer).c_str());
    }
    send_descriptor(socket.number(), rank, file_for(peer));
    met.emplace(peer, Neighbour{std::move(socket), Descriptor()});
  }
  while (callers > 0) {
    wait_for(own.socket(), POLLIN, deadline);
    Descriptor socket(::accept4(own.socket(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.number() < 0 || !is_of_this_user(socket.number())) continue;
    auto [peer, file] = receive_descriptor(socket.number(), deadline);
    send_descriptor(socket.number(), rank, file_for(peer));
    met.emplace(peer, Neighbour{std::move(socket), std::move(file)});
    --callers;
  }
  for (auto& [peer, neighbour] : met) {
    if (peer < rank) neighbour.file = receive_descriptor(neighbour.socket.number(), deadline).second;
  }
  return met;
}

}  // namespace tessera::comm
