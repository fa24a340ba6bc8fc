#include "comm/local_peers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "core/error.h"

namespace tessera::comm {
namespace {

Deadline in_seconds(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

// Returns a file with the content `text`.
Descriptor file_with(const std::string& text) {
  Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.number(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

std::string text_of(const Descriptor& file) {
  std::array<char, 64> text = {};
  const ssize_t bytes = ::pread(file.number(), text.data(), text.size(), 0);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(0, bytes))};
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeer);
    return error.what();
  }
  return "no error";
}

sockaddr_un address_of(const std::string& endpoint, socklen_t& length) {
  const std::string name = endpoint.substr(endpoint.rfind(' ') + 1);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor connected_to(const std::string& endpoint) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = address_of(endpoint, length);
  EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  return socket;
}

// Sends bytes together with descriptor `file`, unless that is -1.
void send_with(int socket, const std::string& bytes, int file) {
  iovec data = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  }
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL);
}

std::string greeting_bytes(int64_t from, int64_t to) {
  std::string bytes = "tessera2";
  bytes.append(reinterpret_cast<const char*>(&from), sizeof(from));
  bytes.append(reinterpret_cast<const char*>(&to), sizeof(to));
  return bytes;
}

// Runs `work` in a process of another user; returns its result.
bool as_another_user(const std::function<bool()>& work) {
  const pid_t process = ::fork();
  if (process == 0) {
    constexpr uid_t kOther = 54321;
    if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) ::_exit(2);
    ::_exit(work() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << status;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Returns whether a descriptor comes over this socket before it is closed.
bool gets_a_file(int socket) {
  std::array<char, 64> bytes = {};
  iovec data = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  return ::recvmsg(socket, &message, 0) >= 0 && CMSG_FIRSTHDR(&message) != nullptr;
}

TEST(LocalPeersOfRanks, EachTwoHandEachOtherAFile) {
  constexpr int64_t kRanks = 4;
  const std::vector<LocalEndpoint> endpoints(kRanks);
  std::vector<std::string> texts;
  texts.reserve(endpoints.size());
  for (const LocalEndpoint& endpoint : endpoints) texts.push_back(endpoint.text());
  texts[2] = "another " + texts[2];  // host
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::map<int64_t, Descriptor> files;
      const auto file_for = [&](int64_t peer) {
        return (files[peer] = file_with(fmt::format("{} for {}", rank, peer))).number();
      };
      const PeerConnections peers =
          connect_local_peers(rank, endpoints[static_cast<size_t>(rank)], texts, file_for, in_seconds(20));
      EXPECT_EQ(peers.size(), rank == 2 ? 0U : 2U);
      for (const auto& [peer, connection] : peers)
        EXPECT_EQ(text_of(connection.file), fmt::format("{} for {}", peer, rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalPeersOfRanks, InheritedSocketsLeadToTheSame) {
  std::array<int, 2> pair = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  const auto greet = [&](int64_t rank, int64_t peer, int socket) {
    const Descriptor file = file_with(fmt::format("of {}", rank));
    std::map<int64_t, Descriptor> sockets;
    sockets.emplace(peer, Descriptor(socket));
    const PeerConnections peers =
        greet_local_peers(rank, std::move(sockets), [&](int64_t) { return file.number(); }, in_seconds(20));
    EXPECT_EQ(text_of(peers.at(peer).file), fmt::format("of {}", peer));
  };
  std::thread other([&] { greet(5, 3, pair[1]); });
  greet(3, 5, pair[0]);
  other.join();
}

TEST(LocalPeersOfRanks, AGreetingIsChecked) {
  const auto parse = [](const std::string& text) { return parse_greeting(std::as_bytes(std::span(text))); };
  ASSERT_TRUE(parse(greeting_bytes(3, 0)));
  EXPECT_EQ(parse(greeting_bytes(3, 0))->from, 3);
  EXPECT_FALSE(parse(greeting_bytes(-1, 0)));
  EXPECT_FALSE(parse(greeting_bytes(3, INT64_MIN)));
  EXPECT_FALSE(parse(greeting_bytes(3, 0).substr(1)));
  EXPECT_FALSE(parse(greeting_bytes(3, 0) + "x"));
  EXPECT_FALSE(parse("tessera1" + greeting_bytes(3, 0).substr(8)));
  EXPECT_FALSE(parse(""));
}

// Connects rank 0 of two, which a caller sends `bytes` and `file`; returns rank 0's error.
std::string answer_to(const std::string& bytes, int file) {
  const LocalEndpoint own, other;
  const Descriptor caller = connected_to(own.text());
  send_with(caller.number(), bytes, file);
  const Descriptor memory = file_with("own");
  return error_of([&] {
    connect_local_peers(
        0, own, {own.text(), other.text()}, [&](int64_t) { return memory.number(); }, in_seconds(1));
  });
}

TEST(LocalPeersOfRanks, WhoeverCallsSaysWhoItIs) {
  const Descriptor file = file_with("x");
  EXPECT_EQ(answer_to(greeting_bytes(1, 0), file.number()), "no error");
  for (const auto& [from, to] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 0}, {0, 0}, {1, 1}, {INT64_MAX, 0}}) {
    const std::string error = answer_to(greeting_bytes(from, to), file.number());
    EXPECT_NE(error.find("a process called as rank"), std::string::npos) << error;
  }
  for (const std::string& bytes :
       {greeting_bytes(1, 0).substr(1), greeting_bytes(1, 0) + "x", std::string("x")})
    EXPECT_NE(answer_to(bytes, file.number()).find("cannot get memory"), std::string::npos);
  EXPECT_NE(answer_to(greeting_bytes(1, 0), -1).find("cannot get memory"), std::string::npos);
}

TEST(LocalPeersOfRanks, WhoDoesNotComeIsWaitedForUntilTheDeadline) {
  const LocalEndpoint own, other;
  const Descriptor memory = file_with("own");
  const std::string error = error_of([&] {
    connect_local_peers(
        0, own, {own.text(), other.text()}, [&](int64_t) { return memory.number(); },
        std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  });
  EXPECT_NE(error.find("cannot reach another rank"), std::string::npos) << error;
}

TEST(LocalPeersOfRanks, AnEndOfDescriptorsIsNotWaitedFor) {
  const LocalEndpoint own, other;
  const Descriptor memory = file_with("own"), caller = connected_to(own.text());
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 1, .rlim_max = limit.rlim_max};  // poll() wants room for one
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string error = error_of([&] {
    connect_local_peers(
        0, own, {own.text(), other.text()}, [&](int64_t) { return memory.number(); }, in_seconds(20));
  });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(error.find("cannot accept another rank: Too many open files (ulimit -n)"), std::string::npos)
      << error;
}

// A process of another user knows all names, but gets nothing.
TEST(LocalPeersOfRanks, AnotherUserCannotJoin) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const LocalEndpoint own, other;
  const Descriptor memory = file_with("secret"), bait = file_with("bait");
  const std::string bytes = greeting_bytes(1, 0), endpoint = own.text();
  std::promise<std::string> result;
  std::thread rank([&] {
    result.set_value(error_of([&] {
      connect_local_peers(
          0, own, {own.text(), other.text()}, [&](int64_t) { return memory.number(); }, in_seconds(2));
    }));
  });
  EXPECT_FALSE(as_another_user([&] {
    const Descriptor socket = connected_to(endpoint);
    send_with(socket.number(), bytes, bait.number());
    return gets_a_file(socket.number());
  }));
  rank.join();
  // The rank ignored it and still waited for the rank of the same user.
  EXPECT_NE(result.get_future().get().find("cannot reach another rank"), std::string::npos);
}

TEST(LocalPeersOfRanks, AnotherUserIsHandedNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  // It listens under another name, which rank 1 gets as that of rank 0.
  const LocalEndpoint own;
  const std::string host = own.text().substr(0, own.text().rfind(' '));
  const std::string name = host + " tessera-test-of-another-user";
  std::array<int, 2> ready = {};
  ASSERT_EQ(::pipe(ready.data()), 0);
  std::promise<std::string> result;
  std::thread rank([&] {
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    const Descriptor memory = file_with("secret");
    result.set_value(error_of([&] {
      connect_local_peers(
          1, own, {name, own.text()}, [&](int64_t) { return memory.number(); }, in_seconds(5));
    }));
  });
  EXPECT_FALSE(as_another_user([&] {
    const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    socklen_t length = 0;
    const sockaddr_un address = address_of(name, length);
    if (::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(socket.number(), 1) != 0 || ::write(ready[1], "x", 1) != 1) {
      ::_exit(2);
    }
    const Descriptor caller(::accept(socket.number(), nullptr, nullptr));
    return gets_a_file(caller.number());
  }));
  rank.join();
  ::close(ready[0]);
  ::close(ready[1]);
  const std::string error = result.get_future().get();
  EXPECT_NE(error.find("rank 0 is a process of another user"), std::string::npos) << error;
}

}  // namespace
}  // namespace tessera::comm
