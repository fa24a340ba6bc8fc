#include "core/folders.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera {
namespace {

TEST(OwnPath, IsThatOfTheProgramThatHoldsTheCode) {
  EXPECT_EQ(own_path(), std::filesystem::canonical("/proc/self/exe"));
}

TEST(OwnPath, PrefixesBeginWithThatOfTheEnvironment) {
  const std::filesystem::path own = own_path().parent_path().parent_path();
  EXPECT_EQ(install_prefixes(), std::vector{own});
  ::setenv("TESSERA_PREFIX", "/opt/tessera", 1);
  EXPECT_EQ(install_prefixes(), (std::vector<std::filesystem::path>{"/opt/tessera", own}));
  ::setenv("TESSERA_PREFIX", "", 1);
  EXPECT_EQ(install_prefixes(), std::vector{own});
  ::unsetenv("TESSERA_PREFIX");
}

}  // namespace
}  // namespace tessera
