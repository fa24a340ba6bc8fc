#include "comm/local_peers.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/error.h"
#include "core/system_call.h"
#include "core/text.h"

namespace tessera::comm {
namespace {

[[noreturn]] void refused(const std::string& what) {
  throw Error(ErrorKind::kPeer, "shared memory",
              what + "; use " + field("shared_memory", false) + " to run without it");
}

[[noreturn]] void cannot(const std::string& what) {
  refused(fmt::format("cannot {}: {}", what, system_reason(errno)));
}

// The name is in the abstract namespace, which belongs to the network namespace and leaves nothing in the
// file system.
std::optional<sockaddr_un> address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) return std::nullopt;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

std::pair<std::string, std::string> host_and_name(const std::string& endpoint) {
  const size_t end = endpoint.rfind(' ');
  if (end == std::string::npos) return {"", endpoint};
  return {endpoint.substr(0, end), endpoint.substr(end + 1)};
}

void wait_for(int socket, short events, Deadline deadline) {
  pollfd poll = {.fd = socket, .events = events, .revents = 0};
  while (true) {
    const int count = ::poll(&poll, 1, static_cast<int>(time_left(deadline).count()));
    if (count > 0) return;
    if (count < 0 && errno == EINTR) continue;
    if (count == 0 && std::chrono::steady_clock::now() < deadline) continue;
    if (count == 0) errno = ETIMEDOUT;
    cannot("reach another rank");
  }
}

bool is_of_this_user(int socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

// A greeting in the form in which it is sent.
struct WireGreeting {
  std::array<char, 8> protocol;
  int64_t from, to;
};
constexpr std::array<char, 8> kProtocol = {'t', 'e', 's', 's', 'e', 'r', 'a', '2'};

// Holds the buffers of sendmsg and recvmsg for a greeting together with a descriptor.
struct Parcel {
  Parcel() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  WireGreeting greeting = {};
  iovec data = {.iov_base = &greeting, .iov_len = sizeof(greeting)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr header = {};
};

void send_file(int socket, Greeting greeting, int file) {
  Parcel parcel;
  parcel.greeting = {kProtocol, greeting.from, greeting.to};
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  const ssize_t sent = uninterrupted([&] { return ::sendmsg(socket, &parcel.header, MSG_NOSIGNAL); });
  if (sent != static_cast<ssize_t>(sizeof(parcel.greeting)))
    cannot(fmt::format("send memory to rank {}", greeting.to));
}

std::pair<Greeting, Descriptor> receive_file(int socket, Deadline deadline) {
  wait_for(socket, POLLIN, deadline);
  Parcel parcel;
  const ssize_t bytes = uninterrupted([&] { return ::recvmsg(socket, &parcel.header, MSG_CMSG_CLOEXEC); });
  if (bytes < 0) cannot("get memory from another rank");
  Descriptor file;
  // Take the descriptor before checking anything, or it would stay open.
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.header);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(int));
    file = Descriptor(number);
  }
  const auto greeting =
      parse_greeting(std::as_bytes(std::span(&parcel.greeting, 1)).first(static_cast<size_t>(bytes)));
  if (!greeting || file.number() < 0 || (parcel.header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    const bool no_descriptor_left = file.number() < 0 && (parcel.header.msg_flags & MSG_CTRUNC) != 0;
    errno = no_descriptor_left ? EMFILE : ECONNRESET;
    cannot("get memory from another rank");
  }
  return {*greeting, std::move(file)};
}

void take_answer(int64_t rank, int64_t peer, PeerConnection& connection, Deadline deadline) {
  std::pair<Greeting, Descriptor> answer = receive_file(connection.socket.number(), deadline);
  const Greeting& greeting = answer.first;
  if (greeting.from != peer || greeting.to != rank)
    refused(fmt::format("rank {} answers as rank {} to rank {}", peer, greeting.from, greeting.to));
  connection.file = std::move(answer.second);
}

Descriptor call(int64_t peer, const std::string& endpoint) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const auto address = address_of(host_and_name(endpoint).second, length);
  if (!address) refused(fmt::format("the name of rank {} is too long", peer));
  const auto* const to = reinterpret_cast<const sockaddr*>(&*address);
  if (socket.number() < 0 || uninterrupted([&] { return ::connect(socket.number(), to, length); }) != 0) {
    cannot(fmt::format("connect to rank {}", peer));
  }
  return socket;
}

