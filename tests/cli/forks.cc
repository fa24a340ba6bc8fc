// The program, and with `--serve SOCKET` a server that runs its command lines in forks of itself: loading
// libtorch takes longer than most command lines that are tested.
//
// A client connects, sends one message with its standard streams as descriptors, and shuts down its side. The
// message has the working directory, the number of variables, the variables and the arguments, each ended by
// a NUL. The server answers with a line that holds the process and, when that has ended, one with its exit
// code, or with the negative number of the signal that ended it.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run.h"

namespace tessera {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  fmt::print(stderr, "tessera_forks: {}: {}\n", what, std::strerror(errno));
  ::_exit(1);
}

struct Request {
  std::array<int, 3> streams{-1, -1, -1};
  std::vector<std::string> words;
};

Request receive(int connection) {
  Request request;
  std::string text;
  std::array<char, 65536> bytes{};
  for (;;) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(request.streams))> control{};
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t count = ::recvmsg(connection, &message, 0);
    require(count >= 0, "recvmsg");
    if (count == 0) break;
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message))
      std::memcpy(request.streams.data(), CMSG_DATA(header), sizeof(request.streams));
    text.append(bytes.data(), static_cast<size_t>(count));
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\0', begin);
    request.words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return request;
}

[[noreturn]] void run_request(const Request& request) {
  for (int stream = 0; stream < 3; ++stream) {
    require(::dup2(request.streams[static_cast<size_t>(stream)], stream) >= 0, "dup2");
    ::close(request.streams[static_cast<size_t>(stream)]);
  }
  const std::vector<std::string>& words = request.words;
  require(::chdir(words.at(0).c_str()) == 0, words[0].c_str());
  ::clearenv();
  const auto variables = std::stoul(words.at(1));
  for (size_t i = 0; i < variables; ++i) {
    const std::string& word = words.at(2 + i);
    const size_t name = word.find('=');
    require(::setenv(word.substr(0, name).c_str(), word.c_str() + name + 1, 1) == 0, "setenv");
  }
  cli::end_program(cli::run({words.begin() + 2 + static_cast<std::ptrdiff_t>(variables), words.end()}));
}

void answer(int connection, const std::string& line) {
  (void)!::send(connection, line.data(), line.size(), MSG_NOSIGNAL);  // a client that gave up is gone
}

[[noreturn]] void attend(int connection) {
  const Request request = receive(connection);
  const pid_t process = ::fork();
  require(process >= 0, "fork");
  if (process == 0) {
    ::close(connection);
    run_request(request);
  }
  for (const int stream : request.streams) ::close(stream);
  answer(connection, fmt::format("{}\n", process));
  int status = 0;
  require(::waitpid(process, &status, 0) == process, "waitpid");
  answer(connection, fmt::format("{}\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)));
  ::_exit(0);
}

[[noreturn]] void serve(std::string_view path) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGCHLD, SIG_IGN);  // those that attend leave no zombies
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  require(path.size() < sizeof(address.sun_path), "the path of the socket is too long");
  path.copy(address.sun_path, path.size());
  require(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "bind");
  require(::listen(listener, SOMAXCONN) == 0, "listen");
  for (;;) {
    const int connection = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    require(connection >= 0, "accept");
    if (::fork() == 0) {
      std::signal(SIGCHLD, SIG_DFL);
      ::close(listener);
      attend(connection);
    }
    ::close(connection);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--serve") tessera::serve(argv[2]);
  tessera::cli::end_program(tessera::cli::run({argv + 1, argv + argc}));
}
