#include "launch/failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>

#include "comm/peer_error.h"
#include "core/error.h"

namespace tessera::launch {
namespace {

template <typename Thrown>
int exit_code_of(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return current_failure().exit_code;
  }
}

TEST(Failure, MemoryThatRunsOutInALibraryIsOneCode) {
  constexpr int kMemory = static_cast<int>(ErrorKind::kMemory);
  EXPECT_EQ(exit_code_of(std::bad_alloc()), kMemory);
  EXPECT_EQ(exit_code_of(std::runtime_error("could not create a primitive")), kMemory);
  EXPECT_EQ(exit_code_of(std::runtime_error("could not execute a primitive")), kMemory);
  EXPECT_EQ(exit_code_of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))),
            kMemory);
  EXPECT_EQ(exit_code_of(c10::Error({"f", "a.cc", 1}, "DefaultCPUAllocator: can't allocate memory")),
            kMemory);
  EXPECT_EQ(exit_code_of(c10::Error({"f", "a.cc", 1}, "could not create a primitive")), kMemory);
}

// Their number does not count: they are computed in groups that hold little.
TEST(Failure, AdviceForMemoryIsNotToAskForFewerImages) {
  try {
    throw std::bad_alloc();
  } catch (...) {
    const std::string message = current_failure().message;
    EXPECT_TRUE(
        message.starts_with("[memory] not enough memory; try a smaller size, fewer frames of a video, "))
        << message;
  }
}

TEST(Failure, ALimitOnThreadsIsNamed) {
  try {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  } catch (...) {
    const std::string message = current_failure().message;
    EXPECT_TRUE(message.starts_with("[memory] cannot start a thread; raise the limit on processes"))
        << message;
  }
}

TEST(Failure, WhatIsNoMatterOfMemoryIsNot) {
  EXPECT_EQ(exit_code_of(std::runtime_error("could not create a primitive descriptor for the sum primitive")),
            kInternalError);
  EXPECT_EQ(exit_code_of(std::runtime_error("anything else")), kInternalError);
  EXPECT_EQ(exit_code_of(std::system_error(std::make_error_code(std::errc::io_error))), kInternalError);
  EXPECT_EQ(exit_code_of(Error(ErrorKind::kInput, "file", "cut")), 3);
}

TEST(Failure, KnowsWhichPeerIsLost) {
  try {
    throw comm::PeerError(3, "lost: x");
  } catch (...) {
    const Failure failure = current_failure();
    EXPECT_EQ(failure.exit_code, 4);
    EXPECT_EQ(failure.message, "[rank 3] lost: x");
    EXPECT_EQ(failure.peer, 3);
  }
}

// Messages quote a model's files, which must not steer the terminal or break the line.
TEST(Failure, IsPrintedWithoutControlCharacters) {
  const Failure failure{3, "[model_index.json] 'a\x1b[2J\x1b]52;c;eA==\x07\x7f' on\nlines\r of \xc3\xa9\n"};
  testing::internal::CaptureStderr();
  const int code = print_failure(failure, {});
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tessera: [model_index.json] 'a [2J ]52;c;eA==  ' on lines  of \xc3\xa9\n");
  EXPECT_EQ(code, 3);
}

}  // namespace
}  // namespace tessera::launch
