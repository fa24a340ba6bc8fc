#include "comm/address.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::comm {
namespace {

TEST(Address, OfTheLoopbackDevice) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "localhost", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "node7", "2001:db8::1"}) EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(Address, TowardsThisHost) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(is_loopback(address_towards("localhost")));
}

TEST(Address, TowardsNowhere) {
  try {
    address_towards("no such host");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeer);
    EXPECT_TRUE(std::string(error.what()).starts_with("[no such host] has no address: ")) << error.what();
  }
}

}  // namespace
}  // namespace tessera::comm