void require_this_user(int socket, int64_t peer) {
  if (!is_of_this_user(socket)) refused(fmt::format("rank {} is a process of another user", peer));
}

}  // namespace

LocalEndpoint::LocalEndpoint() {
  const std::string name = "tessera-" + random_name();
  socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const auto address = address_of(name, length);
  if (socket() < 0 || ::bind(socket(), reinterpret_cast<const sockaddr*>(&*address), length) != 0 ||
      ::listen(socket(), SOMAXCONN) != 0) {
    cannot("listen");
  }
  text_ = this_host() + name;
}

std::string this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::error_code none;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", none).string();
  return boot.empty() || network.empty() ? " " : boot + " " + network + " ";
}

bool same_host(const std::string& endpoint, const std::string& other) {
  const std::string host = host_and_name(endpoint).first;
  return !host.empty() && host == host_and_name(other).first;
}

std::optional<Greeting> parse_greeting(std::span<const std::byte> bytes) {
  WireGreeting greeting = {};
  if (bytes.size() != sizeof(greeting)) return std::nullopt;
  std::memcpy(&greeting, bytes.data(), sizeof(greeting));
  if (greeting.protocol != kProtocol || greeting.from < 0 || greeting.to < 0) return std::nullopt;
  return Greeting{greeting.from, greeting.to};
}

PeerConnections connect_local_peers(int64_t rank, const LocalEndpoint& own,
                                    const std::vector<std::string>& endpoints, const FileForPeer& file_for,
                                    Deadline deadline) {
  PeerConnections peers;
  // Every rank calls those with smaller numbers, without waiting for answers, before it answers any; so ranks
  // cannot wait in a circle.
  std::map<int64_t, bool> callers;  // whether each has called
  for (int64_t peer = 0; peer < static_cast<int64_t>(endpoints.size()); ++peer) {
    const std::string& endpoint = endpoints[static_cast<size_t>(peer)];
    if (peer == rank || !same_host(endpoint, endpoints[static_cast<size_t>(rank)])) continue;
    if (peer > rank) {
      callers[peer] = false;
      continue;
    }
    Descriptor socket = call(peer, endpoint);
    require_this_user(socket.number(), peer);
    send_file(socket.number(), {rank, peer}, file_for(peer));
    peers.emplace(peer, PeerConnection{std::move(socket), Descriptor()});
  }
  for (size_t came = 0; came < callers.size();) {
    wait_for(own.socket(), POLLIN, deadline);
    Descriptor socket(::accept4(own.socket(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.number() < 0 && errno != EINTR && errno != ECONNABORTED) cannot("accept another rank");
    if (socket.number() < 0 || !is_of_this_user(socket.number())) continue;
    auto [greeting, file] = receive_file(socket.number(), deadline);
    const auto caller = callers.find(greeting.from);
    if (greeting.to != rank || caller == callers.end() || caller->second)
      refused(fmt::format("a process called as rank {} on rank {}", greeting.from, greeting.to));
    caller->second = true;
    ++came;
    send_file(socket.number(), {rank, greeting.from}, file_for(greeting.from));
    peers.emplace(greeting.from, PeerConnection{std::move(socket), std::move(file)});
  }
  for (auto& [peer, connection] : peers) {
    if (peer < rank) take_answer(rank, peer, connection, deadline);
  }
  return peers;
}

PeerConnections greet_local_peers(int64_t rank, std::map<int64_t, Descriptor> sockets,
                                  const FileForPeer& file_for, Deadline deadline) {
  PeerConnections peers;
  for (auto& own : sockets) {
    const int64_t peer = own.first;
    require_this_user(own.second.number(), peer);
    send_file(own.second.number(), {rank, peer}, file_for(peer));
    peers.emplace(peer, PeerConnection{std::move(own.second), Descriptor()});
  }
  for (auto& [peer, connection] : peers) take_answer(rank, peer, connection, deadline);
  return peers;
}

}  // namespace tessera::comm
